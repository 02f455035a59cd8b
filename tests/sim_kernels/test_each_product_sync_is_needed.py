"""Every sync of a product by mma.sync without roles: without it the simulator objects.

Five trips over three slots, of which one is to spare: loads by `cp.async` stand behind what feeds
the tensor cores, and the last trips, without any, are peeled off the loop.
"""

import functools
from collections.abc import Collection

import pytest

from tests.sim_kernels.each_sync import emitted_by, rules_broken
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
def right(mechanism: str) -> Program:
    """Return the kernel as our passes emit it."""
    tiling = WarpTiling((32, 32, 16), (2, 2), stages=3, load=mechanism)
    return load(scheduled(SHAPE, tiling).mod)


def found(program: Program, want: Collection[str] = ()) -> set[str]:
    """Return the rules that the simulator finds broken under any policy."""
    values = make_inputs(SHAPE, ProductKind())
    return rules_broken(program, values, want, POLICIES)


@pytest.mark.parametrize("mechanism", [TMA, CHUNKS])
def test_the_kernels_are_clean(mechanism):
    assert found(right(mechanism)) == set()


@pytest.mark.parametrize(("mechanism", "instruction", "which"), REMOVED)
def test_simulator_misses_it(mechanism, instruction, which):
    want = REMOVED[mechanism, instruction, which]
    rules = found(change(right(mechanism), instruction, which), want)
    assert want <= rules
    assert bool(rules) == bool(want)


@pytest.mark.parametrize("mechanism", [TMA, CHUNKS])
def test_every_sync_is_in_the_table(mechanism):
    names = [x for x in emitted_by(right(mechanism)) if x not in WORK]
    assert {(mechanism, name, i) for name in names for i in range(names.count(name))} == {
        key for key in REMOVED if key[0] == mechanism
    }


@pytest.mark.parametrize("which", [0, 1, 2])
def test_one_group_more_may_not_be_in_flight(which):
    wrong = change(right(CHUNKS), WAIT, which, with_argument(0, lambda old: old + 1))
    assert "RACE_READ_INFLIGHT" in found(wrong)
