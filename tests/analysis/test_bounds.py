"""What does a predicate bound? What the hardware's own fill may stand for."""

import itertools

import pytest
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.bounds import find_bounds, without_quotient


def loops(**extents):
    """Return loops around nothing, and their variables."""
    made = [
        ir.For(ir.Var(name, "int32"), 0, extent, ir.ForKind.SERIAL, ir.seq())
        for name, extent in extents.items()
    ]
    return tuple(made), [loop.loop_var for loop in made]


(NEST, (R, S, BX)) = loops(r=64, s=64, bx=2)
SHAPE = (100, 72)
ROW, COLUMN = BX * 64 + R, S + 16


def bounds(condition, indices=(ROW, COLUMN), shape=SHAPE):
    found = find_bounds(condition, indices, shape, NEST)
    return found and tuple(x if x is None else ir.static_int(x) for x in found.below)


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        (ROW < 100, (100, None)),
        (COLUMN < 72, (None, 72)),
        (tirx.And(ROW < 100, COLUMN < 72), (100, 72)),
        (tirx.And(COLUMN < 72, ROW < 100), (100, 72)),
        (R < 100 - BX * 64, (100, None)),
        (S < 56, (None, 72)),
        (ROW <= 99, (100, None)),
        (tirx.GT(tirx.IntImm("int32", 100), ROW), (100, None)),
        (tirx.And(ROW < 100, ROW >= 0), (100, None)),
        (tirx.const(True, "bool"), (None, None)),
        (ROW < 99, (99, None)),  # a part of the tensor
        (ROW < 101, (101, None)),  # more than the tensor: the map is clipped
        (tirx.And(ROW < 100, S < 8), (100, 24)),
        (tirx.And(ROW < 90, ROW < 80), (80, None)),
        (tirx.And(ROW < 100, R >= 0), None),  # true of r, but no bound of an index
        (R < 50, None),
        (tirx.Or(ROW < 100, COLUMN < 72), None),
        (ROW > 100, None),
        (BX < 1, None),
        (ROW + COLUMN < 99, None),
    ],
)
def test_predicates(condition, found):
    assert bounds(condition) == found


@pytest.mark.parametrize("make", [lambda: R * 4 + S // 16, lambda: S // 16 + R // 8 + BX])
def test_a_quotient_is_multiplied_out(make):
    low, high = make(), tirx.IntImm("int32", 5)
    new, limit = without_quotient(low, high)
    for r, s, bx in itertools.product(range(9), range(0, 64, 5), range(2)):
        at = {R: tirx.IntImm("int32", r), S: tirx.IntImm("int32", s), BX: tirx.IntImm("int32", bx)}
        said = [ir.simplify(ir.substitute(x, at)) for x in (low < high, new < limit)]
        assert ir.is_const(said[0], 1) == ir.is_const(said[1], 1)
    n = ir.Var("n", "int32")
    assert without_quotient(low, n)[0] is low  # where it ends is not known: as it is


def test_a_condition_on_whole_tiles_may_say_the_same():
    """Sixteen rows in tiles of sixteen: the second tile has none of them."""
    assert bounds(BX < 1, shape=(64, 72)) == (64, None)
    assert bounds(tirx.And(BX < 1, S < 56), shape=(64, 72)) == (64, 72)
    assert bounds(BX < 1, shape=(65, 72)) is None  # the second tile has one
    tile = BX * 2 + S // 32  # 0 to 3
    rows = tile * 4 + R % 4
    assert bounds(tile < 3, (rows, COLUMN), (12, 72)) == (12, None)
    assert bounds(tile < 3, (rows, COLUMN), (13, 72)) is None
    assert bounds(tile < 3, (rows + 1, COLUMN), (12, 72)) is None
    assert bounds(tile < 0, (rows, COLUMN), (12, 72)) is None


def test_a_bound_from_below_is_told_apart():
    both = tirx.And(ROW - 3 >= 0, ROW - 3 < 100)
    found = find_bounds(both, (ROW - 3, COLUMN), SHAPE, NEST)
    assert found.from_zero == (True, False)
    assert (ir.static_int(found.below[0]), found.below[1]) == (100, None)


@pytest.mark.parametrize(
    "term",
    [ROW >= 3, ROW > 2, ROW - 3 >= 0, tirx.LE(tirx.const(3), ROW), tirx.LE(tirx.const(1), ROW - 2)],
)
def test_a_bound_from_below_in_other_words(term):
    assert find_bounds(term, (ROW - 3, COLUMN), SHAPE, NEST).from_zero == (True, False)


def test_a_bound_from_below_of_every_second_row():
    """1 <= r says the same as 2 r - 1 >= 0."""
    assert find_bounds(R >= 1, (R * 2 - 1, COLUMN), SHAPE, NEST).from_zero == (True, False)
    assert find_bounds(R >= 2, (R * 2 - 1, COLUMN), SHAPE, NEST) is None


QUOTIENT = tirx.floordiv(R * 16 + S % 16, 4)
WIDE = R * 64 + S  # whose digits TVM leaves in predicates


@pytest.mark.parametrize(
    ("term", "index"),
    [
        (BX + QUOTIENT >= 1, BX * 3 + QUOTIENT * 3 - 2),  # by 3, rounded
        (BX * 3 + QUOTIENT * 3 >= 2, BX * 3 + QUOTIENT * 3 - 3),
        (WIDE >= 64, R * 3 - 3),  # s is below the step of r
        (WIDE + BX * 4096 >= 256, (R + BX * 64) // 4 - 1),
        (tirx.floordiv(WIDE, 64) + BX >= 2, BX * 2 + R * 2 - 4),
    ],
)
def test_a_bound_from_below_in_other_steps(term, index):
    assert find_bounds(term, (index, COLUMN), SHAPE, NEST).from_zero == (True, False)
    assert find_bounds(term, (index - 3, COLUMN), SHAPE, NEST) is None


def test_a_bound_in_other_steps():
    quotient = BX * 4 + tirx.floordiv(R * 64 + S, 128)
    assert bounds(quotient < 20, (BX * 8 + R, COLUMN), (40, 72)) == (40, None)
    assert bounds(quotient < 20, (BX * 8 + R, COLUMN), (41, 72)) is None


def test_the_ends_of_a_range():
    """TVM writes the last row alone as an equation."""
    last, first = tirx.EQ(ROW, tirx.const(127)), tirx.EQ(ROW, tirx.const(0))
    assert find_bounds(last, (ROW - 127, COLUMN), SHAPE, NEST).from_zero == (True, False)
    assert bounds(first) == (1, None)
    assert bounds(tirx.EQ(ROW, tirx.const(5))) is None


@pytest.mark.parametrize(
    "term", [ROW >= 2, ROW > 3, tirx.LE(tirx.const(2), ROW), R >= 3, ROW + COLUMN >= 3]
)
def test_another_bound_from_below(term):
    assert find_bounds(term, (ROW - 3, COLUMN), SHAPE, NEST) is None


def test_symbolic_extents_compare_as_they_stand():
    m = ir.Var("m", "int32")
    assert find_bounds(m > ROW, (ROW, COLUMN), (m, 72), NEST).below[0].same_as(m)
    part = find_bounds(m - 1 > ROW, (ROW, COLUMN), (m, 72), NEST).below[0]
    assert ir.is_const(ir.simplify(part - (m - 1)), 0)
    wide = tirx.Cast("int64", ROW)
    found = find_bounds(wide < tirx.Cast("int64", m), (wide, COLUMN), (m, 72), NEST)
    assert found is not None
    assert found.below[0].same_as(m)


def test_types_of_predicate_and_index_may_differ():
    wide = tirx.Cast("int64", BX) * 64 + tirx.Cast("int64", R)
    assert bounds(wide < tirx.IntImm("int64", 90)) == (90, None)
    columns = tirx.Cast("int64", S + 16)
    assert bounds(columns < tirx.IntImm("int64", 50)) == (None, 50)
    assert bounds(tirx.Cast("int64", S) < tirx.Cast("int64", 90 - BX * 64)) is None


def test_found_bounds_are_the_predicate_everywhere():
    """Evaluate what was read at every point, beside the predicate."""
    condition = tirx.And(R < 90 - BX * 64, S < 50)
    rows, columns = bounds(condition)
    for bx, r, s in itertools.product(range(2), (0, 25, 26, 63), (0, 49, 50, 63)):
        at = {BX: bx, R: r, S: s}
        value = bool(ir.simplify(ir.substitute(condition, at)))
        assert value == (bx * 64 + r < rows and s + 16 < columns)


def test_a_bound_that_was_divided_by_what_it_has_in_common():
    """Of four blocks of a cluster along rows: TVM halves both sides of the first."""
    nest, (tile, block, row) = loops(bx=2, bz=8, r=16)
    index = (tile * 4 + block % 4) * 16 + row
    halved = tile * 2 + block % 4 // 2 < 3
    found = find_bounds(halved, (index,), (96,), nest)
    assert found is not None
    assert ir.static_int(found.below[0]) == 96
    assert find_bounds(halved, (index,), (80,), nest) is None
    unknown = ir.Var("n", "int32")
    assert find_bounds(tile * unknown + block % 4 // 2 < 3, (index,), (96,), nest) is None


def test_a_bound_that_holds_beside_another_one():
    """TVM writes `2 * a < 9` as `8 * a + b < 37` where `b < 5`."""
    nest, (a, b) = loops(a=8, b=8)
    condition = tirx.And(a * 8 + b < 37, b < 5)
    found = find_bounds(condition, (a * 2, b * 2), (9, 9), nest)
    assert found is not None
    assert found.below == (9, 9)
    assert find_bounds(tirx.And(a * 8 + b < 36, b < 5), (a * 2, b * 2), (9, 9), nest) is None
