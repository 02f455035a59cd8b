"""Functions of 16-bit tensors are those of float32, rounded once, in one kernel of ours."""

import math

import numpy as np
import pytest
from tvm import relax
from tvm.target import Target

from tests.relax import models
from tvm_hopper.facts.dtypes import DTYPES
from tvm_hopper.relax import report
from tvm_hopper.relax.keep_records import records_of
from tvm_hopper.relax.records import OURS
from tvm_hopper.relax.wide_functions import WideFunctions
from tvm_hopper.simulation import simulate
from tvm_hopper.testing.relax_forms import model_of, name_arguments

op = relax.op
HALVES = ("float16", "bfloat16")
NORMS = {
    "rows": (lambda *x: op.nn.layer_norm(*x, [-1]), [(3, 5, 64), (64,), (64,)]),
    "two axes": (lambda *x: op.nn.layer_norm(*x, [1, 2]), [(3, 4, 16), (4, 16), (4, 16)]),
    "channels": (lambda *x: op.nn.instance_norm(*x, 1, [2, 3]), [(2, 4, 5, 8), (4,), (4,)]),
}


def model(build, shapes, dtype):
    return model_of(build, *((s, dtype) for s in shapes))


def run(build, given, dtype):
    """Run a model of one kernel of ours in the simulator."""
    mod = models.schedule(model(build, [x.shape for x in given], dtype))
    (record,) = records_of(mod)
    assert record.computed_by == OURS
    func = name_arguments(mod[record.name], "main")
    inputs = {f"a{i}": x for i, x in enumerate(given)}
    result = simulate(func, inputs, target=Target(models.H200))
    assert not result.findings, result.findings
    return result.outputs[f"a{len(given)}"].astype(np.float64)


@pytest.mark.parametrize("what", NORMS)
def test_one_function_of_float32(what):
    mod = model(*NORMS[what], "bfloat16")
    given = models.inputs_of(mod, "main", {})
    (got,) = models.on_processor(relax.get_pipeline("zero")(WideFunctions()(mod)), "main", given)
    wide = relax.get_pipeline("zero")(model(*NORMS[what], "float32"))
    (want,) = models.on_processor(wide, "main", [x.astype("float32") for x in given])
    error = np.linalg.norm(got.astype("float32") - want) / np.linalg.norm(want)
    assert error < 3e-3
    assert len(models.plain_functions(mod)) == 1


def test_a_kernel_of_ours():
    mod = model(*NORMS["rows"], "bfloat16")
    scheduled = models.schedule(mod)
    (record,) = records_of(scheduled)
    assert (record.computed_by, record.rule) == (OURS, "RowReduction")
    assert models.check_values(scheduled, models.plain_functions(mod), (4,)) == 1
    found = report(model(*NORMS["channels"], "bfloat16"), models.H200).functions
    assert {x.computed_by for x in found} == {OURS}


@pytest.mark.parametrize(
    "build", [NORMS["rows"][0], op.nn.silu, op.nn.softmax], ids=["rows", "silu", "softmax"]
)
def test_float32_is_left(build):
    shapes = NORMS["rows"][1] if build is NORMS["rows"][0] else [(3, 64)]
    mod = model(build, shapes, "float32")
    assert WideFunctions()(mod).script() == mod.script()


def sigmoid(x):
    return np.where(x < 0, np.exp(np.minimum(x, 0)), 1) / (1 + np.exp(-np.abs(x)))


erfc = np.vectorize(math.erfc, otypes=[float])
ACTIVATIONS = {  # operator, in float64, the largest error in parts of the value before rounding
    "sigmoid": (op.sigmoid, sigmoid, 2.0**-16),
    "silu": (op.nn.silu, lambda x: x * sigmoid(x), 2.0**-16),
    "gelu": (op.nn.gelu, lambda x: 0.5 * x * erfc(-x * 0.5**0.5), 2.0**-9.9),
    "gelu_tanh": (
        op.nn.gelu_tanh,
        lambda x: x * sigmoid(1.5957691216057308 * (x + 0.044715 * x**3)),
        2.0**-9.9,
    ),
    "selu": (
        op.nn.selu,
        lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
        2.0**-17,
    ),
    "softplus": (op.nn.softplus, lambda x: np.logaddexp(x, 0), 2.0**-16),
    "tanh": (op.tanh, np.tanh, 2.0**-16),
    "tan": (op.tan, np.tan, 2.0**-20),
}


def wrong_values(run, what, dtype):
    """Return some of the 65536 arguments for which a function is not what it has to be."""
    build, function, error = ACTIVATIONS[what]
    kind = np.dtype(DTYPES[dtype].numpy)
    bits = np.arange(1 << 16, dtype=np.uint16).view(kind).reshape(64, 1024)
    with np.errstate(all="ignore"):
        got, x = run(build, [bits], dtype), bits.astype(np.float64)
        want = function(x)
        unit, tiny = {"float16": (2.0**-11, 2.0**-24), "bfloat16": (2.0**-8, 2.0**-126)}[dtype]
        beside = 2.0**-22 if what.startswith("gelu") else 0  # codegen_patches/activations.py
        bound = np.abs(want) * (unit + error) + tiny * np.clip(np.abs(x), 1, 128) + beside
        same = got == want.astype(kind).astype(np.float64)
        right = same | (np.abs(got - want) <= bound) | (np.isnan(got) & np.isnan(x))
    return [(x[i], got[i], want[i]) for i in map(tuple, np.argwhere(~right & ~np.isinf(x))[:4])]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("what", ACTIVATIONS)
def test_every_value(what, dtype):
    """Half a unit of the last place, and the stated error of the function."""
    assert not wrong_values(run, what, dtype)


def norm(x, axes):
    apart = x - x.mean(axes, keepdims=True)
    return apart / np.sqrt((apart**2).mean(axes, keepdims=True) + 1e-5)


def in_groups(x):
    return norm(x.reshape(len(x), 4, -1), -1).reshape(x.shape)


LARGE_MEANS = {  # operator, how many vectors of channels it takes, in float64
    "group_norm": (lambda *x: op.nn.group_norm(*x, 4, 1, [2, 3]), 2, in_groups),
    "group_norm, silu": (
        lambda *x: op.nn.silu(op.nn.group_norm(*x, 4, 1, [2, 3])),
        2,
        lambda x: in_groups(x) * sigmoid(in_groups(x)),
    ),
    "instance_norm": (lambda *x: op.nn.instance_norm(*x, 1, [2, 3]), 2, lambda x: norm(x, (2, 3))),
    "variance": (lambda x: op.variance(x, [2, 3], keepdims=True), 0, lambda x: x.var((2, 3))),
    "std": (lambda x: op.std(x, [-1], keepdims=True), 0, lambda x: x.std(-1)),
    "mean": (lambda x: op.mean(x, [2, 3]), 0, lambda x: x.mean((2, 3))),
}


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(("dtype", "mean"), [("float32", 1e4), ("float32", 0), ("float16", 600)])
@pytest.mark.parametrize("what", LARGE_MEANS)
def test_means_far_from_zero(what, dtype, mean):
    """Spreads are found around the mean: E[x^2] - E[x]^2 has no digits left."""
    build, vectors, function = LARGE_MEANS[what]
    rng = np.random.default_rng(3)
    x = (mean + rng.standard_normal((2, 16, 5, 6)) * (1 if mean != 600 else 4)).astype(dtype)
    got = run(build, [x, *[np.ones(16, dtype), np.zeros(16, dtype)][:vectors]], dtype)
    want = function(x.astype(np.float64)).reshape(got.shape)
    assert np.all(np.abs(got - want) < 2e-3 * (1 + np.abs(want)))
