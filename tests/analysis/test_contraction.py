"""One statement taken apart: products, casts, and which variable moves what."""

import re

import pytest
import tvm
from tvm.script import tirx as T

from tvm_hopper import ir
from tvm_hopper.analysis.contraction import find_contraction

FUNC = """
@T.prim_func(private=True, s_tir=True)
def func(
    A: T.Buffer((2, 4, 8), "float16"),
    B: T.Buffer((2, 4, 8), "float16"),
    C: T.Buffer((2, 4, 4), "float32"),
):
    for b, i, j, k, u in T.grid(2, 4, 4, 8, 1):
        with T.sblock("update"):
            vb, vi, vj, vu = T.axis.remap("SSSS", [b, i, j, u])
            vk = T.axis.reduce(8, k)
            with T.init():
                C[vb, vi, vj] = T.float32(3)
            C[vb, vi, vj] = VALUE
"""
A, B = 'T.Cast("float32", A[vb, vi, vk])', 'T.Cast("float32", B[vb, vj, vk])'
SUM = f"C[vb, vi, vj] + {A} * {B}"


def find(value=SUM):
    """Take apart the statement that stores `value`; return its block's variables too."""
    func = tvm.script.from_source(FUNC.replace("VALUE", value), {"T": T})
    (block,) = ir.find_all(func.body, ir.SBlock, lambda x: x.name_hint == "update")
    return find_contraction(block.body, block.init), [x.var for x in block.iter_vars]


@pytest.mark.parametrize(
    "value",
    [
        SUM,
        f"C[vb, vi, vj] + {B} * {A}",
        f"{A} * {B} + C[vb, vi, vj]",
        'C[vb, vi, vj] + T.Cast("float32", A[vb, vi, vk] * B[vb, vj, vk])',
        'T.Cast("float32", T.Cast("float64", B[vb, vj, vk] * A[vb, vi, vk])) + C[vb, vi, vj]',
    ],
)
def test_variables_by_what_they_move(value):
    found, variables = find(value)
    sides = found.sides(variables)
    left, right = (load.source.name for load in found.products[0].loads)
    own = {left: sides.left, right: sides.right}
    assert [x.name for x in own["A"]] == ["vi"]
    assert [x.name for x in own["B"]] == ["vj"]
    assert [x.name for x in sides.batch] == ["vb"]
    assert [x.name for x in sides.reduction] == ["vk"]
    assert [x.name for x in sides.rest] == ["vu"]
    assert found.accumulator.name == "C"
    assert found.accumulator_dtype == "float32"
    assert float(found.initial.value) == 3
    assert found.products[0].changed_values("float32") == ""


def test_casts_are_listed_from_the_outside_in():
    found, _ = find(f'C[vb, vi, vj] + T.Cast("float32", T.Cast("float64", A[vb, vi, vk])) * {B}')
    assert found.products[0].factors[0].casts == ("float32", "float64")
    assert found.products[0].dtype == "float32"
    assert found.products[0].changed_values("float32") == ""


def test_several_products_are_data():
    found, variables = find(f"{SUM} + {A} * {A}")
    assert len(found.products) == 2
    other = found.sides(variables, found.products[1])
    assert (other.left, other.right) == ((), ())
    assert {x.name for x in other.rest} == {"vj", "vu"}
    assert [x.name for x in other.batch] == ["vb", "vi"]


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (A, 'T.Cast("float32", T.Cast("bfloat16", A[vb, vi, vk]))', "operand A cast to bfloat16"),
        (
            f"{A} * {B}",
            'T.Cast("float32", T.Cast("bfloat16", A[vb, vi, vk] * B[vb, vj, vk]))',
            "the product .* cast to bfloat16",
        ),
    ],
)
def test_a_cast_that_changes_values_is_named(old, new, found):
    (product,) = find(SUM.replace(old, new))[0].products
    assert re.match(f"{found}, which can change its value", product.changed_values("float32"))


def test_a_computed_factor_has_no_load():
    found, variables = find(f"C[vb, vi, vj] + ({A} + T.float32(1)) * {B}")
    assert [x is None for x in found.products[0].loads] == [True, False]
    with pytest.raises(ValueError, match="a factor that is no load has no indices"):
        found.sides(variables)


@pytest.mark.parametrize(
    "value",
    [
        f"{A} * {B}",
        f"C[vb, vi, 0] + {A} * {B}",
        f"C[vb, vi, vj] + C[vb, vi, vj] + {A} * {B}",
        f"C[vb, vi, vj] + {A}",
        f"C[vb, vi, vj] + {A} * {B} + {A}",
        f"C[vb, vi, vj] - {A} * {B}",
        f"T.max(C[vb, vi, vj], {A} * {B})",
    ],
)
def test_no_contraction(value):
    assert find(value)[0] is None


def test_a_statement_that_is_no_store():
    assert find_contraction(tvm.tirx.Evaluate(0)) is None
