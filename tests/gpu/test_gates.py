"""Products whose epilogue takes several columns of a row, on the GPU."""

from __future__ import annotations

import pytest
import tvm
import tvm_ffi
from tvm import s_tir
from tvm.target import Target

from tvm_hopper import schedule as hs
from tvm_hopper.testing.gates import gated_product

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
    for m in ROWS:
        a = torch.randn(m, k, **made)
        whole = torch.full((m + 2, n), float("nan"), **made)  # rows around it stay as they are
        out = whole[1:-1]
        run(*(tvm_ffi.from_dlpack(x) for x in (a, w, out)))
        torch.cuda.synchronize()
        gate, up = (a.double() @ x.reshape(n, k).double().T for x in w)
        want = gate / (1 + torch.exp(-gate)) * up
        error = (out.double() - want).norm() / want.norm()
        # the result is rounded once; of few elements one may carry the whole norm
        assert error < 1.02 * (2.0**-11 if dtype == "float16" else 2.0**-8), (m, float(error))
        assert bool(whole[[0, -1]].isnan().all())
