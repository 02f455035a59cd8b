"""The pass list cut short: with what realises the rest behind it, each kernel computes the same."""

from __future__ import annotations

import pytest

from tests.sim_kernels import kernels, pointwise_kernels
from tvm_hopper import pipeline
from tvm_hopper import schedule as hs
from tvm_hopper.errors import VerifyError
from tvm_hopper.schedule import gemm
from tvm_hopper.testing.pointwise import Tiling

PASSES = pipeline.hook_passes()
NAMES = [one.info.name.removeprefix("tvm_hopper.") for one in PASSES]
REALISE = ("InsertSyncs", "LowerChannels")  # waits and barriers; MergeShared's offsets come later
# Where nothing is lowered yet one thread does all the work, which takes the simulator long.
SLOW = ("RestoreAxisNotes", "ResolveBounds")
EVERY = pytest.mark.parametrize(
    "last",
    [pytest.param(x, marks=pytest.mark.slow if x in SLOW else ()) for x in ("nothing", *NAMES)],
)

MATMULS = {
    "plain": ({"m": 64, "n": 8, "k": 32}, {"tile": (64, 8, 16), "stages": 2}),
    "ragged": ({"m": 72, "n": 8, "k": 24}, {"tile": (64, 8, 16), "stages": 2}),
    "persistent": (
        {"m": 64, "n": 16, "k": 32},
        {"tile": (64, 8, 16), "stages": 2, "persistent": 1, "wgmma_pending": 1},
    ),
}


@pytest.fixture
def cut(monkeypatch):
    """Cut the list behind a pass; what schedules look at before they accept stays whole."""

    def behind(last: str, without: tuple[str, ...] = ()) -> None:
        length = NAMES.index(last) + 1 if last in NAMES else 0
        rest = [one for one, name in zip(PASSES, NAMES, strict=True) if name in REALISE]
        kept = PASSES[:length] + [one for one in rest if one not in PASSES[:length]]
        kept = [one for one in kept if one.info.name.removeprefix("tvm_hopper.") not in without]
        monkeypatch.setattr(gemm, "check_lowering", lambda *_: None)
        monkeypatch.setattr(pipeline, "hook_passes", lambda: kept)

    return behind


@EVERY
@pytest.mark.parametrize("which", MATMULS)
def test_matmuls(which, last, cut):
    cut(last)
    problem, config = MATMULS[which]
    kernels.check(problem, consumers=1, **config)


@EVERY
@pytest.mark.parametrize("roles", [None, hs.Roles(1)], ids=["one-role", "producer"])
def test_pointwise(roles, last, cut):
    cut(last)
    tiling = Tiling(tile=(4, 32), steps=3, threads=128, vector=1, stages=2, roles=roles)
    pointwise_kernels.check("exp_add", (11, 32), tiling)


@pytest.mark.parametrize("which", MATMULS)
def test_without_its_waits_the_kernel_is_no_kernel_yet(which, cut):
    cut("LowerChannels", without=("InsertSyncs",))
    problem, config = MATMULS[which]
    with pytest.raises((AssertionError, VerifyError), match="WGMMA_FENCE_MISSING"):
        kernels.check(problem, consumers=1, **config)
