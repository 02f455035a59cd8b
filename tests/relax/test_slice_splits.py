"""Parts of a split are slices where they are only looked at in another shape."""

import numpy as np
import pytest
from tvm import relax, tirx
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op, spec

from tests.relax import models
from tvm_hopper.relax.slice_splits import SliceSplits

ROWS, WIDTH = 4, 24


def module(forward, width=WIDTH):
    class Model(nn.Module):
        def forward(self, x: nn.Tensor):
            return forward(x)

    mod, _ = Model().export_tvm({"forward": {"x": spec.Tensor((ROWS, width), "float32")}})
    return mod


def turned(x):
    a, b = op.split(x, 2, -1)
    return op.permute_dims(op.reshape(a, (ROWS, 3, 4)), [1, 0, 2]), op.reshape(b, (ROWS, 12, 1))


def unequal(x):
    a, b, c = op.split(x, [4, 20], 1)
    return op.astype(a, "float16"), op.reshape(b, (ROWS, 4, 4)), op.reshape(c, (1, ROWS, 4))


def gate(x):
    a, b = op.split(x, 2, -1)
    return op.silu(a) * b


def result(x):
    a, b = op.split(x, 2, 0)
    return a, op.reshape(b, (WIDTH, ROWS // 2))


@pytest.mark.parametrize(("forward", "slices"), [(turned, 2), (unequal, 3), (gate, 0), (result, 0)])
def test_parts_that_are_looked_at(forward, slices):
    mod = module(forward)
    new = SliceSplits()(mod)
    relax.analysis.well_formed(new)
    text = new["forward"].script()
    assert (text.count("R.strided_slice("), "R.split(" in text) == (slices, slices == 0)
    x = np.random.default_rng(3).standard_normal((ROWS, WIDTH)).astype("float32")
    for want, got in zip(
        *(models.on_processor(y, "forward", [x]) for y in (mod, new)), strict=True
    ):
        np.testing.assert_array_equal(got, want)


def test_parts_of_any_extent_stay():
    given = relax.Var("x", relax.TensorType((tirx.Var("m", "int64"), WIDTH), "float32"))
    block = relax.BlockBuilder()
    with block.function("forward", [given]):
        with block.dataflow():
            parts = block.emit(relax.op.split(given, 2, 0))
            part = block.emit(relax.TupleGetItem(parts, 0))
            out = block.emit_output(relax.op.permute_dims(part))
        block.emit_func_output(out)
    assert "R.split(" in SliceSplits()(block.get())["forward"].script()
