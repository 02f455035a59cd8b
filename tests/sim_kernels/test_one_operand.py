"""Products of one tensor with itself: its rows, its columns, a square, parts of it."""

import numpy as np
import pytest
import tvm
from tvm import s_tir, te
from tvm.s_tir import dlight as dl
from tvm.target import Target

import tvm_hopper
from tvm_hopper import ir, schedule as hs
from tvm_hopper.simulation import simulate, verify
from tvm_hopper.testing import forms


def product(shape, size, depth, *operands):
    """Sum the product of two elements of one tensor over k."""
    x = te.placeholder(shape, "float16", name="X")
    k = te.reduce_axis((0, depth), "k")

    def term(*point):
        one, other = (f(x, i, k).astype("float32") for f, i in zip(operands, point, strict=True))
        return te.sum(one * other, k)

    return te.create_prim_func([x, te.compute((size, size), term, name="C")])


def row(x, i, k):
    return x[i, k]


def column(x, i, k):
    return x[k, i]


def part(number):
    return lambda x, i, k: x[i, number, k]


KINDS = {
    "rows": (product((72, 104), 72, 104, row, row), lambda x: x @ x.T, {}),
    "columns": (product((72, 104), 104, 72, column, column), lambda x: x.T @ x, {}),
    "square": (product((64, 64), 64, 64, row, column), lambda x: x @ x, {}),
    "parts": (product((64, 2, 64), 64, 64, part(0), part(1)), lambda x: x[:, 0] @ x[:, 1].T, {}),
    "few rows": (product((8, 128), 8, 128, row, row), lambda x: x @ x.T, {}),
    "split": (
        product((128, 64), 64, 128, column, column),
        lambda x: x.T @ x,
        {"tile": (64, 64, 32), "split_k": 2},
    ),
}


def drawn(func):
    shape = [int(n) for n in func.params[0].shape]
    return np.random.default_rng(0).standard_normal(shape).astype("float16")


def scheduled(func, fields):
    sch = s_tir.Schedule(func)
    hs.matmul(sch, "C", hs.MatmulConfig(**fields))
    return sch


@pytest.mark.parametrize("kind", KINDS)
def test_values(kind):
    func, exact, fields = KINDS[kind]
    x = drawn(func)
    result = simulate(scheduled(func, fields), {"X": x})
    assert result.verdict == "clean", str(result)
    np.testing.assert_allclose(result.outputs["C"], exact(x.astype("float64")), atol=1e-3)


def test_the_rule_takes_them_and_no_squares():
    decisions = []
    x = te.placeholder((64, 64), "float16", name="X")
    k = te.reduce_axis((0, 64), "k")
    square = lambda i: x[i, k].astype("float32") * x[i, k].astype("float32")  # noqa: E731
    squares = te.compute((64,), lambda i: te.sum(square(i), k), name="C")
    for func in (KINDS["rows"][0], te.create_prim_func([x, squares])):
        mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
        with Target("nvidia/nvidia-h200"):
            dl.ApplyDefaultSchedule(*tvm_hopper.dlight.rules(decisions))(mod)
    assert [x.rule for x in decisions if x.taken] == ["Matmul", "RowReduction"]


def test_rows_with_strides_are_copied_compactly():
    """The second operand is a copy that lies in memory as the tensor does not."""
    func = forms.row_strides(64, 64, 64, "float16")["main"]
    first, second, out = func.params
    one = tvm.tirx.PrimFunc([first, out], ir.substitute(func.body, {second: first}))
    one = one.with_attr("global_symbol", "main")
    sch = s_tir.Schedule(one)
    hs.matmul(sch, "C")
    verify(sch, against=one, target="nvidia/nvidia-h200").require_clean()
