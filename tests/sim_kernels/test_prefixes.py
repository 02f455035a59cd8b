"""The pass list cut short: where it may be, the kernel still computes the same."""

import pytest

from tests.sim_kernels.kernels import check
from tvm_hopper import pipeline
from tvm_hopper.errors import VerifyError

PASSES = pipeline.hook_passes()
NAMES = [one.info.name.removeprefix("tvm_hopper.") for one in PASSES]
SYNCHRONOUS = ["nothing", *NAMES[: NAMES.index("LowerWgmma")]]
COMPLETE = NAMES[NAMES.index("LowerChannels") :]


@pytest.mark.parametrize("last", SYNCHRONOUS + COMPLETE)
def test_right_after(last, monkeypatch):
    kept = PASSES[: NAMES.index(last) + 1] if last in NAMES else []
    monkeypatch.setattr(pipeline, "hook_passes", lambda: kept)
    check({"m": 72, "n": 8, "k": 48}, (64, 8, 16), stages=2, consumers=1)


def test_without_its_waits_the_kernel_is_no_kernel_yet(monkeypatch):
    kept = [
        one
        for one, name in zip(PASSES, NAMES, strict=True)
        if name != "InsertAsyncWaits" and NAMES.index(name) <= NAMES.index("LowerChannels")
    ]
    monkeypatch.setattr(pipeline, "hook_passes", lambda: kept)
    with pytest.raises((AssertionError, VerifyError), match="WGMMA_FENCE_MISSING"):
        check({"m": 64, "n": 8, "k": 48}, (64, 8, 16), stages=2, consumers=1)
