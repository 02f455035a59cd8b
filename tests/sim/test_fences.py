"""Truth tables of the proxy fence: of four places, which ones make a pair legal.

Thread 0 issues the asynchronous copy; all threads make the generic access before it, and a barrier
orders execution.  Fences may stand (before) the access, (writer) after it, (issuer) after the
barrier, or in a (third) warp.  The law: only `writer` and `issuer` count.
"""

import itertools

import numpy as np
import pytest
from tvm.script import tirx as T

from .kernels import LOAD_1D, STORE_1D, rules

PLACES = list(itertools.product([False, True], repeat=4))
ELEMENTS = 128


def shared_kernel(hazard, before, writer, issuer, third):
    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((ELEMENTS,), "float32"),
        R: T.Buffer((ELEMENTS,), "float32"),
        C: T.Buffer((ELEMENTS,), "float32"),
    ):
        T.func_attr({"global_symbol": "main"})
        T.launch_thread("blockIdx.x", 1)
        tx = T.launch_thread("threadIdx.x", ELEMENTS)
        with T.attr(T.int32(0), "hand_threaded", 1):
            smem = T.alloc_buffer((1024,), "uint8", scope="shared.dyn", align=1024)
            tile = T.decl_buffer((256,), "float32", data=smem.data, scope="shared.dyn")
            bar = T.decl_buffer((128,), "uint64", data=smem.data, scope="shared.dyn")
            if tx == 0:
                T.ptx.mbarrier.init.shared.b64(T.address_of(bar[100]), T.uint32(1))
                T.ptx.mbarrier.init.shared.b64(T.address_of(bar[101]), T.uint32(1))
                T.ptx.fence.mbarrier_init.release.cluster()
            T.tvm_storage_sync("shared")
            if hazard == "war":
                if tx == 0:
                    T.ptx.mbarrier.arrive.expect_tx.shared.b64(
                        T.address_of(bar[101]), T.uint32(512)
                    )
                    T.ptx[LOAD_1D](
                        T.address_of(tile[0]),
                        T.address_of(A[0]),
                        T.uint32(512),
                        T.address_of(bar[101]),
                    )
                T.cuda.mbarrier_wait(T.address_of(bar[101]), 0)
            if before:
                T.ptx.fence.proxy.async_.shared__cta()
            if hazard == "war":
                R[tx] = tile[tx]
            else:
                tile[tx] = A[tx]
            if writer:
                T.ptx.fence.proxy.async_.shared__cta()
            T.tvm_storage_sync("shared")
            if third:  # noqa: SIM102 (a Python value outside of a TIR condition)
                if tx // 32 == 3:
                    T.ptx.fence.proxy.async_.shared__cta()
            if tx == 0:
                if issuer:
                    T.ptx.fence.proxy.async_.shared__cta()
                if hazard == "raw":
                    T.ptx[STORE_1D](T.address_of(C[0]), T.address_of(tile[0]), T.uint32(512))
                    T.ptx.cp.async_.bulk.commit_group()
                    T.ptx.cp.async_.bulk.wait_group(0)
                else:
                    T.ptx.mbarrier.arrive.expect_tx.shared.b64(
                        T.address_of(bar[100]), T.uint32(512)
                    )
                    T.ptx[LOAD_1D](
                        T.address_of(tile[0]),
                        T.address_of(A[0]),
                        T.uint32(512),
                        T.address_of(bar[100]),
                    )
            if hazard != "raw":
                T.cuda.mbarrier_wait(T.address_of(bar[100]), 0)
                C[tx] = tile[tx]

    return main


def global_kernel(hazard, before, writer, issuer, third):
    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((ELEMENTS,), "float32"),
        R: T.Buffer((ELEMENTS,), "float32"),
        W: T.Buffer((ELEMENTS,), "float32"),
    ):
        T.func_attr({"global_symbol": "main"})
        T.launch_thread("blockIdx.x", 1)
        tx = T.launch_thread("threadIdx.x", ELEMENTS)
        with T.attr(T.int32(0), "hand_threaded", 1):
            smem = T.alloc_buffer((1024,), "uint8", scope="shared.dyn", align=1024)
            tile = T.decl_buffer((256,), "float32", data=smem.data, scope="shared.dyn")
            bar = T.decl_buffer((128,), "uint64", data=smem.data, scope="shared.dyn")
            if tx == 0:
                T.ptx.mbarrier.init.shared.b64(T.address_of(bar[100]), T.uint32(1))
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
            if third:  # noqa: SIM102 (a Python value outside of a TIR condition)
                if tx // 32 == 3:
                    T.ptx.fence.proxy.async_.global_()
            if tx == 0:
                if issuer:
                    T.ptx.fence.proxy.async_.global_()
                if hazard == "raw":
                    T.ptx.mbarrier.arrive.expect_tx.shared.b64(
                        T.address_of(bar[100]), T.uint32(512)
                    )
                    T.ptx[LOAD_1D](
                        T.address_of(tile[0]),
                        T.address_of(W[0]),
                        T.uint32(512),
                        T.address_of(bar[100]),
                    )
                else:
                    T.ptx[STORE_1D](T.address_of(W[0]), T.address_of(tile[0]), T.uint32(512))
                    T.ptx.cp.async_.bulk.commit_group()
                    T.ptx.cp.async_.bulk.wait_group(0)
            if hazard == "raw":
                T.cuda.mbarrier_wait(T.address_of(bar[100]), 0)
                R[tx] = tile[tx]

    return main


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
