"""What no chip changes, against hand-computed figures."""

from tvm_hopper.facts import programming_model as model


def test_a_warp_group_is_four_warps():
    assert model.WARP_GROUP_THREADS == model.WARPS_PER_WARP_GROUP * model.THREADS_PER_WARP


def test_mbarrier_counts_have_twenty_bits():
    assert model.MBARRIER_MAX_COUNT == 1048575
    assert model.MBARRIER_MAX_TX_BYTES == 1048575


def test_setmaxnreg_limits_are_multiples_of_its_step():
    assert (model.SETMAXNREG_MIN, model.SETMAXNREG_MAX, model.SETMAXNREG_STEP) == (24, 256, 8)
    assert model.SETMAXNREG_MIN % model.SETMAXNREG_STEP == 0
