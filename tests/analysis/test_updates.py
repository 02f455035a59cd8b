"""Updates in place, taken apart."""

import pytest

from tests.transforms.scripts import parse
from tvm_hopper import ir
from tvm_hopper.analysis.updates import combine, find_update, moved_value

SCRIPT = """
@T.prim_func(private=True, s_tir=True)
def func(C: T.Buffer((8, 8), "int32"), X: T.Buffer((8, 8), "int32")):
    for i, j in T.grid(8, 8):
        C[i, j] = VALUE
"""


def store(value):
    func = parse(SCRIPT, ("VALUE", value))
    return ir.find_all(func.body, ir.BufferStore)[0]


@pytest.mark.parametrize(
    ("value", "operation"),
    [
        ("C[i, j] + X[i, j]", "add"),
        ("X[i, j] + C[i, j]", "add"),
        ("T.min(C[i, j], X[j, i])", "min"),
        ("T.max(C[i, j], 3)", "max"),
        ("C[i, j] & X[i, j]", "and"),
        ("C[i, j] | X[i, j]", "or"),
        ("X[i, j] ^ C[i, j]", "xor"),
    ],
)
def test_an_update(value, operation):
    update = find_update(store(value))
    assert update is not None
    assert update.operation == operation
    assert not ir.uses(update.value, store(value).buffer)


@pytest.mark.parametrize(
    "value",
    [
        "X[i, j]",
        "C[j, i] + X[i, j]",  # another element
        "C[i, j] - X[i, j]",
        "C[i, j] * X[i, j]",
        "C[i, j] + C[i, j]",
        "C[i, j] + X[i, j] + C[j, i]",
    ],
)
def test_no_update(value):
    one = store(value)
    assert find_update(one) is None
    assert moved_value(one).same_as(one.value)


def test_no_store_is_no_update():
    assert find_update(ir.seq()) is None


@pytest.mark.parametrize("operation", ["add", "min", "max", "and", "or", "xor"])
def test_what_is_put_together_comes_apart_again(operation):
    one = store("C[i, j] + X[i, j]")
    old, value = one.value.a, one.value.b
    again = ir.BufferStore(one.buffer, combine(operation, old, value), list(one.indices))
    update = find_update(again)
    assert (update.operation, update.value.source.name) == (operation, "X")
