"""ForbidFmaContraction: no product is fused with a sum whose other operand goes back to one."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import s_tir, te
from tvm.script import tirx as T

import tvm_hopper
from tests.gpu import masked_rows
from tests.transforms.scripts import parse, run
from tvm_hopper import schedule as hs
from tvm_hopper.transforms.math.forbid_fma_contraction import (
    ForbidFmaContraction,
    plan_rounded_sums,
)

TARGET = "nvidia/nvidia-h200"
BODY = """
def func(X: T.Buffer((8,), "float32"), W: T.Buffer((8,), "float32"), Y: T.Buffer((8,), "float32")):
    x = T.alloc_local((4,), layout=None)
    m = T.alloc_local((2,), layout=None)
    m[0] = T.max(m[0], X[1])
    x[0] = X[0]
    {text}
"""


def rounded(text: str) -> str:
    """Return what becomes of some statements."""
    before = parse(BODY.replace("{text}", text.replace("\n", "\n    ")))
    after = run(before, ForbidFmaContraction())
    assert not plan_rounded_sums(after)
    lines = [line.strip() for line in after.script().splitlines()]
    return "\n".join(lines[-text.count("\n") - 1 :])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Y[0] = X[0] * W[0] - m[0]", "sub_rn(X[0] * W[0], m[0])"),
        ("Y[0] = m[0] + W[0] * X[0]", "add_rn(m[0], W[0] * X[0])"),
        ("Y[0] = x[0] * x[0] - W[0] * W[0]", "sub_rn(x[0] * x[0], W[0] * W[0])"),
        ("Y[0] = X[0] * W[0] - X[1]", "sub_rn(X[0] * W[0], X[1])"),  # of an earlier kernel
        ("x[1] = X[0] * W[0]\nY[0] = x[1] - m[0]", "sub_rn(x[1], m[0])"),
        ("x[1] = X[0] * W[0]\nx[1] = x[1] - m[0]", "sub_rn(x[1], m[0])"),
        ("t: T.let[T.float32] = X[0] * W[0]\nY[0] = t - m[0]", "sub_rn(t, m[0])"),
        ("Y[1] = X[0] * W[0]\nY[0] = Y[1] - m[0]", "sub_rn(Y[1], m[0])"),
        ("Y[0] = T.Select(X[0] > m[0], X[0] * W[0], W[1]) - m[0]", "sub_rn(T.Select("),
        ("Y[0] = T.float32(0) - X[0] * W[0] + m[0]", "add_rn(T.float32(0.0) - X[0] * W[0], m[0])"),
        (
            "for i in range(2):\n    Y[i] = x[2] - m[0]\n    x[2] = X[i] * W[i]",
            "sub_rn(x[2], m[0])",
        ),
        ("for i in range(2):\n    x[i] = X[i] * W[i]\nY[0] = x[3] - m[0]", "sub_rn(x[3], m[0])"),
        ("if X[0] > m[0]:\n    x[2] = X[0] * W[0]\nY[0] = x[2] - m[0]", "sub_rn(x[2], m[0])"),
        ("if X[0] * W[0] - m[0] > T.float32(0):\n    Y[0] = X[0]", "sub_rn(X[0] * W[0], m[0])"),
        ("Y[0] = X[0] * T.float32(2) - m[0]", "sub_rn(X[0] * T.float32(2.0), m[0])"),  # overflows
        (
            "Y[0] = X[0] * W[0] + m[0] * T.float32(-2)",
            "add_rn(X[0] * W[0], m[0] * T.float32(-2.0))",
        ),
        (
            "Y[0] = X[0] * W[0] + x[0] * (m[0] * (T.float32(0) - W[0]))",
            "add_rn(X[0] * W[0], x[0] * (m[0] * (T.float32(0.0) - W[0])))",
        ),
        ("x[0] = x[0] * W[0]\nx[0] = x[0] + m[0]", "add_rn(x[0], m[0])"),  # no running sum
    ],
)
def test_the_sum_is_an_instruction_of_its_own(before, after):
    named = after.replace("_rn(", "_rn_float32(")
    text = rounded(before)
    assert f"T.tvm_hopper_{named}" in text
    assert text.count("_rn_") == 1


@pytest.mark.parametrize(
    "text",
    [
        "Y[0] = X[0] - m[0]",
        "Y[0] = X[0] * W[0] + m[0] * x[0] * T.float32(2)",
        "Y[0] = X[0] * W[0] + X[1]",
        "x[1] = W[1]\nY[0] = m[0] * W[0] + x[1]",
        "Y[0] = X[0] * W[0] + T.float32(1)",
        "Y[0] = T.float32(1) - X[0] * m[0]",
        "x[0] = x[0] + X[0] * W[0]",
        "t: T.let[T.float32] = x[0] + X[0] * W[0]\nx[0] = t",
        "x[1] = X[0] * W[0]\nx[1] = X[0]\nY[0] = x[1] - m[0]",
        "Y[0] = T.max(X[0] * W[0], X[1]) - m[0]",
        "x[1] = m[0] * T.float32(0.25)\nY[0] = X[0] - x[1]",
        "Y[0] = X[0] * W[0] + T.float32(0.5) * W[0]",
        "Y[0] = X[T.Cast('int32', X[0]) * 2 + 1]",
    ],
)
def test_what_may_be_fused_stays(text):
    assert "_rn_" not in rounded(text)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_a_multiply_add_that_is_asked_for_is_one_instruction(dtype):
    """Of its own product nothing else is said: no sum is left that could be fused."""
    text = BODY.replace("float32", dtype).replace("{text}", "Y[0] = T.fma(X[0] * W[0], W[1], m[0])")
    after = run(parse(text), ForbidFmaContraction()).script()
    assert f"Y[0] = T.tvm_hopper_fma_rn_{dtype}(X[0] * W[0], W[1], m[0])" in after
    host = parse(text).with_attr("target", tvm.target.Target("llvm"))
    assert run(host, ForbidFmaContraction()).same_as(host)


def test_a_multiply_add_is_rounded_once_in_the_simulator():
    """The square of 1 + 2^-12 less 1: with a rounded product it would be 2^-11."""
    x = te.placeholder((32,), "float32", name="X")
    y = te.compute(x.shape, lambda i: T.fma(x[i], x[i], T.float32(-1)), name="Y")
    sch = s_tir.Schedule(te.create_prim_func([x, y]))
    hs.pointwise(sch)
    given = np.full(32, 1 + 2.0**-12, "float32")
    found = tvm_hopper.simulate(sch.mod, {"X": given}, target=TARGET)
    assert found.verdict == "clean"
    assert set(found.outputs["Y"]) == {np.float32(2.0**-11 + 2.0**-24)}
    source = tvm.compile(sch.mod, target=TARGET).mod.imports[0].inspect_source()
    assert "fma_rn_float32" in source


def test_host_functions_stay():
    func = parse(BODY.replace("{text}", "Y[0] = X[0] * W[0] - m[0]"))
    func = func.with_attr("target", tvm.target.Target("llvm"))
    assert run(func, ForbidFmaContraction()).same_as(func)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_types_vectors_and_views_of_registers(dtype):
    text = f"""
def func(X: T.Buffer((8,), "{dtype}"), Y: T.Buffer((8,), "{dtype}")):
    x = T.alloc_local((8,), "{dtype}", layout=None)
    view = T.decl_buffer((8,), "{dtype}", data=x.data, scope="local")
    view[5] = X[5] * X[6]
    Y[0] = Y[0] + X[0] * X[1]
    Y[T.Ramp(0, 1, 4)] = X[T.Ramp(0, 1, 4)] - T.Broadcast(x[5], 4)
"""
    after = run(parse(text), ForbidFmaContraction()).script()
    assert f"T.tvm_hopper_sub_rn_{dtype}(X[T.Ramp(0, 1, 4)], T.Broadcast(x[5], 4))" in after
    assert after.count("_rn_") == 1


@pytest.mark.parametrize(
    ("name", "columns", "dtype"),
    [("softmax", 1024, "float32"), ("log_softmax", 40000, "bfloat16")],
)
def test_no_fused_multiply_add_scales_in_machine_code(name, columns, dtype):
    sch = s_tir.Schedule(masked_rows.program(name, "scale", 4, columns, dtype))
    hs.row_reduction(sch)
    lines = str(tvm_hopper.sass(tvm.compile(sch.mod, target=TARGET))).splitlines()
    scaling = [line for line in lines if re.search(r"\b0\.3000000", line)]
    assert scaling
    assert not [line for line in scaling if "FFMA" in line and "RZ" not in line]


@pytest.mark.parametrize("name", masked_rows.NAMES)
def test_what_the_simulator_computes_of_masked_rows(name):
    x = masked_rows.rows(256, "float32")
    sch = s_tir.Schedule(masked_rows.program(name, "scale", len(x), 256, "float32"))
    hs.row_reduction(sch)
    found = tvm_hopper.simulate(sch.mod, {"X": x}, target=TARGET)
    want = masked_rows.reference(name, "scale", x)
    assert masked_rows.is_close(found.outputs["Y"], want, "float32")
    assert found.verdict == "clean"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_difference_of_squares_is_of_rounded_ones(dtype):
    x, z = (te.placeholder((4, 64), dtype, name=name) for name in "XZ")
    y = te.compute(x.shape, lambda i, j: x[i, j] * x[i, j] - z[i, j] * z[i, j], name="Y")
    sch = s_tir.Schedule(te.create_prim_func([x, z, y]))
    hs.pointwise(sch)
    sass = str(tvm_hopper.sass(tvm.compile(sch.mod, target=TARGET)))
    fused = re.findall(r"\b[FDH]FMA\S* [^;]*(?<!, 1, 1), -?R\d\S* ;", sass)  # a product adds RZ
    assert "MUL" in sass
    assert not fused
