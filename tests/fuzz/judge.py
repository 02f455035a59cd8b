"""Runs one case and says what it came to: one of `CLASSES`.

    program -> schedule -> build -> simulate, verify, assemble -> compare with stock TVM on the CPU

What is served must be right, what is refused must be refused by the statement that asks for it,
with a message that `messages.why_unclear` has nothing against, and without a change of the
schedule. Which requests are served and which are refused is not written down here.
"""

import contextlib
import re
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import s_tir, tirx

import tvm_hopper
from tvm_hopper import ir, schedule as hs, simulation
from tvm_hopper.errors import CompileError, HopperError, VerifyError

from . import arrays
from .arrays import Invalid, Reference
from .case import Case, Outcome, Step
from .messages import is_clear, why_unclear

CLASSES = {  # class: what it means
    "right": "the numbers are stock TVM's, and the simulator's verdict is clean",
    "refused": "one clear error, by the statement that asks for it",
    "stock-refused": "a primitive of TVM refused by itself",
    "simulator-gap": "the simulator says that it cannot judge the kernel",
    "invalid": "stock TVM does not take the program, or a statement lacks its variable",
    "refused-late": "hs.matmul accepted, and the build refuses clearly",
    "unclear": "an error that helps nobody (messages.py)",
    "changed": "a refused call left the schedule changed",
    "wrong": "other numbers than stock TVM's",
    "silent": "a request was dropped, or cannot be served, and nobody says so",
    "compile-error": "accepted, but the CUDA compiler or the judge of its log refuses",
    "crash": "an error that nobody meant: of Python, of TVM, of a check of our own",
    "hang": "no answer within the time limit",
    "simulator-alarm": "right numbers, but the simulator's verdict is not clean",
}
NO_FAULT = ("right", "refused", "stock-refused", "simulator-gap", "invalid")
FAULTS = tuple(kind for kind in CLASSES if kind not in NO_FAULT)

# clear refusals by the build that hs.matmul cannot make, since what it asks for may still come
OPERANDS = ("A", "B")  # names of a product's, in programs with a configuration
LATE_BY_NATURE = re.compile(r"(?:store into|block) (\w+).*outside of every kernel")
# signed 32-bit products of something unknown and a constant this large overflow soon
_OVERFLOW = re.compile(r"\w\)* \* (\d{8,})\b(?!L)")


class _Stop(Exception):
    """The case is over: class and text."""

    def __init__(self, kind: str, text: str = "") -> None:
        super().__init__(text)
        self.kind, self.text = kind, text


class Judge:
    """Judges one case; `phase` is where it is."""

    def __init__(self, case: Case) -> None:
        self.case, self.phase = case, "program"
        self.asked: dict[str, Any] = {}
        self.dropped: dict[str, list[Any]] = {}  # values that a later request replaced
        self.accepted_matmul = False
        self.must_refuse: list[str] = []

    def run(self) -> Outcome:
        """Return what the case came to."""
        start = time.monotonic()
        try:
            self._run()
            kind, text = "right", ""
        except _Stop as stop:
            kind, text = stop.kind, stop.text
            if kind in FAULTS:
                kind, text = self._check_program(kind, text)
        except Invalid as error:
            kind, text = "invalid", str(error)
        return Outcome(kind, self.phase, text, time.monotonic() - start)

    def _run(self) -> None:
        program = self.case.program
        plain = arrays.read(program)
        scope: dict[str, Any] = {
            "hs": hs, "np": np, "s_tir": s_tir, "sch": s_tir.Schedule(plain), "tirx": tirx,
            "tvm": tvm, "tvm_hopper": tvm_hopper,
        }  # fmt: skip
        for step in self.case.steps:
            self._step(step, scope)
        if not self.case.build:
            return
        scope.setdefault("mod", scope["sch"].mod)
        self.phase = "build"
        with self._errors(late=self.accepted_matmul and not self.case.judged_at_build):
            exec(self.case.build, scope)
        for why in (*self.must_refuse, program.must_refuse):
            if why:
                raise _Stop("silent", f"accepted, although {why}")
        self.phase = "inspect"
        silent = self._silent(scope["ex"])
        if "host" in silent:
            raise _Stop("silent", silent["host"])
        if self.case.cubin and "evidence" not in silent:
            self.phase = "assemble"
            with self._errors():
                tvm_hopper.cubin(scope["ex"])
        self._simulate(scope["ex"])
        for text in silent.values():
            self.phase = "inspect"
            raise _Stop("silent", text)
        for step in self.case.after:
            self._step(step, scope)

    # -- the schedule -----------------------------------------------------------------------------

    def _step(self, step: Step, scope: dict[str, Any]) -> None:
        self.phase = step.text.split("(")[0].split("= ")[-1] if step.is_ours else "stock"
        before = scope["sch"].mod if "sch" in scope else None
        try:
            exec(step.text, scope)
        except NameError as error:
            raise _Stop("invalid", str(error)) from error
        except Exception as error:
            if not step.is_ours:
                raise _Stop("stock-refused", _last(error)) from error
            stop = self._of_error(error)
            after = scope["sch"].mod if "sch" in scope else None
            if stop.kind == "refused" and not _equal(before, after):
                stop = _Stop("changed", stop.text)
            raise stop from error
        if step.must_refuse:
            self.must_refuse.append(f"{step.must_refuse}: {step.text}")
            if step.is_ours:
                raise _Stop("silent", f"accepted, although {self.must_refuse[-1]}")
        self.accepted_matmul |= "hs.matmul(" in step.text
        for key, value in step.asks.items():
            if key in self.asked and self.asked[key] != value:
                self.dropped.setdefault(key, []).append(self.asked[key])
            self.asked[key] = value

    # -- errors -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _errors(self, late: bool = False) -> Iterator[None]:
        """Turn an exception into the end of the case."""
        try:
            yield
        except Exception as error:
            raise self._of_error(error, late) from error

    def _of_error(self, error: Exception, late: bool = False) -> _Stop:
        text = str(error).strip()
        untrue = self.case.program.untrue
        if isinstance(error, CompileError):
            return _Stop("compile-error", text)
        if isinstance(error, VerifyError):
            return _Stop("crash", f"its own check refuses the kernel: {text}")
        if isinstance(error, AttributeError) and "Invalid config option" in text:
            return _Stop("stock-refused", "a key that PassContext does not know")
        if isinstance(error, s_tir.ScheduleError):
            return _Stop("unclear", f"an error of TVM, {len(text)} characters: {_last(error)}")
        if not is_clear(error, untrue):
            if not isinstance(error, HopperError):
                return _Stop("crash", f"{type(error).__name__}: {_last(error)}")
            return _Stop("unclear", f"[{why_unclear(text, untrue)}] {text}")
        if late and not self._is_late_by_nature(text):
            return _Stop("refused-late", text)
        return _Stop("refused", text)

    def _is_late_by_nature(self, text: str) -> bool:
        """Tell a leftover of the program, which may be scheduled later, from one of ours."""
        left = LATE_BY_NATURE.search(text)
        return left is not None and bool(re.search(rf"\b{left[1]}\b", self.case.program.text))

    def _check_program(self, kind: str, text: str) -> tuple[str, str]:
        """Count a fault only where stock TVM takes the program."""
        try:
            arrays.reference(self.case.program)
            if self.case.program.compact:
                arrays.check(arrays.read(self.case.program))
        except Invalid as error:
            return "invalid", str(error)
        return kind, text

    # -- the result -------------------------------------------------------------------------------

    def _silent(self, executable: Any) -> dict[str, str]:
        """Return what was asked for and is not there."""
        found: dict[str, str] = {}
        try:
            program = simulation.load(executable)
        except (HopperError, ValueError):
            raise self._not_ours() from None
        stores = {str(s.buffer.name) for s in ir.find_all(program.host.body, ir.BufferStore)}
        if stores:
            found["host"] = f"host code writes {', '.join(sorted(stores))} on the device"
        try:
            every = tvm_hopper.explain(program.host).kernels
            multiplies = self.case.evidence == "wgmma"
            kernels = tuple(x for x in every if is_product(x)) if multiplies else tuple(every)
        except HopperError:
            kernels = ()
        texts = [module.inspect_source() for module in executable.mod.imports]
        evidence = self.case.evidence
        notes = [note for kernel in kernels for note in (*kernel.notes, *kernel.fallbacks)]
        has_evidence = any(evidence in text for text in texts)
        if len(kernels) < self.case.kernels or not (has_evidence or notes):
            found["evidence"] = f"{len(kernels)} kernels of {self.case.kernels} use {evidence}"
            return found
        if self.case.program.must_note and not notes:
            found["note"] = f"explain() says nothing of {self.case.program.must_note}"
        for key, value in self.asked.items() if len(kernels) == 1 else ():
            got = planned(kernels[0], key)
            if got == value or got is None or notes:
                continue
            if key in ("raster_group", "persistent") and got not in self.dropped.get(key, ()):
                continue  # clipped to what there is, or chosen by the launch
            found[key] = f"asked for {key} = {value}, got {got}"
        for text in texts:
            lines = [x for x in text.splitlines() if "int64" not in x and "long" not in x]
            match = next(filter(None, map(_OVERFLOW.search, lines)), None)
            if match and int(match[1]) >= 1 << 24:
                found["overflow"] = f"a 32-bit product with {match[1]} in the CUDA text"
        return found

    def _not_ours(self) -> _Stop:
        """Return the end of a case that was built without this package."""
        if self.case.kernels:
            return _Stop("silent", "nothing in the build is a kernel of ours")
        return _Stop("invalid", "nothing is asked of this package")

    def _simulate(self, executable: Any) -> None:
        case = self.case
        reference = arrays.reference(case.program)
        inputs, bases = self._inputs(reference)
        self.phase = "simulate"
        try:
            result = tvm_hopper.simulate(executable, inputs, policy=case.policy)
        except Exception as error:
            if isinstance(error, (HopperError, ValueError)):
                if case.program.views or "modelled" in str(error):
                    raise _Stop("simulator-gap", _last(error)) from error
                raise _Stop("simulator-alarm", f"refuses to run it: {_last(error)}") from error
            raise _Stop("crash", f"{type(error).__name__}: {_last(error)}") from error
        findings = "; ".join(f"{f.rule}: {f.message}"[:200] for f in result.findings[:3])
        if result.verdict == "incomplete":
            raise _Stop("simulator-gap", findings)
        wrong = []
        for name, want in reference.outputs.items():
            got = result.outputs[name]
            text = difference = arrays.difference(got, want, reference.bounds[name])
            if not difference and name in bases and np.shares_memory(got, bases[name][0]):
                text = _outside(name, got, *bases[name])
            wrong += [f"{name}: {text}"] * bool(text)
        if wrong:
            raise _Stop("wrong", f"{'; '.join(wrong)}; simulator {result.verdict} {findings}")
        if result.verdict != "clean":
            raise _Stop("simulator-alarm", findings)
        if case.verify:
            self.phase = "verify"
            with self._errors():
                report = tvm_hopper.verify(executable, inputs)
            if report.verdict == "incomplete":
                raise _Stop("simulator-gap", str(report)[-300:])
            if report.verdict != "clean":
                raise _Stop("simulator-alarm", str(report)[-600:])

    def _inputs(self, reference: Reference) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return inputs, laid out as the program's tensors lie, and allocations of outputs."""
        inputs, bases = {}, {}
        views = self.case.program.views
        for name, value in reference.inputs.items():
            inputs[name] = value.copy() if isinstance(value, np.ndarray) else value
        if self.case.program.extents:  # an extent that no input tells
            for name, value in reference.outputs.items():
                inputs.setdefault(name, np.full_like(value, arrays.POISONS[0]))
        for name, view in views.items():
            values = inputs.get(name, np.full_like(reference.outputs.get(name), -77))
            inputs[name], base = arrays.lay_out(values, view, arrays.POISONS[0])
            if name in reference.outputs:
                bases[name] = (base, base.copy(), view)
        return inputs, bases


def judge(case: Case) -> Outcome:
    """Run one case and say what it came to."""
    return Judge(case).run()


def is_product(kernel: Any) -> bool:
    """Tell a kernel that multiplies: by tensor cores, or by dot products, as a note says."""
    return bool(kernel.product) or any("dot products" in note for note in kernel.notes)


def planned(kernel: Any, key: str) -> Any:
    if key.startswith("swizzle"):  # of the operands: an epilogue's tensors have their own
        name = key.removeprefix("swizzle").removeprefix(" of ")
        names = (name,) if name else OPERANDS
        widths = {m.swizzle for m in kernel.tensor_maps if m.tensor in names}
        return widths.pop() if len(widths) == 1 else widths or None
    value = getattr(kernel, key)
    return value or 0 if key == "persistent" else value


def _outside(name: str, got: np.ndarray, base: np.ndarray, before: np.ndarray, view: Any) -> str:
    """Say whether elements around a view were written."""
    kept = base.copy()
    strides = tuple(s * base.itemsize for s in view.strides)
    inside = np.lib.stride_tricks.as_strided(kept[view.offset :], got.shape, strides)
    inside[...] = np.lib.stride_tricks.as_strided(before[view.offset :], got.shape, strides)
    changed = int((kept != before).sum())
    return f"{changed} elements outside of {name} were written" if changed else ""


def _equal(before: Any, after: Any) -> bool:
    return before is None or after is None or tvm_ffi.structural_equal(before, after)


def _last(error: Exception) -> str:
    """Return the lines of an error that say something, without the program around them."""
    text = str(error).strip()
    place = text.rfind("Error message:")
    return " ".join((text[place:] if place >= 0 else text[-500:]).split())[:500]
