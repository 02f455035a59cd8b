"""Partial sums that registers add up: each sync is needed, and the wait stands before the sum."""

import functools
from typing import Any

import numpy as np
import pytest
from tvm import s_tir

from tests.sim_kernels.each_sync import in_another_order, make_tests, rules_broken
from tests.sim_kernels.test_each_sync_of_several_products import POLICIES, REMOVED, WORK
from tvm_hopper import schedule as hs
from tvm_hopper.simulation import Program, load
from tvm_hopper.testing.contractions import contraction

TYPE = "float8_e4m3fn"


@functools.cache
def right() -> tuple[Program, dict[str, Any]]:
    """Return the kernel as our passes emit it: four steps over two slots."""
    mod = contraction("mk,nk->mn", {"m": 64, "n": 16, "k": 128}, (TYPE, TYPE), "float32")
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig((64, 16, 32), 2, consumers=1, accumulate="promoted"))
    rng = np.random.default_rng(0)
    sides = {"A": 64, "B": 16}
    return load(sch.mod), {x: rng.integers(-2, 3, (n, 128)).astype(TYPE) for x, n in sides.items()}


test_the_kernel_is_clean, test_simulator_misses_it, test_every_sync_is_in_the_table = make_tests(
    right, REMOVED, WORK | {"wgmma_fp8_ss"}, POLICIES
)


@pytest.mark.parametrize(
    ("order", "rules"),
    [
        # FENCE, PRODUCT, COMMIT, WAIT, RELEASE, ADD
        ((0, 1, 2, 5, 3, 4), {"WGMMA_REG_INFLIGHT"}),  # added before the wait
        ((0, 1, 2, 4, 3, 5), {"RACE_OVERWRITE_BUSY"}),  # the slot goes back before the wait
        ((0, 1, 2, 3, 5, 4), set()),  # later than it may
    ],
)
def test_another_order(order, rules):
    program, values = right()
    found = rules_broken(in_another_order(program, order), values, policies=POLICIES)
    assert found >= rules
    assert bool(found) == bool(rules)
