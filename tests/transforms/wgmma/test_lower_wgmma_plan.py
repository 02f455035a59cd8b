"""The plan of a multiplication: instruction, registers, who holds which element."""

from dataclasses import replace

import pytest

from tests.transforms.refusals.products import PRODUCT
from tests.transforms.scripts import parse
from tvm_hopper import ir
from tvm_hopper.facts import wgmma
from tvm_hopper.facts.arch import SM_90A
from tvm_hopper.transforms.wgmma.lower_wgmma_plan import plan_mma


@pytest.fixture
def plan():
    (one,) = plan_mma(ir.kernels(parse(PRODUCT))[0], SM_90A)
    return one


def test_smallest(plan):
    assert (plan.m, plan.n, plan.k, plan.warp_groups) == (64, 8, 16, 1)
    assert plan.instruction == "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"
    assert plan.layout.count == 4
    assert [nest.realize.block.name_hint for nest in plan.nests] == ["init", "store"]
    assert [x.layout.major for x in (plan.left, plan.right)] == ["k", "k"]


@pytest.mark.parametrize(
    ("n", "width"), [(8, 8), (64, 64), (256, 256), (264, 88), (272, 136), (320, 160)]
)
def test_the_widest_instruction_that_divides_the_columns(plan, n, width):
    assert replace(plan, n=n).instruction_n == width


@pytest.mark.parametrize(
    ("n", "width"), [(192, 192), (200, 200), (208, 104), (224, 112), (248, 8), (256, 128)]
)
def test_three_consumers_leave_registers_for_narrower_instructions(plan, n, width):
    """Ptxas refused the wide ones (C7602): 512 threads start with 128 registers."""
    assert replace(plan, n=n, warp_groups=3).instruction_n == width
    assert replace(plan, n=n, warp_groups=2).instruction_n == n


@pytest.mark.parametrize(("m", "n"), [(64, 8), (128, 24), (64, 272), (192, 16)])
def test_every_element_has_one_register_of_one_thread(plan, m, n):
    plan = replace(plan, m=m, n=n)
    width, seen = plan.instruction_n, {}
    for subtile in range(m // 64):
        for chunk in range(n // width):
            for i in range(width // 2):
                register = plan.layout.register(subtile, chunk, i)
                assert 0 <= register < plan.layout.count
                for thread in range(128):
                    row = subtile * 64 + wgmma.accumulator_row(i, thread)
                    column = chunk * width + wgmma.accumulator_col(i, thread)
                    seen.setdefault((row, column), []).append((thread, register))
    assert len(seen) == m * n
    assert all(len(holders) == 1 for holders in seen.values())
    assert len({holder for (holder,) in seen.values()}) == m * n
