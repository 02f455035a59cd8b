"""Products whose sum has no term, on a GPU: zeros, from tensors that have no bytes."""

import numpy as np
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
    # TVM's own tensors: of PyTorch's without an element its host code finds the strides wrong
    rng, device = np.random.default_rng(0), tvm.cuda()
    a, b = (rng.standard_normal((64, terms)).astype("float16") for _ in range(2))
    given = [a, b, np.zeros(terms // 8, "float32"), np.full((64, 64), np.nan, "float32")]
    *_, c = tensors = [tvm.runtime.tensor(x, device=device) for x in given]
    run(*tensors)
    want = a.astype("float32") @ b.astype("float32").T
    np.testing.assert_allclose(c.numpy(), want, rtol=1e-3, atol=1e-3)
