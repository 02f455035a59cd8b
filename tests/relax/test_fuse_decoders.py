"""Weights of a few bits: decoders go into the products that read them, or `report` says why."""

import pytest
from tvm import relax, te, tirx

from tests.relax import models
from tvm_hopper.relax.keep_records import records_of
from tvm_hopper.relax.records import OURS
from tvm_hopper.testing.relax_forms import model_of

K, N, GROUP = 128, 128, 32


def dequantize(packed, scale, is_kn):
    """Return the weight as MLC-LLM makes it: q4f16_1, or with words and scales as [k, n]."""

    def element(a, b):
        n, k = (b, a) if is_kn else (a, b)
        word = packed[k // 8, n] if is_kn else packed[n, k // 8]
        bits = tirx.shift_right(word, ((k % 8) * 4).astype("uint32"))
        value = tirx.bitwise_and(bits, tirx.const(15, "uint32")).astype("float16")
        one = scale[k // GROUP, n] if is_kn else scale[n, k // GROUP]
        return (value - tirx.const(7, "float16")) * one

    return te.compute((K, N) if is_kn else (N, K), element, name="dequantize")


def model(body, is_kn=False):
    """Return a model of a decoder and of what reads the weight."""

    def build(builder, x, packed, scale):
        weight = builder.emit_te(dequantize, packed, scale, is_kn, primfunc_name_hint="decode")
        outs = body(builder, x, weight if is_kn else builder.emit(_turned(weight)), weight)
        return relax.Tuple(outs) if len(outs) > 1 else outs[0]

    shapes = [(K // 8, N), (K // GROUP, N)] if is_kn else [(N, K // 8), (N, K // GROUP)]
    tensors = (("n", K), "float16"), (shapes[0], "uint32"), (shapes[1], "float16")
    return model_of(build, *tensors, takes_builder=True)


def _turned(weight):
    return relax.op.permute_dims(weight)


def one(builder, x, turned, _):
    return [builder.emit(relax.op.matmul(x, turned))]


def two(builder, x, turned, _):
    y = builder.emit(relax.op.matmul(x, turned))
    return [y, builder.emit(relax.op.matmul(builder.emit(relax.op.nn.silu(y)), turned))]


def returned(builder, x, turned, weight):
    return [*one(builder, x, turned, weight), weight]


def both(builder, _, turned, weight):
    return [builder.emit(relax.op.matmul(weight, turned))]


@pytest.mark.parametrize(("body", "is_kn"), [(one, True), (two, False)])
def test_products_decode_on_the_way(body, is_kn):
    mod = model(body, is_kn)
    plain = models.plain_functions(mod)
    assert "decode" not in plain
    products = [x for x in plain if x.startswith("fused_decode")]
    assert len(products) == 1, "one function serves calls of equal shapes"
    done = models.schedule(mod)
    assert {x.computed_by for x in records_of(done)} == {OURS}
    calls = [x for x in str(done["main"]).splitlines() if "fused_decode" in x]
    assert len(calls) == (1 if body is one else 2)
    if is_kn:
        models.check_values(done, plain, (3,))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (returned, "the model returns what it makes"),
        (both, "transpose, which is no product, reads what it makes"),
    ],
)
def test_a_decoder_that_stays_alone_is_reported(body, why):
    done = models.schedule(model(body))
    (record,) = (x for x in records_of(done) if x.name == "decode")
    assert record.computed_by == OURS
    assert record.note.startswith("a kernel of its own: ")
    assert why in record.note
