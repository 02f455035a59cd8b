"""Shared arrays in the same bytes, on a GPU: a ring behind a ring, staging behind a ring."""

import numpy as np
import pytest
import tvm

from tests.sim_kernels import test_overlays as overlays
from tvm_hopper.testing import workloads

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


@pytest.mark.parametrize(
    ("mod", "want"),
    [
        (overlays.two_rings, overlays.sum_both),
        (lambda: overlays.two_rings(around="for n in T.serial(2)", persistent=1),
         lambda a, b: 2 * overlays.sum_both(a, b)),
        (overlays.staged, overlays.sum_reversed),
        (lambda: overlays.staged(persistent=1), overlays.sum_reversed),
        (lambda: overlays.staged(roles=True), overlays.sum_reversed),
    ],
    ids=["rings", "rings in loops", "staging", "staging, persistent", "staging, producer"],
)  # fmt: skip
def test_values(mod, want):
    module = mod()
    run = tvm.compile(module, target=overlays.H200)["main"]
    rng = np.random.default_rng(7)
    shapes = [shape for shape, _ in workloads.argument_types(module)]
    a, b = (rng.integers(-3, 4, shape).astype("float32") for shape in shapes[:2])
    device = [torch.from_numpy(x).cuda() for x in (a, b)]
    for _ in range(20):
        out = torch.full(shapes[2], 12345.0, device="cuda")
        run(*device, out)
        torch.cuda.synchronize()
        np.testing.assert_array_equal(out.cpu().numpy(), want(a, b))
