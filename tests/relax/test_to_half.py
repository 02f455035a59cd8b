"""to_half: products of float32 models have operands of 16 bits, and so have weights."""

import lzma
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I, relax as R

from tests.relax import models
from tvm_hopper.errors import OptionError
from tvm_hopper.relax import cast_weights, to_half
from tvm_hopper.testing.relax_forms import model_of

FOLDER = Path(__file__).with_name("imported")


def model(num_input=1):
    @I.ir_module
    class Model:
        @R.function
        def main(
            x: R.Tensor(("n", 64), "float32"),
            w: R.Tensor((32, 64), "float32"),
            b: R.Tensor((32,), "float32"),
            v: R.Tensor((32, 32), "float32"),
        ):
            with R.dataflow():
                y = R.add(R.matmul(x, R.permute_dims(w)), b)
                z = R.matmul(R.nn.softmax(y), v)
                s = R.sum(v)
                R.output(z, s)
            return (z, s)

    func = Model["main"]
    return tvm.IRModule({"main": func.with_attr("num_input", num_input) if num_input else func})


def saved(name):
    with lzma.open(FOLDER / f"{name}.json.xz", "rt") as file:
        return tvm.ir.load_json(file.read())


def types(mod):
    return [str(x.ty.dtype) for x in mod["main"].params]


def calls(mod, *more):
    found = []
    relax.analysis.post_order_visit(
        mod["main"], lambda x: found.append(x) if isinstance(x, relax.Call) else None
    )
    return {
        name: [x for x in found if x.op.name == f"relax.{name}"]
        for name in ("matmul", "astype", *more)
    }


def test_weights_that_products_alone_read():
    """The bias is added in float32; a sum reads the second weight as it is; inputs stay."""
    mod = to_half(model())
    assert types(mod) == ["float32", "float16", "float32", "float32"]
    relax.analysis.well_formed(mod)
    for product in calls(mod)["matmul"]:
        assert [str(x.ty.dtype) for x in product.args] == ["float16", "float16"]
    assert not [x for x in calls(mod)["astype"] if x.args[0].name in ("w", "lv")]


def test_without_the_number_of_inputs_parameters_stay():
    assert types(to_half(model(num_input=0))) == ["float32"] * 4


def test_it_is_done_once():
    once = to_half(model())
    tvm.ir.assert_structural_equal(to_half(once), once)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_are_rounded_to_nearest(dtype):
    mod = to_half(model(), dtype)
    wide = np.array([[1 + 2.0**-8 + 2.0**-20, 1 + 2.0**-8, -3.3, 0.1] * 16] * 32, "float32")
    given = [tvm.runtime.tensor(x) for x in (wide, wide[0, :32].copy(), wide[:, :32].copy())]
    w, b, v = cast_weights(mod, {"main": given})["main"]
    assert [str(x.dtype) for x in (w, b, v)] == [dtype, "float32", "float32"]
    assert b is given[1]
    narrow = w.numpy().astype("float32")
    step = 2.0 ** -(11 if dtype == "float16" else 8)
    assert (np.abs(narrow - wide) <= step * np.abs(wide) / 2 * 2).all()
    if dtype == "bfloat16":
        assert narrow[0, 0] == np.float32(1 + 2.0**-7)
        assert narrow[0, 1] == np.float32(1)  # between two numbers, the even one


def test_a_model_of_bfloat16_keeps_its_type():
    mod = to_half(saved("t5"))
    assert "float16" not in types(mod)
    assert {str(x.ty.dtype) for y in calls(mod)["matmul"] for x in y.args} == {"bfloat16"}


@pytest.mark.parametrize("name", ["linear", "bert_1", "llama_prefill"])
def test_all_products_of_imported_models_have_16_bits(name):
    mod = to_half(saved(name))
    relax.analysis.well_formed(mod)
    products = calls(mod)["matmul"]
    assert products
    assert {str(x.ty.dtype) for y in products for x in y.args} == {"float16"}


def test_products_without_a_sum_stay_float32():
    """Frequencies times places: of these 2047 has no bfloat16."""
    short = [((4, 32, 1), "float32"), ((4, 1, 64), "float32")]
    mod = to_half(model_of(relax.op.matmul, *short), "bfloat16")
    assert {str(x.ty.dtype) for y in calls(mod)["matmul"] for x in y.args} == {"float32"}


@pytest.mark.parametrize("dtype", ["float64", "int32", "float16"])
def test_casts_that_round_stay(dtype):
    def through(x):
        return relax.op.astype(relax.op.astype(x, "float32"), dtype)

    found = calls(to_half(model_of(through, ((4, 4), dtype))), "astype")["astype"]
    assert len(found) == (0 if dtype == "float16" else 2)


def test_angles_of_rotary_embeddings_stay_float32():
    """In float16 place 2047 is off by half a radian."""
    before, after = saved("llama_prefill"), to_half(saved("llama_prefill"))
    for name in ("cos", "sin", "multiply", "nn.softmax"):
        one, other = ([str(x.ty.dtype) for x in calls(mod, name)[name]] for mod in (before, after))
        assert one == other


SOURCES = {"a small model": model, "llama": lambda: saved("llama_prefill")}


@pytest.mark.parametrize(  # half a minute of attention in float16 on the processor
    "name", ["a small model", pytest.param("llama", marks=pytest.mark.slow)]
)
def test_values_of_a_model(name):
    """Next to what float16 rounds, everything is as before."""
    mod = SOURCES[name]()
    rng, given = np.random.default_rng(0), []
    for param in mod["main"].params:
        shape = [48 if isinstance(x, tvm.tirx.Var) else int(x) for x in param.ty.shape.values]
        draw = rng.standard_normal(shape) * 0.05 if len(shape) > 1 else np.ones(shape)
        is_token = str(param.ty.dtype) == "int64"
        given.append(rng.integers(0, 50, shape) if is_token else draw)
    found = []
    for one in (mod, to_half(mod)):
        cast = [x.astype(dtype) for x, dtype in zip(given, types(one), strict=True)]
        found.append(models.on_processor(one, "main", cast)[0].astype("float64"))
    want, got = found
    assert 0 < np.abs(got - want).mean() < 2e-3 * np.abs(want).mean()


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolutions_keep_all_that_they_say(rank):
    given = {"strides": 2, "padding": 1, "dilation": 2, "groups": 2}
    before = model_of(
        lambda x, w: getattr(relax.op.nn, f"conv{rank}d")(x, w, **given),
        ((2, 4, *[9] * rank), "float32"),
        ((8, 2, *[3] * rank), "float32"),
        num_input=1,
    )
    after = to_half(before)
    assert types(after) == ["float32", "float16"]
    name = f"nn.conv{rank}d"
    ((old,), (new,)) = (calls(x, name)[name] for x in (before, after))
    assert [str(x.ty.dtype) for x in new.args] == ["float16", "float16"]
    assert str(new.ty) == str(old.ty)  # the shape, and float32
    assert str(new.attrs.strides) == str(old.attrs.strides)
    assert str(new.attrs.padding) == str(old.attrs.padding)


@pytest.mark.parametrize(
    ("call", "found"),
    [
        (lambda: to_half(3), "int"),
        (lambda: to_half(model(), "float8"), "dtype='float8'"),
        (lambda: cast_weights(model(), {"other": []}), "no such function"),
        (lambda: cast_weights(model(), {"main": [0] * 5}), "5 weights, 4 parameters"),
    ],
)
def test_what_is_refused(call, found):
    with pytest.raises(OptionError, match=found):
        call()


def test_a_tensor_that_was_widened_is_taken_as_it_was():
    """Experts that a table names, cast for a product with float32: no copy of them is cast back."""

    @I.ir_module
    class Model:
        @R.function
        def main(
            x: R.Tensor((4, 1, 64), "float32"),
            w: R.Tensor((8, 64, 32), "float16"),
            e: R.Tensor((4,), "int64"),
        ):
            with R.dataflow():
                chosen = R.astype(R.take(w, e, axis=0), "float32")
                y = R.matmul(x, chosen)
                z = R.astype(R.astype(R.sum(y), "float16"), "float32")  # rounds
                R.output(y, z)
            return (y, z)

    found = calls(to_half(Model, "float16"), "take")
    (product,) = found["matmul"]
    (taken,) = found["take"]
    assert [str(x.ty.dtype) for x in product.args] == ["float16", "float16"]
    assert taken.args[0].name == "w"
    assert [str(x.attrs.dtype) for x in found["astype"]] == ["float16", "float16", "float32"]
    other = to_half(Model, "bfloat16")  # another type of 16 bits: float16 has no place for it
    assert len(calls(other)["astype"]) == 5


def tied(reads=None):
    def compute(tokens, w):
        x = op.take(w, tokens, axis=0)
        y = op.matmul(x, op.permute_dims(w))
        return [y] if reads is None else [y, reads(w)]

    op = relax.op
    return model_of(compute, ((5,), "int64"), ((32, 64), "float32"), num_input=1)


def test_a_table_that_a_product_reads_too():
    """Its rows are looked up in 16 bits, as the product has them: it is not cast at each call."""
    mod = to_half(tied())
    relax.analysis.well_formed(mod)
    assert types(mod) == ["int64", "float16"]
    found = calls(mod, "take")
    assert found["take"][0].args[0].name == "x1"
    assert not [x for x in found["astype"] if x.args[0].ty.ndim == 2 and x.args[0].name == "x1"]
    w = np.random.default_rng(0).standard_normal((32, 64)).astype("float16")
    tokens = np.array([3, 0, 31, 7, 3])
    (got,) = models.on_processor(mod, "main", [tokens, w])
    np.testing.assert_allclose(
        got, w[tokens].astype("float64") @ w.T.astype("float64"), rtol=1e-3, atol=1e-2
    )


def test_tables_that_something_else_reads_stay():
    assert types(to_half(tied(relax.op.sum))) == ["int64", "float32"]
    given = ((5,), "int64"), ((32, 64), "float32")
    lookup = model_of(lambda t, w: relax.op.take(w, t, axis=0), *given, num_input=1)
    assert types(to_half(lookup)) == ["int64", "float32"]
