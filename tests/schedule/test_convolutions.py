"""Convolutions: boxes of pixels are the rows of a product."""

import re

import numpy as np
import pytest
import tvm
from tvm import s_tir, te, topi
from tvm.target import Target

from tests.schedule.refuse import refuse
from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.schedule.products.boxes_of_images import choose_box, count_boxes
from tvm_hopper.schedule.products.model import as_product
from tvm_hopper.simulation import verify
from tvm_hopper.testing.convolutions import convolution
from tvm_hopper.testing.windows import depthwise

H200 = Target("nvidia/nvidia-h200")
SMALL = {"tile": (64, 32, 64), "stages": 2, "consumers": 1}
# images, channels, filters, window, more of the convolution, more of the configuration
FORMS = {
    "ragged, with an epilogue": ((2, 10, 11), 64, 40, (3, 3), {"pads": 1, "fused": True}, {}),
    "steps": ((1, 9, 14), 64, 32, (3, 3), {"pads": 1, "steps": 2}, {}),
    "1 x 1 in steps": ((3, 9, 9), 64, 40, (1, 1), {"steps": 2}, {}),
    "1 x 1 between zeros": ((1, 7, 7), 64, 24, (1, 1), {"pads": 1}, {}),
    "1 x 1 is a plain product": ((2, 7, 7), 72, 24, (1, 1), {}, {}),
    "dilation, channels off tiles": (
        (1, 6, 9), 96, 16, (3, 3), {"pads": 2, "dilation": 2, "weights": "filters first"}, {},
    ),
    "without pads": ((3, 9, 9), 64, 40, (3, 2), {"dtype": "bfloat16"}, {}),
    # boxes begin where tiles do, and rows outside of the images are zeros all the same
    "one axis": ((1, 192), 64, 32, (3,), {"pads": 64, "dilation": 64}, {}),
    "three axes": ((1, 3, 4, 5), 64, 24, (3, 3, 3), {"pads": 1}, {}),
    "any number of images": (("n", 8, 8), 64, 24, (3, 3), {"pads": 1}, {}),
    "by TMA": (
        (1, 10, 11), 64, 64, (3, 3), {"pads": 1, "fused": True},
        {"tile": (128, 64, 64), "consumers": 2, "store": "tma"},
    ),
    "clusters": ((2, 16, 8), 64, 32, (3, 3), {"pads": 1}, {"cluster": (2, 1)}),
    "an image of one row": ((1, 1, 14), 8, 40, (3, 5), {"pads": 2, "steps": 3}, {}),
    "windows as wide as images": ((2, 3, 7), 64, 24, (2, 7), {"pads": 3, "steps": 2}, {}),
    "columns as wide as images": ((2, 13, 3), 8, 24, (3, 3), {"steps": 4}, {}),
    "one place": (
        (3, 4, 1), 24, 24, (2, 1), {"steps": 4, "dilation": 3, "weights": "filters first"}, {},
    ),
    "columns of weights": (
        (2, 13, 9), 24, 40, (7, 1), {"pads": 3, "steps": 2, "weights": "filters first"}, {},
    ),
    "columns of weights, one axis of the sum": (
        (1, 10, 5), 64, 40, (3, 1), {"pads": 3, "steps": 2, "weights": "filters first"}, {},
    ),
    "steps with a rest": ((1, 23, 21), 72, 24, (2, 2), {"pads": 2, "steps": 2, "dilation": 2}, {}),
    "clusters of tiles that are boxes": (
        (3, 22, 8), 8, 32, (2, 4), {"pads": 2, "dilation": 3},
        {"tile": (192, 32, 16), "cluster": (2, 1), "consumers": 3},
    ),
    "parts of a sum": ((1, 7, 7), 128, 32, (3, 3), {"pads": 1}, {"split_k": 2}),
    "transposed": (
        (1, 8, 8), 64, 64, (3, 3), {"pads": 1}, {"tile": (64, 64, 64), "form": "transposed"},
    ),
}  # fmt: skip


def inputs_of(mod, **symbols):
    drawn = np.random.default_rng(0)
    tensors = list(mod["main"].params)[:-1]
    shapes = [[symbols[x.name] if hasattr(x, "name") else int(x) for x in t.shape] for t in tensors]
    return {
        str(t.name): drawn.integers(-2, 3, shape).astype(str(t.dtype))
        for t, shape in zip(tensors, shapes, strict=True)
    }


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("form", FORMS)
def test_values(form):
    *args, more, config = FORMS[form]
    mod = convolution(*args, **more)
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig(**(SMALL | config)))
    given = inputs_of(mod, n=3) if "any" in form else None
    assert verify(sch, given, against=mod).verdict == "clean"


@pytest.mark.parametrize(
    "args",
    [
        ((32, 56, 56), 64, 64, (3, 3), {"pads": 1}),
        ((32, 56, 56), 256, 512, (1, 1), {"steps": 2}),
        ((32, 7, 7), 512, 512, (3, 3), {"pads": 1}),
        ((32, 28, 28), 96, 160, (3, 3), {"pads": 1}),
    ],
    ids=str,
)
def test_layers_lower_by_the_models_choice(args):
    """Boxes over several images, and parts of a sum: indices are divided term by term."""
    *args, more = args
    sch = s_tir.Schedule(convolution(*args, weights="filters first", **more))
    with H200:
        hs.matmul(sch, "C")
    shared = re.search(r"W\w*shared_dyn = T.sblock_alloc_buffer\(\(([^)]*)\)", str(sch.mod))
    assert shared is not None
    assert args[2] in map(int, shared[1].split(", "))  # tiles of as many columns as filters have


@pytest.mark.parametrize(
    "args",
    [
        ((7, 46, 29), 320, 64, (2, 6), {"steps": 3, "pads": 1, "dilation": 3}),
        ((3, 39, 25), 512, 256, (6, 7), {"steps": 3, "dilation": 2}),
        ((6, 25, 44), 64, 160, (1, 5), {"steps": 2, "pads": 1, "dilation": 3}),
        ((8, 67, 41), 512, 160, (3, 4), {"steps": 2, "pads": 1}),
        ((7, 42, 57), 512, 64, (4, 6), {"pads": 2, "dilation": 2}),
        ((3, 39, 34, 31), 1000, 160, (1, 3, 2), {"pads": 2, "dilation": 3}),
    ],
    ids=str,
)
def test_any_layer_lowers_by_the_models_choice(args):
    *args, more = args
    with H200:
        hs.matmul(s_tir.Schedule(convolution(*args, fused=True, **more)), "C")


def test_a_trace_replays_on_the_boxes():
    mod = convolution((1, 9, 9), 64, 32, (3, 3), pads=1)
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig(**SMALL))
    again = s_tir.Schedule(hs.box_pixels(mod, "C", 64))
    s_tir.Trace.apply_json_to_schedule(sch.trace.as_json(), again)
    assert str(again.mod) == str(sch.mod)
    assert "X_boxes" in str(hs.box_pixels(mod["main"], "C", 64))
    plain = convolution((1, 9, 9), 64, 32, (1, 1))
    assert hs.box_pixels(plain, "C", 64).same_as(plain)  # no windows


def test_boxes_are_few_and_long():
    assert choose_box((1, 14, 14), (1, 1, 1), 128) == (1, 8, 16)
    assert choose_box((32, 7, 7), (1, 1, 1), 128) == (16, 1, 8)
    assert choose_box(("n", 8, 8), (1, 1, 1), 64) == (1, 8, 8)  # a symbolic axis is not cut
    assert count_boxes((1, 9, 9), (1, 1, 1), 64) == 3
    assert choose_box(("n", 50), (1, 8), 64) is None  # a box spans 256 elements
    assert choose_box((3, 50, 64), (1, 1, 1), 384) == (3, 2, 64)
    assert choose_box((3, 50, 64), (1, 1, 1), 384, 2) == (1, 6, 64)  # halves are boxes, too


def test_the_model_counts_boxes():
    shape = as_product(4 * 14 * 14, 64, 576, "float16", ("k", "k"), "float16")
    assert shape.tiles_down(128) == 7
    images = {"images": (4, 14, 14), "image_steps": (1, 1, 1), "channels": 96}
    boxed = type(shape)(**(vars(shape) | images | {"k": 864}))
    assert boxed.tiles_down(np.array([128, 64])).tolist() == [7, 14]
    assert boxed.steps_deep(64) == 18
    assert boxed.left_in_memory == 96
    assert boxed.row_bytes[0] == 192


def named(x, w, value):
    func = te.create_prim_func([x, w, value]).with_attr("global_symbol", "main")
    return tvm.IRModule({"main": func})


def tensors(*shapes):
    return [te.placeholder(s, "float16", name=n) for s, n in zip(shapes, "XW", strict=True)]


def channels_first():
    x, w = tensors((2, 64, 14, 14), (32, 64, 3, 3))
    return named(x, w, topi.nn.conv2d_nchw(x, w, 1, 1, 1, out_dtype="float32")), "conv2d_nchw"


def groups():
    x, w = tensors((2, 14, 14, 64), (32, 3, 3, 16))
    value = topi.nn.conv(x, w, 1, 1, 1, 4, "NHWC", "OHWI", "float32")
    return named(x, w, value), "group_conv2d_nhwc"


def of_itself():
    x = te.placeholder((3, 3, 64, 64), "float16", name="X")
    value = topi.nn.conv2d_nhwc(x, x, 1, 1, 1, out_dtype="float32")
    func = te.create_prim_func([x, value]).with_attr("global_symbol", "main")
    return tvm.IRModule({"main": func}), "conv2d_nhwc"


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (channels_first, r"tensor X: found the index .* last dimension; need channels .*NHWC"),
        (groups, r"tensor X: found the index .* is cut; need sums .*: groups = 1; compute each"),
        (of_itself, r"found windows of X and of X; need windows of one operand"),
        (lambda: (depthwise((2, 16, 16, 64)), "S"), r"need channels there, of the sum"),
        (
            lambda: (convolution((2, 32, 32), 64, 64, (2, 2), steps=9), "C"),
            r"found windows at each 9 elements .*; need at most 8",
        ),
        (
            lambda: (convolution((2, 1, 24), 64, 64, (1, 7), steps=4, pads=1), "C"),
            r"tensor X: found the index v_i0 \* 4 \+ v_r0 - 1, which is none of its 1 .*; need",
        ),
        (
            lambda: (convolution((2, 32, 32), 3, 64, (7, 7), pads=3), "C"),
            r"copy of X .*found stride 1 of 6 bytes; .*; pad its last dimension from 3 to 8",
        ),
    ],
)
def test_refusals(make, match):
    mod, block = make()
    refuse(mod, match, block=block)


def test_refusals_of_boxes():
    mod = convolution(("n", 400), 64, 64, (3,), steps=8)
    config = hs.MatmulConfig(tile=(64, 64, 64), stages=2)
    refuse(mod, r"found 64 pixels of images of n x 50; need a number that a box", config)
    with pytest.raises(ScheduleError, match=r"box_pixels: found rows=0; need"):
        hs.box_pixels(mod, "C", 0)
    with pytest.raises(ScheduleError, match=r"box_pixels: found tiles=65; need"):
        hs.box_pixels(mod, "C", 64, tiles=65)
    with pytest.raises(ScheduleError, match=re.escape("box_pixels: found block='Z'")):
        hs.box_pixels(mod, "Z", 64)
