"""Schedules for Ampere against TVM's own code: `python -m benchmarks.async_schedules`.

Each program is built three times from the same schedule: by TVM with its `cp.async`
(`tirx.use_async_copy`), and under `tvm_hopper.async_copy` for sm_90a and for sm_80 (as PTX). The
small ones are those of TVM's own tests, as they stand there; the large ones have their forms. What
comes out is compared with float64, exactly, before it is timed in turn.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.timing import Contender, measure
from tests.upstream.catalogue import BY_NAME, Schedule
from tests.upstream.products import index_maps
from tvm_hopper.requests import keys
from tvm_hopper.testing import ampere_forms, ampere_products
from tvm_hopper.testing.ampere_forms import Form
from tvm_hopper.testing.ampere_schedules import A100, padded
from tvm_hopper.testing.neighbors import stencil_of

H200 = "nvidia/nvidia-h200"
RESULTS = Path(__file__).parent / "results"
STOCK = "TVM, cp.async"
WAYS = {
    STOCK: (H200, {"tirx.use_async_copy": 1}),
    "ours, sm_90a": (H200, {keys.ASYNC_COPY: keys.AUTO}),
    "ours, sm_80": (A100, {keys.ASYNC_COPY: keys.AUTO}),
}
RUNS = 3
CALLS = 1000  # of a graph: launching it costs as much as several kernels of 2 us
GIB, PRODUCT = 2**30, 4096


@dataclass(frozen=True)
class Program:
    """A schedule, the shapes and type of its tensors, and what it computes, in float64."""

    module: Callable[[], Any]
    inputs: list[tuple[int, ...]]
    output: tuple[int, ...]
    dtype: str
    reference: Callable[..., Any]
    out_dtype: str | None = None

    @property
    def num_bytes(self) -> int:
        """Count what is read and written, each tensor once."""
        import math

        size = 2 if self.dtype == "float16" else 4
        return size * sum(math.prod(x) for x in (*self.inputs, self.output))


def _pad(x: Any) -> Any:
    import torch

    return torch.nn.functional.pad(x, (1, 1))


def _stencil(x: Any) -> Any:
    return stencil_of(x[:, :-2])  # two columns make rows a multiple of 16 bytes


def _scaled(form: Form, dtype: str) -> Program:
    """2 GiB in all."""
    shape = (131072, 4096 if dtype == "float16" else 2048)
    module = partial(ampere_forms.scaled, *shape, form, dtype)
    return Program(module, [shape], shape, dtype, lambda a: a * 2)


def _five_point(form: Form) -> Program:
    size = 16384
    module = partial(ampere_forms.five_point, size, size, form)
    return Program(module, [(size + 2, size + 4)], (size, size), "float32", _stencil)


def _rows(dtype: str, width: int) -> Program:
    blocks = GIB // (32 * 128 * (2 if dtype == "float16" else 4))
    shape = (blocks * 32, 128)
    module = partial(ampere_forms.rows, blocks, dtype, width)
    return Program(module, [shape], shape, dtype, lambda a: a)


def _doubled_rows() -> Program:
    blocks = GIB // (32 * 128 * 4)
    shape = (blocks * 32, 128)
    module = partial(ampere_forms.doubled_rows, blocks)
    return Program(module, [shape], shape, "float32", lambda a: a * 2)


def _stencil_rows(tile: bool) -> Program:
    blocks = GIB // (32 * 128 * 4)
    module = partial(ampere_forms.stencil_rows, blocks, tile)
    return Program(module, [(blocks * 30 + 2, 128)], (blocks * 30, 126), "float32", stencil_of)


def _columns(pad: bool) -> Program:
    blocks, threads, trips = 1024, 128, 1024
    given, shape = (blocks * threads, trips - 2 if pad else trips), (blocks * threads, trips)
    module = partial(ampere_forms.columns, blocks, threads, trips, pad)
    reference = (lambda a, b: _pad(a + b)) if pad else (lambda a, b: a + b)
    return Program(module, [given, given], shape, "float32", reference)


def _product(notes: ampere_products.Notes) -> Program:
    """Multiply by `mma.sync`, 4096 in each direction, with TVM's own intrinsics."""
    shape = (PRODUCT, PRODUCT)

    def module() -> Any:
        names = ampere_products.of_tvm()
        return ampere_products.schedule((PRODUCT, PRODUCT, PRODUCT), notes, names)

    def reference(a: Any, b: Any) -> Any:
        return a.double() @ b.double()

    return Program(module, [shape, shape], shape, "float16", reference, "float32")


LARGE = {
    "copy-compute, float16 by 16 bytes": _scaled(Form((64, 64), chunk=8, vector=4), "float16"),
    "copy-compute, float32 by 16 bytes": _scaled(Form((32, 64), chunk=4, vector=2), "float32"),
    "copy-compute, float32 by 8 bytes": _scaled(Form((32, 64), chunk=2, vector=4), "float32"),
    "copy-compute, float32 by 4 bytes": _scaled(Form((32, 64), chunk=1, vector=1), "float32"),
    "copy-compute-copy, by 16 bytes": _scaled(
        Form((32, 64), chunk=4, vector=2, store=2), "float32"
    ),
    "copy-compute-copy, by 4 bytes": _scaled(Form((32, 64), chunk=1, vector=1, store=1), "float32"),
    "five-point stencil, 8 x 128": _five_point(Form((8, 128), chunk=1, vector=1)),
    "five-point stencil, 16 x 128": _five_point(
        Form((16, 128), steps=4, chunk=1, vector=2, stages=3)
    ),
    "rows of float16 by 8": _rows("float16", 8),
    "rows of float16 by 4": _rows("float16", 4),
    "rows of float32 by 4": _rows("float32", 4),
    "rows of float32 by 1": _rows("float32", 1),
    "rows of float32 by 4, doubled between": _doubled_rows(),
    "five-point stencil, rows": _stencil_rows(False),
    "five-point stencil, rows, through a second tile": _stencil_rows(True),
    "columns": _columns(pad=False),
    "columns, padded": _columns(pad=True),
    "product by mma.sync, simple": _product(ampere_products.SIMPLE),
    "product by mma.sync, nested": _product(ampere_products.IDEAL),
}


def _upstream(schedule: Schedule) -> Program:
    """Take a schedule of TVM's tests as it stands there."""
    import numpy as np
    import torch

    def reference(*given: Any) -> Any:
        found = schedule.computes(*(x.cpu().numpy() for x in given))
        return torch.from_numpy(np.asarray(found, "float64")).cuda()

    inputs = schedule.integers()
    want = schedule.computes(*inputs)
    shapes = [x.shape for x in inputs]
    kind = str(inputs[0].dtype)
    return Program(schedule.program, shapes, want.shape, kind, reference, str(want.dtype))


UPSTREAM = (
    *("async producers interleaved", "padded by if_then_else"),
    *("rows of float16 by 8", "rows of float16 by 4"),
    *("rows of float32 by 4", "rows of float32 by 1", "two tiles of rows"),
    *("mma.sync", "mma.sync, nested"),
)


def small() -> dict[str, Program]:
    """Return those of TVM's schedules whose copies are asynchronous, and one of ours."""
    found = {f"upstream: {name}": _upstream(BY_NAME[name]) for name in UPSTREAM}
    one = Program(lambda: padded, [(16, 14)], (16, 16), "float32", _pad)
    return {**found, "padded 16x16": one}


def build(program: Program) -> dict[str, Any]:
    """Build a program in each way."""
    import tvm
    from tvm.ir.transform import PassContext

    kernels = {}
    for name, (target, config) in WAYS.items():
        module = program.module()  # may import TVM's intrinsics, which name these maps themselves
        with PassContext(config=config), index_maps():
            kernels[name] = tvm.compile(module, target=target)["main"]
    return kernels


def _call(kernel: Any, tensors: tuple[Any, ...], _number: int) -> None:
    kernel(*tensors)


def run(name: str, program: Program, repeats: int) -> list[dict[str, Any]]:
    """Check and time a program; return a row for each way."""
    import torch

    is_large = program.num_bytes > 2**28
    kind = getattr(torch, program.dtype)
    out_kind = getattr(torch, program.out_dtype or program.dtype)
    generator = torch.Generator(device="cuda").manual_seed(len(name))
    inputs = [
        torch.randint(-64, 64, x, device="cuda", generator=generator).to(kind)
        for x in program.inputs
    ]
    want = program.reference(*(x.double() if is_large else x for x in inputs)).to(out_kind)
    right, calls = {}, []
    out = torch.empty(program.output, device="cuda", dtype=out_kind)
    for way, kernel in build(program).items():
        own = out if is_large else torch.empty_like(out)
        own.fill_(777.0)
        kernel(*inputs, own)
        torch.cuda.synchronize()
        right[way] = bool(torch.equal(own, want))
        calls.append(Contender(way, partial(_call, kernel, (*inputs, own))))
    del want
    if is_large:
        given = torch.zeros(program.num_bytes // 8, device="cuda")
        taken = torch.empty_like(given)
        calls.append(Contender("copy", lambda _: torch.add(given, 0, out=taken)))
    runs = [
        {t.name: t.median_us for t in measure(calls, 1, repeats, 0.3, CALLS)} for _ in range(RUNS)
    ]
    rows = []
    for way in right:
        ratios = sorted(one[STOCK] / one[way] for one in runs)
        copied = sorted(one.get("copy", 0.0) / one[way] for one in runs)
        rows.append(
            {
                "program": name,
                "built": way,
                "right": right[way],
                "us": round(sorted(one[way] for one in runs)[RUNS // 2], 3),
                "times": round(ratios[RUNS // 2], 3),
                "from": round(ratios[0], 3),
                "to": round(ratios[-1], 3),
                "copy": round(copied[RUNS // 2], 3) if is_large else "",
            }
        )
    return rows


COLUMNS = [
    *("program", "built", "right", "us", "times as fast as TVM's"),
    *("lowest of 3 runs", "highest", "of copy speed"),
]


def main(argv: list[str]) -> int:
    """Print the table and write it to `results/`; return the exit code."""
    import torch

    parser = argparse.ArgumentParser(prog="python -m benchmarks.async_schedules")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--only", nargs="+", choices=("small", "large"), default=["small", "large"])
    parser.add_argument("--match", nargs="+", default=[""], help="parts of programs' names")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args(argv)
    table: list[dict[str, Any]] = []
    programs = small() if "small" in arguments.only else {}
    for name, program in {**programs, **(LARGE if "large" in arguments.only else {})}.items():
        if not any(part in name for part in arguments.match):
            continue
        table += run(name, program, arguments.repeats)
        print(*table[-3:], sep="\n", flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    title = "Schedules for Ampere on Hopper"
    print(machine.save(arguments.out, "async_schedules", title, COLUMNS, table))
    return 0 if all(row["right"] for row in table if "ours" in row["built"]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
