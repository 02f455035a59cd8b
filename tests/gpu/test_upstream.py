"""TVM's own schedules under the option, built for both chips, on a GPU."""

import numpy as np
import pytest
import tvm
from tvm.ir.transform import PassContext

from tests.upstream.catalogue import SCHEDULES
from tests.upstream.judging import OURS, TARGETS
from tests.upstream.products import index_maps

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("schedule", [x for x in SCHEDULES if x.computes], ids=lambda x: x.name)
def test_every_kernel_is_right_ten_times(schedule, target):
    with PassContext(config=OURS), index_maps():
        kernel = tvm.compile(schedule.program(), target=TARGETS[target])["main"]
    inputs = schedule.integers()
    want = schedule.computes(*inputs)
    given = [torch.from_numpy(x).cuda() for x in inputs]
    for _ in range(10):
        out = torch.full(want.shape, 777, device="cuda", dtype=getattr(torch, str(want.dtype)))
        kernel(*given, out)
        torch.cuda.synchronize()
        np.testing.assert_array_equal(out.cpu().numpy(), want)
