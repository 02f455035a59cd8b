"""Barriers of a cluster, of some threads of a block and of a warp count the lanes that come."""

import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_hopper.simulation import simulate, verify

from . import ptx
from .hand_threaded import F32, U32, U64, Local, Shared, hand_threaded
from .kernels import lower, rules

X = np.arange(256, dtype="float32")
FEW = (("eager", 0), ("on_wait", 0), ("random", 1))


@hand_threaded(64, grid=2, cluster=2, then=lower)
def cluster(
    X: F32[128], Y: F32[128],
    bx, rank, tx, tile: Shared[F32], at: Local[U32], value: Local[F32],
    *, how,
):  # fmt: skip
    """Read a word of the other CTA behind the barrier of the cluster, which lanes come to."""
    tile[tx] = X[bx * 64 + tx]
    if how == "both sides":
        if tx % 32 < 16:
            T.ptx.barrier.cluster.arrive()
            T.ptx.barrier.cluster.wait()
        else:
            T.ptx.barrier.cluster.arrive()
            T.ptx.barrier.cluster.wait()
    elif how == "both arrive":
        if tx % 32 < 3:
            T.ptx.barrier.cluster.arrive()
        else:
            T.ptx.barrier.cluster.arrive()
        T.ptx.barrier.cluster.wait.aligned()
    elif how == "four parts":
        if tx % 32 < 16:
            if tx % 32 < 3:
                T.ptx.barrier.cluster.arrive()
            else:
                T.ptx.barrier.cluster.arrive()
        else:
            if tx % 32 < 20:
                T.ptx.barrier.cluster.arrive()
            else:
                T.ptx.barrier.cluster.arrive()
        T.ptx.barrier.cluster.wait()
    elif how == "relaxed side":  # of the lanes from 16 on nothing is released
        if tx % 32 < 16:
            T.ptx.barrier.cluster.arrive()
        else:
            T.ptx.barrier.cluster.arrive.relaxed()
        T.ptx.barrier.cluster.wait()
    elif how == "aligned sides":
        if tx % 32 < 16:
            T.ptx.barrier.cluster.arrive.aligned()
        else:
            T.ptx.barrier.cluster.arrive.aligned()
        T.ptx.barrier.cluster.wait.aligned()
    elif how == "aligned wait":
        T.ptx.barrier.cluster.arrive.aligned()
        if tx % 32 == 0:
            T.ptx.barrier.cluster.wait.aligned()
    elif how == "wait":
        T.ptx.barrier.cluster.arrive()
        if tx % 32 == 0:
            T.ptx.barrier.cluster.wait()
    ptx.map_to_rank(at[0], tile[tx], 1 - rank)
    T.ptx["ld.shared::cluster.f32"](value[0], at[0])
    T.cuda.cluster_sync()
    Y[bx * 64 + tx] = value[0]


@pytest.mark.parametrize("how", ["both sides", "both arrive", "four parts"])
def test_lanes_may_come_to_the_barrier_of_a_cluster_in_parts(how):
    verify(cluster(how), {"X": X[:128]}).require_clean()
    result = simulate(cluster(how), {"X": X[:128]})
    assert np.array_equal(result.outputs["Y"], np.roll(X[:128], 64))


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ("aligned sides", {"WARP_CONVERGENCE"}),
        ("aligned wait", {"WARP_CONVERGENCE", "RACE_READ_INFLIGHT"}),
        ("wait", {"DEADLOCK"}),
        ("relaxed side", {"MBAR_SCOPE_TOO_NARROW"}),
    ],
)
def test_the_barrier_of_a_cluster_is_one_of_lanes(how, found):
    report = verify(cluster(how), {"X": X[:128]})
    assert {finding.rule for finding in report.findings} >= found
    assert report.verdict == "error"


@hand_threaded(64, then=lower)
def held(X: F32[64], Y: F32[64], tx, bar: Shared[U64], flag: Shared[U32], seen: Local[U32], *, how):
    """Let 16 lanes of each warp stand at a barrier, and the others go on to something else."""
    if tx == 0:
        flag[0] = T.uint32(0)
        ptx.init_mbarrier(bar[64], 1)
    T.tvm_storage_sync("shared")
    if how == "warp":
        if tx % 32 < 16:
            T.cuda.warp_sync()
    elif how == "aligned":
        if tx % 32 < 16:
            T.ptx.bar.sync(T.uint32(1), T.uint32(64))
    else:
        if tx % 32 < 16:
            T.ptx.barrier.sync(T.uint32(1), T.uint32(64))
    if how == "meets":
        T.tvm_storage_sync("shared")
    elif how == "comes later":
        T.ptx.barrier.sync(T.uint32(1), T.uint32(64))
    elif how == "votes":
        Y[tx] = T.Cast("float32", T.cuda.any_sync(T.uint32(0xFFFFFFFF), 1))
    elif how == "waits":
        if tx == 31:
            ptx.wait(bar[64], 1)
    elif how == "spins":
        if tx == 31:
            T.ptx["ld.relaxed.cta.shared.u32"](seen[0], T.address_of(flag[0]))
            while seen[0] == T.uint32(0):
                T.ptx["ld.relaxed.cta.shared.u32"](seen[0], T.address_of(flag[0]))
    Y[tx] = X[tx]


def test_lanes_that_leave_are_not_waited_for():
    """All exit behind the branch: a barrier waits for the threads that have not exited.

    The skeleton has a false alarm there: it sees 32 threads of 64 arrive.
    """
    simulate(held("leaves"), {"X": X[:64]}).require_clean()
    assert {one.rule for one in verify(held("leaves"), {"X": X[:64]}).findings} == {"DEADLOCK"}


@pytest.mark.parametrize(
    ("how", "rule"),
    [
        ("meets", "DEADLOCK"),
        ("comes later", "DEADLOCK"),
        ("votes", "DEADLOCK"),
        ("aligned", "WARP_CONVERGENCE"),
        ("warp", "WARP_CONVERGENCE"),
    ],
)
def test_lanes_that_meet_elsewhere_hold_the_others_up(how, rule):
    report = verify(held(how), {"X": X[:64]})
    assert rule in {finding.rule for finding in report.findings}, str(report)


@pytest.mark.parametrize("how", ["waits", "spins"])
def test_who_ends_a_wait_of_lanes_that_others_wait_for_is_not_told(how):
    result = simulate(held(how), {"X": X[:64]})
    assert "INCOMPLETE" in result.rules


@hand_threaded(64, then=lower)
def named(X: F32[64], Y: F32[64], tx, tile: Shared[F32], count: Local[U32], *, how):
    """Turn a row of words around behind a named barrier that lanes come to in two parts."""
    tile[tx] = X[tx]
    if tx % 32 < 5:
        if how == "arrive":
            T.ptx.barrier.arrive(T.uint32(1), T.uint32(64))
        elif how == "red":
            T.ptx.barrier.red.popc.u32(count[0], T.uint32(1), T.uint32(64), T.ptx.pred(tx == 0))
        else:
            T.ptx.barrier.sync(T.uint32(1), T.uint32(96 if how == "count" else 64))
    else:
        if how == "red":
            T.ptx.barrier.red.popc.u32(count[0], T.uint32(1), T.uint32(64), T.ptx.pred(tx > 60))
        elif how == "number":
            T.ptx.barrier.sync(T.uint32(2), T.uint32(64))
        else:
            T.ptx.barrier.sync(T.uint32(1), T.uint32(64))
    if how == "red":
        Y[tx] = T.Cast("float32", count[0])
    elif how == "arrive":
        if tx % 32 >= 5:
            Y[tx] = tile[63 - tx]
        else:
            Y[tx] = X[tx]
    else:
        Y[tx] = tile[63 - tx]


def test_lanes_may_come_to_a_named_barrier_by_two_statements():
    verify(named("sync"), {"X": X[:64]}).require_clean()


def test_votes_of_lanes_that_come_by_two_statements_are_added():
    result = simulate(named("red"), {"X": X[:64]}).require_clean()
    assert np.array_equal(result.outputs["Y"], np.full(64, 4))


def test_some_lanes_may_arrive_where_others_wait():
    result = simulate(named("arrive"), {"X": X[:64]}).require_clean()
    expected = np.where(X[:64] % 32 < 5, X[:64], X[63::-1])
    assert np.array_equal(result.outputs["Y"], expected)


@pytest.mark.parametrize("how", ["count", "number"])
def test_lanes_that_come_to_different_barriers_do_not_meet(how):
    assert "DEADLOCK" in simulate(named(how), {"X": X[:64]}).rules


@hand_threaded(64, then=lower)
def arrived(X: F32[32], Y: F32[32], tx, tile: Shared[F32], *, how):
    """Say that a row is there by `bar.arrive`, of a whole warp or of one lane."""
    if tx < 32:
        tile[tx] = X[tx]
        if how == "one lane":
            if tx == 0:
                T.ptx.bar.arrive(T.uint32(1), T.uint32(64))
        elif how == "two sites":
            if tx < 7:
                T.ptx.barrier.arrive(T.uint32(1), T.uint32(64))
            else:
                T.ptx.barrier.arrive(T.uint32(1), T.uint32(64))
        else:
            T.ptx.bar.arrive(T.uint32(1), T.uint32(64))
    else:
        T.ptx.bar.sync(T.uint32(1), T.uint32(64))
        Y[tx - 32] = tile[63 - tx]


def test_a_warp_arrives_with_all_its_lanes():
    """bar.arrive "is equivalent to barrier{.cta}.arrive.aligned" (PTX ISA 9.1, 9.7.13.1)."""
    for how in ("all", "two sites"):
        verify(arrived(how), {"X": X[:32]}).require_clean()
    assert "WARP_CONVERGENCE" in simulate(arrived("one lane"), {"X": X[:32]}).rules


def warps(how, threads=64):
    """Hand words to another lane of the warp, behind `bar.warp.sync`."""

    @hand_threaded(threads)
    def main(X: F32[threads], Y: F32[threads], tx, tile: Shared[F32]):
        tile[tx] = X[tx]
        if how == "all":
            T.cuda.warp_sync()
        elif how == "sides":
            if tx % 32 < 16:
                T.cuda.warp_sync()
            else:
                T.ptx.bar.warp.sync(T.uint32(0xFFFFFFFF))
        elif how == "masks":  # each side meets its own lanes alone
            if tx % 32 < 16:
                T.ptx.bar.warp.sync(T.uint32(0xFFFF))
            else:
                T.ptx.bar.warp.sync(T.uint32(0xFFFF0000))
        elif how == "half":
            if tx % 32 < 16:
                T.cuda.warp_sync()
        elif how == "one":
            if tx % 32 == 0:
                T.cuda.warp_sync()
        elif how == "other masks":  # two masks that both hold all of these lanes
            if tx % 32 < 16:
                T.ptx.bar.warp.sync(T.uint32(0xFFFFFFFF))
            else:
                T.ptx.bar.warp.sync(T.uint32(0xFFFFFFFE))
        if how == "masks":
            Y[tx] = tile[tx // 16 * 16 + (tx + 1) % 16]
        else:
            Y[tx] = tile[T.min(tx // 32 * 32 + (tx + 17) % 32, threads - 1)]

    return main


RACE = {"WARP_CONVERGENCE", "RACE_READ_INFLIGHT"}


@pytest.mark.parametrize(
    ("how", "threads", "least"),
    [
        *((how, 64, set()) for how in ("all", "sides", "masks")),
        *((how, count, set()) for how, count in (("all", 48), ("sides", 56))),
        ("half", 64, RACE),
        ("one", 64, RACE),
        ("other masks", 64, {"DEADLOCK"}),
    ],
)
def test_lanes_meet_at_bar_warp_sync(how, threads, least):
    found = rules(warps(how, threads), {"X": X[:threads]}, FEW)
    assert found >= least if least else found == set()


@hand_threaded(64, grid=2, cluster=2)
def between(X: F32[128], Y: F32[128], bx, tx, tile: Shared[F32], bar: Shared[U64], *, how):
    """Wait for a copy between the two halves of a barrier of the cluster."""
    ptx.set_up(tx, (bar[64], 1))
    if tx == 0:
        ptx.expect_and_load(tile[0], X[bx * 64], 256, bar[64])
    if how == "before":
        if tx % 32 == 0:
            ptx.wait(bar[64], 0)
    T.ptx.barrier.cluster.arrive.aligned()
    if how == "one":
        if tx % 32 == 0:
            ptx.wait(bar[64], 0)
    if how == "all":
        ptx.wait(bar[64], 0)
    T.ptx.barrier.cluster.wait.aligned()
    Y[bx * 64 + tx] = tile[tx]


@pytest.mark.parametrize("how", ["before", "all", "one"])
def test_what_was_known_before_an_arrival_is_known_behind_the_wait(how):
    """Of accesses between the two "there is no memory ordering and visibility" (9.7.13.3)."""
    found = rules(between(how), {"X": X[:128]})
    assert "RACE_READ_INFLIGHT" in found if how == "one" else found == set()
