"""Math of the kernels: what TVM prints for CUDA, by type, and any mix of lanes and constants."""

import math

import ml_dtypes
import numpy as np
import pytest
from tvm import s_tir, te, tirx
from tvm.script import tirx as T

from tvm_hopper.sim.machine import lanes
from tvm_hopper.sim.translate.device_math import plain_name
from tvm_hopper.simulation import simulate, verify

from .hand_threaded import I32, U32, hand_threaded
from .kernels import lower

POSITIVE = np.linspace(0.03125, 4, 128)
SIGNED = np.linspace(-3, 3, 128)


def erf(x):
    return np.vectorize(math.erf, otypes=[x.dtype])(x)


UNARY = {
    "ceil": (np.ceil, SIGNED),
    "cos": (np.cos, SIGNED),
    "erf": (erf, SIGNED),
    "exp": (np.exp, SIGNED),
    "exp2": (np.exp2, SIGNED),
    "exp10": (lambda x: np.power(np.float32(10), x), SIGNED),
    "abs": (np.abs, SIGNED),
    "atan": (np.arctan, SIGNED),
    "floor": (np.floor, SIGNED),
    "log": (np.log, POSITIVE),
    "log2": (np.log2, POSITIVE),
    "log10": (np.log10, POSITIVE),
    "round": (np.rint, SIGNED),
    "rsqrt": (lambda x: 1 / np.sqrt(x), POSITIVE),
    "sin": (np.sin, SIGNED),
    "sqrt": (np.sqrt, POSITIVE),
    "tan": (np.tan, SIGNED / 3),
    "tanh": (np.tanh, SIGNED),
    "trunc": (np.trunc, SIGNED),
}
BINARY = {
    "atan2": np.arctan2,
    "copysign": np.copysign,
    "fmod": np.fmod,
    "hypot": np.hypot,
    "nextafter": np.nextafter,
    "pow": np.power,
}


def numpy_type(dtype):
    return np.dtype(getattr(ml_dtypes, dtype, dtype))


def elementwise(function, dtype, num_inputs=1, size=128):
    """Build `D[i] = function(A[i], ...)` for one block, by TVM's own lowering."""
    inputs = [te.placeholder((size,), dtype, name="AB"[i]) for i in range(num_inputs)]
    out = te.compute((size,), lambda i: function(*[x[i] for x in inputs], i), name="D")
    sch = s_tir.Schedule(te.create_prim_func([*inputs, out]))
    sch.bind(*sch.get_loops(sch.get_sblock("D")), "threadIdx.x")
    return lower(sch.mod["main"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", sorted(UNARY))
def test_a_function_is_computed_wide_and_rounded_once(name, dtype):
    reference, values = UNARY[name]
    wide = np.float64 if dtype == "float64" else np.float32
    a = values.astype(numpy_type(dtype))
    program = elementwise(lambda x, i: getattr(tirx, name)(x), dtype)
    got = simulate(program, {"A": a}).require_clean().outputs["D"]
    assert np.array_equal(got, reference(a.astype(wide)).astype(a.dtype))


@pytest.mark.parametrize("name", sorted(BINARY))
def test_a_function_of_two_arguments_is_known(name):
    a, b = POSITIVE.astype("float32"), (SIGNED + 0.25).astype("float32")
    program = elementwise(lambda x, y, i: getattr(tirx, name)(x, y), "float32", 2)
    got = simulate(program, {"A": a, "B": b}).require_clean().outputs["D"]
    assert np.array_equal(got, BINARY[name](a, b), equal_nan=True)


def test_a_power_of_two_and_the_active_lanes_are_known():
    a = SIGNED.astype("float32")
    program = elementwise(lambda x, i: tirx.ldexp(x, i % 5 - 2), "float32")
    got = simulate(program, {"A": a}).require_clean().outputs["D"]
    assert np.array_equal(got, np.ldexp(a, np.arange(128, dtype="int32") % 5 - 2))

    @hand_threaded(128, by_hand=False)
    def main(D: U32[128], tx):
        D[tx] = T.uint32(0)
        if tx % 32 < 5:
            D[tx] = T.tvm_warp_activemask()

    report = verify(main)  # TVM lowers it to `cuda.__activemask`
    assert report.verdict == "clean", str(report)
    got = simulate(main, {}).outputs["D"]
    assert got.tolist() == [31 if i % 32 < 5 else 0 for i in range(128)]


def test_a_half_power_is_the_preambles():
    a = POSITIVE.astype("float16")
    program = elementwise(lambda x, y, i: tirx.pow(x, y), "float16", 2)
    got = simulate(program, {"A": a, "B": a}).require_clean().outputs["D"]
    assert np.array_equal(got, np.power(a.astype("float32"), a.astype("float32")).astype("float16"))


@pytest.mark.parametrize("name", ["sinh", "cosh", "nearbyint"])
def test_what_no_cuda_header_defines_is_incomplete_by_name(name):
    program = elementwise(lambda x, i: getattr(tirx, name)(x), "float16")
    result = simulate(program, {"A": SIGNED.astype("float16")})
    assert result.verdict == "incomplete"
    assert f"call h{name}" in result.findings[0].message


def test_bits_are_counted():
    a = np.array([0, 1, -1, 6, 1 << 30] * 26, "int32")[:128]
    program = elementwise(lambda x, i: tirx.clz(x), "int32")
    want = [32 - int(v & 0xFFFFFFFF).bit_length() for v in a.tolist()]
    assert simulate(program, {"A": a}).require_clean().outputs["D"].tolist() == want
    program = elementwise(lambda x, i: tirx.popcount(x), "uint32")
    want = [int(v & 0xFFFFFFFF).bit_count() for v in a.tolist()]
    got = simulate(program, {"A": a.view("uint32")}).require_clean().outputs["D"]
    assert got.tolist() == want


def test_names_of_device_functions():
    assert [plain_name(x) for x in ("__expf", "erff", "erf", "hexp", "__habs")] == [
        "exp", "erf", "erf", "exp", "fabs",
    ]  # fmt: skip
    assert plain_name("hsinh") is None


def test_a_bfloat16_constant_does_not_widen_the_arithmetic():
    a = np.linspace(0.1, 7, 128).astype(ml_dtypes.bfloat16)
    program = elementwise(lambda x, i: x * x + tirx.const(0.3, "bfloat16"), "bfloat16")
    got = simulate(program, {"A": a}).require_clean().outputs["D"]
    assert np.array_equal(got, a * a + ml_dtypes.bfloat16(0.3))


# -- lanes and constants --------------------------------------------------------------------------

LOW = tirx.const(-9, "float32")


@pytest.mark.parametrize("size", [32, 96, 128])
@pytest.mark.parametrize(
    ("function", "want"),
    [
        (lambda x, i: te.tanh(tirx.if_then_else(i >= 40, x, LOW)), np.tanh),
        (lambda x, i: te.exp(tirx.if_then_else(i >= 40, x, LOW)), np.exp),
        (lambda x, i: te.erf(tirx.if_then_else(i >= 40, x, LOW)), erf),
        (lambda x, i: te.tanh(tirx.Select(i >= 40, x, LOW)), np.tanh),
        (lambda x, i: tirx.if_then_else(i >= 40, te.tanh(x), te.tanh(LOW)), np.tanh),
        (lambda x, i: tirx.pow(te.exp(tirx.if_then_else(i >= 40, x, LOW)), LOW),
         lambda x: np.power(np.exp(x), np.float32(-9))),
    ],
)  # fmt: skip
def test_a_function_of_lanes_or_a_constant(function, want, size):
    """Lanes below 40 hold a constant: in the first warp, no lane holds anything else."""
    a = SIGNED[:size].astype("float32")
    program = elementwise(function, "float32", size=size)
    got = simulate(program, {"A": a}).require_clean().outputs["D"]
    inner = np.where(np.arange(size) >= 40, a, np.float32(-9))
    assert np.array_equal(got, want(inner))


def test_conditions_and_bits_of_a_constant_side():
    def function(x, i):
        flag = tirx.if_then_else(i >= 40, x > 0, tirx.const(True, "bool"))
        return tirx.Select(tirx.Not(flag), tirx.const(1, "float32"), tirx.const(2, "float32"))

    a = SIGNED.astype("float32")
    got = simulate(elementwise(function, "float32"), {"A": a}).require_clean().outputs["D"]
    flag = np.where(np.arange(128) >= 40, a > 0, True)
    assert np.array_equal(got, np.where(flag, 2, 1))

    def inverted(x, i):
        return tirx.bitwise_not(tirx.if_then_else(i >= 40, x, tirx.const(5, "uint32")))

    a = np.arange(128).astype("uint32")
    got = simulate(elementwise(inverted, "uint32"), {"A": a}).require_clean().outputs["D"]
    assert np.array_equal(got, ~np.where(np.arange(128) >= 40, a, 5).astype("uint32"))


@pytest.mark.parametrize("extreme", [tirx.Max, tirx.Min])
@pytest.mark.parametrize("size", [1, 32])
def test_an_extreme_of_no_number_is_none(extreme, size):
    """As of `max.NaN`, also where all lanes hold one value, which is evaluated once."""
    program = elementwise(lambda x, i: extreme(tirx.const(1, "float32"), x), "float32", size=size)
    got = simulate(program, {"A": np.full(size, np.nan, "float32")}).require_clean().outputs["D"]
    assert np.isnan(got).all()


@pytest.mark.parametrize("mask", [None, np.arange(32) < 20])
def test_helpers_take_one_value_where_lanes_are_usual(mask):
    local = np.arange(128, dtype="float32").reshape(32, 4)
    assert np.array_equal(lanes.ldl(local, 2, mask), local[:, 2])
    lanes.stl(local, 1, np.asarray(np.float32(-1)), mask)
    assert np.array_equal(local[:, 1] == -1, np.ones(32, bool) if mask is None else mask)
    assert lanes.mand(mask, True) is mask
    assert lanes.mand(mask, False) is False
    assert lanes.ite(np.asarray(True), mask, lambda mm: mm, lambda mm: "no") is mask


# -- float8 ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_a_float8_output_saturates_as_cuda_does(dtype):
    """`__nv_fp8_e4m3(x)` keeps the largest finite value where ml_dtypes gives NaN or infinity."""
    a = np.concatenate([np.linspace(-500, 500, 124), [np.inf, -np.inf, np.nan, 1e6]])
    a = a.astype("float32")
    program = elementwise(lambda x, i: x.astype(dtype), "float32")
    got = simulate(program, {"A": a}).require_clean().outputs["D"]
    limit = float(ml_dtypes.finfo(dtype).max)
    want = np.clip(a, -limit, limit).astype(numpy_type(dtype))
    assert got.dtype == numpy_type(dtype)
    assert np.array_equal(got.astype("float32"), want.astype("float32"), equal_nan=True)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_a_float8_input_is_widened_exactly(dtype):
    a = np.arange(128).astype("uint8").view(numpy_type(dtype))
    program = elementwise(lambda x, i: x.astype("float32"), dtype)
    got = simulate(program, {"A": a}).require_clean().outputs["D"]
    assert np.array_equal(got, a.astype("float32"), equal_nan=True)


# -- what cannot be evaluated ---------------------------------------------------------------------


def divided(size=32):
    """Build `C[i] = 7 / (A[0] - A[0])`: the simulator divides by the number zero."""

    @hand_threaded(size, by_hand=False)
    def main(A: I32[size], C: I32[size], tx):
        C[tx] = T.truncdiv(7, A[0])

    return lower(main)


@pytest.mark.parametrize("policy", ["eager", "random", "lifo"])
def test_an_expression_that_cannot_be_evaluated_is_incomplete_by_its_text(policy):
    result = simulate(divided(), {"A": np.zeros(32, "int32")}, policy=policy)
    assert result.verdict == "incomplete"
    (finding,) = result.findings
    assert finding.rule == "INCOMPLETE"
    assert "cannot evaluate C[threadIdx_x] = T.Div(7, A[0]): ZeroDivisionError" in finding.message
    assert result.stopped


def test_a_statement_that_cannot_be_translated_is_incomplete_by_its_text(monkeypatch):
    from tvm_hopper.sim.translate.translate import StmtEmitter

    def broken(*_):
        raise IndexError("no such thing")

    monkeypatch.setattr(StmtEmitter, "_on_div", broken)
    result = simulate(divided(), {"A": np.ones(32, "int32")})
    assert result.verdict == "incomplete"
    assert "C[threadIdx_x] = T.Div(7, A[0]) (IndexError: no such thing)" in str(result.findings[0])


def test_overflow_of_a_half_is_infinity_without_a_warning():
    a = np.full(128, 300, "float16")
    got = simulate(elementwise(lambda x, i: x * x, "float16"), {"A": a}).require_clean()
    assert np.isinf(got.outputs["D"]).all()
