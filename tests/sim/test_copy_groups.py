"""Groups of cp.async are of a thread: who commits, waits, arrives, and what others know of it."""

import numpy as np
import pytest
from tvm.script import tirx as T

from . import ptx
from .hand_threaded import F32, U64, Shared, hand_threaded
from .kernels import rules

X = np.arange(32, dtype="float32")
COPY = "cp.async.ca.shared.global"
READ = "RACE_READ_INFLIGHT"


@hand_threaded(64, smem=512)
def copied(X: F32[32], Y: F32[32], tx, tile: Shared[F32], *, how):
    """Warp 0 copies a word in each lane; the block meets, and warp 1 reads them."""
    if tx < 32:
        T.ptx[COPY](T.address_of(tile[tx]), T.address_of(X[tx]), 4)
        if how == "half commits":
            if tx < 16:
                T.ptx.cp.async_.commit_group()
        elif how == "each half for itself":
            if tx < 16:
                T.ptx.cp.async_.commit_group()
                T.ptx["cp.async.wait_group"](0)
            else:
                T.ptx.cp.async_.commit_group()
                T.ptx["cp.async.wait_group"](0)
        else:
            T.ptx.cp.async_.commit_group()
        if how in ("half is a group ahead", "all are a group ahead"):
            if how != "half is a group ahead" or tx < 16:
                T.ptx.cp.async_.commit_group()
            T.ptx["cp.async.wait_group"](1)
        elif how == "lane 0 waits":
            if tx == 0:
                T.ptx["cp.async.wait_group"](0)
        elif how == "half waits for all":
            if tx < 16:
                T.ptx["cp.async.wait_all"]()
        elif how == "one after the other":
            if tx < 16:
                T.ptx["cp.async.wait_group"](0)
            T.ptx["cp.async.wait_group"](0)
        else:
            T.ptx["cp.async.wait_group"](0)
    T.tvm_storage_sync("shared")
    if tx >= 32:
        Y[tx - 32] = tile[tx - 32]


WAITED_FOR = ["all", "each half for itself", "one after the other", "all are a group ahead"]
OTHERS = ["half commits", "half is a group ahead", "lane 0 waits", "half waits for all"]


@pytest.mark.parametrize("how", [*WAITED_FOR, *OTHERS])
def test_lanes_wait_for_their_own_copies_alone(how):
    found = rules(copied(how), {"X": X})
    assert READ in found if how in OTHERS else found == set()


@hand_threaded(32, smem=512)
def own(X: F32[32], Y: F32[32], tx, tile: Shared[F32], *, half):
    """Each half commits and waits for itself; each lane reads its own word, or a neighbour's."""
    T.ptx[COPY](T.address_of(tile[tx]), T.address_of(X[tx]), 4)
    if tx < 16:
        T.ptx["cp.async.wait_all"]()
        Y[tx] = tile[tx + half]
    else:
        T.ptx["cp.async.wait_all"]()
        Y[tx] = tile[tx]


@pytest.mark.parametrize(("half", "want"), [(0, set()), (1, {READ}), (16, {READ})])
def test_a_lane_reads_what_it_copied_itself(half, want):
    assert rules(own(half), {"X": X}) == want


def handed_over(how):
    """Warp 0 copies a word in each lane and arrives on an mbarrier; warp 1 waits and reads."""
    by_copies = how.startswith("copies")
    one = "lane 0" in how

    @hand_threaded(64, smem=512)
    def main(X: F32[32], Y: F32[32], tx, tile: Shared[F32], bar: Shared[U64]):
        ptx.set_up(tx, (bar[32], 1 if one else 16 if "half" in how else 32))
        if tx < 32:
            T.ptx[COPY](T.address_of(tile[tx]), T.address_of(X[tx]), 4)
            if by_copies:
                if how == "copies, met":
                    T.ptx["cp.async.wait_all"]()
                    T.cuda.warp_sync()
                if how == "copies" or tx < (1 if one else 16 if "half" in how else 32):
                    T.ptx["cp.async.mbarrier.arrive.noinc.shared.b64"](T.address_of(bar[32]))
            else:
                T.ptx["cp.async.wait_all"]()
                if how == "lane 0 after a meeting":
                    T.cuda.warp_sync()
                if one:
                    if tx == 0:
                        ptx.arrive(bar[32])
                else:
                    ptx.arrive(bar[32])
        else:
            ptx.wait(bar[32], 0)
            if how == "copies of half, of which it reads":
                if tx < 48:
                    Y[tx - 32] = tile[tx - 32]
                else:
                    Y[tx - 32] = T.float32(0)
            else:
                Y[tx - 32] = tile[tx - 32]

    return main


ARRIVED = ["all", "lane 0 after a meeting", "copies", "copies, met"]
ARRIVED += ["copies of half, of which it reads"]


@pytest.mark.parametrize("how", [*ARRIVED, "lane 0", "copies, lane 0", "copies, half"])
def test_an_arrival_tells_of_the_copies_of_those_who_arrive(how):
    assert rules(handed_over(how), {"X": X}) == (set() if how in ARRIVED else {READ})


@hand_threaded(32, smem=512)
def stored(X: F32[32], Y: F32[32], tx, tile: Shared[F32], *, how):
    """One warp copies words in, and lane 0 sends them off by a bulk store behind its fence."""
    T.ptx[COPY](T.address_of(tile[tx]), T.address_of(X[tx]), 4)
    T.ptx["cp.async.wait_all"]()
    if how == "met":
        T.cuda.warp_sync()
    if tx == 0:
        T.ptx.fence.proxy.async_.shared__cta()
        ptx.store_and_wait(Y[0], tile[0], 128)


def test_a_fence_of_one_lane_covers_copies_of_others_after_a_meeting():
    assert rules(stored("met"), {"X": X}) == set()
    assert rules(stored("not met"), {"X": X}) & {READ, "PROXY_FENCE_MISSING"}


def returned(how):
    """Lane 0 stores a tile and waits for it; then a lane, or a warp, loads it back by a copy."""
    loader = {"own": 0, "not met": 1, "met": 1, "another warp": 32}[how]

    @hand_threaded(64, smem=2048)
    def main(X: F32[64], W: F32[64], Y: F32[64], tx, tile: Shared[F32], bar: Shared[U64]):
        ptx.set_up(tx, (bar[200], 1), sync=None)
        tile[tx] = X[tx]
        T.ptx.fence.proxy.async_.shared__cta()
        T.cuda.cta_sync()
        if tx == 0:
            ptx.store_and_wait(W[0], tile[0], 256)
        if how == "met":
            T.cuda.warp_sync()
        if how == "another warp":
            T.ptx["fence.proxy.async"]()
            T.cuda.cta_sync()
        if tx == loader:
            ptx.expect_and_load(tile[256], W[0], 256, bar[200])
        ptx.wait(bar[200], 0)
        Y[tx] = tile[256 + tx]

    return main


@pytest.mark.parametrize("how", ["own", "met", "another warp", "not met"])
def test_a_bulk_store_is_loaded_back_by_who_waited_or_met_it(how):
    found = rules(returned(how), {"X": np.arange(64, dtype="float32")})
    assert found == ({"GLOBAL_NOT_VISIBLE"} if how == "not met" else set())
