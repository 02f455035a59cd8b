"""Truth tables of the proxy fence: of four places, which ones make a pair legal.

Thread 0 issues the asynchronous copy; all threads make the generic access before it, and a barrier
orders execution.  Fences may stand (before) the access, (writer) after it, (issuer) after the
barrier, or in a (third) warp.  The law: only `writer` and `issuer` count.
"""

import itertools

import numpy as np
import pytest
from tvm.script import tirx as T

from tests.sim import ptx
from tests.sim.hand_threaded import F32, U64, Shared, hand_threaded

from .kernels import rules

PLACES = list(itertools.product([False, True], repeat=4))
ELEMENTS = 128


@hand_threaded(ELEMENTS)
def shared_kernel(
    A: F32[ELEMENTS], R: F32[ELEMENTS], C: F32[ELEMENTS],
    tx, tile: Shared[F32], bar: Shared[U64],
    *, hazard, before, writer, issuer, third,
):  # fmt: skip
    ptx.set_up(tx, (bar[100], 1), (bar[101], 1))
    if hazard == "war":
        if tx == 0:
            ptx.expect_bytes(bar[101], 512)
            ptx.load_bytes(tile[0], A[0], 512, bar[101])
        ptx.wait(bar[101], 0)
    if before:
        T.ptx.fence.proxy.async_.shared__cta()
    if hazard == "war":
        R[tx] = tile[tx]
    else:
        tile[tx] = A[tx]
    if writer:
        T.ptx.fence.proxy.async_.shared__cta()
    T.tvm_storage_sync("shared")
    if third:
        if tx // 32 == 3:
            T.ptx.fence.proxy.async_.shared__cta()
    if tx == 0:
        if issuer:
            T.ptx.fence.proxy.async_.shared__cta()
        if hazard == "raw":
            ptx.store_bytes(C[0], tile[0], 512)
            T.ptx.cp.async_.bulk.commit_group()
            T.ptx.cp.async_.bulk.wait_group(0)
        else:
            ptx.expect_bytes(bar[100], 512)
            ptx.load_bytes(tile[0], A[0], 512, bar[100])
    if hazard != "raw":
        ptx.wait(bar[100], 0)
        C[tx] = tile[tx]


@hand_threaded(ELEMENTS)
def global_kernel(
    A: F32[ELEMENTS], R: F32[ELEMENTS], W: F32[ELEMENTS],
    tx, tile: Shared[F32], bar: Shared[U64],
    *, hazard, before, writer, issuer, third,
):  # fmt: skip
    if tx == 0:
        ptx.init_mbarrier(bar[100], 1)
        T.ptx.fence.mbarrier_init.release.cluster()
    if hazard != "raw":
        tile[tx] = A[tx]
        T.ptx.fence.proxy.async_.shared__cta()
    T.tvm_storage_sync("shared")
    if before:
        T.ptx.fence.proxy.async_.global_()
    if hazard == "war":
        R[tx] = W[tx]
    else:
        W[tx] = A[tx]
    if writer:
        T.ptx.fence.proxy.async_.global_()
    T.tvm_storage_sync("shared")
    if third:
        if tx // 32 == 3:
            T.ptx.fence.proxy.async_.global_()
    if tx == 0:
        if issuer:
            T.ptx.fence.proxy.async_.global_()
        if hazard == "raw":
            ptx.expect_bytes(bar[100], 512)
            ptx.load_bytes(tile[0], W[0], 512, bar[100])
        else:
            ptx.store_bytes(W[0], tile[0], 512)
            T.ptx.cp.async_.bulk.commit_group()
            T.ptx.cp.async_.bulk.wait_group(0)
    if hazard == "raw":
        ptx.wait(bar[100], 0)
        R[tx] = tile[tx]


def inputs_of(space, hazard):
    values = {"A": np.arange(ELEMENTS, dtype="float32")}
    if space == "global" and hazard == "war":
        values["W"] = np.ones(ELEMENTS, "float32")
    return values


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("places", PLACES, ids=lambda p: "".join("01"[x] for x in p))
@pytest.mark.parametrize("hazard", ["raw", "war", "waw"])
@pytest.mark.parametrize("space", ["shared", "global"])
def test_a_fence_counts_in_the_writer_and_in_the_issuer_alone(space, hazard, places):
    before, writer, issuer, third = places
    build = shared_kernel if space == "shared" else global_kernel
    func = build(hazard, before, writer, issuer, third)
    found = rules(func, inputs_of(space, hazard), [("eager", 0), ("on_wait", 0)])
    found.discard("OUTPUT_COVERAGE")
    missing = "PROXY_FENCE_MISSING_WAR" if hazard == "war" else "PROXY_FENCE_MISSING"
    assert found == (set() if writer or issuer else {missing})
