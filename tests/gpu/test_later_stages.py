"""Statements that compute in several stages of a pipelined loop, on the chip."""

import numpy as np
import pytest
import tvm

from tests.sim_kernels.test_later_stages import MECHANISMS, STAGES, case, wanted
from tests.sim_kernels.test_pipeline_forms import tiles

pytestmark = pytest.mark.gpu
ROUNDS = 20


@pytest.mark.parametrize("roles", [False, True], ids=["one-role", "producer"])
@pytest.mark.parametrize("by", MECHANISMS)
@pytest.mark.parametrize("stages", STAGES, ids=str)
def test_what_each_stage_leaves_the_next_one_finds(stages, by, roles):
    """Often, since a race would not show each time."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-3, 4, (176, 128)).astype("float32") for _ in range(2))
    kernel = tvm.compile(case(11, stages, by, roles), target="nvidia/nvidia-h200")["main"]
    given = [torch.from_numpy(x).cuda() for x in (a, b)]
    want = wanted(tiles(a), tiles(b))
    for _ in range(ROUNDS):
        out = torch.full((2, 128), 99.0, device="cuda")
        kernel(*given, out)
        torch.cuda.synchronize()
        np.testing.assert_array_equal(out.cpu().numpy(), want)
