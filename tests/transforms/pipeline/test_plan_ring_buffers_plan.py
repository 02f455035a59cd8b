"""The plan of rings: slots, bytes, and the loops whose iterations are trips."""

import pytest

from tests.transforms.pipeline.test_plan_ring_buffers import (
    BEFORE,
    K_LOOP,
    NESTED,
    NO_ANNOTATIONS,
    OUTSIDE,
    SECOND,
)
from tests.transforms.scripts import parse
from tvm_hopper import ir
from tvm_hopper.errors import LoweringError
from tvm_hopper.facts.arch import SM_80, SM_90A
from tvm_hopper.transforms.pipeline.plan_ring_buffers_plan import plan_pipelines


def plan_of(*changes, arch=SM_90A):
    """Return the plan of the only kernel."""
    (plan,) = plan_pipelines(ir.kernels(parse(BEFORE, *changes))[0], arch)
    return plan


def pipeline_of(*changes, arch=SM_90A):
    """Return the plan of the only loads of the only kernel."""
    (pipeline,) = plan_of(*changes, arch=arch).pipelines
    return pipeline


def test_bytes():
    plan = pipeline_of(("[0, 0, 1]", "[0, 0, 3]"))
    # a: 2 panels of 64 rows of 64 halves; b: 16 rows of 32 floats
    assert plan.tx_bytes == 2 * 64 * 64 * 2 + 16 * 32 * 4
    assert plan.smem_bytes == 4 * (plan.tx_bytes + 16)


def test_as_many_slots_as_fit_are_named():
    with pytest.raises(LoweringError, match="take 12 stages"):
        pipeline_of(("[0, 0, 1]", "[0, 0, 12]"))
    assert pipeline_of(("[0, 0, 1]", "[0, 0, 11]")).smem_bytes <= 232448


def test_as_many_slots_as_fit_another_chip():
    # a slot is 18432 bytes and its barriers 16: 163 KiB hold 9 of them
    with pytest.raises(LoweringError, match="need at most 166912; take 9 stages"):
        pipeline_of(("[0, 0, 1]", "[0, 0, 9]"), arch=SM_80)
    assert pipeline_of(("[0, 0, 1]", "[0, 0, 8]"), arch=SM_80).smem_bytes <= 166912


def test_statements_keep_their_order_and_place():
    plan = pipeline_of()
    names = [[x.name_hint for x in ir.find_all(part, ir.SBlock)] for part in plan.parts]
    assert names == [["load_a"], ["load_b"], ["mma"]]
    assert [part.block.name_hint for part in plan.loads] == ["load_a", "load_b"]
    assert [part.block.name_hint for part in plan.others] == ["mma"]
    assert [tile.name for tile in plan.tiles] == ["a", "b"]
    assert plan.where == "loop k"


def test_loops_are_those_between_the_threads_and_the_loads():
    plan = pipeline_of(NESTED)
    assert [loop.loop_var.name for loop in plan.loops] == ["n", "k"]
    assert [loop.loop_var.name for loop in plan.around] == ["n"]


def test_a_load_outside_of_loops_has_none():
    first, second = plan_of(*OUTSIDE).pipelines
    assert first.loop is None
    assert first.loops == []
    assert (first.number, first.num_slots) == (0, 1)
    assert first.where == "copies load_q"
    assert (second.number, second.num_slots, second.where) == (1, 2, "loop k")


def test_each_loop_has_slots_of_its_own():
    assert [plan.num_slots for plan in plan_of(SECOND).pipelines] == [2, 4]
    assert [plan.num_slots for plan in plan_of(NO_ANNOTATIONS).pipelines] == [1]


def test_channels_are_numbered_on_from_those_that_a_kernel_has():
    """A pass that makes loads of its own may run after one that has given loads their channels."""
    known = K_LOOP.replace('"tma_load"', '"tma_load", channel=4')
    assert pipeline_of((K_LOOP, known + K_LOOP)).number == 5
