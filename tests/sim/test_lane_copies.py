"""A copy that one lane issues comes after that lane's own instructions, not after other lanes'."""

import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_hopper.simulation import simulate, verify

from .kernels import LOAD_1D, STORE_1D, lower, rules

X = {"X": np.arange(32, dtype="float32")}


def stored(how):
    """Fill 32 words, one a lane (or all by the issuer), and let a lane store them in bulk."""

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((32,), "float32"), Y: T.Buffer((32,), "float32")):
        T.func_attr({"global_symbol": "main"})
        T.launch_thread("blockIdx.x", 1)
        tx = T.launch_thread("threadIdx.x", 32)
        with T.attr(T.int32(0), "hand_threaded", 1):
            smem = T.alloc_buffer((512,), "uint8", scope="shared.dyn", align=1024)
            tile = T.decl_buffer((128,), "float32", data=smem.data, scope="shared.dyn")
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
            if how == "half met":  # noqa: SIM102 (a Python value outside of a TIR condition)
                if tx < 16:
                    T.ptx.bar.warp.sync(T.uint32(0xFFFF))
            if tx == 5:
                T.ptx[STORE_1D](T.address_of(Y[0]), T.address_of(tile[0]), T.uint32(128))
                T.ptx.cp.async_.bulk.commit_group()
                T.ptx["cp.async.bulk.wait_group.read"](0)

    return main


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


def refilled(meet):
    """Read 32 words by as many lanes, and let one of them load others into their place."""

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((32,), "float32"), Y: T.Buffer((64,), "float32")):
        T.func_attr({"global_symbol": "main"})
        T.launch_thread("blockIdx.x", 1)
        tx = T.launch_thread("threadIdx.x", 32)
        with T.attr(T.int32(0), "hand_threaded", 1):
            smem = T.alloc_buffer((512,), "uint8", scope="shared.dyn", align=1024)
            tile = T.decl_buffer((128,), "float32", data=smem.data, scope="shared.dyn")
            full = T.decl_buffer((64,), "uint64", data=smem.data, scope="shared.dyn")
            if tx == 0:
                T.ptx.mbarrier.init.shared.b64(T.address_of(full[32]), T.uint32(1))
                T.ptx.fence.mbarrier_init.release.cluster()
            T.cuda.warp_sync()
            for turn in T.serial(2):
                if tx == 0:
                    T.ptx.mbarrier.arrive.expect_tx.shared.b64(
                        T.address_of(full[32]), T.uint32(128)
                    )
                    T.ptx[LOAD_1D](
                        T.address_of(tile[0]), T.address_of(X[0]), T.uint32(128),
                        T.address_of(full[32]),
                    )  # fmt: skip
                T.cuda.mbarrier_wait(T.address_of(full[32]), turn)
                Y[turn * 32 + tx] = tile[tx]
                T.ptx.fence.proxy.async_.shared__cta()
                if meet:
                    T.cuda.warp_sync()

    return main


def test_a_load_over_what_other_lanes_read_needs_a_meeting():
    assert rules(refilled(True), X) == set()
    assert rules(refilled(False), X) == {"RACE_OVERWRITE_BUSY", "MBAR_PHASE_ALIAS"}


def copied_by_lanes(place):
    """Let each lane copy 4 bytes of its own into a tile by cp.async, to `place(lane)`."""

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((32,), "float32"), Y: T.Buffer((32,), "float32")):
        T.func_attr({"global_symbol": "main"})
        T.launch_thread("blockIdx.x", 1)
        tx = T.launch_thread("threadIdx.x", 32)
        with T.attr(T.int32(0), "hand_threaded", 1):
            smem = T.alloc_buffer((512,), "uint8", scope="shared.dyn", align=1024)
            tile = T.decl_buffer((128,), "float32", data=smem.data, scope="shared.dyn")
            tile[tx] = T.float32(0)
            T.cuda.warp_sync()
            T.ptx.cp.async_.ca.shared.global_(T.address_of(tile[place(tx)]), T.address_of(X[tx]), 4)
            T.ptx.cp.async_.commit_group()
            T.ptx.cp.async_.wait_group(0)
            T.cuda.warp_sync()
            Y[tx] = tile[tx]

    return main


def test_lanes_of_one_copy_write_to_places_of_their_own():
    assert rules(copied_by_lanes(lambda tx: tx), X) == set()
    assert rules(copied_by_lanes(lambda tx: tx // 2), X) == {"RACE_WRITE_WRITE"}
    same = {"X": np.ones(32, dtype="float32")}
    assert rules(copied_by_lanes(lambda tx: tx // 2), same) == set()  # no one could see which
    assert verify(lower(copied_by_lanes(lambda tx: tx // 2)), X).verdict == "error"
