"""Copies from one CTA of a cluster into the other, with and without what they need."""

import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_hopper.simulation import simulate

from . import ptx
from .hand_threaded import F32, U32, U64, Local, Shared, hand_threaded
from .kernels import lower, rules

COPY = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"


@hand_threaded(128, grid=2, cluster=2, smem=2048)
def exchange(
    A: F32[128], C: F32[128],
    rank, tx, tile: Shared[F32], bar: Shared[U64], remote: Local[U32, 2],
    *, fence=True, init_sync=True, last_sync=True,
):  # fmt: skip
    """Build a kernel in which CTA 0 sends 128 floats to CTA 1, which stores them."""
    ptx.set_up(tx, (bar[200], 1), sync=None)
    if init_sync:
        T.cuda.cluster_sync()
    if rank == 0:
        tile[tx] = A[tx] * T.float32(2)
        if fence:
            T.ptx.fence.proxy.async_.shared__cta()
        T.tvm_storage_sync("shared")
        if tx == 0:
            T.ptx.mapa.shared__cluster.u32(
                remote[0],
                T.cuda.cvta_generic_to_shared(T.address_of(tile[128])),
                T.uint32(1),
            )
            T.ptx.mapa.shared__cluster.u32(
                remote[1],
                T.cuda.cvta_generic_to_shared(T.address_of(bar[200])),
                T.uint32(1),
            )
            T.ptx[COPY](remote[0], T.address_of(tile[0]), T.uint32(512), remote[1])
    else:
        if tx == 0:
            ptx.expect_bytes(bar[200], 512)
        ptx.wait(bar[200], 0)
        C[tx] = tile[128 + tx]
    if last_sync:
        T.cuda.cluster_sync()


A = {"A": np.arange(128, dtype="float32")}


@pytest.mark.parametrize("policy", ["eager", "on_wait", "lifo", "random"])
def test_a_copy_reaches_the_other_cta(policy):
    result = simulate(lower(exchange()), A, policy=policy).require_clean()
    assert np.array_equal(result.outputs["C"], A["A"] * 2)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"fence": False}, "PROXY_FENCE_MISSING"),
        ({"init_sync": False}, "MBAR_INIT_UNPUBLISHED"),
        ({"last_sync": False}, "EXIT_PENDING_ASYNC"),
    ],
)
def test_what_is_left_out_is_named(change, rule):
    assert rule in rules(exchange(**change), A)


@hand_threaded(128, grid=2, cluster=2)
def words(
    A: F32[128], C: F32[256],
    bx, rank, tx, tile: Shared[F32], remote: Local[U32], value: Local[F32],
    *, first=True, last=True, writes=False,
):  # fmt: skip
    """Read (or write) a word of the other CTA's shared memory in each thread."""
    tile[128 + tx] = A[tx]
    if first:
        T.cuda.cluster_sync()
    ptx.map_to_rank(remote[0], tile[tx], 1 - rank)
    if writes:
        T.ptx.st.shared__cluster.f32(remote[0], A[tx])
    else:
        T.ptx.ld.shared__cluster.f32(value[0], remote[0] + T.uint32(512))
    if last:
        T.cuda.cluster_sync()
    C[bx * 128 + tx] = T.if_then_else(T.bool(writes), tile[tx], value[0])


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({}, ""),
        ({"writes": True}, ""),
        ({"last": False}, "CLUSTER_TARGET_EXITED"),
        ({"first": False, "writes": True}, "CLUSTER_TARGET_NOT_STARTED"),
        ({"last": False, "writes": True}, "CLUSTER_TARGET_EXITED"),
    ],
)
def test_words_of_another_cta(change, rule):
    found = rules(words(**change), A)
    assert rule in found if rule else found == set()
