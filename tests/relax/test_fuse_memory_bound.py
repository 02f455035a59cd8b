"""A sum and the norm of it in one kernel of two outputs, and what stays two kernels."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax, tirx

from tests.relax import models
from tvm_hopper.relax import fuse_rows, report
from tvm_hopper.relax.keep_records import records_of
from tvm_hopper.relax.records import OURS

op = relax.op
N = 128


def model(body, *, names=("x", "y"), dtype="float16"):
    """Return a model of rows of several tensors and one weight."""
    builder = relax.BlockBuilder()
    rows = relax.TensorType((tirx.Var("b", "int64"), tirx.Var("s", "int64"), N), dtype)
    shape = list(rows.shape.values)
    given = [relax.Var(x, relax.TensorType(shape, dtype)) for x in names]
    weight = relax.Var("w", relax.TensorType((N,), dtype))
    with builder.function("main", [*given, weight]):
        with builder.dataflow():
            out = builder.emit_output(body(builder, *given, weight))
        builder.emit_func_output(out)
    return builder.finalize()


def residual(builder, x, y, w):
    s = builder.emit(op.add(x, y))
    return relax.Tuple([s, builder.emit(op.nn.rms_norm(s, w, [-1]))])


def post_norm(builder, x, y, w):
    s = builder.emit(op.multiply(op.add(x, y), x))
    return builder.emit(op.nn.layer_norm(s, w, w, [-1]))


def twice(builder, x, y, w):
    s = builder.emit(op.add(x, y))
    one = builder.emit(op.nn.rms_norm(s, w, [-1]))
    return relax.Tuple([one, builder.emit(op.nn.softmax(s, -1))])


FUSED = {  # what is read, functions left, and outputs of the fused one
    "residual": (residual, 1, 2),
    "post_norm": (post_norm, 1, 1),
    "twice": (twice, 2, 2),
}


@pytest.mark.parametrize("name", FUSED)
def test_one_kernel(name):
    body, count, outputs = FUSED[name]
    mod = model(body)
    done = models.schedule(mod)
    found = [x for x in records_of(done) if x.computed_by == OURS]
    assert len(found) == count
    (fused,) = [x for x in found if x.name.startswith("fused_") and "norm" in x.name]
    reads = 4 if name == "post_norm" else 3  # LayerNorm has two weights
    assert len(fused.tensors) == reads + outputs
    assert models.check_values(done, models.plain_functions(mod), (3,)) == count


def late(builder, x, y, w):
    s = builder.emit(op.add(x, y))
    scale = builder.emit(op.exp(w))  # made behind what reads the sum's place
    return builder.emit(op.nn.rms_norm(s, scale, [-1]))


def product(builder, x, y, w):
    matrix = builder.emit(op.multiply(op.reshape(w, (N, 1)), op.reshape(w, (1, N))))
    s = builder.emit(op.add(x, op.matmul(y, matrix)))
    return relax.Tuple([s, builder.emit(op.nn.rms_norm(s, w, [-1]))])


def other_shape(builder, x, y, w):
    s = builder.emit(op.add(x, y))
    return relax.Tuple([s, builder.emit(op.sum(s, -1))])


def turned(builder, x, y, w):
    s = builder.emit(op.permute_dims(op.add(x, y), [1, 0, 2]))
    return builder.emit(op.nn.rms_norm(s, w, [-1]))


def single_row(builder, x, y, w):
    s = builder.emit(op.add(x, y))
    return builder.emit(op.matmul(s, op.broadcast_to(w, (N, N)), out_dtype="float32"))


@pytest.mark.parametrize(
    "body", [late, product, other_shape, turned, single_row], ids=lambda x: x.__name__
)
def test_two_kernels(body):
    mod = model(body)
    names = [x.name for x in report(mod, models.H200, classes=(16,)).functions]
    assert len(names) > 1
    joined = [x for x in names if "add" in x and ("norm" in x or "sum" in x or "matmul" in x)]
    assert not [x for x in joined if body is not product or "norm" in x]


def test_what_no_rule_takes_stays_two(monkeypatch):
    monkeypatch.setattr(fuse_rows.dlight.RowReduction, "apply", lambda *_: None)
    assert len(models.plain_functions(model(residual))) == 2


def test_what_tvm_does_not_fuse_stays_two(monkeypatch):
    def fail(*_):
        raise tvm.error.InternalError("not these")

    monkeypatch.setattr(fuse_rows, "fuse", fail)
    assert len(models.plain_functions(model(residual))) == 2
