"""Pointwise kernels over tiles that TMA brings, on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from tvm_hopper import schedule as hs
from tvm_hopper.testing import pointwise
from tvm_hopper.testing.pointwise import Tiling

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")

RANKS = {"exp_add": (2, 2), "scale": (1,), "add_row_bias": (2, 1)}  # of the inputs
ROLES = pytest.mark.parametrize("roles", [None, hs.Roles(2)], ids=["one-role", "producer"])
POISON = 12345.0


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


def check(name: str, shape: tuple[int, ...], tiling: Tiling, dtype: str = "float32") -> None:
    """Run a kernel ten times on normal inputs, its output poisoned; compare with float64."""
    sch = pointwise.schedule(getattr(pointwise, name)(*shape, dtype), tiling)
    run = tvm.compile(sch.mod, target="nvidia/nvidia-h200")["main"]
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal(shape[:rank]).astype(dtype) for rank in RANKS[name]]
    device = [torch.from_numpy(x).cuda() for x in inputs]
    margin = 64  # elements around the output that nothing may touch
    whole = torch.full((int(np.prod(shape)) + 2 * margin,), POISON, device="cuda")
    whole = whole.to(getattr(torch, dtype))
    out = whole[margin:-margin].view(shape)
    want = pointwise.reference(name, inputs)
    tolerance = {"float32": 1e-6, "float16": 2e-3}[dtype]
    for _ in range(10):
        out.fill_(POISON)
        run(*device, out)
        torch.cuda.synchronize()
        got = out.cpu().numpy().astype(np.float64)
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    poison = torch.tensor(POISON).to(whole.dtype)
    assert bool((whole[:margin].cpu() == poison).all())
    assert bool((whole[-margin:].cpu() == poison).all())
    for given, tensor in zip(inputs, device, strict=True):
        np.testing.assert_array_equal(tensor.cpu().numpy(), given)


@ROLES
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_large(roles, stages):
    tiling = Tiling(tile=(8, 256), steps=16, threads=256, stages=stages, roles=roles)
    check("exp_add", (4096, 4096), tiling)


@ROLES
def test_ragged(roles):
    check("exp_add", (1001, 1000), Tiling(tile=(8, 128), steps=7, stages=3, roles=roles))


@ROLES
@pytest.mark.parametrize("swizzle", [32, 64, 128])
def test_swizzled(roles, swizzle):
    tiling = Tiling(tile=(8, 128), steps=8, stages=3, roles=roles, swizzle=swizzle)
    check("exp_add", (1024, 1024), tiling)


@ROLES
def test_halves(roles):
    tiling = Tiling(tile=(8, 256), steps=8, vector=8, stages=3, roles=roles)
    check("exp_add", (2048, 2048), tiling, "float16")


@ROLES
def test_one_dimension(roles):
    check("scale", (1 << 20,), Tiling(tile=(2048,), steps=8, stages=3, roles=roles))


@ROLES
def test_a_bias_from_global_memory(roles):
    check("add_row_bias", (1024, 1024), Tiling(tile=(8, 128), steps=8, stages=3, roles=roles))


@pytest.mark.parametrize(
    ("name", "dtype", "vector", "swizzle"),
    [
        ("exp_add", "float32", 8, 128),
        ("exp_add", "float16", 8, 64),
        ("exp_add", "float16", 16, None),
        ("add_row_bias", "float16", 8, 32),
    ],
)
def test_vectors_that_are_cut(name, dtype, vector, swizzle):
    """Into what a thread loads at once, and what the swizzle leaves whole."""
    tiling = Tiling((8, 128), steps=4, threads=64, vector=vector, stages=3, swizzle=swizzle)
    check(name, (96, 256), tiling, dtype)


@ROLES
def test_a_tile_that_is_not_there_at_all(roles):
    """Sixteen rows in tiles of eight, four to a thread block: half of them are a condition away."""
    tiling = Tiling((8, 128), steps=4, threads=256, vector=4, stages=2, roles=roles)
    check("exp_add", (16, 256), tiling)
