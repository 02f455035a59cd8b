"""ClampPairs: two numbers are rounded, and clamped at zero, by one instruction."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import s_tir

import tvm_hopper
from tests.transforms.scripts import parse, run
from tvm_hopper import schedule as hs
from tvm_hopper.sim.translate.device_math import math
from tvm_hopper.testing import workloads
from tvm_hopper.transforms.clamp_pairs import ClampPairs, plan_clamps

PLAIN = """
@T.prim_func(private=True, s_tir=True)
def func(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "{kind}")):
    x = T.alloc_local((4,), "{kind}", layout=None)
    x[2] = T.Cast("{kind}", T.max(X[0], T.float32(0)))
    name: T.let[T.float32] = X[2]
    x[3] = T.Cast("{kind}", T.max(T.float32(0), X[1] + name))
    for v in T.vectorized(4):
        Y[v] = x[v]
"""
PAIR = """
    low: T.let[T.float32] = X[0]
    name: T.let[T.float32] = X[2]
    x_pairs[1] = T.tvm_hopper_relu_pair_{kind}({low}, {high})
""".replace("{low}", 'T.reinterpret("uint32", low)').replace(
    "{high}", 'T.reinterpret("uint32", X[1] + name)'
)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_two_stores_become_one(kind):
    after = run(parse(PLAIN.format(kind=kind)), ClampPairs())
    assert PAIR.format(kind=kind) in after.script()
    assert run(after, ClampPairs()).same_as(after)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("T.max(X[0], T.float32(0))", "T.max(X[0], T.float32(1))"),  # of which there is none
        ("T.max(X[0], T.float32(0))", "X[0]"),
        ("x[2] =", "x[1] ="),  # no register's halves
        ("= X[2]", '= T.Cast("float32", x[2])'),  # what the first one stored is read
        ("X[1] + name", 'T.Cast("float32", x[2])'),
        ("X[1] + name", 'T.reinterpret("float32", T.decl_buffer((2,), "uint32", data=x.data)[1])'),
        (
            "    name: T.let[T.float32] = X[2]\n",
            "    name: T.let[T.float32] = X[2]\n    X[3] = name\n",
        ),
        ("x = T.alloc_local((4,)", "x = T.alloc_local((5,)"),
    ],
)
def test_what_is_no_pair_stays(old, new):
    text = PLAIN.format(kind="bfloat16")
    assert old in text
    assert not plan_clamps(parse(text.replace(old, new)))


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_what_the_simulator_computes(kind):
    given = np.float32([[-1, 2.5, -0.0, np.inf], [1e-3, -np.inf, np.nan, 70000]])
    low, high = (x.view(np.uint32) for x in given)
    words = math(f"tvm_hopper_relu_pair_{kind}", np.dtype("uint32"), low, high)
    with np.errstate(over="ignore"):
        want = np.maximum(given, 0).astype(np.dtype(kind))
    got = np.stack([words & 0xFFFF, words >> 16]).astype(np.uint16).view(np.dtype(kind))
    np.testing.assert_array_equal(got.astype("float32"), want.astype("float32"))


@pytest.mark.parametrize("epilogue", [("bias_col", "relu"), ("residual", "relu")])
def test_behind_a_product_no_maximum_is_left(epilogue):
    mod = workloads.matmul(256, 256, 128, "NT", "float16", "float16", epilogue=epilogue)
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig((128, 64, 64), consumers=2, store="tma"))
    ex = tvm.compile(sch.mod, target="nvidia/nvidia-h200")
    text = ex.mod.imports[0].inspect_source()
    kernel = text[text.rindex("void __launch_bounds__") :]
    assert "relu_pair_float16(" in kernel
    assert "max(" not in kernel
    assert tvm_hopper.cubin(ex)
