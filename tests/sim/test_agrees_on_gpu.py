"""The simulator and an H100 or H200 give the same numbers for the same kernels and inputs."""

import dataclasses

import numpy as np
import pytest

from benchmarks.matmul_case import Case, build
from tvm_hopper.simulate import simulate

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")

SHAPES = ((128, 128, 64), (456, 328, 392), (200, 136, 1032))
LAYOUTS = ("NT", "NN", "TN", "TT")
CASES = [
    Case(m, n, k, layout, dtype, "float32")
    for m, n, k in SHAPES
    for layout in LAYOUTS
    for dtype in ("float16", "bfloat16")
]
HALF = [dataclasses.replace(case, out_dtype=case.dtype) for case in CASES[::4]]


def operands(case, integers):
    rng = np.random.default_rng(0)
    shapes = [
        (case.m, case.k) if case.layout[0] == "N" else (case.k, case.m),
        (case.k, case.n) if case.layout[1] == "N" else (case.n, case.k),
    ]
    for shape in shapes:
        values = rng.integers(-2, 3, shape) if integers else rng.standard_normal(shape)
        yield torch.tensor(values, dtype=getattr(torch, case.dtype), device="cuda")


def to_numpy(tensor):
    import ml_dtypes

    cpu = tensor.cpu()
    if cpu.dtype == torch.bfloat16:
        return cpu.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return cpu.numpy()


@pytest.mark.parametrize("integers", [True, False])
@pytest.mark.parametrize("case", [*CASES, *HALF], ids=lambda case: case.name)
def test_same_numbers(case, integers):
    executable = build(case)
    a, b = operands(case, integers)
    out = torch.full((case.m, case.n), float("nan"), device="cuda").to(
        getattr(torch, case.out_dtype)
    )
    executable["main"](a, b, out)
    torch.cuda.synchronize()
    result = simulate(executable, {"A": to_numpy(a), "B": to_numpy(b)}).require_clean()
    simulated = next(v for k, v in result.outputs.items() if k not in ("A", "B"))
    got, want = to_numpy(out).astype("float64"), simulated.astype("float64")
    if integers:
        assert np.array_equal(got, want)
    else:  # the two add in another order
        limit = 1e-6 if case.out_dtype == "float32" else 1e-2
        assert np.linalg.norm(got - want) <= limit * np.linalg.norm(want)
