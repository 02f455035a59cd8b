"""Models that are no Llama: whoever computes a function, it builds, and the report names it."""

import pytest
from tvm import relax, tirx

from tests.relax import models
from tvm_hopper.relax import report
from tvm_hopper.relax.records import GIVEN, NOBODY, OURS, STOCK
from tvm_hopper.testing.relax_forms import model_of

op = relax.op
HALF, SINGLE = "float16", "float32"
N, K = tirx.Var("n", "int64"), tirx.Var("k", "int64")


def linear(x, w):
    return op.matmul(x, op.permute_dims(w))


def wide(x, w):
    return op.matmul(x, w, out_dtype="float32")


ODD = {  # expression, tensors, who computes it, by which rule
    "rows of 77": (linear, [((5, 77), HALF), ((33, 77), HALF)], OURS, "Matmul"),  # padded
    "a depth of 1": (op.matmul, [((5, 1), HALF), ((1, 33), HALF)], STOCK, "dl.gpu.Fallback"),
    "no rows": (op.matmul, [((0, 64), HALF), ((64, 32), HALF)], STOCK, "dl.gpu.Fallback"),
    "one column": (op.matmul, [((64, 64), HALF), ((64, 1), HALF)], OURS, "Matmul"),
    "a vector": (op.matmul, [((64,), HALF), ((64, 32), HALF)], OURS, "Matmul"),
    "two vectors": (op.matmul, [((64,), HALF), ((64,), HALF)], OURS, "Matmul"),
    "float8": (wide, [((64, 64), "float8_e4m3fn")] * 2, OURS, "Matmul"),
    "bytes": (
        lambda x, w: op.matmul(x, w, out_dtype="int32"), [((64, 64), "uint8")] * 2,
        OURS, "Matmul",
    ),
    "one row of float32": (
        linear, [((1, 1024), SINGLE), ((8, 1024), SINGLE)], OURS, "RowReduction",
    ),
    "convolution": (
        lambda x, w: op.nn.conv2d(x, w, padding=1), [((1, 3, 9, 9), HALF), ((5, 3, 3, 3), HALF)],
        OURS, "Matmul",
    ),
    "groups": (
        lambda x, g, b: op.nn.group_norm(x, g, b, 4, 1, [2, 3]),
        [((2, 16, 5, 5), HALF), ((16,), HALF), ((16,), HALF)], OURS, "RowReduction",
    ),
    "places of rows": (
        lambda x: op.argmax(x, axis=0), [((16, 300), SINGLE)], OURS, "ColumnReduction",
    ),
    "sums so far": (
        lambda x: op.cumsum(x, axis=-1), [((2, 16), SINGLE)], GIVEN, "scheduled already",
    ),
    "values put in": (
        lambda x, i, y: op.scatter_elements(x, i, y, 0),
        [((16, 8), HALF), ((3, 8), "int64"), ((3, 8), HALF)], GIVEN, "its own threads",
    ),
    "no columns": (op.matmul, [((N, 64), HALF), ((64, 0), HALF)], GIVEN, "no elements"),
    "half a byte": (
        lambda x, w: op.matmul(x, op.astype(w, HALF)), [((4, 64), HALF), ((64, 64), "int4")],
        STOCK, "dl.gpu.Fallback",
    ),
    "all of it": (op.sum, [((2, 16, 7), HALF)], OURS, "ColumnReduction"),
    "symbols": (lambda x: op.sum(x, axis=0), [((N, K), HALF)], STOCK, "dl.gpu.Reduction"),
    "a number": (lambda x: op.add(x, x), [((), SINGLE)], STOCK, "dl.gpu.Fallback"),
}  # fmt: skip


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("what", ODD)
def test_is_computed_by(what):
    build, tensors, by, rule = ODD[what]
    found = report(model_of(build, *tensors), models.H200)
    assert NOBODY not in {x.computed_by for x in found.functions}
    assert (by, rule) in {(x.computed_by, x.rule) for x in found.functions}
