"""Forms of functions that are replaced: how they are found, and how far the others are off."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches import approximations
from tvm_hopper.sim.translate.device_math import MATH
from tvm_hopper.transforms.math.approximate_functions_plan import (
    OF_FLOAT32,
    OF_MEMORY_BOUND,
    SHORT_FUNCTIONS,
    shorten,
    split_constant,
    times,
)

SHORT, APPROXIMATE = SHORT_FUNCTIONS["short"], SHORT_FUNCTIONS["approximate"]
OF_ALL = (*SHORT, *OF_MEMORY_BOUND)
X = ir.Var("x", "float32")
ONE = te.const(1, "float32")
erfc = np.vectorize(math.erfc, otypes=[float])
PLAIN = {
    tirx.Add: np.add,
    tirx.Sub: np.subtract,
    tirx.Mul: np.multiply,
    tirx.Div: np.divide,
    tirx.LT: np.less,
}


def evaluate(node: Any, values: dict[Any, Any]) -> Any:
    """Compute an expression in float32, each operation rounded once."""
    if isinstance(node, tirx.FloatImm):
        return np.float32(node.value)
    if isinstance(node, ir.Var):
        return values[node]
    if type(node) in PLAIN:
        return PLAIN[type(node)](evaluate(node.a, values), evaluate(node.b, values))
    if isinstance(node, tirx.Let):
        return evaluate(node.body, {**values, node.var: evaluate(node.value, values)})
    if isinstance(node, tirx.Select):
        parts = (node.condition, node.true_value, node.false_value)
        return np.where(*(evaluate(x, values) for x in parts))
    assert isinstance(node, ir.Call)
    name = str(node.op.name).removeprefix("tirx.")
    return MATH[name](*(evaluate(x, values) for x in node.args)).astype(np.float32)


def numbers() -> np.ndarray:
    """Return numbers of float32 around zero, of every magnitude, and the ends of the range."""
    rng = np.random.default_rng(7)
    bits = rng.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    near = np.linspace(-14, 14, 400_001, dtype=np.float32)
    ends = np.array([0, 1e-45, 1e-38, 0.4, 88, 89, 3e38, np.inf], np.float32)
    return np.concatenate([near, bits[np.isfinite(bits)], ends, -ends, [np.float32(np.nan)]])


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + e^-x) of float64."""
    return np.where(x < 0, np.exp(np.minimum(x, 0)), 1) / (1 + np.exp(-np.abs(x)))


FORMS = {
    "1 + tanh": (ONE + te.tanh(X), lambda x: 2 * sigmoid(2 * x), "1 + tanh(u)"),
    "tanh + 1": (te.tanh(X) + ONE, lambda x: 2 * sigmoid(2 * x), "1 + tanh(u)"),
    "1 - tanh": (ONE - te.tanh(X), lambda x: 2 * sigmoid(-2 * x), "1 + tanh(u)"),
    "1 + erf": (ONE + te.erf(X), lambda x: erfc(-x), "1 + erf(u)"),
    "1 - erf": (ONE - te.erf(X), erfc, "1 + erf(u)"),
    "quotient": (ONE / (ONE + te.exp(X)), lambda x: sigmoid(-x), "1 / (1 + exp(y))"),
    "sigmoid": (te.sigmoid(X), sigmoid, "sigmoid(x)"),
    "tanh": (te.tanh(X), np.tanh, "tanh(u)"),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_error_is_what_the_table_says(name):
    node, exact, form = FORMS[name]
    (row,) = [row for row in SHORT if row.form == form]
    short = shorten(tirx.Cast("float16", node), SHORT)
    assert [x.form for x in short.rows] == [form]
    x = numbers()
    with np.errstate(all="ignore"):
        got = evaluate(short.value.value, {X: x}).astype(float)
        want = exact(x.astype(float))
    off = np.abs(got - want)
    judged = np.isfinite(want)
    # Beside the arithmetic here, which rounds 2^x and 1/x to nearest, the chip's may be 3 ulp off.
    bound = (row.error - 3 * 2.0**-23) * np.abs(want) + 2.0**-125
    worst = np.argmax(np.where(judged, off / bound, 0))
    assert (off <= bound)[judged].all(), (x[worst], got[worst], want[worst])
    assert np.isnan(got[~judged]).all()  # of what is no number


def test_the_bound_is_no_multiple_of_the_error():
    """A table that promises too little would let the forms grow worse unseen."""
    x = numbers()
    for name, (node, exact, form) in FORMS.items():
        with np.errstate(all="ignore"):
            got = evaluate(shorten(tirx.Cast("float16", node), SHORT).value.value, {X: x})
            want = exact(x.astype(float))
            off = np.abs(got - want) / np.abs(want)
        off = off[np.isfinite(off) & (np.abs(want) > 1e-30)]
        (row,) = [row for row in SHORT if row.form == form]
        assert off.max() > row.error / 8, (name, off.max())


def test_the_error_of_an_exponential():
    (row,) = [x for x in OF_MEMORY_BOUND if x.form == "exp(x)"]
    x = numbers()
    with np.errstate(all="ignore"):
        got = evaluate(shorten(tirx.Cast("float16", te.exp(X)), (row,)).value.value, {X: x})
        want = np.exp(x.astype(float))
    off = np.abs(got.astype(float)[np.abs(x) < 88] - want[np.abs(x) < 88])
    most = row.error * want[np.abs(x) < 88]
    assert (off <= most - 3 * 2.0**-23 * want[np.abs(x) < 88] + 2.0**-125).all()
    assert off.max() > 0
    assert (off > most / 8).any()
    assert np.isinf(got[x > 89]).all()
    assert (got[x < -89] == 0).all()
    assert np.isnan(got[np.isnan(x)]).all()


def test_a_quotient_by_one_and_an_exponential():
    silu = X / (ONE + te.exp(te.const(0, "float32") - X))
    assert shorten(tirx.Cast("bfloat16", silu), SHORT) is None
    short = shorten(tirx.Cast("bfloat16", silu), OF_ALL)
    assert {x.form for x in short.rows} == {
        "x / (1 + exp(y))",
        "1 / (1 + exp(y))",
        "exp(x)",
    }
    x = numbers()
    with np.errstate(all="ignore"):
        got = evaluate(short.value.value, {X: x}).astype(float)
        want = x.astype(float) * sigmoid(x.astype(float))
    judged = np.isfinite(want) & (np.abs(want) > 2.0**-100)
    got, want = got[judged], want[judged]
    assert (np.abs(got - want) <= 2.0**-15 * np.abs(want)).all()


def test_values_that_are_rounded_later():
    assert shorten(te.exp(X), OF_ALL) is None
    assert shorten(te.exp(X), OF_ALL, rounded_later=True) is not None
    assert shorten(te.exp(ir.Var("d", "float64")), OF_ALL, rounded_later=True) is None


def test_values_that_are_rounded_inside_of_others():
    gate = ir.Var("y", "bfloat16")
    short = shorten(tirx.Cast("bfloat16", X * te.sigmoid(X)) * gate, SHORT)
    assert [row.form for row in short.rows] == ["sigmoid(x)"]
    assert not ir.find_all(short.value, ir.Call, lambda x: x.op.name == "tirx.sigmoid")
    assert isinstance(short.value, tirx.Mul)
    assert short.value.b.same_as(gate)
    assert shorten(tirx.exp(gate) * gate, SHORT) is None  # no value of float32 is in it


def test_what_cancels_in_the_program_does_not_here():
    """1 + tanh(-8) is 2.25e-7, which float32 sums of one are 5% off."""
    short = shorten(tirx.Cast("float16", ONE + te.tanh(X)), SHORT)
    got = evaluate(short.value.value, {X: np.float32(-8)})
    assert abs(got / (1 + math.tanh(-8)) - 1) < 1e-5
    plain = np.float32(1) + np.tanh(np.float32(-8))
    assert abs(plain / (1 + math.tanh(-8)) - 1) > 1e-2


def test_the_chips_own_tanh():
    short = shorten(tirx.Cast("bfloat16", ONE + te.tanh(X)), APPROXIMATE)
    assert [x.form for x in short.rows] == ["tanh(u), by the chip's"]
    assert approximations.TANH in repr(short.value) or ir.find_all(short.value, ir.Call)
    assert np.allclose(evaluate(short.value.value, {X: np.float32(0.5)}), 1 + np.tanh(0.5))


@pytest.mark.parametrize(
    "value",
    [
        tirx.Cast("float32", te.tanh(ir.Var("h", "float16"))),
        ONE + te.tanh(X),  # stored as float32
        tirx.Cast("float16", X * X),
        tirx.Cast("float16", te.exp(X)),
        tirx.Cast("float16", te.tanh(ir.Var("d", "float64"))),
        tirx.Cast("float16", te.const(2, "float32") / (te.const(2, "float32") + te.exp(X))),
        tirx.Cast("int16", te.tanh(X)),
        X,
    ],
    ids=["half", "float32", "no form", "exp", "float64", "other sums", "integer", "variable"],
)
def test_what_is_left_alone(value):
    assert shorten(value, SHORT) is None


def test_halves_and_doubles_meet():
    half = te.const(0.5, "float32")
    short = shorten(tirx.Cast("float16", half * X * (ONE + te.tanh(X))), SHORT).value.value
    assert isinstance(short, tirx.Mul)
    assert split_constant(short) == (1.0, short)
    third = te.const(1 / 3, "float32")
    short = shorten(tirx.Cast("float16", third * X * (ONE + te.tanh(X))), SHORT).value.value
    assert split_constant(short.a)[0] == pytest.approx(1 / 3)  # which is not exact


def test_constants_of_products_are_joined():
    three, x = te.const(3, "float32"), X
    assert split_constant(three * x)[0] == 3
    constant, rest = split_constant(times(2, x * three))
    assert (constant, rest.same_as(x)) == (6, True)
    assert times(1 / 3, three * x).same_as(x)


def test_operators_are_registered_once():
    approximations.register()
    approximations.register()
    call = approximations.power_of_two(X)
    assert ir.dtype_of(call) == "float32"
    assert tvm.ir.Op.get(f"tirx.{approximations.RCP}") is not None


def test_the_reciprocal_by_multiply_adds():
    """The text of `rcp_in_turns` for odd turns, each operation rounded once."""

    def fma(a: Any, b: Any, c: Any) -> Any:
        return (a.astype(float) * b.astype(float) + np.float64(c)).astype(np.float32)

    rng = np.random.default_rng(3)
    bits = rng.integers(0x3F800000, 0x7F800001, 300_000, dtype=np.uint32).view(np.float32)
    near = np.linspace(1, 4, 300_000, dtype=np.float32)
    x = np.concatenate([near, bits, np.array([1, 2.0**125, 3e38, np.inf, np.nan], np.float32)])
    with np.errstate(all="ignore"):
        y = (np.int32(0x7EF3126E) - x.view(np.int32)).view(np.float32)
        e = fma(-x, y, 1.0)
        y = fma(y, fma(e, e, e), y)
        y = fma(y, fma(-x, y, 1.0), y).astype(float)
    y = np.where(x >= np.float32(2.0**125), 0, y)  # what is as large as any number times this is 0
    want = 1 / x.astype(float)
    assert np.isnan(y[-1])
    off = np.abs(y - want)[:-1]
    assert (off <= 2.0**-23 * want[:-1] + 2.0**-125).all()
    assert not y[:-1][x[:-1] >= 2.0**125].any()
    constants = ("0x7EF3126E", "x >= 0x1p125f ? 0.0f : y")
    signature, text = approximations.TEXTS[approximations.IN_TURNS]
    assert signature == "(float x, bool is_odd)"
    assert all(x in text for x in constants)


@pytest.mark.parametrize(
    ("node", "exact", "form"),
    [
        (ONE / (ONE + te.exp(X)), lambda x: sigmoid(-x), "1 / (1 + exp(y))"),
        (X / (ONE + te.exp(te.const(0, "float32") - X)), None, "x / (1 + exp(y))"),
        (te.sigmoid(X), sigmoid, "sigmoid(x)"),
    ],
)
def test_quotients_that_stay_float32(node, exact, form):
    """As exact as CUDA's exponential, down to the least numbers."""
    short = shorten(node, OF_FLOAT32, rounded_later=True)
    assert form in [x.form for x in short.rows]
    (row,) = [x for x in OF_FLOAT32 if x.form == form]
    x = numbers()
    with np.errstate(all="ignore"):
        got = evaluate(short.value, {X: x}).astype(float)
        wide = x.astype(float)
        want = wide * sigmoid(wide) if exact is None else exact(wide)
        judged = np.isfinite(want) & (np.exp(np.abs(wide)) < 2.0**127)
        off = np.abs(got - want)[judged]
    assert (off <= row.error * np.abs(want[judged]) + 2.0**-140).all()
    assert (want[judged] < 2.0**-120).any()
