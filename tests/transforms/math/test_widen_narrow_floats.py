"""widen_narrow_floats: functions that CUDA does not have for 16 bits are computed in float32."""

import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx

import tvm_hopper
from tests.transforms.scripts import check, parse, run
from tvm_hopper import schedule as hs
from tvm_hopper.errors import LoweringError, ScheduleError
from tvm_hopper.facts.dtypes import DTYPES
from tvm_hopper.simulation import simulate
from tvm_hopper.transforms.math.widen_narrow_floats import plan_wide_functions, widen_narrow_floats

PLAIN = """
def func(X: T.Buffer((4,), "{kind}"), Y: T.Buffer((4,), "{kind}")):
    for i in range(4):
        Y[i] = {value}
"""
NESTED = "T.fmod(T.cosh(X[i]), T.exp(X[i]))"
WIDE = (
    'T.Cast("float16", T.fmod(T.Cast("float32", T.Cast("float16", '
    'T.cosh(T.Cast("float32", X[i])))), T.Cast("float32", T.exp(X[i]))))'
)


def test_operands_are_widened_and_results_rounded():
    got = run(parse(PLAIN.format(kind="float16", value=NESTED)), widen_narrow_floats)
    check(got, parse(PLAIN.format(kind="float16", value=WIDE)))
    assert not plan_wide_functions(got)


@pytest.mark.parametrize(("kind", "value"), [("float32", NESTED), ("bfloat16", "T.tanh(X[i])")])
def test_what_cuda_has_stays(kind, value):
    func = parse(PLAIN.format(kind=kind, value=value))
    check(run(func, widen_narrow_floats), func)


FUNCTIONS = {
    "acos": (tirx.acos, np.arccos),
    "atanh": (tirx.atanh, np.arctanh),
    "log1p": (tirx.log1p, np.log1p),
    "nearbyint": (tirx.nearbyint, np.rint),
    "sinh": (tirx.sinh, np.sinh),
    "atan2": (lambda x: tirx.atan2(x, x + x), lambda x: np.arctan2(x, 2 * x)),
    "tan": (tirx.tan, np.tan),
    "remainder": (lambda x: tirx.truncmod(x + x, half(x, 0.25)), lambda x: np.fmod(2 * x, 0.25)),
}


def half(x, number):
    return tirx.const(number, str((x + x).ty.dtype))


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_kernel_of_16_bits_compiles_and_is_right(name, kind):
    ours, exact = FUNCTIONS[name]
    x = te.placeholder((8, 64), kind, name="X")
    y = te.compute(x.shape, lambda i, j: ours(x[i, j]), name="Y")
    sch = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([x, y])}))
    hs.pointwise(sch)
    assert tvm_hopper.cubin(tvm.compile(sch.mod, target="nvidia/nvidia-h200"))
    given = np.random.default_rng(5).uniform(-0.9, 0.9, (8, 64)).astype(DTYPES[kind].numpy)
    result = simulate(sch, {"X": given})
    assert not result.findings
    error = {"float16": 2e-3, "bfloat16": 8e-3}[kind]  # arguments are rounded, too
    wanted = exact(given.astype("float64"))
    np.testing.assert_allclose(result.outputs["Y"].astype("float64"), wanted, error, 1e-6)


def test_arithmetic_of_float8_is_rounded_step_by_step():
    x, z = (te.placeholder((8, 64), "float8_e4m3fn", name=name) for name in "XZ")

    def value(i, j):
        sign = tirx.Select(x[i, j] < z[i, j], x[i, j] + z[i, j], tirx.max(x[i, j], z[i, j]))
        return tirx.floor(sign * x[i, j])

    sch = s_tir.Schedule(te.create_prim_func([x, z, te.compute(x.shape, value, name="Y")]))
    hs.pointwise(sch)
    assert tvm_hopper.cubin(tvm.compile(sch.mod, target="nvidia/nvidia-h200"))
    kind = DTYPES["float8_e4m3fn"].numpy
    rng = np.random.default_rng(5)
    a, b = (rng.uniform(-3, 3, (8, 64)).astype(kind) for _ in range(2))
    result = simulate(sch, {"X": a, "Z": b})
    assert not result.findings
    chosen = np.where(a < b, a + b, np.maximum(a, b))
    wanted = np.floor(chosen * a)
    np.testing.assert_array_equal(result.outputs["Y"].astype(float), wanted.astype(float))


@pytest.mark.parametrize(
    ("kind", "function", "found"),
    [
        ("int32", tirx.atan2, "atan2 of int32"),
        ("bool", tirx.truncmod, "a remainder of bool"),
    ],
)
def test_what_no_kernel_computes_is_refused(kind, function, found):
    x = te.placeholder((8, 64), kind, name="X")
    y = te.compute(x.shape, lambda i, j: function(x[i, j], x[i, j]), name="Y")
    sch = s_tir.Schedule(te.create_prim_func([x, y]))
    match = f"block Y: found {found}; need operations that CUDA has; cast the operands to float32"
    with pytest.raises(ScheduleError, match=match):
        hs.pointwise(sch)


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("way", ["from", "to"])
def test_a_chip_without_float8_is_an_error_and_no_wrong_sign(kind, way):
    given, made = (kind, "float32") if way == "from" else ("float32", kind)
    x = te.placeholder((8, 65), given, name="X")
    y = te.compute(x.shape, lambda i, j: x[i, j].astype(made), name="Y")
    sch = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([x, y])}))
    hs.pointwise(sch)
    name = "X" if way == "from" else "Y"
    need = f"tensor {name}: found a conversion {way} {kind}; need a chip of compute capability"
    with pytest.raises(LoweringError, match=need):
        tvm.compile(sch.mod, target="nvidia/nvidia-a100")
    assert tvm_hopper.cubin(tvm.compile(sch.mod, target="nvidia/nvidia-h200"))


def test_bytes_of_float8_are_moved_everywhere():
    x = te.placeholder((8, 65), "float8_e4m3fn", name="X")
    y = te.compute(x.shape, lambda i, j: x[i, j], name="Y")
    sch = s_tir.Schedule(mod := tvm.IRModule({"main": te.create_prim_func([x, y])}))
    hs.pointwise(sch)
    report = tvm_hopper.verify(sch, against=mod, target="nvidia/nvidia-a100")
    report.require_clean()
    assert tvm_hopper.cubin(tvm.compile(sch.mod, target="nvidia/nvidia-a100"))
