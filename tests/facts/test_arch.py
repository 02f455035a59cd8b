"""Architectures, against figures by hand.

Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", columns 8.0
and 9.0: 163 and 227 KB of shared memory a block, 164 and 228 KB an SM; in both 64 K registers a
block and an SM, 255 a thread, 64 warps and 32 blocks an SM.
"""

from dataclasses import replace

import pytest

from tvm_hopper.facts.arch import ARCHS, SM_80, SM_90A
from tvm_hopper.facts.async_ops import ASYNC_OPS
from tvm_hopper.facts.programming_model import MAX_THREADS, THREADS_PER_WARP

EVERY = pytest.mark.parametrize("arch", ARCHS.values(), ids=ARCHS)


def test_names_are_those_of_targets():
    assert ARCHS == {"sm_80": SM_80, "sm_90a": SM_90A}
    assert [arch.compute_capability for arch in ARCHS.values()] == [(8, 0), (9, 0)]


@pytest.mark.parametrize(
    ("arch", "block", "sm"), [(SM_80, 166912, 167936), (SM_90A, 232448, 233472)]
)
def test_shared_memory_in_bytes(arch, block, sm):
    assert (arch.smem_per_block, arch.smem_per_sm) == (block, sm)


@EVERY
def test_one_block_may_have_all_but_what_cuda_keeps(arch):
    assert arch.smem_reserved_per_block == 1024
    assert arch.smem_per_sm - arch.smem_reserved_per_block == arch.smem_per_block


@EVERY
def test_registers_threads_and_blocks(arch):
    assert arch.registers_per_block == arch.registers_per_sm == 65536
    assert (arch.max_registers_per_thread, arch.register_allocation_unit) == (255, 8)
    assert arch.max_threads_per_sm == 64 * THREADS_PER_WARP == 2 * MAX_THREADS
    assert arch.max_blocks_per_sm == 32


def test_hopper_executes_every_row_but_hexagon_s():
    assert set(SM_90A.async_ops) == set(ASYNC_OPS) - {"dma_load"}
    assert SM_90A.proxies == ("generic", "async")
    assert SM_90A.has_setmaxnreg
    assert (SM_90A.has_clusters, SM_90A.max_cluster_size) == (True, 8)
    assert SM_90A.converts_float8
    assert SM_90A.largest_cluster_size == 16


def test_ampere_copies_by_cp_async_alone():
    assert SM_80.async_ops == ("cp_async",)
    assert SM_80.proxies == ("generic",)
    assert not SM_80.has_setmaxnreg
    assert (SM_80.has_clusters, SM_80.max_cluster_size) == (False, 1)
    assert not SM_80.converts_float8
    assert SM_80.largest_cluster_size == 1


def test_refuses_operations_that_cannot_be_its_own():
    with pytest.raises(ValueError, match="sm_80: found mma; need one of tma_load, tma_store"):
        replace(SM_80, async_ops=("mma",))
    match = "sm_80: found tma_load by the async proxy; need generic"
    with pytest.raises(ValueError, match=match):
        replace(SM_80, async_ops=("cp_async", "tma_load"))
