"""Products by mma.sync, as TVM schedules them for Ampere: `python -m benchmarks.async_products`.

One schedule (`tvm_hopper/testing/ampere_products.py`), untouched, is built by TVM with its
`cp.async` (`tirx.use_async_copy`), and under `tvm_hopper.async_copy` for sm_90a and for sm_80 (as
PTX). Products of whole numbers have to be exact, those of normal ones near float64's, outputs are
poisoned; then all are timed in turn, beside cuBLAS, which multiplies into float16.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.timing import Contender, measure
from tvm_hopper.requests import keys
from tvm_hopper.testing import ampere_products
from tvm_hopper.testing.ampere_schedules import A100

H200 = "nvidia/nvidia-h200"
RESULTS = Path(__file__).parent / "results"
STOCK, CUBLAS = "TVM, cp.async", "torch.matmul"
WAYS = {
    STOCK: (H200, {"tirx.use_async_copy": 1}),
    "ours, sm_90a": (H200, {keys.ASYNC_COPY: keys.AUTO}),
    "ours, sm_80": (A100, {keys.ASYNC_COPY: keys.AUTO}),
}
COLUMNS = ["pipeline", "built", "right", "us", "TFLOP/s", "times TVM's", "times cuBLAS's"]
NOTES = {"simple": ampere_products.SIMPLE, "nested": ampere_products.IDEAL}
WHOLE, NEAR = 8, 1e-5  # the largest whole number; the error beside the largest value


def build(
    shape: tuple[int, int, int], notes: Any, names: Any
) -> tuple[dict[str, Callable[..., Any]], dict[str, str]]:
    """Build a product in each way; return the kernels, and the errors of those without one."""
    import tvm
    from tvm.ir.transform import PassContext

    kernels, errors = {}, {}
    for way, (target, config) in WAYS.items():
        try:
            with PassContext(config=config):
                mod = ampere_products.schedule(shape, notes, names)
                kernels[way] = tvm.compile(mod, target=target)["main"]
        except Exception as error:  # one that does not build leaves the others
            traceback.print_exc()
            errors[way] = str(error).strip().splitlines()[-1]
    return kernels, errors


def is_right(kernel: Callable[..., Any], shape: tuple[int, int, int]) -> bool:
    """Compare with float64, on fresh inputs, an output that was poisoned."""
    import torch

    m, n, k = shape
    for whole in (True, False):
        a, b = (
            torch.randint(-WHOLE, WHOLE + 1, x, device="cuda").half()
            if whole
            else torch.randn(x, device="cuda").half()
            for x in ((m, k), (k, n))
        )
        out = torch.full((m, n), float("nan"), device="cuda")
        kernel(a, b, out)
        torch.cuda.synchronize()
        want = a.double() @ b.double()
        error = (out.double() - want).abs().max()  # nan where nothing was stored
        if not bool(error <= (0 if whole else NEAR * want.abs().max())):
            return False
    return True


def _call(kernel: Any, tensors: tuple[Any, ...], _number: int) -> None:
    kernel(*tensors)


def _multiply(a: Any, b: Any, out: Any, _number: int) -> None:
    import torch

    torch.matmul(a, b, out=out)


def run(shape: tuple[int, int, int], repeats: int, names: Any) -> list[dict[str, Any]]:
    """Check and time each pipeline in each way; return a row for each."""
    import torch

    m, n, k = shape
    a, b = (torch.randn(x, device="cuda").half() for x in ((m, k), (k, n)))
    out, half = torch.empty((m, n), device="cuda"), torch.empty((m, n), device="cuda").half()
    kernels, right = {}, {}
    for pipeline, notes in NOTES.items():
        built, errors = build(shape, notes, names)
        kernels.update({(pipeline, way): kernel for way, kernel in built.items()})
        right.update({(pipeline, way): error for way, error in errors.items()})
    right.update({key: str(is_right(kernel, shape)) for key, kernel in kernels.items()})
    calls = [Contender(str(key), partial(_call, x, (a, b, out))) for key, x in kernels.items()]
    calls.append(Contender(CUBLAS, partial(_multiply, a, b, half)))
    runs = [{t.name: t.median_us for t in measure(calls, 1, repeats, 1.0)} for _ in range(3)]

    def middle(values: Any) -> float:
        return sorted(values)[len(runs) // 2]

    table = []
    for key in [*right, ("", CUBLAS)]:
        name = str(key) if key[0] else CUBLAS
        row = [*key, right.get(key, ""), *[""] * 4]
        if name in runs[0]:
            us = middle(one[name] for one in runs)
            row[3:5] = [f"{us:.1f}", f"{2e-6 * m * n * k / us:.0f}"]
            beside = {5: str((key[0], STOCK)), 6: CUBLAS}
            for column, other in beside.items():
                if other in runs[0]:
                    row[column] = f"{middle(one[other] / one[name] for one in runs):.3f}"
        table.append(dict(zip(COLUMNS, row, strict=True)))
    return table


def main(argv: list[str]) -> int:
    """Print the table and write it to `results/`; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.async_products")
    parser.add_argument("--shape", type=int, nargs=3, default=[4096, 4096, 4096])
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args(argv)
    table = run(tuple(arguments.shape), arguments.repeats, ampere_products.of_tvm())
    title = "Products by mma.sync, scheduled for Ampere, on Hopper"
    print(machine.save(arguments.out, "async_products", title, COLUMNS, table))
    return 0 if all(row["right"] == "True" for row in table if "ours" in row["built"]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
