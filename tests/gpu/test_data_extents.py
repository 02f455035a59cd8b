"""Pipelines of as many turns as a tensor says, by each mechanism, on a GPU."""

import numpy as np
import pytest
import tvm

from tests.sim_kernels.test_extents_from_data import ALL, inputs, tiled

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module", autouse=True)
def hopper():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


@pytest.mark.parametrize("way", ALL)
@pytest.mark.parametrize("target", ["nvidia/nvidia-h200", "nvidia/nvidia-a100"])
def test_turns_from_data(way, target):
    if "a100" in target and way in ("tma", "bulk"):
        pytest.skip("sm_80 lacks it, and says so")
    kernel = tvm.compile(tiled(way).mod, target=target)["main"]
    given = inputs()
    x = torch.from_numpy(given["X"]).cuda()
    for shift in range(4):  # the blocks change places
        counts = np.roll(given["N"], shift)
        out = torch.full((8, 256), float("nan"), device="cuda")
        kernel(x, torch.from_numpy(counts).cuda(), out)
        want = np.stack(
            [a[:n].sum(0, dtype="float64") for a, n in zip(given["X"], counts, strict=True)]
        )
        np.testing.assert_allclose(out.cpu().numpy(), want, rtol=1e-4, atol=1e-4)
