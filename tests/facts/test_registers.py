"""Register budgets, against sums done by hand."""

import pytest

from tvm_hopper.facts import registers
from tvm_hopper.facts.arch import SM_80, SM_90A


@pytest.mark.parametrize(("threads", "entry"), [(256, 256), (384, 168), (512, 128), (128, 256)])
def test_entry_registers(threads, entry):
    # 65536 / 384 = 170.67, rounded down to eight: 168
    assert registers.entry_registers(threads, SM_90A) == entry


def test_blocks_share_the_registers_of_an_sm():
    assert registers.entry_registers(256, SM_90A, 2) == 128
    assert registers.entry_registers(384, SM_90A, 2) == 80  # 85.33, rounded down to eight


@pytest.mark.parametrize("consumers", [1, 2, 3])
def test_default_splits_are_legal(consumers):
    assert registers.check(*registers.default_split(consumers), consumers, SM_90A) == ()


def test_the_known_sums():
    # 40 + 2 x 232 = 24 + 2 x 240 = 504 = 3 x 168: exactly the pool
    assert registers.check(40, 232, 2, SM_90A) == ()
    assert registers.check(24, 240, 2, SM_90A) == ()
    assert registers.check(56, 200, 1, SM_90A, blocks=2) == ()
    assert len(registers.check(56, 208, 1, SM_90A, blocks=2)) == 1
    (found,) = registers.check(40, 240, 2, SM_90A)
    assert "found 40 + 2 x 240 = 520 registers; need at most 3 x 168 = 504" in found


def test_every_rule():
    (found,) = registers.check(36, 232, 2, SM_90A)
    assert "found producer registers 36; need a multiple of 8 from 24 to 256" in found
    (found,) = registers.check(16, 232, 2, SM_90A)
    assert "found producer registers 16" in found
    (found,) = registers.check(40, 160, 2, SM_90A)
    assert "found consumer registers 160; need at least the 168" in found
    found = registers.check(176, 264, 2, SM_90A)
    assert len(found) == 3  # consumer beyond 256, producer above its entry, the sum above the pool
    assert "found producer registers 176; need at most the 168" in found[1]


def test_registers_stay_where_there_is_no_setmaxnreg():
    (found,) = registers.check(40, 232, 2, SM_80)
    assert found == "found sm_80, where registers do not move; need sm_90a (setmaxnreg)"


def test_refusals():
    with pytest.raises(ValueError, match="consumers: found 4; need 1, 2 or 3 warp groups"):
        registers.default_split(4)
    with pytest.raises(ValueError, match="threads of a CTA: found 2048; need 1 to 1024"):
        registers.entry_registers(2048, SM_90A)


def test_an_instruction_fits_the_registers_at_entry():
    """Ptxas 13.0: 512 threads have 128 registers, of 64x208 it says C7602, 64x200 it takes."""
    assert registers.widest_instruction(3, SM_90A) == 200  # 200 / 2 + 26 = 126 <= 128 < 130
    assert registers.widest_instruction(2, SM_90A) == 256  # 256 / 2 + 26 = 154 <= 168
    assert registers.widest_instruction(1, SM_90A) == 256


@pytest.mark.parametrize(
    ("consumer", "most", "serialised"),
    [(232, 204, 208), (208, 180, 184), (168, 140, 144), (160, 132, 136), (128, 100, 104)],
)
def test_accumulators_leave_room(consumer, most, serialised):
    """Measured by ptxas 13.0: `most` was assembled, `serialised` gave C7512 each time."""
    assert most <= registers.accumulator_room(consumer, SM_90A) < serialised


def test_the_largest_register_is_none_of_its_own():
    assert registers.accumulator_room(256, SM_90A) == registers.accumulator_room(255, SM_90A) == 229


def test_accumulators():
    assert registers.accumulator_registers(128, 256, 2) == 128
    assert registers.accumulator_registers(192, 128, 3) == 64


def test_budget_of_accumulators():
    fits = registers.accumulator_budget([128], 2, SM_90A)
    assert (fits.held, fits.room, fits.consumer, fits.fits) == (128, 206, 232, True)
    assert registers.accumulator_budget([256], 1, SM_90A).fits is False
    assert registers.accumulator_budget([128], 2, SM_90A, 152).room == 126
    assert registers.accumulator_budget([32], 5, SM_90A).consumer == 255  # no default split
