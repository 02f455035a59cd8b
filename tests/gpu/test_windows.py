"""Pooling and depthwise convolutions on a GPU: values, by both layouts."""

import numpy as np
import pytest
import tvm
from tvm import s_tir

from tvm_hopper import schedule as hs
from tvm_hopper.testing import windows

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("layout", "shape"), [("NHWC", (4, 28, 30, 96)), ("NCHW", (4, 96, 28, 30))]
)
def test_a_depthwise_convolution(layout, shape):
    sch = s_tir.Schedule(windows.depthwise(shape, layout))
    hs.pointwise(sch)
    run = tvm.compile(sch.mod, target="nvidia/nvidia-h200")["main"]
    rng = np.random.default_rng(3)
    params = sch.mod["main"].params
    inputs = [rng.standard_normal([int(x) for x in p.shape]).astype("float16") for p in params[:3]]
    device = [torch.from_numpy(x).cuda() for x in inputs]
    out = torch.full(shape, 12345.0, dtype=torch.float16, device="cuda")
    run(*device, out)
    torch.cuda.synchronize()
    want = windows.depthwise_reference(inputs, layout)
    np.testing.assert_allclose(out.cpu().numpy().astype("float64"), want, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_pooling(kind, layout):
    shape = (4, 28, 30, 64) if layout == "NHWC" else (4, 64, 28, 30)
    sch = s_tir.Schedule(windows.pool(shape, kind, layout))
    hs.pointwise(sch)
    run = tvm.compile(sch.mod, target="nvidia/nvidia-h200")["main"]
    x = torch.randn(shape, device="cuda")
    out = torch.full([int(n) for n in sch.mod["main"].params[1].shape], 12345.0, device="cuda")
    run(x, out)
    torch.cuda.synchronize()
    first = x.permute(0, 3, 1, 2) if layout == "NHWC" else x
    pooled = getattr(torch.nn.functional, f"{kind}_pool2d")(first, 2)
    want = pooled.permute(0, 2, 3, 1) if layout == "NHWC" else pooled
    torch.testing.assert_close(out, want.contiguous())
