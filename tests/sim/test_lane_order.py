"""One lane that arrives or fences for its warp needs a meeting of the lanes in front of it."""

import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_hopper.sim.races.lane_copies import LaneCopies
from tvm_hopper.sim.races.lane_order import LaneOrder, lane_bits
from tvm_hopper.sim.races.shadow import ALL_LANES, GENERIC, MemoryAccess

from . import ptx
from .hand_threaded import F32, U64, Shared, hand_threaded
from .kernels import rules


def handover(how):
    """Warp 0 fills 32 words, and one lane (or all) tells warp 1, which reads them."""
    count = 32 if how == "all_arrive" else 1

    @hand_threaded(64, smem=512)
    def main(A: F32[32], C: F32[32], tx, tile: Shared[F32], bar: Shared[U64]):
        ptx.set_up(tx, (bar[32], count), (bar[33], 32))
        if tx < 32:
            if how == "own":
                tile[32 + tx] = A[tx]
                if tx == 0:
                    for i in T.serial(32):
                        tile[i] = A[i]
            else:
                tile[tx] = A[tx]
            if how == "warp_sync":
                T.cuda.warp_sync()
            if how == "bar_warp_sync":
                T.ptx.bar.warp.sync(T.uint32(0xFFFFFFFF))
            if how == "half_sync":
                if tx < 16:
                    T.ptx.bar.warp.sync(T.uint32(0xFFFF))
            if how == "named":
                T.ptx.bar.sync(T.uint32(1), T.uint32(32))
            if how == "mbarrier":
                ptx.arrive(bar[33])
                ptx.wait(bar[33], 0)
            if how == "arrived_only":
                ptx.arrive(bar[33])
            if how == "first_waits":
                ptx.arrive(bar[33])
                if tx == 0:
                    ptx.wait(bar[33], 0)
            if how == "all_arrive":
                ptx.arrive(bar[32])
            else:
                if tx == 0:
                    ptx.arrive(bar[32])
        else:
            ptx.wait(bar[32], 0)
            C[tx - 32] = tile[tx - 32]

    return main


MET = ["warp_sync", "bar_warp_sync", "named", "mbarrier", "first_waits", "all_arrive", "own"]


@pytest.mark.parametrize("how", [*MET, "", "half_sync", "arrived_only"])
def test_lanes_that_met_are_released_by_one(how):
    found = rules(handover(how), {"A": np.arange(32, dtype="float32")})
    assert found == (set() if how in MET else {"RACE_READ_INFLIGHT"})


def access(epoch, lanes=ALL_LANES):
    return MemoryAccess(2, None, epoch, -1, GENERIC, True, 0, (), lanes=lanes)


def test_masks_become_bits():
    assert lane_bits(None) == ALL_LANES
    mask = np.zeros(32, bool)
    mask[[0, 5, 31]] = True
    assert lane_bits(mask) == 1 | 1 << 5 | 1 << 31


def test_what_lanes_do_not_know_begins_with_the_first_access_of_others():
    order = LaneOrder(0, LaneCopies(lambda: 0))
    order.add(access(3, 0b1))
    assert order.unknown_from(0b1) is None
    assert order.unknown_from(0b10) == 3
    order.add(access(5))
    order.add(access(7))
    assert order.unknown_from(0b1) == 5
    order.learn(0b1, 5)
    assert order.unknown_from(0b1) == 6
    assert order.unknown_from(0b10) == 3
    order.learn(ALL_LANES, 6)
    assert order.unknown_from(0b10) == 7
    order.learn(ALL_LANES, 7)
    assert order.unknown_from(0b10) is None


def test_a_meeting_of_some_lanes_tells_of_these_alone():
    order = LaneOrder(0, LaneCopies(lambda: 0))
    order.add(access(2, 0b11))
    order.learn(0b11, 2, 0b11)
    assert order.unknown_from(0b1) is None
    order.add(access(3))
    order.learn(0b11, 3, 0b11)
    assert order.unknown_from(0b1) == 3
