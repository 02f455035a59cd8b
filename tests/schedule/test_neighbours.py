"""Blocks around a product that are no plain chain: reshapes, shared inputs, nested diamonds."""

import numpy as np
import pytest
import tvm
from tvm import s_tir, te

from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.testing import workloads
from tvm_hopper.testing.serial import run_serially

CONFIG = hs.MatmulConfig((64, 64, 64), stages=2, consumers=1)
EXACT, RAGGED = (64, 64, 64), (72, 40, 72)


def f32(x):
    return x.astype("float32")


def const(value):
    return te.const(value, "float32")


def product(m, n, k, lead=()):
    a = te.placeholder((*lead, m, k), "float16", name="A")
    b = te.placeholder((*lead, n, k), "float16", name="B")
    axis = te.reduce_axis((0, k), "k")
    c = te.compute(
        (*lead, m, n),
        lambda *i: te.sum(f32(a[(*i[:-1], axis)]) * f32(b[(*i[:-2], i[-1], axis)]), axis),
        name="C",
    )
    return a, b, c


def check(tensors, reference):
    mod = tvm.IRModule({"main": te.create_prim_func(tensors)})
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", CONFIG)
    inputs = workloads.make_inputs(mod)
    want = reference(*(x.astype("float64") for x in inputs))
    np.testing.assert_array_equal(run_serially(sch.mod, inputs), want)


pytestmark = pytest.mark.parametrize("shape", [EXACT, RAGGED], ids=["exact", "ragged"])


def test_both_operands_with_a_batch_of_one(shape):
    check(product(*shape, lead=(1,)), lambda a, b: a @ b.swapaxes(1, 2))


def test_batch_of_one_dropped_behind_the_product(shape):
    a, b, c = product(*shape, lead=(1,))
    d = te.compute(shape[:2], lambda i, j: c[0, i, j] + const(1), name="D")
    check([a, b, d], lambda a, b: (a @ b.swapaxes(1, 2))[0] + 1)


def test_transposed_output(shape):
    m, n, _ = shape
    a, b, c = product(*shape)
    d = te.compute((n, m), lambda j, i: c[i, j] * const(2), name="D")
    check([a, b, d], lambda a, b: 2 * (a @ b.T).T)


def test_dimensions_added_to_the_output(shape):
    m, n, _ = shape
    a, b, c = product(*shape)
    d = te.compute((1, m, n // 8, 8), lambda _, i, j, x: c[i, j * 8 + x], name="D")
    check([a, b, d], lambda a, b: (a @ b.T).reshape(1, m, n // 8, 8))


def test_transposed_operand_before_the_product(shape):
    m, n, k = shape
    a, b, _ = product(*shape)
    t = te.compute((k, n), lambda x, y: b[y, x], name="T")
    axis = te.reduce_axis((0, k), "k")
    c = te.compute((m, n), lambda i, j: te.sum(f32(a[i, axis]) * f32(t[axis, j]), axis), name="C")
    check([a, b, c], lambda a, b: a @ b.T)


def test_operand_that_the_epilogue_reads_too(shape):
    a, b, c = product(*shape)
    d = te.compute(shape[:2], lambda i, j: c[i, j] + f32(a[i, 0]), name="D")
    check([a, b, d], lambda a, b: a @ b.T + a[:, :1])


def test_input_of_the_epilogue_that_is_computed_and_read_twice(shape):
    m, n, _ = shape
    a, b, c = product(*shape)
    bias = te.placeholder((n,), "float16", name="bias")
    triple = te.compute((n,), lambda j: f32(bias[j]) * const(3), name="triple")
    s = te.compute((m, n), lambda i, j: c[i, j] + triple[j], name="S")
    r = te.compute((m, n), lambda i, j: te.max(s[i, j], const(0)), name="R")
    e = te.compute((m, n), lambda i, j: s[i, j] * r[i, j] + triple[j], name="E")

    def reference(a, b, bias):
        s = a @ b.T + 3 * bias
        return s * np.maximum(s, 0) + 3 * bias

    check([a, b, bias, e], reference)


def test_diamond_in_a_diamond(shape):
    a, b, c = product(*shape)
    x = te.compute(shape[:2], lambda *i: c(*i) * const(2), name="X")
    y = te.compute(shape[:2], lambda *i: x(*i) + c(*i), name="Y")
    z = te.compute(shape[:2], lambda *i: y(*i) - x(*i) + c(*i), name="Z")
    check([a, b, z], lambda a, b: 2 * (a @ b.T))


def test_output_that_leaves_rows_out(shape):
    m, n, _ = shape
    a, b, c = product(*shape)
    d = te.compute((m // 2, n), lambda i, j: c[i * 2, j], name="D")
    sch = s_tir.Schedule(te.create_prim_func([a, b, d]))
    with pytest.raises(
        ScheduleError,
        match=r"D\[.*\] computed from C\[v_i \* 2, v_j\], which TVM",
    ):
        hs.matmul(sch, "C", CONFIG)
