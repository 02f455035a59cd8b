"""Two products of one group of instructions: each sync is needed, and where it stands matters."""

import functools
from typing import Any

import numpy as np
import pytest
from tvm import s_tir

from tests.sim_kernels.each_sync import OF_A_RING, in_another_order, make_tests, rules_broken
from tvm_hopper import schedule as hs
from tvm_hopper.simulation import Program, load
from tvm_hopper.testing.gates import products_of_one_operand

WORK = {"setmaxnreg", "cp_async_bulk_tensor_g2s_cluster", "wgmma_f16_ss"}
WORK |= {"griddepcontrol"}  # tests/transforms/launch/test_enable_programmatic_launch.py
POLICIES = ("eager", "on_wait", "lifo")
REMOVED = OF_A_RING | {
    ("mbarrier_wait", 0): {"RACE_OVERWRITE_BUSY"},
    ("wgmma_wait_group", 0): {"WGMMA_REG_INFLIGHT", "RACE_OVERWRITE_BUSY"},
}


@functools.cache
def right() -> tuple[Program, dict[str, Any]]:
    """Return the kernel as our passes emit it: four steps over two slots."""
    sch = s_tir.Schedule(products_of_one_operand(64, 16, 64, value=lambda gate, up: gate * up))
    config = hs.MatmulConfig(tile=(64, 16, 16), stages=2, consumers=1, wgmma_pending=0)
    hs.matmul(sch, ("C0", "C1"), config)
    rng = np.random.default_rng(0)
    sides = {"A": 64, "W0": 16, "W1": 16}
    return load(sch.mod), {
        x: rng.integers(-2, 3, (n, 64)).astype("float16") for x, n in sides.items()
    }


test_the_kernel_is_clean, test_simulator_misses_it, test_every_sync_is_in_the_table = make_tests(
    right, REMOVED, WORK, POLICIES
)

FENCE, FIRST, SECOND, COMMIT, WAIT, RELEASE = range(6)


@pytest.mark.parametrize(
    ("order", "rules"),
    [
        # the second product is in no group that anything waits for
        ((FENCE, FIRST, COMMIT, SECOND, WAIT, RELEASE), {"WGMMA_REG_INFLIGHT"}),
        # its result is read at the wait of the first one
        ((FENCE, FIRST, COMMIT, WAIT, SECOND, COMMIT, RELEASE), {"WGMMA_REG_INFLIGHT"}),
        # its operands are overwritten: the slot goes back behind the first reader
        (
            (FENCE, FIRST, COMMIT, WAIT, RELEASE, FENCE, SECOND, COMMIT, WAIT),
            {"RACE_OVERWRITE_BUSY"},
        ),
        # slower, and right: a group for each
        ((FENCE, FIRST, COMMIT, WAIT, FENCE, SECOND, COMMIT, WAIT, RELEASE), set()),
    ],
)
def test_another_order(order, rules):
    program, values = right()
    found = rules_broken(in_another_order(program, order), values, policies=POLICIES)
    assert found >= rules
    assert bool(found) == bool(rules)
