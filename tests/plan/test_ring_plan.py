"""The plan of a ring: bytes, counts, threads; what the barriers expect is what the copies bring."""

import pytest

from tests.transforms.scripts import parse
from tests.transforms.test_pipeline_mbarriers import BEFORE
from tvm_hopper import ir
from tvm_hopper.plan.ring_plan import plan_ring


def plan_of(*changes, pending=0):
    (plan,) = plan_ring(ir.kernels(parse(BEFORE, *changes))[0], pending)
    return plan


def test_bytes():
    plan = plan_of(("[0, 0, 1]", "[0, 0, 3]"))
    # a: 2 panels of 64 rows of 64 halves; b: 16 rows of 32 floats
    assert plan.tx_bytes == 2 * 64 * 64 * 2 + 16 * 32 * 4
    assert plan.smem_bytes == 4 * (plan.tx_bytes + 16)


@pytest.mark.parametrize(
    ("threads", "consumers", "registers"),
    [(128, 1, (56, 256)), (256, 2, (40, 232)), (384, 3, (32, 160))],
)
def test_roles(threads, consumers, registers):
    plan = plan_of(("T.thread_binding(256", f"T.thread_binding({threads}"))
    assert plan.consumers == consumers
    assert plan.threads == threads + 128
    assert (plan.producer_registers, plan.consumer_registers) == registers
    assert (plan.full_count, plan.empty_count) == (1, consumers)


def test_an_annotation_s_registers_win():
    ask = (
        '"software_pipeline_order"',
        '"tvm_hopper.registers": [24, 240], "software_pipeline_order"',
    )
    plan = plan_of(ask)
    assert (plan.producer_registers, plan.consumer_registers) == (24, 240)


@pytest.mark.parametrize(("stages", "option", "pending"), [(1, 1, 0), (2, 1, 1), (4, 0, 0)])
def test_the_option_for_pending_groups_gives_way(stages, option, pending):
    plan = plan_of(("[0, 0, 1]", f"[0, 0, {stages - 1}]"), pending=option)
    assert plan.pending == pending


def test_statements_keep_their_order_and_place():
    plan = plan_of()
    names = [[b.name_hint for b in ir.find_all(s, ir.SBlock)] for s in plan.loads + plan.computes]
    assert names == [["load_a"], ["load_b"], ["mma"]]
    assert len(plan.before) == len(plan.after) == 1
    assert not plan.persistent
