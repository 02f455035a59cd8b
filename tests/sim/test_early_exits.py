"""Kernels that some threads leave early: what follows them, and what does not."""

import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_hopper.sim.protocol.check import explore_skeleton
from tvm_hopper.simulation import verify
from tvm_hopper.static_check import check_sync

from . import ptx
from .hand_threaded import F32, U64, Shared, hand_threaded
from .kernels import lower

X = np.arange(128, dtype="float32")


@hand_threaded(128, then=lower)
def kernel(X: F32[128], Y: F32[128], tx, *, how):
    """Let two warps meet at a barrier of 64, in or behind a statement that may be left early."""
    if how == "return":
        if tx >= 64:
            T.evaluate(T.thread_return())
        T.ptx.bar.sync(T.uint32(1), T.uint32(64))
    if how == "break":
        for i in T.serial(4):
            T.ptx.bar.sync(T.uint32(1), T.uint32(128))
            if i == 2:
                T.evaluate(T.break_loop())
    if how == "break inside":
        for _ in T.serial(4):
            T.ptx.bar.sync(T.uint32(1), T.uint32(128))
            for k in T.serial(4):
                if k == 2:
                    T.evaluate(T.break_loop())
    if how == "return without a meeting":
        if tx >= 64:
            T.evaluate(T.thread_return())
    Y[tx] = X[tx]


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("return", "skeleton: a return before the function's end"),
        ("break", "skeleton: loop i around synchronisation is left early"),
    ],
)
def test_what_is_left_early_is_not_explored(how, reason):
    program = kernel(how)
    (func,) = program.kernels.values()
    (found,) = explore_skeleton(func, program.host).findings
    assert (found.rule, found.message) == ("INCOMPLETE", reason)
    assert [one.rule for one in check_sync(func, program.host)] == ["INCOMPLETE"]


@pytest.mark.parametrize("how", ["break inside", "return without a meeting"])
def test_what_no_meeting_depends_on_is_no_matter(how):
    program = kernel(how)
    (func,) = program.kernels.values()
    assert explore_skeleton(func, program.host).findings == ()


@hand_threaded(64, grid=4, cluster=4, smem=256, then=lower)
def cluster(X: F32[256], Y: F32[256], bx, rank, tx, bar: Shared[U64], *, how):
    """Let three of four CTAs meet, while the fourth one, or a warp, has nothing to do."""
    if how == "a CTA once":
        T.cuda.cluster_sync()
        if rank < 3:
            T.cuda.cluster_sync()
    if how == "a CTA never":
        if rank < 3:
            T.ptx.barrier.cluster.arrive.release.aligned()
            T.ptx.barrier.cluster.wait.acquire.aligned()
    if how == "a warp":
        T.cuda.cta_sync()
        if tx < 32:
            T.cuda.cluster_sync()
            T.cuda.cta_sync()
            T.cuda.cluster_sync()
    if how == "half a warp":
        if tx % 32 < 16:
            T.ptx.barrier.cluster.arrive.release()
            T.ptx.barrier.cluster.wait.acquire()
    if how == "arrived and left":
        T.ptx.barrier.cluster.arrive.release.aligned()
        if rank < 3:
            T.ptx.barrier.cluster.wait.acquire.aligned()
    if how == "stays":
        # CTA 3 does not exit: it waits for an arrival that comes behind the meeting
        if tx == 0:
            ptx.init_mbarrier(bar[0], 1)
        T.cuda.cluster_sync()
        if rank < 3:
            T.cuda.cluster_sync()
        else:
            ptx.wait(bar[0], 0)
    Y[bx * 64 + tx] = X[bx * 64 + tx]


LEAVING = ["a CTA once", "a CTA never", "a warp", "half a warp", "arrived and left"]


@pytest.mark.parametrize("how", LEAVING)
def test_a_cluster_barrier_does_not_wait_for_threads_that_have_exited(how):
    verify(cluster(how), runs=(("eager", 0), ("random", 1))).require_clean()


def test_a_cluster_barrier_waits_for_threads_that_have_not():
    program = cluster("stays")
    (func,) = program.kernels.values()
    assert {one.rule for one in explore_skeleton(func, program.host).findings} == {"DEADLOCK"}
