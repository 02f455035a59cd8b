"""Lanes in quotients and remainders: taken out where no vector goes over an end."""

import pytest
import tvm_ffi
from tvm import tirx

from tvm_hopper import ir

i, j, lane = (tirx.Var(name, "int32") for name in ("i", "j", "lane"))
FIRST = i * 2048 + j * 8
FLOOR_MOD, FLOOR_DIV = tirx.floormod, tirx.floordiv


def same(a, b):
    return tvm_ffi.structural_equal(ir.simplify(a), ir.simplify(b), map_free_vars=False)


def test_a_remainder_and_a_quotient():
    got = ir.without_carry(FLOOR_MOD(FIRST + lane, 14336), lane, 8)
    assert same(got, FLOOR_MOD(FIRST, 14336) + lane)
    got = ir.without_carry(FLOOR_DIV(FIRST + lane, 14336), lane, 8)
    assert same(got, FLOOR_DIV(FIRST, 14336))


def test_one_in_another():
    inner = FLOOR_MOD(FIRST + lane, 14336)
    got = ir.without_carry(FLOOR_DIV(inner, 64) * 3 + FLOOR_MOD(inner, 64), lane, 8)
    assert not ir.depends_on(ir.simplify(got - lane), [lane])


def test_inside_of_an_index():
    table = ir.new_buffer("table", (64,), "int32", "global")
    place = tirx.BufferLoad(table, [FLOOR_DIV(FIRST + lane, 14336)])
    assert not ir.depends_on(ir.without_carry(place + j, lane, 8), [lane])


def test_a_wider_index():
    wide = tirx.Cast("int64", i) * 2048 + tirx.Cast("int64", lane)
    got = ir.without_carry(FLOOR_DIV(wide, 14336), lane, 8)
    assert not ir.depends_on(got, [lane])


@pytest.mark.parametrize(
    ("first", "side", "lanes"),
    [
        (FIRST, 14336, 16),  # of more lanes than a start is a multiple of
        (FIRST, 100, 8),
        (FIRST + 4, 14336, 8),
        (FIRST + i * 3, 14336, 8),
        (FIRST, i, 8),
        (FIRST + lane, 14336, 8),  # each lane two elements further
    ],
)
def test_what_may_go_over_an_end_stays(first, side, lanes):
    for kind in (FLOOR_MOD, FLOOR_DIV):
        index = kind(first + lane, side)
        assert ir.without_carry(index, lane, lanes).same_as(index)


def test_a_start_inside_of_what_it_is_a_multiple_of():
    got = ir.without_carry(FLOOR_MOD(FIRST + 4 + lane, 14336), lane, 4)
    assert same(got, FLOOR_MOD(FIRST + 4, 14336) + lane)
