"""A lane that waits for a phase must have done so before the next phase ends, or the mbarrier does.

Each thread waits for itself, and a parity names the phase in progress or the one before: a lane
that comes to its wait later means another phase, and may never go on.
"""

import numpy as np
import pytest
from tvm.script import tirx as T

from .kernels import rules

TRIPS = 4
X = np.arange(TRIPS, dtype="float32")
FEW = (("on_wait", 0), ("random", 1))


def handed(meets, arrives="one lane"):
    """Hand numbers from a warp that waits as a whole to another one, by two mbarriers."""
    full_count = 32 if arrives == "every lane" else 1

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((TRIPS,), "float32"), Y: T.Buffer((TRIPS,), "float32")):
        T.func_attr({"global_symbol": "main"})
        T.launch_thread("blockIdx.x", 1)
        tx = T.launch_thread("threadIdx.x", 64)
        with T.attr(T.int32(0), "hand_threaded", 1):
            smem = T.alloc_buffer((256,), "uint8", scope="shared.dyn", align=1024)
            word = T.decl_buffer((64,), "float32", data=smem.data, scope="shared.dyn")
            bar = T.decl_buffer((32,), "uint64", data=smem.data, scope="shared.dyn")
            lane = T.alloc_buffer((1,), "int32", scope="local")
            if tx == 0:
                T.ptx.mbarrier.init.shared.b64(T.address_of(bar[16]), T.uint32(full_count))
                T.ptx.mbarrier.init.shared.b64(T.address_of(bar[17]), T.uint32(1))
            T.tvm_storage_sync("shared")
            for k in T.serial(TRIPS):
                if tx < 32:
                    T.cuda.mbarrier_wait(T.address_of(bar[17]), (k % 2) ^ 1)
                    if meets == "bar.warp.sync":
                        T.cuda.warp_sync()
                    if meets == "shfl.sync":
                        lane[0] = T.cuda.__shfl_xor_sync(T.uint32(0xFFFFFFFF), tx, 0, 32)
                    if tx == 0:
                        word[0] = X[k]
                    if arrives == "every lane" or tx == 0:
                        T.ptx.mbarrier.arrive.shared.b64(T.address_of(bar[16]))
                elif tx == 32:
                    T.cuda.mbarrier_wait(T.address_of(bar[16]), k % 2)
                    Y[k] = word[0]
                    T.ptx.mbarrier.arrive.shared.b64(T.address_of(bar[17]))

    return main


@pytest.mark.parametrize(
    ("meets", "arrives"),
    [("bar.warp.sync", "one lane"), ("shfl.sync", "one lane"), ("", "every lane")],
)
def test_lanes_that_meet_or_arrive_are_not_late(meets, arrives):
    assert rules(handed(meets, arrives), {"X": X}, FEW) == set()


def test_a_lane_that_need_not_have_waited_is_late():
    assert rules(handed(""), {"X": X}, FEW) == {"MBAR_PHASE_ALIAS"}


def ended(when):
    """Invalidate an mbarrier once all have met behind their waits, or right behind the own wait."""

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((64,), "float32"), Y: T.Buffer((64,), "float32")):
        T.func_attr({"global_symbol": "main"})
        T.launch_thread("blockIdx.x", 1)
        tx = T.launch_thread("threadIdx.x", 64)
        with T.attr(T.int32(0), "hand_threaded", 1):
            smem = T.alloc_buffer((64,), "uint8", scope="shared.dyn", align=1024)
            bar = T.decl_buffer((8,), "uint64", data=smem.data, scope="shared.dyn")
            if tx == 0:
                T.ptx.mbarrier.init.shared.b64(T.address_of(bar[0]), T.uint32(64))
            T.tvm_storage_sync("shared")
            T.ptx.mbarrier.arrive.shared.b64(T.address_of(bar[0]))
            T.cuda.mbarrier_wait(T.address_of(bar[0]), 0)
            Y[tx] = X[tx]
            if when == "all have met":
                T.tvm_storage_sync("shared")
            if tx == 0:
                T.ptx.mbarrier.inval.shared.b64(T.address_of(bar[0]))

    return main


@pytest.mark.parametrize(
    ("when", "found"), [("all have met", set()), ("one has waited", {"MBAR_REINIT_LIVE"})]
)
def test_an_mbarrier_ends_behind_its_last_use(when, found):
    assert rules(ended(when), {"X": np.arange(64, dtype="float32")}, FEW) & {
        "MBAR_REINIT_LIVE", "MBAR_USE_BEFORE_INIT",
    } == found  # fmt: skip
