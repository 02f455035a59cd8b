"""What joining gains: `python -m benchmarks.relax_fusions`.

A block of Llama-3-8B without attention, whose q, k, v, gate and up are products of their own, as it
is, with all of them joined by `tvm_hopper.relax.join_products`, and without joining gate and up;
and a residual's sum with the RMSNorm of it, as one kernel and as two.  Contenders in turn in one
process, replayed from graphs, cold L2.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import machine, timing
from benchmarks.models.imported import TARGET
from benchmarks.models.measure import captured
from benchmarks.models.rows import Row
from tvm_hopper.testing.llama import LlamaShape, separate_block

RESULTS = Path(__file__).parent / "results"
REPEATS = 25
ROWS = (1, 16, 128, 2048)
CASES = ("two", "one", "apart", "joined", "gates apart")
FLUSHED = 256 << 20  # bytes written between two calls: more than L2 holds
COLUMNS = [
    "what",
    "rows",
    "apart, us",
    "joined, us",
    "gain",
    "without gates, us",
    "gain ",
    "differ",
]


def build_case(path: str, what: str, dtype: str, classes: tuple[int, ...]) -> None:
    """Build one of the models, named as in `CASES`, into a library."""
    from tvm import relax

    from tvm_hopper.relax import join_products

    pipeline = relax.get_pipeline("tvm_hopper", classes=classes)
    if what in ("one", "two"):
        mod = residual_norm(LlamaShape().hidden, dtype)
        pipeline = apart_pipeline() if what == "two" else pipeline
    else:
        mod = separate_block(LlamaShape(), dtype)
        mod = mod if what == "apart" else join_products(mod, gates=what == "joined")
    relax.build(mod, target=TARGET, relax_pipeline=pipeline).export_library(path)


def residual_norm(hidden: int, dtype: str) -> Any:
    """Return a model of a sum and the norm of it, both of which are read."""
    from tvm import relax

    from tvm_hopper.testing.relax_forms import model_of

    def build(builder: Any, x: Any, y: Any, w: Any) -> Any:
        s = builder.emit(relax.op.add(x, y))
        return [s, relax.op.nn.rms_norm(s, w, [-1])]

    shapes = ("rows", hidden), ("rows", hidden), (hidden,)
    return model_of(build, *((shape, dtype) for shape in shapes), takes_builder=True)


def apart_pipeline() -> Any:
    """Return the pipeline without FuseMemoryBound."""
    import tvm
    from tvm.relax.backend.cuda import pipeline as stock
    from tvm.target import Target

    from tvm_hopper.relax.lowering import scheduling_passes
    from tvm_hopper.relax.options import ModelOptions

    target = Target(TARGET)
    passes = scheduling_passes(target, ModelOptions())
    passes = [x for x in passes if "FuseMemoryBound" not in x.info.name]
    passes += [*stock.dataflow_lower_passes(target), *stock.finalize_passes(target)]
    return tvm.transform.Sequential(passes)


def load(library: str) -> Any:
    """Load what `build_case` made on the device."""
    import tvm
    from tvm import relax

    return relax.VirtualMachine(tvm.runtime.load_module(library), tvm.cuda(0))


def step(function: Any, *given: Any) -> Callable[[int], Any]:
    """Return a call on PyTorch's tensors."""
    import tvm_ffi

    arguments = [
        [tvm_ffi.from_dlpack(y) for y in x] if isinstance(x, list) else tvm_ffi.from_dlpack(x)
        for x in given
    ]

    def call(_: int) -> Any:
        with tvm_ffi.use_torch_stream():
            return function(*arguments)

    return call


def row(what: str, rows: int, steps: dict[str, Callable[[int], Any]]) -> dict[str, Any]:
    """Time contenders with a cold L2: other data fills it before each call; return a row."""
    import torch

    results = [[torch.from_dlpack(x).double() for x in call(0)] for call in steps.values()]
    differ = max(
        float((a - b).norm() / a.norm())
        for other in results[1:]
        for a, b in zip(results[0], other, strict=True)
    )
    flushed = torch.empty(FLUSHED, dtype=torch.int8, device="cuda")
    notes = Row(what)
    graphs = [captured(call, 1, name, notes)[0] for name, call in steps.items()]
    times = [statistics.median(x) for x in timing.by_events(graphs, REPEATS, flushed.zero_)]
    apart, *others = times
    values: list[Any] = [what, rows, round(apart, 2)]
    for time in others:
        values += [round(time, 2), round(apart / time, 3)]
    values += [*[""] * (len(COLUMNS) - 1 - len(values)), f"{differ:.1e}"]
    print(*values, *notes.notes, sep="  ", flush=True)
    return dict(zip(COLUMNS, values, strict=True))


def main(argv: list[str]) -> int:
    """Print the table and write it to `results/`; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.relax_fusions", description=__doc__)
    parser.add_argument("--dtype", default="float16", choices=("float16", "bfloat16"))
    parser.add_argument("--classes", default="1,16,128,2048", help="bounds of size classes")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args(argv)
    import torch

    shape, classes = LlamaShape(), tuple(map(int, arguments.classes.split(",")))
    made: dict[str, Any] = {"device": "cuda", "dtype": getattr(torch, arguments.dtype)}
    table = []
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        paths = {x: f"{folder}/{x}.so" for x in CASES}
        with ProcessPoolExecutor(len(CASES), context) as pool:
            begun = [
                pool.submit(build_case, p, x, arguments.dtype, classes) for x, p in paths.items()
            ]
            for one in begun:
                one.result()
        models = {x: load(p) for x, p in paths.items()}
    norms = {x: models[x] for x in ("two", "one")}
    for rows in ROWS:
        x, y = (torch.randn(rows, shape.hidden, **made) for _ in range(2))
        weight = torch.rand(shape.hidden, **made)
        steps = {n: step(m["main"], x, y, weight) for n, m in norms.items()}
        table.append(row("residual and norm", rows, steps))
    joined = {x: models[x] for x in ("joined", "gates apart")}
    heads = [shape.heads * shape.head, *2 * [shape.kv_heads * shape.head]]
    sizes = [*((x, shape.hidden) for x in heads), (shape.hidden, heads[0])]
    sizes += [*2 * [(shape.inner, shape.hidden)], (shape.hidden, shape.inner)]
    weights = [torch.rand(shape.hidden, **made) + 0.5 for _ in range(2)]
    weights += [torch.randn(size, **made) * size[1] ** -0.5 for size in sizes]
    once = {n: step(m["transform_params"], weights)(0) for n, m in joined.items()}
    for rows in ROWS:
        x = torch.randn(1, rows, shape.hidden, **made)
        steps = {"apart": step(models["apart"]["main"], x, weights)}
        for name, model in joined.items():
            given = [torch.from_dlpack(y) for y in once[name]]
            steps[name] = step(model["main"], x, given)
        table.append(row("block of a model", rows, steps))
    title = f"Products joined, norms with their sums, {arguments.dtype}"
    print(machine.save(arguments.out, "relax_fusions", title, COLUMNS, table))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
