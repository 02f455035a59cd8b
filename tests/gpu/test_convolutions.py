"""Convolutions on a GPU, against PyTorch."""

import numpy as np
import pytest
import tvm
from tvm import s_tir
from tvm.target import Target

from tvm_hopper import schedule as hs
from tvm_hopper.testing.convolutions import convolution

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
H200 = Target("nvidia/nvidia-h200")


def drawn(seed):
    """Draw a convolution: images, channels, filters, window, and the rest."""
    rng = np.random.default_rng(seed)
    step, dilation, pads = (int(rng.integers(low, 4)) for low in (1, 1, 0))
    window = tuple(int(x) for x in rng.integers(1, 8, 2))
    images = tuple(int(x) for x in (rng.integers(1, 9), *rng.integers(22, 70, 2)))
    channels = int(rng.choice([8, 24, 64, 96, 128, 320, 512]))
    filters = int(rng.choice([8, 40, 64, 160, 256]))
    weights = str(rng.choice(["channels first", "filters first"]))
    more = {"steps": step, "pads": pads, "dilation": dilation, "weights": weights}
    return images, channels, filters, window, more


@pytest.mark.parametrize("seed", range(24))
def test_values(seed):
    images, channels, filters, window, more = drawn(seed)
    mod = convolution(images, channels, filters, window, fused=True, **more)
    sch = s_tir.Schedule(mod)
    with H200:
        hs.matmul(sch, "C")
    run = tvm.compile(sch.mod, target=H200)["main"]
    params = mod["main"].params
    shapes = [[int(n) for n in x.shape] for x in params]
    x, w = (torch.randn(s, device="cuda").half() for s in shapes[:2])
    bias, residual = (torch.randn(s, device="cuda") for s in shapes[2:4])
    out = torch.full(shapes[4], 12345.0, dtype=torch.float16, device="cuda")
    run(x, w, bias, residual, out)
    torch.cuda.synchronize()
    order = (3, 2, 0, 1) if more["weights"] == "channels first" else (0, 3, 1, 2)
    total = torch.nn.functional.conv2d(
        x.double().permute(0, 3, 1, 2), w.double().permute(*order),
        stride=more["steps"], padding=more["pads"], dilation=more["dilation"],
    ).permute(0, 2, 3, 1)  # fmt: skip
    want = torch.relu(total + bias.double()) + residual.double()
    torch.testing.assert_close(out.double(), want, rtol=2e-3, atol=2e-3 * channels**0.5)
