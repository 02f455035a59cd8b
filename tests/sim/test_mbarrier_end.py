"""An mbarrier ends behind its last use: `mbarrier.inval` is ordered behind the waits of others."""

import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_hopper.simulation import verify

from . import ptx
from .hand_threaded import F32, U64, Shared, hand_threaded
from .kernels import lower, rules

FEW = (("on_wait", 0), ("random", 1))


@hand_threaded(64, smem=64)
def ended(X: F32[64], Y: F32[64], tx, bar: Shared[U64], *, when):
    """Invalidate an mbarrier once all have met behind their waits, or right behind the own wait."""
    if tx == 0:
        ptx.init_mbarrier(bar[0], 64)
    T.tvm_storage_sync("shared")
    ptx.arrive(bar[0])
    ptx.wait(bar[0], 0)
    Y[tx] = X[tx]
    if when == "all have met":
        T.tvm_storage_sync("shared")
    if tx == 0:
        T.ptx.mbarrier.inval.shared.b64(T.address_of(bar[0]))


@pytest.mark.parametrize(
    ("when", "verdict"), [("all have met", "clean"), ("one has waited", "error")]
)
def test_exploration_follows_the_end_of_an_mbarrier(when, verdict):
    report = verify(lower(ended(when)), {"X": np.arange(64, dtype="float32")}, runs=FEW[:1])
    assert report.verdict == verdict, str(report)
    explored = [x for x in report.findings if x.rule == "MBAR_USE_BEFORE_INIT"]
    assert bool(explored) == (verdict == "error"), str(report)


@pytest.mark.parametrize(
    ("when", "found"), [("all have met", set()), ("one has waited", {"MBAR_REINIT_LIVE"})]
)
def test_an_mbarrier_ends_behind_its_last_use(when, found):
    assert rules(ended(when), {"X": np.arange(64, dtype="float32")}, FEW) & {
        "MBAR_REINIT_LIVE", "MBAR_USE_BEFORE_INIT",
    } == found  # fmt: skip
