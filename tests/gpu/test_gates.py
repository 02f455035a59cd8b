"""Products whose epilogue takes several columns of a row, on the GPU."""

import pytest
import tvm
import tvm_ffi
from tvm import s_tir
from tvm.target import Target

from tvm_hopper import schedule as hs
from tvm_hopper.testing.gates import gated_product, products_of_one_operand, rotated_product

pytestmark = pytest.mark.gpu

H200 = "nvidia/nvidia-h200"
ROWS = (1, 7, 16, 100, 128, 129, 2048)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("n", "k"), [(40, 64), (1000, 512), (14336, 4096)])
def test_gated_product(n, k, dtype):
    torch = pytest.importorskip("torch")
    if not tvm.cuda(0).exist or tvm.cuda(0).compute_version != "9.0":
        pytest.skip("no GPU of compute capability 9.0")
    sch = s_tir.Schedule(gated_product("m", n, k, dtype=dtype))
    with Target(H200):
        hs.matmul(sch, "C", classes=(1, 16, 128, 2048))
    run = tvm.compile(sch.mod, target=H200)["main"]
    made = {"device": "cuda", "dtype": getattr(torch, dtype)}
    w = torch.randn(2, n // 8, 8, k, **made) * k**-0.5
    run_and_check(lambda a, out: run(a, tvm_ffi.from_dlpack(w), out), w.reshape(2, n, k))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("n", "k"), [(40, 64), (1000, 512), (14336, 4096)])
def test_products_of_one_operand(n, k, dtype):
    torch = pytest.importorskip("torch")
    if not tvm.cuda(0).exist or tvm.cuda(0).compute_version != "9.0":
        pytest.skip("no GPU of compute capability 9.0")
    sch = s_tir.Schedule(products_of_one_operand("m", n, k, dtype=dtype))
    with Target(H200):
        hs.matmul(sch, ("C0", "C1"))
    run = tvm.compile(sch.mod, target=H200)["main"]
    w = torch.randn(2, n, k, device="cuda", dtype=getattr(torch, dtype)) * k**-0.5
    run_and_check(lambda a, out: run(a, *map(tvm_ffi.from_dlpack, w), out), w)


def run_and_check(run, weights):
    """Compare silu(A W0^T) * (A W1^T) of many numbers of rows with float64."""
    torch = pytest.importorskip("torch")
    made = {"device": "cuda", "dtype": weights.dtype}
    _, n, k = weights.shape
    for m in ROWS:
        a = torch.randn(m, k, **made)
        whole = torch.full((m + 2, n), float("nan"), **made)  # rows around it stay as they are
        out = whole[1:-1]
        run(*map(tvm_ffi.from_dlpack, (a, out)))
        torch.cuda.synchronize()
        gate, up = (a.double() @ x.double().T for x in weights)
        want = gate / (1 + torch.exp(-gate)) * up
        error = (out.double() - want).norm() / want.norm()
        # the result is rounded once; of few elements one may carry the whole norm
        rounding = 2.0**-11 if weights.dtype == torch.float16 else 2.0**-8
        assert error < 1.02 * rounding, (m, float(error))
        assert bool(whole[[0, -1]].isnan().all())


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize(
    ("n", "k", "width", "columns"),
    [(384, 64, 64, 256), (6144, 4096, 128, 5120), (960, 512, 80, 640)],
)
def test_rotary_embedding(n, k, width, columns, pairs):
    """Heads of q and k are rotated by tables of positions, those of v are stored as they are."""
    torch = pytest.importorskip("torch")
    if not tvm.cuda(0).exist or tvm.cuda(0).compute_version != "9.0":
        pytest.skip("no GPU of compute capability 9.0")
    mod = rotated_product("m", n, k, width, columns=columns, pairs=pairs, tables=4096)
    sch = s_tir.Schedule(mod)
    with Target(H200):
        hs.matmul(sch, "C", classes=(16, 128, 2048))
    run = tvm.compile(sch.mod, target=H200)["main"]
    made = {"device": "cuda", "dtype": torch.float16}
    w = torch.randn(n, k, **made) * k**-0.5
    cos, sin = torch.randn(2, 4096, width, device="cuda")
    for m in ROWS:
        a, out = torch.randn(m, k, **made), torch.full((m, n), float("nan"), **made)
        at = torch.randint(0, 4096, (m,), device="cuda", dtype=torch.int32)
        run(*map(tvm_ffi.from_dlpack, (a, w, cos, sin, at, out)))
        torch.cuda.synchronize()
        x = (a.double() @ w.double().T).reshape(m, -1, width)
        parts = (x[..., 0::2], x[..., 1::2]) if pairs else x.chunk(2, -1)
        other = (-parts[1], parts[0])
        other = torch.stack(other, -1).flatten(-2) if pairs else torch.cat(other, -1)
        turned = x * cos[at.long(), None].double() + other * sin[at.long(), None].double()
        want = torch.where(
            torch.arange(n, device="cuda") < columns, turned.flatten(1), x.flatten(1)
        )
        assert (out.double() - want).norm() < 1e-3 * want.norm()
