"""Is a predicate just "inside the tensor"? What the hardware's own fill may stand for."""

import itertools

import pytest
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.bounds import is_exact_bounds


def loops(**extents):
    """Return loops around nothing, and their variables."""
    made = [
        ir.For(ir.Var(name, "int32"), 0, extent, ir.ForKind.SERIAL, ir.seq())
        for name, extent in extents.items()
    ]
    return tuple(made), [loop.loop_var for loop in made]


(NEST, (R, S)) = loops(r=64, s=64)
BX = ir.Var("bx", "int32")
SHAPE = (100, 72)
ROW, COLUMN = BX * 64 + R, S + 16


@pytest.mark.parametrize(
    ("condition", "exact"),
    [
        (ROW < 100, True),
        (COLUMN < 72, True),
        (tirx.And(ROW < 100, COLUMN < 72), True),
        (tirx.And(COLUMN < 72, ROW < 100), True),
        (R < 100 - BX * 64, True),
        (S < 56, True),
        (ROW <= 99, True),
        (tirx.And(ROW < 100, R >= 0), False),  # true of r, but no bound of an index
        (tirx.And(ROW < 100, ROW >= 0), True),
        (tirx.const(True, "bool"), True),
        (ROW < 99, False),
        (ROW < 101, False),
        (R < 100, False),
        (tirx.Or(ROW < 100, COLUMN < 72), False),
        (tirx.And(ROW < 100, S < 8), False),
        (ROW > 100, False),
        (BX < 2, False),
    ],
)
def test_predicates(condition, exact):
    assert is_exact_bounds(condition, (ROW, COLUMN), SHAPE, NEST) is exact


def test_symbolic_extents_compare_as_they_stand():
    m = ir.Var("m", "int32")
    assert is_exact_bounds(m > ROW, (ROW, COLUMN), (m, 72), NEST)
    assert not is_exact_bounds(m - 1 > ROW, (ROW, COLUMN), (m, 72), NEST)
    wide = tirx.Cast("int64", ROW)
    assert is_exact_bounds(wide < tirx.Cast("int64", m), (wide, COLUMN), (m, 72), NEST)


def test_an_accepted_predicate_is_the_bounds_everywhere():
    """Evaluate what was accepted at every point, beside the tensor's bounds."""
    condition = tirx.And(R < 100 - BX * 64, S < 56)
    assert is_exact_bounds(condition, (ROW, COLUMN), SHAPE, NEST)
    for bx, r, s in itertools.product(range(3), (0, 35, 36, 63), (0, 55, 56, 63)):
        at = {BX: bx, R: r, S: s}
        value = bool(ir.simplify(ir.substitute(condition, at)))
        inside = bx * 64 + r < 100 and s + 16 < 72
        assert value == inside
