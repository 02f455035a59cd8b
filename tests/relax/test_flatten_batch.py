"""Batch and sequence become rows: what is rewritten, what is not, and that no bit changes."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx
from tvm.script import ir as I, relax as R, tirx as T

from tests.relax import models, user_models
from tvm_hopper.relax.flat_functions import flatten_function
from tvm_hopper.relax.flatten_batch import FlattenBatch
from tvm_hopper.testing.llama import SMALL, llama
from tvm_hopper.testing.relax_forms import model_of

i64 = T.int64


@I.ir_module
class Before:
    @T.prim_func(private=True, s_tir=True)
    def linear(var_x: T.handle, w: T.Buffer((i64(96), i64(64)), "float16"), var_y: T.handle):
        b, s = T.int64(), T.int64()
        x = T.match_buffer(var_x, (b, s, i64(64)), "float16")
        y = T.match_buffer(var_y, (b, s, i64(96)), "float16")
        for i0, i1, j, k in T.grid(b, s, i64(96), i64(64)):
            with T.sblock("y"):
                v0, v1, vj, vk = T.axis.remap("SSSR", [i0, i1, j, k])
                with T.init():
                    y[v0, v1, vj] = T.float16(0)
                y[v0, v1, vj] = y[v0, v1, vj] + x[v0, v1, vk] * w[vj, vk]

    @R.function
    def main(x: R.Tensor(("b", "s", 64), "float16"), w: R.Tensor((96, 64), "float16")):
        b, s = T.int64(), T.int64()
        cls = Before
        with R.dataflow():
            y = R.call_tir(cls.linear, (x, w), out_ty=R.Tensor((b, s, 96), "float16"))
            R.output(y)
        return y


@I.ir_module
class After:
    @T.prim_func(private=True, s_tir=True)
    def linear_rows(var_x: T.handle, w: T.Buffer((i64(96), i64(64)), "float16"), var_y: T.handle):
        rows = T.int64()
        x = T.match_buffer(var_x, (rows, i64(64)), "float16")
        y = T.match_buffer(var_y, (rows, i64(96)), "float16")
        for i, j, k in T.grid(rows, i64(96), i64(64)):
            with T.sblock("y"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    y[vi, vj] = T.float16(0)
                y[vi, vj] = y[vi, vj] + x[vi, vk] * w[vj, vk]

    @R.function
    def main(x: R.Tensor(("b", "s", 64), "float16"), w: R.Tensor((96, 64), "float16")):
        b, s = T.int64(), T.int64()
        cls = After
        with R.dataflow():
            x1 = R.reshape(x, R.shape([b * s, 64]))
            y1 = R.call_tir(cls.linear_rows, (x1, w), out_ty=R.Tensor((b * s, 96), "float16"))
            y = R.reshape(y1, R.shape([b, s, 96]))
            R.output(y)
        return y


def test_a_product():
    got = relax.transform.DeadCodeElimination()(FlattenBatch()(Before))
    tvm.ir.assert_structural_equal(got, After)


def test_nothing_is_left_to_do():
    again = relax.transform.DeadCodeElimination()(FlattenBatch()(After))
    tvm.ir.assert_structural_equal(again, After)


def test_views_are_not_undone_and_made_again():
    """The residual goes from product to product as it is."""
    mod = models.legalized(llama(SMALL, attention="none"))
    flat = relax.transform.DeadCodeElimination()(FlattenBatch()(mod))
    text = flat["decode"].script()
    made = text.count("R.reshape")
    assert made == 5, text  # x for the norm and the residual, heads, tokens of them, scores


def test_prefill_and_decode_share_their_functions():
    mod = relax.transform.DeadCodeElimination()(models.legalized(llama(SMALL, attention="none")))
    flat = relax.transform.DeadCodeElimination()(FlattenBatch()(mod))
    count = [sum(isinstance(f, tirx.PrimFunc) for f in x.functions.values()) for x in (mod, flat)]
    assert count == [16, 8]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", ["prefill", "decode"])
def test_every_bit_is_kept(name):
    plain = models.legalized(llama(SMALL, attention="plain"))
    flat = relax.transform.DeadCodeElimination()(FlattenBatch()(plain))
    sizes = {"batch": 2, "length": 3, "past": 4, "total": 7 if name == "prefill" else 5}
    given = models.inputs_of(plain, name, sizes)
    want, got = (models.on_processor(x, name, given) for x in (plain, flat))
    assert len(want) == len(got) == 3
    for one, other in zip(want, got, strict=True):
        np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))


# -- what stays as it is --------------------------------------------------------------------------


def function(build, *tensors):
    """Return the one function that an expression of tensors, (shape, dtype) each, becomes."""
    mod = relax.get_pipeline("zero")(model_of(build, *tensors))
    (func,) = (f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc))
    return func


B, S = tirx.Var("b", "int64"), tirx.Var("s", "int64")
HALF = "float16"
KEPT = {
    "a batch of weights": (relax.op.matmul, ((B, S, 64), HALF), ((B, 64, 32), HALF)),
    "rows already": (relax.op.matmul, ((B, 64), HALF), ((64, 32), HALF)),
    "static norms": (relax.op.nn.relu, ((2, 3, 64), HALF)),
    "a mask of each sequence": (relax.op.add, ((B, S, 64), HALF), ((S, 64), HALF)),
    "dimensions that change places": (relax.op.permute_dims, ((B, S, 64), HALF)),
}


@pytest.mark.parametrize("what", KEPT)
def test_is_left_alone(what):
    build, *tensors = KEPT[what]
    assert flatten_function(function(build, *tensors)) is None


FLAT = {
    "static dimensions of a product": (relax.op.matmul, ((2, 3, 64), HALF), ((64, 32), HALF), 6),
    "elements": (relax.op.nn.relu, ((B, S, 64), HALF), None),
    "a square weight": (relax.op.matmul, ((64, 64, 64), HALF), ((64, 64), HALF), 4096),
}


@pytest.mark.parametrize("what", FLAT)
def test_is_flattened(what):
    build, *tensors, rows = FLAT[what]
    flat = flatten_function(function(build, *tensors))
    assert flat.lead == 2
    shape = flat.func.params[0].ty.shape
    assert len(shape) == 2
    assert rows is None or int(shape[0]) == rows
    assert flat.flattened == ((True, False, True) if len(tensors) == 2 else (True, True))


def test_another_symbol_of_the_name_rows():
    batch, length = tirx.Var("rows", "int64"), tirx.Var("rows_1", "int64")
    plain = function(relax.op.matmul, ((batch, length, 64), HALF), ((64, 32), HALF))
    by_name = flatten_function(plain).func.params[0].ty.shape[0]
    assert by_name.name == "rows_2"


def test_several_outputs():
    """Each output of a function goes through a view of its own."""
    mod = models.legalized(llama(SMALL, attention="plain"))
    flat = FlattenBatch()(mod)
    names = [gv.name_hint for gv in flat.functions if gv.name_hint.startswith("split")]
    assert any(x.endswith("_rows") for x in names), names


@pytest.mark.parametrize(
    "sizes", [{"b": 3, "s": 45}, pytest.param({"b": 1, "s": 1}, marks=pytest.mark.slow)]
)
def test_rows_of_the_last_token(sizes):
    """Its length is an expression of s, which TVM hands over beside the tensors."""
    plain = models.legalized(user_models.grouped("float32"))
    flat = FlattenBatch()(plain)
    called = re.findall(r"call_tir\((\w+), ", flat["main"].script())
    assert called[-2:] == ["rms_norm_rows", "NT_matmul_rows"]  # of all tokens' queries, too
    given = user_models.arguments(plain, sizes)
    want, got = (models.on_processor(x, "main", given) for x in (plain, flat))
    for one, other in zip(want, got, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_length_that_is_read_otherwise_stays():
    """A function that needs s itself, as a mask of places does, keeps its dimensions."""

    def places(t, n):
        return te.compute(t.shape, lambda i, j, k: t[i, j, k] * n.astype("float32"), name="places")

    def build(builder, x):
        last = builder.emit(relax.op.strided_slice(x, [1], [-1], [2**31 - 1]))
        return builder.call_te(places, last, x.ty.shape.values[1])

    mod = model_of(build, (("b", "s", 8), "float32"), takes_builder=True)
    plain = models.legalized(mod)
    given = [np.arange(48, dtype="float32").reshape(2, 3, 8)]
    (got,) = models.on_processor(FlattenBatch()(plain), "main", given)
    np.testing.assert_array_equal(got, given[0][:, -1:] * 3)
