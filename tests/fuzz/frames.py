"""`python -m tests.fuzz.frames --cases 2000`: assemble programs, count stack frames and spills.

    nice python -m tests.fuzz.frames --cases 2000 --out frames.jsonl
    nice python -m tests.fuzz.frames --population programs.py --out frames.jsonl

One line a program, and in one process: what is in the file already is not run again. Programs are
the fuzzer's cases, Relax graphs with products of random epilogues, and those of a file with a
function `population(seed, count)`, of cases that have `relax()`. The exit code is 1 where a program
that was accepted has an array in local memory, a spill or a remark of the assembler.
"""

import argparse
import importlib.util
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tvm
from tvm import relax, s_tir

import tvm_hopper
from tvm_hopper import schedule as hs
from tvm_hopper.cuda_build import records
from tvm_hopper.errors import CompileError

from . import arrays
from .case import TARGET
from .draw import fresh
from .families import FAMILIES

FAMILIES_OF_KERNELS = ("matmul", "configurations", "steps", "loops", "copies", "pipelines")
SIZES = (64, 96, 256, 1000, 1024, 4096, 8192)


def graph(rng: random.Random) -> tvm.IRModule:
    """Build a product with some operators behind it, or a norm or softmax between two of them."""
    op, dtype = relax.op, rng.choice(("float16", "bfloat16"))
    m, n, k = (rng.choice(SIZES) for _ in range(3))
    shapes = {"x": (m, k), "w": (n, k), "y": (m, n), "b": (n,)}
    x, w, y, b = (relax.Var(name, relax.TensorType(s, dtype)) for name, s in shapes.items())
    steps = {
        "bias": lambda v: op.add(v, b),
        "residual": lambda v: op.add(v, y),
        "gate": lambda v: op.multiply(op.nn.silu(v), y),
        "scale": lambda v: op.multiply(v, relax.const(0.125, dtype)),
        "softmax": lambda v: op.nn.softmax(v, -1),
        "rms_norm": lambda v: op.nn.rms_norm(v, b, [-1]),
        "layer_norm": lambda v: op.nn.layer_norm(v, b, b, [-1]),
    }
    steps |= {x: getattr(op.nn, x) for x in ("gelu", "gelu_tanh", "silu", "relu", "selu")}
    steps |= {x: getattr(op, x) for x in ("sigmoid", "tanh", "exp", "erf", "sin", "abs")}
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w, y, b]):
        with builder.dataflow():
            value = op.matmul(x, op.permute_dims(w)) if rng.random() < 0.7 else y
            for _ in range(rng.randint(1, 4)):
                value = builder.emit(steps[rng.choice(list(steps))](value))
            out = builder.emit_output(value)
        builder.emit_func_output(out)
    return builder.finalize()


def build_case(family: str, seed: int, number: int) -> Any:
    """Build a case of the fuzzer."""
    case = FAMILIES[family](fresh(family, seed, number))
    scope = {"hs": hs, "s_tir": s_tir, "tvm": tvm, "tvm_hopper": tvm_hopper, "tirx": tvm.tirx}
    scope["sch"] = s_tir.Schedule(arrays.read(case.program))
    for step in case.steps:
        exec(step.text, scope)
    scope.setdefault("mod", scope["sch"].mod)
    exec(case.build or "ex = None", scope)
    return scope["ex"]


def build_graph(mod: tvm.IRModule) -> Any:
    """Build a Relax module by the pipeline of this package."""
    return relax.build(mod, target=TARGET, relax_pipeline="tvm_hopper")


def assemble(make: Any) -> dict[str, Any]:
    """Build and assemble one program; say what came of it."""
    try:
        ex = make()
        built = [] if ex is None else records.lookup_all(ex)
    except Exception as error:  # refused, whatever the reason
        return {"kind": "refused", "text": f"{type(error).__name__}: {str(error)[:200]}"}
    try:
        kernels = [x for record in built for x in record.compile().kernels.values()]
    except CompileError as error:
        return {"kind": "remark", "text": str(error)[:400]}
    spilled = {x.name: x.spill_store_bytes + x.spill_load_bytes for x in kernels}
    frames = {x.name: x.stack_bytes for x in kernels if x.stack_bytes}
    kind = "spills" if any(spilled.values()) else "frame" if frames else "clean"
    return {"kind": kind if kernels else "no kernel", "frames": frames, "kernels": len(kernels)}


def programs(given: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """Yield the name of each program and what builds it."""
    if given.population:
        spec = importlib.util.spec_from_file_location("population", given.population)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["population"] = module
        spec.loader.exec_module(module)
        for case in module.population(given.seed, given.cases):
            yield f"population:{case.name}", lambda case=case: build_graph(case.relax())
        return
    turns = ("graph", *FAMILIES_OF_KERNELS, "graph")
    for i in range(given.cases):
        family = turns[i % len(turns)]
        name = f"{family}:{given.seed}:{i}"
        if family == "graph":
            yield name, lambda name=name: build_graph(graph(random.Random(name)))
        else:
            yield name, lambda family=family, i=i: build_case(family, given.seed, i)


def main(argv: list[str]) -> int:
    """Run what the file does not have yet; print the counts of all of it."""
    parser = argparse.ArgumentParser("python -m tests.fuzz.frames", description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--population", type=Path, help="a file of programs")
    parser.add_argument("--out", type=Path, default=Path("frames.jsonl"))
    given = parser.parse_args(argv)
    lines = given.out.read_text().splitlines() if given.out.exists() else []
    done = {x["name"]: x for x in map(json.loads, lines)}
    with given.out.open("a") as file:
        for name, make in programs(given):
            if name not in done:
                done[name] = {"name": name, **assemble(make)}
                print(json.dumps(done[name]), file=file, flush=True)
    print(dict(Counter(x["kind"] for x in done.values())))
    bad = [x for x in done.values() if x["kind"] in ("spills", "frame", "remark")]
    for x in bad:
        print(x)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
