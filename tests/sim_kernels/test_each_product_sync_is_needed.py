"""Every sync of a product by mma.sync without roles: without it the simulator objects.

Five trips over three slots, of which one is to spare: loads by `cp.async` stand behind what feeds
the tensor cores, and the last trips, without any, are peeled off the loop.
"""

import functools

import pytest

from tests.sim_kernels.each_sync import make_tests, rules_broken
from tests.sim_kernels.mutate import change, with_argument
from tests.sim_kernels.tensor_core_kernels import make_inputs, scheduled
from tvm_hopper.simulation import Program, load
from tvm_hopper.testing.tensor_cores import ProductKind, WarpTiling

SHAPE = (32, 32, 80)
TMA, CHUNKS = "tma", "cp_async"
POLICIES = ("eager", "on_wait", "lifo")
WORK = {"ldmatrix", "mma", "cp_async_cg", "cp_async_bulk_tensor_g2s_cluster"}
INIT, EXPECT, AWAIT = "mbarrier_init", "mbarrier_arrive_expect_tx", "mbarrier_wait"
COMMIT, WAIT, MEET = "cp_async_commit_group", "cp_async_wait_group", "tvm_storage_sync"
REMOVED = {
    (TMA, INIT, 0): {"MBAR_USE_BEFORE_INIT"},
    (TMA, "fence_mbarrier_init", 0): {"MBAR_INIT_FENCE"},
    # Here the loop's own barrier comes in front of the first wait, and is enough.
    (TMA, MEET, 0): set(),
    (TMA, EXPECT, 0): {"DEADLOCK"},
    (TMA, "fence_proxy", 0): {"PROXY_FENCE_MISSING_WAR"},
    (TMA, MEET, 1): {"RACE_OVERWRITE_BUSY"},
    (TMA, EXPECT, 1): {"DEADLOCK"},
    (TMA, AWAIT, 0): {"RACE_READ_INFLIGHT", "MBAR_MISSING_WAIT"},
    (CHUNKS, COMMIT, 0): {"RACE_READ_INFLIGHT"},
    (CHUNKS, COMMIT, 1): {"RACE_READ_INFLIGHT"},
    (CHUNKS, WAIT, 0): {"RACE_READ_INFLIGHT"},
    (CHUNKS, MEET, 0): {"RACE_READ_INFLIGHT", "RACE_OVERWRITE_BUSY"},
    (CHUNKS, COMMIT, 2): {"RACE_READ_INFLIGHT"},
    (CHUNKS, WAIT, 1): {"RACE_READ_INFLIGHT"},
    (CHUNKS, MEET, 1): {"RACE_READ_INFLIGHT"},
    (CHUNKS, WAIT, 2): {"RACE_READ_INFLIGHT"},
    (CHUNKS, MEET, 2): {"RACE_READ_INFLIGHT"},
}


@functools.cache
def right(mechanism: str) -> tuple[Program, dict]:
    """Return the kernel as our passes emit it."""
    tiling = WarpTiling((32, 32, 16), (2, 2), stages=3, load=mechanism)
    return load(scheduled(SHAPE, tiling).mod), make_inputs(SHAPE, ProductKind())


test_the_kernels_are_clean, test_simulator_misses_it, test_every_sync_is_in_the_table = make_tests(
    right, REMOVED, WORK, POLICIES
)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_one_group_more_may_not_be_in_flight(which):
    program, values = right(CHUNKS)
    wrong = change(program, WAIT, which, with_argument(0, lambda old: old + 1))
    assert "RACE_READ_INFLIGHT" in rules_broken(wrong, values, (), POLICIES)
