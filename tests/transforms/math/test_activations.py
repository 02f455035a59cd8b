"""Activations that are replaced as a whole: how they are found, and how far they are off."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from tvm import te, tirx

from tests.transforms.math.test_approximate_functions_plan import SHORT, evaluate, numbers, sigmoid
from tvm_hopper import ir
from tvm_hopper.codegen_patches.activations import BESIDE, GELU, TANH_GELU
from tvm_hopper.transforms.math.activations import ACTIVATIONS
from tvm_hopper.transforms.math.approximate_functions_plan import shorten

X, Y = ir.Var("x", "float32"), ir.Var("y", "float32")
erfc = np.vectorize(math.erfc, otypes=[float])
PI2 = 0.7978845608


def f32(value: float) -> Any:
    """Return a constant."""
    return te.const(value, "float32")


def tanh_gelu(x: Any = X) -> Any:
    """Write it as networks do."""
    return f32(0.5) * x * (f32(1) + te.tanh(f32(PI2) * (x + f32(0.044715) * x * x * x)))


def other_tanh_gelu(x: Any = X) -> Any:
    """Write it as TOPI does."""
    inner = f32(PI2) * x * (f32(1) + f32(0.044715) * x * x)
    return x * (f32(0.5) * (te.tanh(inner) + f32(1)))


def erf_gelu(x: Any = X) -> Any:
    """Write it as networks do."""
    return x * f32(0.5) * (f32(1) + te.erf(x * f32(0.5**0.5)))


def exact_tanh_gelu(x: np.ndarray) -> np.ndarray:
    """Compute it in float64."""
    return x * sigmoid(2 * 0.7978845608028654 * (x + 0.044715 * x**3))


def exact_gelu(x: np.ndarray) -> np.ndarray:
    """Compute it in float64."""
    return 0.5 * x * erfc(-(0.5**0.5) * x)


FORMS = {
    "tanh": (tanh_gelu, exact_tanh_gelu, "gelu (tanh)"),
    "tanh, of TOPI": (other_tanh_gelu, exact_tanh_gelu, "gelu (tanh)"),
    "erf": (erf_gelu, exact_gelu, "gelu (erf)"),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", FORMS)
def test_it_is_found(name, dtype):
    write, exact, form = FORMS[name]
    short = shorten(tirx.Cast(dtype, write()), SHORT, whole=True)
    (row,) = short.rows
    assert row.form == form
    assert row in ACTIVATIONS[dtype]
    x = np.linspace(-9, 9, 1001, dtype=np.float32)
    got = evaluate(short.value.value, {X: x})  # the simulator computes what is meant
    assert np.allclose(got, exact(x.astype(float)), rtol=1e-6, atol=1e-30)


def fma(a: Any, b: Any, c: Any) -> Any:
    """Multiply and add float32, rounded once."""
    return (a.astype(float) * b.astype(float) + np.float64(c)).astype(np.float32)


TEXTS = [
    (TANH_GELU["float16"], exact_tanh_gelu),
    (TANH_GELU["bfloat16"], exact_tanh_gelu),
    (GELU, exact_gelu),
]


@pytest.mark.parametrize(("row", "exact"), TEXTS, ids=["tanh 16", "tanh b16", "erf"])
def test_the_error_of_the_text_is_what_the_table_says(row, exact):
    x = numbers()
    half = x * np.float32(0.5)
    size = np.abs(half)
    *lower, highest = [np.float32(c) for c in row.of_half]
    assert highest < 0 or row.folded
    with np.errstate(all="ignore"):
        power = np.full_like(size, highest)
        for n in reversed(range(len(lower))):
            if n + 1 == row.folded:
                power = -np.abs(power)
            power = fma(power, size, lower[n])
        got = fma(size, np.float32(1) - np.exp2(power), half).astype(float)
        want = exact(x.astype(float))
        off, bound = np.abs(got - want), row.error * np.abs(want) + BESIDE
        judged = np.isfinite(want)
        worst = np.argmax(np.where(judged, off / bound, 0))
    assert (off <= bound)[judged].all(), (x[worst], got[worst], want[worst])
    assert (off > row.error * np.abs(want) / 2)[np.abs(want) > 1e-2].any()  # nor too little
    assert np.isposinf(got[np.isposinf(x)]).all()
    assert np.isnan(got[np.isnan(x)]).all()


@pytest.mark.parametrize("row", [x for x, _ in TEXTS], ids=lambda x: x.name)
def test_the_text_has_the_constants_of_the_table(row):
    steps = [x for x in row.text.splitlines() if "fmaf(" in x]
    folded = [i for i, x in enumerate(steps) if "fmaf(-fabsf(p), a" in x]
    assert folded == ([] if row.folded is None else [len(row.of_half) - 1 - row.folded])
    read = [float(x) for x in re.findall(r"(-?[0-9.e-]+)f[;)]", row.text)]
    assert np.allclose(read[::-1], row.of_half, rtol=1e-8)
    assert "ex2.approx.ftz.f32" in row.text
    assert row.text.endswith("return fmaf(a, 1.0f - p, h);")


def test_what_else_is_in_the_product_stays():
    values = {X: np.float32(1.5), Y: np.float32(-3)}
    gelu = float(exact_tanh_gelu(np.array(1.5)))
    for value, want in (
        (tanh_gelu() * Y, -3 * gelu),
        (f32(4) * tanh_gelu(), 4 * gelu),
        (Y * Y * tanh_gelu() + X, 9 * gelu + 1.5),
        (tanh_gelu(X + Y), float(exact_tanh_gelu(np.array(-1.5)))),
    ):
        short = shorten(tirx.Cast("float16", value), SHORT, whole=True)
        assert [x.form for x in short.rows] == ["gelu (tanh)"]
        assert evaluate(short.value.value, values) == pytest.approx(want, rel=1e-6)


def test_what_is_inside_is_replaced_too():
    short = shorten(tirx.Cast("float16", erf_gelu(te.sigmoid(X))), SHORT, whole=True)
    assert {x.form for x in short.rows} == {"gelu (erf)", "sigmoid(x)"}


@pytest.mark.parametrize(
    "value",
    [
        f32(0.5) * X * (f32(1) + te.tanh(f32(0.8) * (X + f32(0.044715) * X * X * X))),
        f32(0.5) * Y * (f32(1) + te.erf(X * f32(0.5**0.5))),
        f32(0.5) * X * (f32(1) - te.erf(X * f32(0.5**0.5))),
        f32(0.5) * X * (f32(2) + te.erf(X * f32(0.5**0.5))),
        f32(1) + te.erf(X * f32(0.5**0.5)),
        f32(0.5) * X * (f32(1) + te.erf(te.exp(X))),
        f32(3e38) * X * (f32(1) + te.erf(X * f32(0.5**0.5))),
    ],
    ids=["constant", "another x", "minus", "two", "no x", "no powers", "too large"],
)
def test_what_is_no_activation(value):
    short = shorten(tirx.Cast("float16", value), SHORT, whole=True)
    plain = shorten(tirx.Cast("float16", value), SHORT)
    assert (short is None) == (plain is None)
    assert short is None or not [x for x in short.rows if x.form.startswith("gelu")]


def test_it_is_asked_for():
    short = shorten(tirx.Cast("float16", tanh_gelu()), SHORT)
    assert [x.form for x in short.rows] == ["1 + tanh(u)"]
