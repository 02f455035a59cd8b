"""Products by ldmatrix and mma.sync over tiles that TMA or cp.async brings, on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from tvm_hopper import schedule as hs
from tvm_hopper.testing import tensor_cores
from tvm_hopper.testing.tensor_cores import ProductKind, WarpTiling

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")

TEAMS = {
    "4 warps": {"tile": (64, 64, 32), "warps": (2, 2)},
    "8 warps": {"tile": (128, 64, 32), "warps": (4, 2)},
    "4 warps, cp.async": {"tile": (64, 64, 32), "warps": (2, 2), "load": "cp_async"},
    "producer, 4 consumers": {"tile": (64, 64, 32), "warps": (2, 2), "roles": hs.Roles(1)},
    "producer, 8 consumers": {"tile": (128, 64, 32), "warps": (4, 2), "roles": hs.Roles(2)},
}
EACH = pytest.mark.parametrize("team", TEAMS)
HALVES = ProductKind()
POISON = 77  # a value that int32 and the floats here hold


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


def check(shape: tuple[int, int, int], tiling: WarpTiling, kind: ProductKind = HALVES) -> None:
    """Run a kernel ten times on whole numbers, its output poisoned; compare with float64.

    Sums of products of whole numbers from -2 to 2 are exact in every type here, so that a slot that
    is read too early or overwritten too early shows in any element.
    """
    m, n, k = shape
    mod = tensor_cores.matmul(m, n, k, kind.dtype, kind.out_dtype, kind.transposed)
    run = tvm.compile(tensor_cores.schedule(mod, tiling).mod, target="nvidia/nvidia-h200")["main"]
    rng = np.random.default_rng(3)
    a = rng.integers(-2, 3, (m, k))
    b = rng.integers(-2, 3, (n, k) if kind.transposed else (k, n))
    device = [torch.from_numpy(x).to(getattr(torch, kind.dtype)).cuda() for x in (a, b)]
    margin = 64  # elements around the output that nothing may touch
    dtype = getattr(torch, kind.out_dtype)
    whole = torch.full((m * n + 2 * margin,), POISON, device="cuda", dtype=dtype)
    out = whole[margin:-margin].view(m, n)
    want = tensor_cores.reference(a, b, kind.transposed)
    for _ in range(10):
        out.fill_(POISON)
        run(*device, out)
        torch.cuda.synchronize()
        np.testing.assert_array_equal(out.cpu().to(torch.float64).numpy(), want)
    assert bool((whole[:margin] == POISON).all())
    assert bool((whole[-margin:] == POISON).all())
    for given, tensor in zip((a, b), device, strict=True):
        np.testing.assert_array_equal(tensor.cpu().to(torch.float64).numpy(), given)


@EACH
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_large(team, stages):
    check((1024, 1024, 2048), WarpTiling(stages=stages, **TEAMS[team]))


@EACH
def test_ragged(team):
    check((1001, 520, 712), WarpTiling(stages=3, **TEAMS[team]))


@EACH
@pytest.mark.parametrize(
    ("kind", "depth"),
    [
        (ProductKind(transposed=True), 1024),
        (ProductKind(out_dtype="float16"), 256),  # sums up to 1024, exact in float16
        (ProductKind("bfloat16"), 1024),
        (ProductKind("int8", "int32", transposed=True), 1024),
    ],
    ids=lambda x: f"{x.dtype}-{x.out_dtype}" if isinstance(x, ProductKind) else str(x),
)
def test_types_and_sides(team, kind, depth):
    check((512, 512, depth), WarpTiling(stages=3, **TEAMS[team]), kind)


@pytest.mark.slow
@EACH
def test_intrinsics_of_tvm(team):
    """As TVM's users write it; the import takes 25 s."""
    import tvm.s_tir.tensor_intrin  # noqa: F401

    tiling = WarpTiling(stages=3, intrinsics=tensor_cores.TVM_INTRINSICS, **TEAMS[team])
    check((1024, 1024, 1024), tiling)
