"""Which neighbours may be stored as one vector: aligned together, in bounds together."""

import pytest
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.vector_runs import is_aligned_run, shared_condition

E, X, Y, N = (ir.Var(name, "int32") for name in "exyn")


@pytest.mark.parametrize(
    ("condition", "length", "shared"),
    [
        (tirx.const(True, "bool"), 2, True),
        (Y < 7, 2, True),
        (X * 2 + E < 20, 2, True),
        (X * 8 + E < 24, 8, True),
        (tirx.And(Y < N, X * 8 + E < N * 8), 8, True),
        (X * 2 + E < 19, 2, False),  # the first of a pair alone
        (X + E < 20, 2, False),
        (X * 8 + E < 20, 8, False),
        (X * 2 + E < N, 2, False),
        (X * 2 + E * 2 < 20, 2, False),
        (X * 2 + E <= 20, 2, False),
        (X * 2 + E < 20 + E * 2, 2, False),
    ],
)
def test_shared_condition(condition, length, shared):
    found = shared_condition(condition, E, length)
    assert (found is not None) is shared
    if not shared:
        return
    assert not ir.depends_on(found, [E])
    for x in range(12):
        at = {X: x, Y: 3, N: 3}
        each = {bool(ir.simplify(ir.substitute(condition, {**at, E: e}))) for e in range(length)}
        assert each == {bool(ir.simplify(ir.substitute(found, at)))}


def buffer(columns, **options):
    return tirx.decl_buffer((4, columns), "float16", layout=None, **options)


@pytest.mark.parametrize(
    ("columns", "indices", "length", "aligned"),
    [
        (16, [Y, X * 2 + E], 2, True),
        (16, [Y, X * 8 + E], 8, True),
        (16, [Y, X * 8 + 8 + E], 8, True),
        (20, [Y, X * 8 + E], 8, False),  # the next row starts at 20
        (16, [Y, X * 8 + 4 + E], 8, False),
        (15, [Y, X * 2 + E], 2, False),
        (16, [Y, X * 2 + 1 + E], 2, False),
        (16, [Y, X * 2 + E * 2], 2, False),
        (16, [X * 2 + E, Y], 2, False),
        (16, [E, X * 2 + E], 2, False),
    ],
)
def test_aligned_run(columns, indices, length, aligned):
    assert is_aligned_run(buffer(columns), indices, E, length) is aligned


def test_a_buffer_with_strides_or_an_offset_is_not_known_to_be_aligned():
    at = [Y, X * 2 + E]
    assert not is_aligned_run(buffer(16, strides=[17, 1]), at, E, 2)
    assert not is_aligned_run(buffer(16, elem_offset=N), at, E, 2)
