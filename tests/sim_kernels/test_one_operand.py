"""Products of one tensor with itself: its rows, its columns, a square, parts of it."""

import numpy as np
import pytest
import tvm
from tvm import s_tir, te
from tvm.s_tir import dlight as dl
from tvm.target import Target

import tvm_hopper
from tests.schedule.refuse import refuse
from tvm_hopper import ir
from tvm_hopper import schedule as hs
from tvm_hopper.simulation import simulate
from tvm_hopper.testing import forms

H200 = "nvidia/nvidia-h200"


def product(shape, size, depth, first, second):
    """Sum `first(x, i, k) * second(x, j, k)` over k."""
    x = te.placeholder(shape, "float16", name="X")
    k = te.reduce_axis((0, depth), "k")

    def term(i, j):
        return te.sum(first(x, i, k).astype("float32") * second(x, j, k).astype("float32"), k)

    return te.create_prim_func([x, te.compute((size, size), term, name="C")])


def by_rows(x, i, k):
    return x[i, k]


def by_columns(x, i, k):
    return x[k, i]


KINDS = {
    "rows": (product((72, 104), 72, 104, by_rows, by_rows), lambda x: x @ x.T, {}),
    "columns": (product((72, 104), 104, 72, by_columns, by_columns), lambda x: x.T @ x, {}),
    "square": (product((64, 64), 64, 64, by_rows, by_columns), lambda x: x @ x, {}),
    "parts": (
        product((64, 2, 64), 64, 64, lambda x, i, k: x[i, 0, k], lambda x, j, k: x[j, 1, k]),
        lambda x: x[:, 0] @ x[:, 1].T,
        {},
    ),
    "few rows": (product((8, 128), 8, 128, by_rows, by_rows), lambda x: x @ x.T, {}),
    "split": (
        product((128, 64), 64, 128, by_columns, by_columns),
        lambda x: x.T @ x,
        {"tile": (64, 64, 32), "split_k": 2},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_values(kind):
    func, exact, fields = KINDS[kind]
    sch = s_tir.Schedule(func)
    hs.matmul(sch, "C", hs.MatmulConfig(**fields))
    x = np.random.default_rng(0).standard_normal([int(n) for n in func.params[0].shape])
    x = x.astype("float16")
    result = simulate(sch, {"X": x})
    assert result.verdict == "clean", str(result)
    np.testing.assert_allclose(result.outputs["C"], exact(x.astype("float64")), atol=1e-3)


def test_the_rule_takes_them_and_no_squares():
    decisions = []
    x = te.placeholder((64, 64), "float16", name="X")
    k = te.reduce_axis((0, 64), "k")
    wide = lambda i: x[i, k].astype("float32")  # noqa: E731
    squares = te.compute((64,), lambda i: te.sum(wide(i) * wide(i), k), name="C")
    for func in (KINDS["rows"][0], te.create_prim_func([x, squares])):
        mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
        with Target(H200):
            dl.ApplyDefaultSchedule(*tvm_hopper.dlight.rules(decisions))(mod)
    assert [x.rule for x in decisions if x.taken] == ["Matmul", "RowReduction"]


def test_strides_of_its_own_are_refused():
    """A copy would lie in memory as the tensor does not."""
    mod = forms.row_strides(64, 64, 64, "float16")
    func = mod["main"]
    body = ir.substitute(func.body, {func.params[1]: func.params[0]})
    one = tvm.tirx.PrimFunc([func.params[0], func.params[2]], body).with_attrs(dict(func.attrs))
    refuse(
        tvm.IRModule({"main": one}), "block C: found A as both operands; need two tensors; pass th"
    )
