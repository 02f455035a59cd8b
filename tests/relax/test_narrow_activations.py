"""NarrowActivations: what products of 16 bits lead to is stored in 16 bits, and nothing else."""

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.relax import models
from tvm_hopper.errors import OptionError
from tvm_hopper.relax import cast_weights, prepare, to_half
from tvm_hopper.relax.keep_records import records_of
from tvm_hopper.relax.narrow_activations import ACTIVATIONS, NarrowActivations
from tvm_hopper.relax.records import OURS
from tvm_hopper.testing.relax_forms import model_of

op = relax.op
DTYPES = ["float16", "bfloat16"]
SHAPES = [(2, 16, 64), (64, 64), (64,), (64, 64), (16, 64)]  # x, w, norm, v, places


def block(x, w, g, v, places):
    """Compute a residual around a product, its norm, an embedding of places, squares and a row."""
    h = op.add(x, op.matmul(x, op.permute_dims(w)))
    turned = op.multiply(h, op.cos(op.multiply(places, relax.const(100.0))))
    y = op.add(op.matmul(op.nn.layer_norm(turned, g, g, axes=[-1]), op.permute_dims(v)), turned)
    squares = op.multiply(y, y)
    scale = op.sqrt(op.mean(squares, [-1], keepdims=True))
    return [op.divide(op.add(y, squares), scale), op.nn.softmax(y)]


def model(dtype="float16", **more):
    return to_half(model_of(block, *((s, "float32") for s in SHAPES), num_input=1), dtype, **more)


def drawn(seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(s).astype("float32") / (8 if s == (64, 64) else 1) for s in SHAPES]


def stored(mod):
    """Return type and shape of each result of a call of a kernel, by the call's name."""
    (func,) = [f for f in mod.functions.values() if isinstance(f, relax.Function)]
    found = []
    for x in (x for block in func.body.blocks for x in block.bindings):
        if isinstance(x.value, relax.Call) and str(x.value.op.name) == "relax.call_tir":
            types = getattr(x.var.ty, "fields", [x.var.ty])
            found += [(str(x.value.args[0].name_hint), str(y.dtype), y.shape.values) for y in types]
    return [(name, dtype, [int(n) for n in shape]) for name, dtype, shape in found]


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_stored(dtype):
    made = prepare(model(dtype), models.H200)
    types = {name: kind for name, kind, _ in stored(made)}
    products = [kind for name, kind in types.items() if "matmul" in name]
    assert products == [dtype] * 2
    results = [str(x.dtype) for x in made["main"].ret_ty.fields]
    assert results == ["float32"] * 2
    assert ACTIVATIONS not in made["main"].attrs
    plain = stored(prepare(model(dtype, activations=False), models.H200))
    assert {kind for name, kind, _ in plain if "add" in name} == {"float32"}
    assert len(plain) >= len(stored(made))


@pytest.mark.parametrize("dtype", DTYPES)
def test_values(dtype):
    """As close to float64 as 16 bits are, on inputs of its own."""
    given = drawn(1)
    x, w, g, v, places = (y.astype("float64") for y in given)
    h = (x + x @ w.T) * np.cos(places * 100)
    n = (h - h.mean(-1, keepdims=True)) / np.sqrt(h.var(-1, keepdims=True) + 1e-5) * g + g
    y = n @ v.T + h
    want = (y + y * y) / np.sqrt((y * y).mean(-1, keepdims=True))
    mod = model(dtype)
    weights = [tvm.runtime.tensor(x) for x in given[1:]]
    cast = [tvm.runtime.tensor(given[0]), *cast_weights(mod, {"main": weights})["main"]]
    errors = []
    for one in (prepare(mod, models.H200), prepare(model(dtype, activations=False), models.H200)):
        ex = relax.build(one, target="llvm", relax_pipeline="default_build")
        got = relax.VirtualMachine(ex, tvm.cpu())["main"](*cast)[0].numpy()
        errors.append(np.sqrt(((got - want) ** 2).mean() / (want**2).mean()))
    step = 2.0 ** -(11 if dtype == "float16" else 8)
    assert errors[1] < errors[0] < 3 * step  # it rounds, and no more than a few times


def test_kernels():
    """Every kernel is ours, and computes what its plain loops say."""
    mod = model()
    made = models.schedule(mod)
    found = records_of(made)
    assert {x.computed_by for x in found} == {OURS}
    assert models.check_values(made, models.plain_functions(mod), (20,)) == len(found)


def test_what_has_a_larger_range_stays():
    def compute(x, w):
        y = op.matmul(x, op.permute_dims(w))
        powers = [op.power(y, relax.const(3.0)), op.exp(y), op.multiply(y, y)]
        return [z for x in powers for z in (op.sum(x, [0]), op.sum(x, [1]))]

    mod = to_half(model_of(compute, ((64, 64), "float32"), ((64, 64), "float32"), num_input=1))
    made = stored(prepare(mod, models.H200))
    whole = [x for x in made if x[2] == [64, 64] and x[0] != "cast"]
    assert {kind for name, kind, _ in whole if "matmul" not in name} <= {"float32"}
    assert [kind for name, kind, _ in whole if "matmul" in name] == ["float16"]


def test_statistics_and_what_no_product_made_stay():
    def compute(x, w, t):
        table = op.sin(op.multiply(t, relax.const(50.0)))
        y = op.matmul(x, op.permute_dims(w))
        least = op.min(y, [-1], keepdims=True)
        return [op.multiply(op.subtract(y, least), table), op.add(least, table), op.add(y, table)]

    shapes = [((64, 64), "float32")] * 3
    fused = models.legalized(to_half(model_of(compute, *shapes, num_input=3)))
    made = stored(NarrowActivations()(fused))  # before memory-bound calls become one
    kinds = {name: kind for name, kind, _ in made}
    assert [kinds[x] for x in kinds if "sin" in x and "mult" in x] == ["float32"]
    assert [kinds[x] for x in kinds if "min" in x] == ["float32"]
    assert [kinds[x] for x in kinds if "matmul" in x] == ["float16"]


def test_what_to_half_is_told():
    with pytest.raises(OptionError, match="activations=1"):
        model(activations=1)
    assert ACTIVATIONS not in model(activations=False)["main"].attrs
    assert model()["main"].attrs[ACTIVATIONS] == "float16"


def both(compute):
    """Let two kernels read the result."""
    return lambda y, m: [op.sum(z := compute(y, m), [0]), op.max(z, [1])]


def chosen(y, m):
    return op.where(op.greater(m, relax.const(-1.0)), y, relax.const(-1e9))


def of_product(y, m):
    return op.multiply(y, op.matmul(y, m))


def quotient(y, _m):
    return op.divide(relax.const(1.0), op.add(y, relax.const(1e-6)))


def indices(y, _m):
    return op.astype(op.reshape(op.argmax(y, -1), (8, 8)), "float32")


def whole_sum(y, _m):
    return op.add(y, op.sum(y, [0], keepdims=True))


def shares(y, _m):
    return op.divide(y, op.sum(y, [1], keepdims=True))


def above_another(y, m):
    largest = op.max(op.sin(m), [1], keepdims=True)
    return op.exp(op.subtract(y, largest))


STAYS = {
    "shares of a sum that may be zero": shares,
    "exponential of more than the largest": above_another,
    "an input, as a mask": op.add,
    "a mask's number": chosen,
    "square": lambda y, _m: op.add(op.multiply(y, y), relax.const(1.0)),
    "product": of_product,
    "exponential": lambda y, _m: op.negative(op.exp(y)),
    "cosh": lambda y, _m: op.cosh(y),
    "quotient": quotient,
    "scaled up": lambda y, _m: op.multiply(y, relax.const(1e5)),
    "scaled down": lambda y, _m: op.multiply(y, relax.const(1e-9)),
    "indices": indices,
    "a sum of n rows": whole_sum,
}
IS_STORED = {
    "gelu": lambda y, _m: op.nn.gelu(y),
    "silu": lambda y, _m: op.nn.silu(y),
    "softmax of large values": lambda y, m: op.nn.softmax(op.add(op.multiply(y, y), m)),
    "turned": lambda y, m: op.multiply(y, op.sin(m)),
    "norm": lambda y, m: op.nn.layer_norm(y, op.sin(m), op.sin(m), axes=[0, 1]),
}


@pytest.mark.parametrize("name", [*STAYS, *IS_STORED])
def test_ranges(name):
    """What may not be an activation stays; functions and norms of activations do not."""
    compute = both({**STAYS, **IS_STORED}[name])
    rows = "n" if name == "a sum of n rows" else 64
    shapes = [((rows, 64), "float32"), ((64, 64), "float32"), ((64, 64), "float32")]

    def whole(x, m, w):
        return compute(op.matmul(x, w), m)

    mod = NarrowActivations()(models.legalized(to_half(model_of(whole, *shapes, num_input=2))))
    bindings = [x for block in mod["main"].body.blocks for x in block.bindings]
    calls = [x.value for x in bindings if "call_tir" in str(x.value)]
    read = {str(x.ty.dtype) for call in calls[-2:] for x in call.args[1].fields}
    assert read == {"float16" if name in IS_STORED else "float32"}
