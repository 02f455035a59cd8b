"""Copies in and out of shared memory by each mechanism, on a GPU."""

from __future__ import annotations

import pytest
import tvm

from tvm_hopper.testing import copies
from tvm_hopper.testing.copies import Route

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")

MARGIN = 64  # elements around the output that nothing may touch


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


def check(shape: tuple[int, ...], route: Route, dtype: str = "float16") -> None:
    """Copy random bits ten times into poison, and compare."""
    sch = copies.schedule(copies.copy(*shape, dtype=dtype), route)
    run = tvm.compile(sch.mod, target="nvidia/nvidia-h200")["main"]
    size = {"float16": 2, "float32": 4, "int8": 1}[dtype]
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32}[size]
    generator = torch.Generator(device="cuda").manual_seed(1)
    x = torch.randint(-128, 127, shape, dtype=bits, device="cuda", generator=generator)
    count = x.numel()
    for _ in range(10):
        whole = torch.full((count + 2 * MARGIN,), 77, dtype=bits, device="cuda")
        y = whole[MARGIN:-MARGIN].view(shape)
        run(x.view(getattr(torch, dtype)), y.view(getattr(torch, dtype)))
        torch.cuda.synchronize()
        assert torch.equal(y, x)
        assert bool((whole[:MARGIN] == 77).all())
        assert bool((whole[-MARGIN:] == 77).all())


@pytest.mark.parametrize("load", ["tma", "bulk", "cp_async", None])
@pytest.mark.parametrize("store", ["tma", "bulk", None])
@pytest.mark.parametrize("shape", [(4096, 2048), (1000, 1000), (61, 200)])
def test_every_route(load, store, shape):
    stages = 3 if load else None
    check(shape, Route((8, 64), 5, load, store, stages=stages, threads=64))


@pytest.mark.parametrize("load", ["bulk", "cp_async", None])
@pytest.mark.parametrize("size", [4096, 4000, 2**20 + 512])
def test_one_dimension(load, size):
    stages = 4 if load else None
    check((size,), Route((512,), 3, load, "bulk", stages=stages, threads=32))


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("swizzle", [None, 128])
def test_types_and_swizzles(dtype, swizzle):
    check((300, 512), Route((8, 128), 4, stages=4, swizzle=swizzle), dtype)


@pytest.mark.parametrize(
    ("load", "by"),
    [
        *(("tma", by) for by in ((1, 0), (7, -8), (-2, 16), (999, 8))),
        *(("cp_async", by) for by in ((1, 0), (3, -6), (-2, 0))),
        *(("auto", by) for by in ((-5, 3), (4, -2))),
    ],
)
def test_what_lies_outside_of_a_tensor_is_zero(load, by):
    mod = copies.shift(1000, 1024, by)
    run = tvm.compile(copies.schedule_shift(mod, load, 3).mod, target="nvidia/nvidia-h200")["main"]
    x = torch.randint(-9, 9, (1000, 1024), device="cuda").half()
    want = torch.zeros_like(x)
    down, right = by
    rows, columns = (slice(max(n, 0), min(n, 0) or None) for n in by)
    want[rows, columns] = x[
        max(-down, 0) : 1000 - max(down, 0), max(-right, 0) : 1024 - max(right, 0)
    ]
    y = torch.full_like(x, 77)
    run(x, y)
    torch.cuda.synchronize()
    assert torch.equal(y, want)
