"""Limits of compute capability 9.0, against hand-computed figures."""

from tvm_hopper.facts import hopper


def test_shared_memory_of_a_block_is_227_kib():
    assert hopper.SMEM_PER_BLOCK == 227 * 1024 == 232448
    assert hopper.SMEM_PER_SM - hopper.SMEM_RESERVED_PER_BLOCK == hopper.SMEM_PER_BLOCK


def test_a_warp_group_is_four_warps():
    assert hopper.WARP_GROUP_THREADS == hopper.WARPS_PER_WARP_GROUP * hopper.THREADS_PER_WARP


def test_mbarrier_counts_have_twenty_bits():
    assert hopper.MBARRIER_MAX_COUNT == 1048575
    assert hopper.MBARRIER_MAX_TX_BYTES == 1048575


def test_setmaxnreg_limits_are_multiples_of_its_step():
    assert (hopper.SETMAXNREG_MIN, hopper.SETMAXNREG_MAX, hopper.SETMAXNREG_STEP) == (24, 256, 8)
    assert hopper.SETMAXNREG_MIN % hopper.SETMAXNREG_STEP == 0
