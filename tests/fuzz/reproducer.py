"""Writes a fault as a script that a person can run: the program, the statements, the comparison.

It needs this package, TVM and numpy, and nothing of the fuzzer. The first lines also hold the
decisions of the case, for `python -m tests.fuzz --replay FILE`.
"""

import re
from pathlib import Path

from . import arrays
from .case import Case, Outcome

IMPORTS = """\
import numpy as np
import tvm
import tvm.script
from tvm import s_tir, tirx

import tvm_hopper
from tvm_hopper import schedule as hs
from tvm_hopper.testing.workloads import numpy_type
"""
COMPARE = """\
plain = tvm.script.from_source({text})
arguments = {arguments}
values = []
for name, dtype, shape in arguments:
    given = start.get(name, -77)
    if shape is not None:
        given = tvm.runtime.tensor(np.broadcast_to(given, shape).astype(numpy_type(dtype)))
    values.append(given)
tvm.compile(plain, target="llvm")["main"](*values)
print("simulator:", result.verdict)
for finding in result.findings[:3]:
    print(finding)
for (name, _, _), value in zip(arguments, values):
    if name in {outputs}:
        got, want = result.outputs[name].astype("float64"), value.numpy().astype("float64")
        print(name, "elements that differ:", int((got != want).sum()), "of", got.size)
"""
DECISIONS = re.compile(r"^decisions: (\w+) ([\d ]*)$", re.M)
LAST_OF = ("program", "schedule", "build", "inspect", "assemble", "simulate", "verify")


def write(
    folder: Path, number: str, family: str, made: list[int], case: Case, out: Outcome
) -> Path:
    """Write one script; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{out.kind}_{family}_{number}.py"
    path.write_text(text(number, family, made, case, out))
    return path


def read_decisions(path: Path) -> tuple[str, list[int]]:
    """Return family and decisions that a script holds."""
    found = DECISIONS.search(path.read_text())
    if found is None:
        raise ValueError(f"{path}: found no decisions; need a script that the fuzzer wrote")
    return found[1], [int(x) for x in found[2].split()]


def text(number: str, family: str, made: list[int], case: Case, out: Outcome) -> str:
    """Return the script of one fault, up to the phase in which it shows."""
    said = out.text.replace("\\", "/").replace('"""', "'''")[:1500]
    decisions = " ".join(map(str, made))
    head = f'"""{out.kind} ({out.phase}): {said}\n\ncase {family}:{number}\n'
    lines = [f'{head}decisions: {family} {decisions}\n"""\n', IMPORTS]
    lines.append(f"PROGRAM = '''\n{case.program.text}'''")
    lines.append("mod = tvm.script.from_source(PROGRAM)\nsch = s_tir.Schedule(mod)")
    sets_module = False
    for step in case.steps:
        note = f"  # must be refused: {step.must_refuse}" if step.must_refuse else ""
        lines.append(step.text + note)
        sets_module |= step.text.startswith("mod = ")
    phase = LAST_OF.index(out.phase) if out.phase in LAST_OF else 1
    if phase >= 2 and case.build:
        lines += [] if sets_module else ["mod = sch.mod"]
        if case.program.must_refuse:
            lines.append(f"# must be refused: {case.program.must_refuse}")
        lines.append(case.build)
    if out.phase == "inspect":
        lines.append("print(tvm_hopper.explain(ex))")
    if out.phase == "assemble":
        lines.append("tvm_hopper.cubin(ex)")
    if phase >= 5:
        lines += _run(case)
    if out.phase == "verify":
        lines.append("print(tvm_hopper.verify(ex, inputs))")
    if case.after and phase in (1, 2):
        lines += [case.build if phase == 1 else "", *(s.text for s in case.after)]
    return "\n".join(lines) + "\n"


def _run(case: Case) -> list[str]:
    """Return the lines that simulate and compare with stock TVM on the CPU."""
    program = case.program
    mod = arrays.read(program, bool(program.compact))
    args = arrays.arguments(mod, program.extents)
    reference = arrays.reference(program)
    lines = ["start = {"]
    for position, a in enumerate(args):
        if a.name not in reference.inputs:
            continue
        if a.shape is None:
            lines.append(f'    "{a.name}": {program.extents[a.name]},')
            continue
        is_held = a.name in reference.outputs and a.name not in program.fills
        expression = arrays.HELD if is_held else program.fills.get(a.name, arrays.operand(a.dtype))
        expression = re.sub(r"\brng\b", f"np.random.default_rng({position})", expression)
        expression = re.sub(r"\bshape\b", str(a.shape), expression)
        lines.append(f'    "{a.name}": ({expression}).astype(numpy_type("{a.dtype}")),')
    lines += ["}", "inputs = {k: np.array(v) if np.ndim(v) else v for k, v in start.items()}"]
    for name, view in program.views.items():
        shape = next(a.shape for a in args if a.name == name)
        dtype = next(a.dtype for a in args if a.name == name)
        assert shape is not None  # a view is one of a tensor
        steps = zip(shape, view.strides, strict=True)
        length = view.offset + sum((n - 1) * s for n, s in steps) + 9
        lines += [
            f'base = np.full({length}, -77).astype(numpy_type("{dtype}"))',
            f"view = np.lib.stride_tricks.as_strided(base[{view.offset}:], {shape}, "
            f"tuple(s * base.itemsize for s in {view.strides}))",
            f'view[...] = start.get("{name}", -77)',
            f'inputs["{name}"] = view',
        ]
    lines.append(f'result = tvm_hopper.simulate(ex, inputs, policy="{case.policy}")')
    described = [(a.name, a.dtype, a.shape) for a in args]
    source = "PROGRAM"
    if program.compact:
        lines.append(f"COMPACT = '''\n{program.compact}'''")
        source = "COMPACT"
    outputs = sorted(reference.outputs)
    lines.append(COMPARE.format(text=source, arguments=described, outputs=outputs))
    return lines
