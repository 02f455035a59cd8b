"""A copy that one lane issues comes after that lane's own instructions, not after other lanes'."""

import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_hopper.simulation import simulate, verify

from . import ptx
from .hand_threaded import F32, U64, Shared, hand_threaded
from .kernels import lower, rules

X = {"X": np.arange(32, dtype="float32")}


@hand_threaded(32, smem=512)
def stored(X: F32[32], Y: F32[32], tx, tile: Shared[F32], *, how):
    """Fill 32 words, one a lane (or all by the issuer), and let a lane store them in bulk."""
    if how == "issuer writes":
        if tx == 5:
            for i in T.serial(32):
                tile[i] = X[i]
    else:
        tile[tx] = X[tx]
    if how == "met":
        T.cuda.warp_sync()
    if how != "no fence":
        T.ptx.fence.proxy.async_.shared__cta()
    if how == "fenced, then met":
        T.ptx.bar.warp.sync(T.uint32(0xFFFFFFFF))
    if how == "half met":
        if tx < 16:
            T.ptx.bar.warp.sync(T.uint32(0xFFFF))
    if tx == 5:
        ptx.store_and_wait(Y[0], tile[0], 128, read=True)


@pytest.mark.parametrize("how", ["met", "fenced, then met", "issuer writes"])
def test_lanes_that_met_may_leave_a_copy_to_one(how):
    assert rules(stored(how), X) == set()


@pytest.mark.parametrize("how", ["", "half met"])
def test_lanes_that_did_not_meet_may_not(how):
    result = simulate(lower(stored(how)), X, policy="eager")
    (found,) = result.findings
    assert found.rule == "RACE_READ_INFLIGHT"
    assert found.missing == "bar.warp.sync between the lanes of cta0,0,0/wg0/warp0"
    assert "bulk store of cta0,0,0/wg0/warp0 reads bytes that are written by" in found.message


def test_a_missing_fence_is_named_first():
    assert rules(stored("no fence"), X) == {"PROXY_FENCE_MISSING"}


@hand_threaded(32, smem=512)
def refilled(X: F32[32], Y: F32[64], tx, tile: Shared[F32], full: Shared[U64], *, meet):
    """Read 32 words by as many lanes, and let one of them load others into their place."""
    ptx.set_up(tx, (full[32], 1), sync=T.cuda.warp_sync)
    for turn in T.serial(2):
        if tx == 0:
            ptx.expect_and_load(tile[0], X[0], 128, full[32])
        ptx.wait(full[32], turn)
        Y[turn * 32 + tx] = tile[tx]
        T.ptx.fence.proxy.async_.shared__cta()
        if meet:
            T.cuda.warp_sync()


def test_a_load_over_what_other_lanes_read_needs_a_meeting():
    assert rules(refilled(True), X) == set()
    assert rules(refilled(False), X) == {"RACE_OVERWRITE_BUSY", "MBAR_PHASE_ALIAS"}


@hand_threaded(32, smem=512)
def copied_by_lanes(X: F32[32], Y: F32[32], tx, tile: Shared[F32], *, place):
    """Let each lane copy 4 bytes of its own into a tile by cp.async, to `place(lane)`."""
    tile[tx] = T.float32(0)
    T.cuda.warp_sync()
    T.ptx.cp.async_.ca.shared.global_(T.address_of(tile[place(tx)]), T.address_of(X[tx]), 4)
    T.ptx.cp.async_.commit_group()
    T.ptx.cp.async_.wait_group(0)
    T.cuda.warp_sync()
    Y[tx] = tile[tx]


def test_lanes_of_one_copy_write_to_places_of_their_own():
    assert rules(copied_by_lanes(lambda tx: tx), X) == set()
    assert rules(copied_by_lanes(lambda tx: tx // 2), X) == {"RACE_WRITE_WRITE"}
    same = {"X": np.ones(32, dtype="float32")}
    assert rules(copied_by_lanes(lambda tx: tx // 2), same) == set()  # no one could see which
    assert verify(lower(copied_by_lanes(lambda tx: tx // 2)), X).verdict == "error"
