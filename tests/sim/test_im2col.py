"""Copies in im2col mode, compared with a convolution's own indices; what is illegal.

PTX ISA 9.1, 5.5.4; CUDA driver API, cuTensorMapEncodeIm2col.
"""

import functools
import itertools

import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_hopper.errors import VerifyError
from tvm_hopper.sim.launch.im2col import check_im2col
from tvm_hopper.sim.launch.tma import TensorMapArg
from tvm_hopper.simulation import simulate, verify

from . import ptx
from .kernels import lower

ENCODE = "runtime.cuTensorMapEncodeIm2col"


@functools.cache
def program(
    dims=(8, 7, 6, 2), lower_corner=(-1, -1), upper=(-1, -1), pixels=64, channels=8, stride=1,
    start=(0, -1, -1, 0), offsets=(0, 0), fill=0, store=False, mode="im2col", swizzle=0, wait=True,
    reduce=False, expected=0, channels_first=None,
):  # fmt: skip
    """Load one column of pixels and store the bytes as they lie, or store a column."""
    rank, count, flat = len(dims), channels * pixels, int(np.prod(dims))
    strides = [int(np.prod(dims[:i])) * 4 for i in range(1, rank)]
    steps = [1, *[stride] * (rank - 2), 1]
    load = (
        f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.{mode}.mbarrier::complete_tx::bytes"
    )
    if mode == "tile":
        load = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
    save = f"cp.async.bulk.tensor.{rank}d.global.shared::cta.im2col_no_offs.bulk_group"
    if reduce:
        save = (
            f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.add.im2col_no_offs.bulk_group"
        )
    more = [] if mode == "tile" else [T.uint16(o) for o in offsets]
    num_bytes = expected or count * 4

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((flat,), "float32"), C: T.Buffer((count,), "float32"),
        B: T.Buffer((flat,), "float32"),
    ):  # fmt: skip
        T.func_attr({"global_symbol": "main"})
        a_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed(
            ENCODE, a_map, "float32", rank, A.data, *dims, *strides, *lower_corner, *upper,
            channels, pixels, *steps, 0, swizzle, 2, fill,
        )  # fmt: skip
        b_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed(
            ENCODE, b_map, "float32", rank, B.data, *dims, *strides, *lower_corner, *upper,
            channels, pixels, *steps, 0, swizzle, 2, fill,
        )  # fmt: skip
        T.launch_thread("blockIdx.x", 1)
        tx = T.launch_thread("threadIdx.x", 128)
        with T.attr(T.int32(0), "hand_threaded", 1):
            smem = T.alloc_buffer((count * 4 + 1024,), "uint8", scope="shared.dyn", align=1024)
            tile = T.decl_buffer((count + 256,), "float32", data=smem.data, scope="shared.dyn")
            bar = T.decl_buffer((count // 2 + 128,), "uint64", data=smem.data, scope="shared.dyn")
            ptx.set_up(tx, (bar[count // 2], 1), sync=T.cuda.cta_sync)
            if tx == 0:
                ptx.expect_bytes(bar[count // 2], num_bytes)
                T.ptx[load](
                    T.address_of(tile[0]), T.address_of(a_map), *start,
                    T.address_of(bar[count // 2]), *more,
                )  # fmt: skip
            if wait:
                T.cuda.mbarrier_wait(T.address_of(bar[count // 2]), 0)
            for i in T.serial((count + 127) // 128):
                if i * 128 + tx < count:
                    C[i * 128 + tx] = tile[i * 128 + tx]
            if store and tx == 0:
                T.ptx[save](T.address_of(b_map), *start, T.address_of(tile[0]))
                T.ptx.cp.async_.bulk.commit_group()
                T.ptx["cp.async.bulk.wait_group"](0)

    return lower(main)


def convolution(image, filter_size, pad, stride, dilation):
    """Return for each output pixel and filter tap the channels that it reads; zero outside.

    The image is (batch, *spatial, channels); so is the result, with (*taps,) behind the pixels.
    """
    batch, *spatial, channels = image.shape
    outputs = [(n + 2 * pad - dilation * (filter_size - 1) - 1) // stride + 1 for n in spatial]
    taps = [filter_size] * len(spatial)
    found = np.zeros((batch, *outputs, *taps, channels), image.dtype)
    for n in range(batch):
        for out in itertools.product(*map(range, outputs)):
            for tap in itertools.product(*map(range, taps)):
                at = [o * stride - pad + t * dilation for o, t in zip(out, tap, strict=True)]
                if all(0 <= a < s for a, s in zip(at, spatial, strict=True)):
                    found[(n, *out, *tap)] = image[(n, *at)]
    return found


@pytest.mark.parametrize("policy", ["eager", "random"])
@pytest.mark.parametrize(
    ("spatial", "batch", "filter_size", "pad", "stride", "dilation"),
    [
        ((9,), 3, 3, 1, 1, 1),
        ((9,), 3, 3, 1, 2, 1),
        ((6, 7), 2, 3, 1, 1, 1),
        ((6, 7), 2, 3, 0, 1, 1),
        ((6, 7), 2, 3, 2, 2, 2),
        ((8, 5), 2, 2, 0, 2, 1),
        ((4, 5, 6), 2, 3, 1, 1, 1),
        ((5, 4, 6), 2, 2, 1, 2, 1),
    ],
)
def test_a_column_is_what_a_convolution_reads(
    spatial, batch, filter_size, pad, stride, dilation, policy
):
    channels = 8
    image = np.arange(1, 1 + batch * np.prod(spatial) * channels).astype("float32")
    image = image.reshape(batch, *spatial, channels)
    wanted = convolution(image, filter_size, pad, stride, dilation)
    rank = len(spatial)
    pixels_of = wanted.reshape(-1, *[filter_size] * rank, channels)
    tap = (filter_size - 1,) * (rank - 1) + (filter_size // 2,)  # innermost last, as in numpy
    upper = pad - dilation * (filter_size - 1)
    first = 2  # of the pixels
    position = np.unravel_index(first, wanted.shape[: rank + 1])
    corner = [int(p) * stride - pad for p in position[1:]]
    run = program(
        dims=(channels, *reversed(spatial), batch),
        lower_corner=(-pad,) * rank,
        upper=(upper,) * rank,
        pixels=len(pixels_of),
        stride=stride,
        start=(0, *reversed(corner), int(position[0])),
        offsets=tuple(t * dilation for t in reversed(tap)),
    )
    result = simulate(run, {"A": image.ravel(), "B": image.ravel()}, policy, 1).require_clean()
    found = result.outputs["C"].reshape(-1, channels)
    assert np.array_equal(found[: len(pixels_of) - first], pixels_of[(slice(first, None), *tap)])
    assert not found[len(pixels_of) - first :].any()  # behind the last image


A = np.arange(1, 1 + 8 * 7 * 6 * 2, dtype="float32")
GIVEN = {"A": A, "B": np.zeros_like(A)}


def test_what_lies_outside_may_be_nan_and_channels_end():
    found = simulate(program(fill=1), GIVEN).require_clean().outputs["C"].reshape(64, 8)
    assert np.isnan(found[0]).all()
    assert not np.isnan(found[8]).any()
    late = simulate(program(start=(4, 0, 0, 0)), GIVEN).require_clean().outputs["C"].reshape(64, 8)
    assert np.array_equal(late[0], [5, 6, 7, 8, 0, 0, 0, 0])


def test_a_column_is_swizzled():
    plain = simulate(program(), GIVEN).outputs["C"].reshape(-1, 4)
    moved = simulate(program(swizzle=1), GIVEN).require_clean().outputs["C"].reshape(-1, 4)
    chunk = np.arange(len(plain))
    assert np.array_equal(moved[chunk ^ (chunk // 8 & 1)], plain)


@pytest.mark.parametrize("reduce", [False, True])
def test_a_column_is_stored_where_it_came_from(reduce):
    run = program(store=True, pixels=32, start=(0, 0, 0, 0), reduce=reduce)
    given = {"A": A, "B": np.ones_like(A)}
    found = simulate(run, given, "random", 2).require_clean().outputs["B"].reshape(2, 6, 7, 8)
    image = A.reshape(2, 6, 7, 8)
    expected = np.ones_like(image)
    pixels = [p for p in np.ndindex(2, 6, 7) if p[1] < 5 and p[2] < 6]  # the box: upper corner -1
    corners = [(n, h, w) for n in range(2) for h in range(-1, 5) for w in range(-1, 6)]
    corners = corners[corners.index((0, 0, 0)) :][:32]
    for place in corners:
        if place in pixels:
            expected[place] = image[place] + (1 if reduce else 0)
    assert np.array_equal(found, expected)


def test_the_whole_verdict_is_clean():
    verify(program(store=True), GIVEN).require_clean()


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"wait": False}, "RACE_READ_INFLIGHT"),
        ({"expected": 1024}, "MBAR_TX_MISMATCH"),
        ({"mode": "tile"}, "ILLEGAL_OPERAND"),
        ({"start": (0, -2, -1, 0)}, "ILLEGAL_OPERAND"),
        ({"start": (0, 6, -1, 0)}, "ILLEGAL_OPERAND"),
        ({"offsets": (0, 256)}, "ILLEGAL_OPERAND"),
        ({"start": (2, -1, -1, 0)}, "MISALIGNED"),
    ],
)
def test_what_is_wrong_with_a_copy_is_named(options, rule):
    assert rule in simulate(program(**options), GIVEN, "lifo").rules


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"lower_corner": (-129, 0)}, "lower corner (-129, 0); need -128 to 127"),
        ({"upper": (0, 128)}, "upper corner (0, 128); need -128 to 127"),
        ({"upper": (-9, 0)}, "found an empty bounding box"),
        ({"pixels": 1025}, "found 1025 pixels a column; need 1 to 1024"),
        ({"channels": 260}, "found 260 channels a pixel; need 1 to 256"),
        ({"channels": 2}, "found an inner box of 8 bytes"),
        ({"channels": 16, "swizzle": 1}, "need at most 32 bytes"),
        ({"stride": 9}, "found element stride 1 of 9"),
    ],
)
def test_what_the_driver_refuses_is_a_finding(options, text):
    (found,) = verify(program(**options), GIVEN).findings
    assert found.rule == "TENSOR_MAP"
    assert text in found.message
    with pytest.raises(VerifyError, match="tensor map of A"):
        simulate(program(**options), GIVEN)


def test_a_map_of_another_rank_is_refused():
    flat = TensorMapArg("A", "float32", (8, 8), (32,), (8, 8), lower=(0,), upper=(0,))
    assert check_im2col(flat) == ["found rank 2; need 3 to 5"]
