"""ChannelsLast: convolutions are products of boxes of pixels, and give what they gave."""

import numpy as np
import pytest
import tvm_ffi
from tvm import relax
from tvm.target import Target

from tests.relax import models
from tvm_hopper.relax.channels_last import ChannelsLast
from tvm_hopper.relax.keep_records import records_of
from tvm_hopper.relax.records import OURS
from tvm_hopper.testing.relax_forms import model_of

op = relax.op


def patches(x, w, b):
    """Compute a vision transformer's first layer."""
    y = op.reshape(op.add(op.nn.conv2d(x, w, strides=(8, 8)), b), (2, 24, 16))
    return op.permute_dims(y, (0, 2, 1))


def stem(x, w):
    y = op.nn.relu(op.nn.conv2d(x, w, strides=(2, 2), padding=(3, 3)))
    return op.nn.max_pool2d(y, (3, 3), (2, 2), (1, 1))


def block(x, v, b, w, d):
    """Compute a block with a residual and a depthwise convolution."""
    y = op.nn.relu(op.add(op.nn.conv2d(x, v, padding=(1, 1)), b))
    y = op.nn.conv2d(y, d, padding=(1, 1), groups=16)
    return op.nn.relu(op.add(op.nn.conv2d(y, w), x))


def words(x, w):
    return op.nn.conv1d(x, w, padding=1)


def norms(x, d, w, v):
    """Compute a depthwise convolution before a product of channels, then patches."""
    y = op.permute_dims(op.nn.conv2d(x, d, padding=(1, 1), groups=16), (0, 2, 3, 1))
    y = op.add(op.permute_dims(op.matmul(y, w), (0, 3, 1, 2)), x)
    return op.nn.conv2d(y, v, strides=(2, 2))


def halved(x, w, v):
    """Add every other pixel's channels, rows of a product, to images of a convolution."""
    step = {"strides": (2, 2)}
    return op.nn.relu(
        op.add(op.nn.conv2d(x, w, padding=(1, 1), **step), op.nn.conv2d(x, v, **step))
    )


MODELS = {  # what is computed, shapes, convolutions left, functions
    "patches": (patches, [(2, 3, 32, 32), (24, 3, 8, 8), (1, 24, 1, 1)], 0),
    "stem": (stem, [(1, 3, 8, 8), (8, 3, 7, 7)], 1),
    "block": (
        block,
        [(1, 16, 4, 4), (16, 16, 3, 3), (1, 16, 1, 1), (16, 16, 1, 1), (16, 1, 3, 3)],
        2,  # a window of one pixel is a product
    ),
    "norms": (norms, [(1, 16, 4, 4), (16, 1, 3, 3), (16, 16), (8, 16, 2, 2)], 1),
    "halved": (halved, [(1, 16, 8, 8), (16, 16, 3, 3), (16, 16, 1, 1)], 1),
    "one axis": (words, [(1, 16, 20), (8, 16, 3)], 1),
}


def build(name, dtype="float16"):
    compute, shapes, _ = MODELS[name]
    return model_of(compute, *((s, dtype) for s in shapes), name="forward", num_input=1)


@pytest.mark.parametrize("name", MODELS)
def test_values_of_the_rewrite(name):
    """On small integers sums in 16 bits are exact, whatever their order."""
    mod = build(name)
    rng = np.random.default_rng(0)
    given = [rng.integers(-1, 2, s).astype("float16") for s in MODELS[name][1]]
    rewritten = ChannelsLast()(mod)
    assert str(rewritten) != str(mod)
    (want,), (got,) = (models.on_processor(x, "forward", given) for x in (mod, rewritten))
    np.testing.assert_array_equal(got, want)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("name", MODELS)
def test_kernels(name):
    mod = build(name)
    scheduled = models.schedule(mod)
    found = records_of(scheduled)
    assert {x.computed_by for x in found} == {OURS}
    assert sum("conv" in x.name for x in found) == MODELS[name][2]
    assert models.check_values(scheduled, models.plain_functions(mod), (20,)) == len(found)


@pytest.mark.parametrize("name", ["patches", "block"])
def test_float32_stays(name):
    mod = build(name, "float32")
    with Target(models.H200):
        assert str(ChannelsLast()(mod)) == str(mod)


def normed(x, w, g):
    return op.nn.layer_norm(op.nn.conv2d(x, w), g, g, axes=[1, 2, 3])


def enlarged(x, w, v):
    return op.nn.conv2d_transpose(op.nn.conv2d(x, w), v, strides=(2, 2))


def stacked(x, w):
    return op.stack([op.nn.conv2d(x, w), x], 1)


@pytest.mark.parametrize(
    ("compute", "shapes"),
    [
        (normed, [(16, 6, 6)]),
        (enlarged, [(16, 16, 2, 2)]),
        (stacked, []),
    ],
    ids=["norm of channels and pixels", "transposed convolution", "stack"],
)
def test_what_convert_layout_does_not_turn_stays(compute, shapes):
    shapes = [(1, 16, 6, 6), (16, 16, 1, 1), *shapes]
    mod = model_of(compute, *((s, "float16") for s in shapes))
    assert tvm_ffi.structural_equal(ChannelsLast()(mod), mod)
