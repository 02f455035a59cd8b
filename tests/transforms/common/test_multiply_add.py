"""The multiply-add is recognised however it is spelt; m is the accumulator's first axis."""

import pytest

from tests.transforms.refusals.products import PRODUCT, SUM
from tests.transforms.scripts import parse
from tvm_hopper import ir
from tvm_hopper.transforms.common.multiply_add import match_multiply_add

A, B = 'T.Cast("float32", a[0, i, k])', 'T.Cast("float32", b[0, j, k])'


def match(*changes):
    func = parse(PRODUCT, *changes)
    (realize,) = ir.find_all(
        func.body, ir.SBlockRealize, lambda x: "tvm_hopper.wgmma" in x.block.annotations
    )
    return match_multiply_add(realize)


@pytest.mark.parametrize(
    "spelling",
    [
        f"acc[i, j] + {A} * {B}",
        f"acc[i, j] + {B} * {A}",
        f"{A} * {B} + acc[i, j]",
        'acc[i, j] + T.Cast("float32", a[0, i, k] * b[0, j, k])',
        'T.Cast("float32", b[0, j, k] * a[0, i, k]) + acc[i, j]',
    ],
)
@pytest.mark.parametrize("loops", ["i, j, k", "k, i, j", "j, k, i"])
def test_spellings(spelling, loops):
    extents = {"i": 64, "j": 8, "k": 16}
    grid = f"for {loops} in T.grid({', '.join(str(extents[x]) for x in loops.split(', '))})"
    found = match((SUM, spelling), ("for i, j, k in T.grid(64, 8, 16)", grid))
    assert [x.loop_var.name for x in (found.m, found.n, found.k)] == ["i", "j", "k"]
    assert [x.source.name for x in (found.left, found.right)] == ["a", "b"]


def test_a_transposed_accumulator_exchanges_the_operands():
    found = match(
        (SUM, SUM.replace("acc[i, j]", "acc[j, i]")), ("acc[i, j] = acc[j", "acc[j, i] = acc[j")
    )
    assert [x.loop_var.name for x in (found.m, found.n)] == ["j", "i"]
    assert [x.source.name for x in (found.left, found.right)] == ["b", "a"]


def test_loops_of_extent_one_are_set_aside():
    found = match(("for i, j, k in T.grid(64, 8, 16)", "for u, i, j, k in T.grid(1, 64, 8, 16)"))
    assert [x.loop_var.name for x in found.units] == ["u"]
