"""Fences before relaxed arrivals and behind relaxed waits: release and acquire patterns."""

import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_hopper.simulation import verify

from . import ptx
from .hand_threaded import F32, U32, U64, Local, Shared, hand_threaded
from .kernels import lower, rules

X = np.arange(128, dtype="float32")


@hand_threaded(64, grid=2, cluster=2)
def cluster(
    X: F32[128], Y: F32[128],
    bx, rank, tx, tile: Shared[F32], at: Local[U32], value: Local[F32],
    *, fence, reads="peer", behind="",
):  # fmt: skip
    """Read words of the peer, or of the own CTA, behind a relaxed barrier of the cluster."""
    tile[tx] = X[bx * 64 + tx]
    if fence == "one lane":
        if tx % 32 == 0:
            T.ptx["fence.acq_rel.cluster"]()
    elif fence == "early":  # before what it should release
        T.ptx["fence.acq_rel.cluster"]()
        tile[tx] = X[bx * 64 + tx]
    elif fence == "widest":  # a narrower one behind it takes nothing back
        T.ptx["fence.acq_rel.gpu"]()
        T.ptx["fence.acq_rel.cta"]()
    elif fence == "mbarrier_init":
        T.ptx.fence.mbarrier_init.release.cluster()
    elif fence != "":
        T.ptx[f"fence.{fence}"]()
    T.ptx.barrier.cluster.arrive.relaxed.aligned()
    T.ptx.barrier.cluster.wait.aligned()
    if behind != "":
        T.ptx[f"fence.{behind}"]()
    if reads == "peer":
        ptx.map_to_rank(at[0], tile[tx], 1 - rank)
        T.ptx["ld.shared::cluster.f32"](value[0], at[0])
    else:
        value[0] = tile[63 - tx]
    T.cuda.cluster_sync()
    Y[bx * 64 + tx] = value[0]


ENOUGH = [
    ("acq_rel.cluster", "peer", ""),
    ("acq_rel.cluster", "peer", "acq_rel.cluster"),
    ("acq_rel.gpu", "peer", ""),
    ("sc.cluster", "peer", ""),
    ("widest", "peer", ""),
    ("acq_rel.cta", "own", ""),
]
TOO_LITTLE = [
    ("", "peer", ""),
    ("", "own", ""),
    ("", "peer", "acq_rel.cluster"),
    ("acq_rel.cta", "peer", ""),
    ("one lane", "peer", ""),
    ("early", "peer", ""),
    ("mbarrier_init", "peer", ""),
    ("mbarrier_init", "own", ""),
]


@pytest.mark.parametrize("how", [*ENOUGH, *TOO_LITTLE], ids=str)
def test_a_relaxed_arrival_releases_what_fences_before_it_do(how):
    """The use that PTX ISA 9.7.13.3 shows of `barrier.cluster.arrive.relaxed`."""
    if how in ENOUGH:
        verify(lower(cluster(*how)), {"X": X}).require_clean()
    else:
        assert "MBAR_SCOPE_TOO_NARROW" in rules(cluster(*how), {"X": X})


@hand_threaded(64, grid=2, cluster=2)
def initialised(X: F32[128], Y: F32[128], bx, rank, tx, bar: Shared[U64], at: Local[U32], *, how):
    """Initialise an mbarrier in one lane and arrive on the peer's behind a relaxed barrier."""
    if how == "early":
        if tx == 1:
            T.ptx.fence.mbarrier_init.release.cluster()
    if tx == 1:
        ptx.init_mbarrier(bar[64], 1)
    if how == "same":
        if tx == 1:
            T.ptx.fence.mbarrier_init.release.cluster()
    elif how == "all":
        T.ptx.fence.mbarrier_init.release.cluster()
    elif how == "other":
        if tx == 0:
            T.ptx.fence.mbarrier_init.release.cluster()
    T.ptx.barrier.cluster.arrive.relaxed.aligned()
    T.ptx.barrier.cluster.wait.aligned()
    if tx == 0:
        ptx.map_to_rank(at[0], bar[64], 1 - rank)
        T.ptx["mbarrier.arrive.release.cluster.shared::cluster.b64"](at[0])
    T.cuda.mbarrier_wait_acquire_cluster(T.address_of(bar[64]), 0)
    Y[bx * 64 + tx] = X[bx * 64 + tx]
    T.cuda.cluster_sync()


@pytest.mark.parametrize("how", ["same", "all", "other", "early", "none"])
def test_the_lane_that_initialises_fences(how):
    """It is for "prior mbarrier.init operations executed by the same thread" (membar, fence)."""
    found = rules(initialised(how), {"X": X})
    assert found == set() if how in ("same", "all") else "MBAR_INIT_UNPUBLISHED" in found


@hand_threaded(64)
def met(
    X: F32[64], Y: F32[64],
    tx, tile: Shared[F32], bar: Shared[U64], ok: Local[U32], *, before, arrive, wait, behind,
):  # fmt: skip
    """Read another thread's word behind an mbarrier, by arrivals and waits that may be relaxed."""
    if tx == 0:
        ptx.init_mbarrier(bar[64], 64)
    T.tvm_storage_sync("shared")
    tile[tx] = X[tx]
    if before != "":
        T.ptx[before]()
    T.ptx[f"mbarrier.arrive.{arrive}.cta.shared::cta.b64"](T.address_of(bar[64]), T.uint32(1))
    ok[0] = T.uint32(0)
    while ok[0] == T.uint32(0):
        T.ptx[f"mbarrier.{wait}.cta.shared::cta.b64"](ok[0], T.address_of(bar[64]), T.uint32(0))
    if behind == "one lane":
        if tx % 32 == 0:
            T.ptx["fence.acq_rel.cta"]()
    elif behind != "":
        T.ptx[behind]()
    Y[tx] = tile[63 - tx]


TRY, TEST = "try_wait.parity.relaxed", "test_wait.parity.relaxed"
ACQUIRE = "try_wait.parity.acquire"
FENCE = "fence.acq_rel.cta"


ORDERED = [
    ("", "release", ACQUIRE, ""),
    (FENCE, "relaxed", ACQUIRE, ""),
    ("fence.sc.gpu", "relaxed", ACQUIRE, ""),
    ("", "release", TRY, FENCE),
    ("", "release", TEST, "fence.acq_rel.gpu"),
    (FENCE, "relaxed", TEST, FENCE),
]
UNORDERED = [
    ("", "relaxed", ACQUIRE, ""),
    ("", "relaxed", ACQUIRE, FENCE),
    ("", "release", TRY, ""),
    (FENCE, "release", TEST, ""),
    (FENCE, "relaxed", TRY, ""),
    ("", "release", TRY, "one lane"),
]


@pytest.mark.parametrize("how", [*ORDERED, *UNORDERED], ids=str)
def test_relaxed_operations_on_mbarriers_need_fences(how):
    found = rules(met(*how), {"X": X[:64]})
    assert found == set() if how in ORDERED else "RACE_READ_INFLIGHT" in found


@hand_threaded(64, grid=2, cluster=2)
def remote(
    X: F32[128], Y: F32[64], rank, tx, tile: Shared[F32], bar: Shared[U64], at: Local[U32, 2],
    *, fence, scope,
):  # fmt: skip
    """Hand a word to the peer by a relaxed arrival on its mbarrier."""
    ptx.set_up(tx, (bar[64], 64), sync=T.cuda.cluster_sync)
    if rank == 0:
        T.ptx.mapa.shared__cluster.u32(
            at[0], T.cuda.cvta_generic_to_shared(T.address_of(tile[tx])), T.uint32(1)
        )
        T.ptx.mapa.shared__cluster.u32(
            at[1], T.cuda.cvta_generic_to_shared(T.address_of(bar[64])), T.uint32(1)
        )
        T.ptx.st.shared__cluster.f32(at[0], X[tx])
        T.ptx[f"fence.acq_rel.{fence}"]()
        T.ptx[f"mbarrier.arrive.relaxed.{scope}.shared::cluster.b64"](at[1], T.uint32(1))
    else:
        T.cuda.mbarrier_wait_acquire_cluster(T.address_of(bar[64]), 0)
        Y[tx] = tile[63 - tx]
    T.cuda.cluster_sync()


@pytest.mark.parametrize(
    ("fence", "scope", "found"),
    [
        ("cluster", "cluster", set()),
        ("gpu", "cluster", set()),
        ("cta", "cluster", {"MBAR_SCOPE_TOO_NARROW"}),
    ],
)
def test_a_relaxed_arrival_reaches_as_far_as_its_fence(fence, scope, found):
    assert rules(remote(fence, scope), {"X": X}) == found


@hand_threaded(32, grid=2)
def told(W: F32[32], F: U32[2], Y: F32[32], bx, tx, seen: Local[U32, 2], *, how):
    """Raise a flag behind a word, by a store or by a compare-and-swap; read it in another CTA."""
    seen[0] = T.uint32(0)
    if bx == 0:
        if tx == 0:
            W[0] = T.float32(1)
            if how == "succeeds":
                T.ptx["atom.release.gpu.global.cas.b32"](
                    seen[1], T.address_of(F[0]), T.uint32(5), T.uint32(1)
                )
            elif how == "fails":
                T.ptx["atom.release.gpu.global.cas.b32"](
                    seen[1], T.address_of(F[0]), T.uint32(0), T.uint32(1)
                )
            elif how == "fails after a fence":
                T.ptx["fence.acq_rel.gpu"]()
                T.ptx["atom.relaxed.gpu.global.cas.b32"](
                    seen[1], T.address_of(F[0]), T.uint32(0), T.uint32(1)
                )
            else:
                T.ptx["fence.acq_rel.gpu"]()
            T.ptx["st.relaxed.gpu.global.u32"](T.address_of(F[1]), T.uint32(1))
    else:
        if how.startswith("flag"):
            if tx == 0:
                while seen[0] != T.uint32(1):
                    T.ptx["ld.relaxed.gpu.global.u32"](seen[0], T.address_of(F[1]))
                T.ptx["fence.acq_rel.gpu"]()
            if how == "flag met":
                T.cuda.warp_sync()
            if how != "flag one lane":
                Y[tx] = W[0]
            else:
                if tx == 0:
                    Y[0] = W[0]
        else:
            if tx == 0:
                while seen[0] != T.uint32(1):
                    T.ptx["ld.relaxed.gpu.global.u32"](seen[0], T.address_of(F[1]))
                T.ptx["ld.acquire.gpu.global.u32"](seen[1], T.address_of(F[0]))
                Y[0] = W[0]


def inputs():
    return {
        "W": np.zeros(32, "float32"),
        "F": np.array([5, 0], "uint32"),
        "Y": np.zeros(32, "float32"),
    }


HANDED_ON = ["succeeds", "flag met", "flag one lane"]


@pytest.mark.parametrize("how", [*HANDED_ON, "fails", "flag of others", "fails after a fence"])
def test_a_flag_hands_a_word_on(how):
    """What has written nothing is read by nobody; an acquire pattern is one of a thread.

    The flag behind a swap is read by a relaxed load, without a fence behind it.
    """
    found = rules(told(how), inputs())
    assert found == set() if how in HANDED_ON else "RACE_READ_INFLIGHT" in found
