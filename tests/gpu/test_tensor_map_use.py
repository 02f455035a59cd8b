"""Copies that step over rows, share a tensor map, or tell L2 something, on a GPU."""

import pytest
import tvm

from tvm_hopper.testing import copies, strided
from tvm_hopper.testing.copies import Route

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")

TARGET = "nvidia/nvidia-h200"


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


@pytest.mark.parametrize("swizzle", [None, 128])
@pytest.mark.parametrize("step", range(2, 9))
@pytest.mark.parametrize(("dtype", "columns"), [("float16", 64), ("float32", 32), ("int8", 128)])
def test_rows_at_each_step(dtype, columns, step, swizzle):
    first = step // 2
    rows, wide = 97 * step + first + 1, 3 * columns + 16
    mod = strided.rows(rows, wide, step=step, first=first, dtype=dtype)
    sch = strided.schedule(mod, (8, columns), swizzle=swizzle, threads=64)
    run = tvm.compile(sch.mod, target=TARGET)["main"]
    a = torch.randint(-60, 60, (rows, wide), device="cuda").to(getattr(torch, dtype))
    want = a[first::step] * 2
    for _ in range(5):
        b = torch.full_like(want, 77)
        run(a, b)
        torch.cuda.synchronize()
        assert torch.equal(b, want)


@pytest.mark.parametrize("hint", ["evict_first", "evict_last"])
@pytest.mark.parametrize("load", ["tma", "bulk"])
def test_loads_tell_l2_what_to_do(load, hint):
    shape = (1000, 1024)
    sch = copies.schedule(copies.copy(*shape), Route((8, 64), 5, load, "tma", 3, threads=64))
    sch.annotate(sch.get_sblock("A_shared.dyn"), "tvm_hopper.cache_hint", hint)
    run = tvm.compile(sch.mod, target=TARGET)["main"]
    x = torch.randn(shape, device="cuda").half()
    for _ in range(5):
        y = torch.full_like(x, 77)
        run(x, y)
        torch.cuda.synchronize()
        assert torch.equal(y, x)
