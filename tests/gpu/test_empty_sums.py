"""Products whose sum has no term, on a GPU: zeros, from tensors that have no bytes."""

from __future__ import annotations

import pytest
import tvm
from tvm import s_tir

from tests.sim_kernels.test_empty_sums import MODES, product
from tvm_hopper import schedule as hs

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("terms", [0, 8, 72])
@pytest.mark.parametrize("mode", MODES)
def test_a_sum_of_few_terms(mode, terms):
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")
    sch = s_tir.Schedule(product())
    hs.matmul(sch, "C", hs.MatmulConfig(**MODES[mode]))
    run = tvm.compile(sch.mod, target="nvidia/nvidia-h200")["main"]
    a, b = (torch.randn((64, terms), device="cuda").half() for _ in range(2))
    c = torch.full((64, 64), float("nan"), device="cuda")
    run(a, b, torch.zeros(terms // 8, device="cuda"), c)
    torch.cuda.synchronize()
    want = a.float() @ b.float().t()
    assert torch.allclose(c, want, rtol=1e-3, atol=1e-3)
