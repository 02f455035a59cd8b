"""Copies from one CTA of a cluster into the other, with and without what they need."""

import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_hopper.simulation import simulate

from .kernels import lower, rules

COPY = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"


def exchange(fence=True, init_sync=True, last_sync=True):
    """Build a kernel in which CTA 0 sends 128 floats to CTA 1, which stores them."""

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((128,), "float32"), C: T.Buffer((128,), "float32")):
        T.func_attr({"global_symbol": "main"})
        T.launch_thread("blockIdx.x", 2)
        rank = T.launch_thread("clusterCtaIdx.x", 2)
        tx = T.launch_thread("threadIdx.x", 128)
        with T.attr(T.int32(0), "hand_threaded", 1):
            smem = T.alloc_buffer((2048,), "uint8", scope="shared.dyn", align=1024)
            tile = T.decl_buffer((512,), "float32", data=smem.data, scope="shared.dyn")
            bar = T.decl_buffer((256,), "uint64", data=smem.data, scope="shared.dyn")
            remote = T.alloc_buffer((2,), "uint32", scope="local")
            if tx == 0:
                T.ptx.mbarrier.init.shared.b64(T.address_of(bar[200]), T.uint32(1))
                T.ptx.fence.mbarrier_init.release.cluster()
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
                    T.ptx.mbarrier.arrive.expect_tx.shared.b64(
                        T.address_of(bar[200]), T.uint32(512)
                    )
                T.cuda.mbarrier_wait(T.address_of(bar[200]), 0)
                C[tx] = tile[128 + tx]
            if last_sync:
                T.cuda.cluster_sync()

    return main


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


def words(first=True, last=True, writes=False):
    """Read (or write) a word of the other CTA's shared memory in each thread."""

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((128,), "float32"), C: T.Buffer((256,), "float32")):
        T.func_attr({"global_symbol": "main"})
        bx = T.launch_thread("blockIdx.x", 2)
        rank = T.launch_thread("clusterCtaIdx.x", 2)
        tx = T.launch_thread("threadIdx.x", 128)
        with T.attr(T.int32(0), "hand_threaded", 1):
            smem = T.alloc_buffer((1024,), "uint8", scope="shared.dyn", align=1024)
            tile = T.decl_buffer((256,), "float32", data=smem.data, scope="shared.dyn")
            remote = T.alloc_buffer((1,), "uint32", scope="local")
            value = T.alloc_buffer((1,), "float32", scope="local")
            tile[128 + tx] = A[tx]
            if first:
                T.cuda.cluster_sync()
            T.ptx.mapa.shared__cluster.u32(
                remote[0],
                T.cuda.cvta_generic_to_shared(T.address_of(tile[tx])),
                T.Cast("uint32", 1 - rank),
            )
            if writes:
                T.ptx.st.shared__cluster.f32(remote[0], A[tx])
            else:
                T.ptx.ld.shared__cluster.f32(value[0], remote[0] + T.uint32(512))
            if last:
                T.cuda.cluster_sync()
            C[bx * 128 + tx] = T.if_then_else(T.bool(writes), tile[tx], value[0])

    return main


@pytest.mark.parametrize("writes", [False, True])
def test_words_of_another_cta(writes):
    assert rules(words(writes=writes), A) == set()


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"last": False}, "CLUSTER_TARGET_EXITED"),
        ({"first": False, "writes": True}, "CLUSTER_TARGET_NOT_STARTED"),
        ({"last": False, "writes": True}, "CLUSTER_TARGET_EXITED"),
    ],
)
def test_words_of_a_cta_that_may_not_run(change, rule):
    assert rule in rules(words(**change), A)
