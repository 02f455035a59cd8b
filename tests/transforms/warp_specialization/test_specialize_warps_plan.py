"""The plan of roles: threads, registers, and how late slots are given back."""

import pytest

from tests.transforms.pipeline.test_plan_ring_buffers import PLAIN_READER, PLANNED
from tests.transforms.scripts import parse
from tests.transforms.warp_specialization.test_specialize_warps import asking
from tvm_hopper import ir
from tvm_hopper.errors import LoweringError
from tvm_hopper.facts.arch import SM_80, SM_90A
from tvm_hopper.transforms.warp_specialization.specialize_warps_plan import Agent, plan_roles


def plans_of(*changes, pending=0, arch=SM_90A):
    """Return the plans of the only kernel, of which there is at most one."""
    return plan_roles(ir.kernels(parse(PLANNED, *changes))[0], arch, pending)


def plan_of(*changes, pending=0, arch=SM_90A):
    """Return the plan of the only kernel."""
    (plan,) = plans_of(*changes, pending=pending, arch=arch)
    return plan


@pytest.mark.parametrize(
    ("threads", "consumers", "registers"),
    [(128, 1, (56, 256)), (256, 2, (40, 232)), (384, 3, (32, 160))],
)
def test_a_producer_beside_warp_groups(threads, consumers, registers):
    plan = plan_of(("T.thread_binding(256", f"T.thread_binding({threads}"))
    assert plan.num_consumers == consumers
    assert plan.num_threads == threads + 128
    assert plan.producer.agent == Agent(0, 128)
    assert plan.consumer.agent == Agent(128, threads)
    assert (plan.producer.num_registers, plan.consumer.num_registers) == registers
    assert plan.moves_registers


def test_an_annotation_s_registers_win():
    plan = plan_of(asking("registers", [24, 240]))
    assert (plan.producer.num_registers, plan.consumer.num_registers) == (24, 240)


def test_a_producer_beside_plain_consumers_is_one_warp():
    plan = plan_of(PLAIN_READER, asking("consumers", 2))
    assert plan.producer.agent == Agent(0, 32)
    assert plan.consumer.agent == Agent(32, 256)
    assert plan.num_threads == 288
    assert not plan.moves_registers


def test_registers_stay_where_the_chip_cannot_move_them():
    plan = plan_of(arch=SM_80)
    assert (plan.producer.agent, plan.consumer.agent) == (Agent(0, 128), Agent(128, 256))
    assert not plan.moves_registers
    match = r"loop k, tvm_hopper.registers: found sm_80, where registers do not move; need sm_90a "
    with pytest.raises(LoweringError, match=match + r"\(setmaxnreg\)$"):
        plan_of(asking("registers", [24, 240]), arch=SM_80)


def test_plain_loops_have_roles_only_where_they_ask():
    assert plans_of(PLAIN_READER) == ()
    assert len(plans_of(PLAIN_READER, asking("consumers", 2))) == 1


@pytest.mark.parametrize(("slots", "option", "pending"), [(1, 1, 0), (2, 1, 1), (4, 0, 0)])
def test_the_option_for_pending_groups_gives_way(slots, option, pending):
    plan = plan_of(("num_slots=2", f"num_slots={slots}"), pending=option)
    assert plan.pending == pending


def test_an_annotation_s_pending_groups_win():
    assert plan_of(asking("wgmma_pending", 1)).pending == 1
    assert plan_of(asking("wgmma_pending", 0), pending=1).pending == 0


def test_plain_consumers_have_no_groups_that_could_be_pending():
    assert plan_of(PLAIN_READER, asking("consumers", 2), pending=1).pending == 0
