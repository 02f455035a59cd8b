"""LayoutShared: tiles become panels of one swizzle span, in every place that touches them."""

import pytest
from tvm.script import tirx as T

from tests.transforms.scripts import check, run
from tvm_hopper import ir
from tvm_hopper.transforms.layout_shared import LayoutShared, plan_panels


@T.prim_func(private=True, s_tir=True)
def before(A: T.Buffer((64, 256), "float16"), C: T.Buffer((8, 128), "float16")):
    for bx in T.thread_binding(2, thread="blockIdx.x"):
        with T.sblock("kernel"):
            T.reads(A[bx * 8 : bx * 8 + 8, 64:192])
            T.writes(C[0:8, 0:128])
            tile = T.sblock_alloc_buffer((8, 128), "float16", scope="shared.dyn")
            for i, j in T.grid(8, 128):
                with T.sblock("copy"):
                    T.reads(A[bx * 8 + i, j + 64])
                    T.writes(tile[i, j])
                    T.sblock_attr({"tvm_hopper.async_copy": "tma"})
                    tile[i, j] = A[bx * 8 + i, j + 64]
            with T.sblock("use"):
                T.reads(tile[0:8, 64:128])
                T.writes(C[0:8, 0:128])
                for i, j in T.grid(8, 128):
                    C[i, j] = tile[i, j]


@T.prim_func(private=True, s_tir=True)
def after(A: T.Buffer((64, 256), "float16"), C: T.Buffer((8, 128), "float16")):
    for bx in T.thread_binding(2, thread="blockIdx.x"):
        with T.sblock("kernel"):
            T.reads(A[bx * 8 : bx * 8 + 8, 64:192])
            T.writes(C[0:8, 0:128])
            tile = T.sblock_alloc_buffer((2, 8, 64), "float16", scope="shared.dyn", align=1024)
            for p, r, s in T.grid(2, 8, 64):
                with T.sblock("copy"):
                    T.reads(A[bx * 8 + r, p * 64 + s + 64])
                    T.writes(tile[p, r, s])
                    T.sblock_attr({"tvm_hopper.async_copy": "tma", "tvm_hopper.swizzle": 128})
                    tile[p, r, s] = A[bx * 8 + r, p * 64 + s + 64]
            with T.sblock("use"):
                T.reads(tile[1, 0:8, 0:64])
                T.writes(C[0:8, 0:128])
                for i, j in T.grid(8, 128):
                    C[i, j] = tile[j // 64, i, j % 64]


def test_tile_its_copy_its_reader_and_their_regions_become_panels():
    check(run(before, LayoutShared()), after)


def test_again_finds_nothing():
    got = run(before, LayoutShared())
    (kernel,) = ir.kernels(got)
    assert plan_panels(kernel) == ()
    check(run(got, LayoutShared()), after)


def copy_of(columns, asked):
    notes = {"tvm_hopper.async_copy": "tma", **asked}

    @T.prim_func(private=True, s_tir=True)
    def func(A: T.Buffer((8, columns), "float16")):
        for _bx in T.thread_binding(1, thread="blockIdx.x"):
            with T.sblock("kernel"):
                tile = T.sblock_alloc_buffer((8, columns), "float16", scope="shared.dyn")
                for i, j in T.grid(8, columns):
                    with T.sblock("copy"):
                        T.reads(A[i, j])
                        T.writes(tile[i, j])
                        T.sblock_attr(notes)
                        tile[i, j] = A[i, j]

    return func


@pytest.mark.parametrize(
    ("columns", "asked", "swizzle", "shape", "align"),
    [
        # rows of 128 B and its multiples take the widest pattern, others what divides them
        (64, {}, 128, (1, 8, 64), 1024),
        (192, {}, 128, (3, 8, 64), 1024),
        (96, {}, 64, (3, 8, 32), 512),
        (16, {}, 32, (1, 8, 16), 256),
        (8, {}, 0, (1, 8, 8), 128),
        (24, {}, 0, (3, 8, 8), 128),
        # asked for on the copy
        (64, {"tvm_hopper.swizzle": 32}, 32, (4, 8, 16), 256),
        (64, {"tvm_hopper.swizzle": 0}, 0, (8, 8, 8), 128),
    ],
)
def test_swizzle_and_panels(columns, asked, swizzle, shape, align):
    got = run(copy_of(columns, asked), LayoutShared())
    (block,) = ir.find_blocks(got.body, "tvm_hopper.async_copy")
    assert int(block.annotations["tvm_hopper.swizzle"]) == swizzle
    tile = block.body.buffer
    assert tuple(int(x) for x in tile.shape) == shape
    assert int(tile.ty.data_alignment) == align


def test_dimensions_of_one_are_dropped():
    @T.prim_func(private=True, s_tir=True)
    def func(A: T.Buffer((2, 8, 64), "float16"), C: T.Buffer((8, 64), "float16")):
        for b in T.thread_binding(2, thread="blockIdx.x"):
            with T.sblock("kernel"):
                tile = T.sblock_alloc_buffer((1, 8, 64), "float16", scope="shared.dyn")
                for u, i, j in T.grid(1, 8, 64):
                    with T.sblock("copy"):
                        T.reads(A[b, i, j])
                        T.writes(tile[u, i, j])
                        T.sblock_attr({"tvm_hopper.async_copy": "tma"})
                        tile[u, i, j] = A[b, i, j]
                C[0, 0] = tile[0, 1, 2]

    @T.prim_func(private=True, s_tir=True)
    def want(A: T.Buffer((2, 8, 64), "float16"), C: T.Buffer((8, 64), "float16")):
        for b in T.thread_binding(2, thread="blockIdx.x"):
            with T.sblock("kernel"):
                tile = T.sblock_alloc_buffer((1, 8, 64), "float16", scope="shared.dyn", align=1024)
                for p, r, s in T.grid(1, 8, 64):
                    with T.sblock("copy"):
                        T.reads(A[b, r, p * 64 + s])
                        T.writes(tile[p, r, s])
                        T.sblock_attr({"tvm_hopper.async_copy": "tma", "tvm_hopper.swizzle": 128})
                        tile[p, r, s] = A[b, r, p * 64 + s]
                C[0, 0] = tile[0, 1, 2]

    check(run(func, LayoutShared()), want)


def test_bounds_of_a_padded_load_move_along():
    @T.prim_func(private=True, s_tir=True)
    def func(A: T.Buffer((7, 100), "float16")):
        for _bx in T.thread_binding(1, thread="blockIdx.x"):
            with T.sblock("kernel"):
                tile = T.sblock_alloc_buffer((8, 128), "float16", scope="shared.dyn")
                for i, j in T.grid(8, 128):
                    with T.sblock("copy"):
                        T.reads(A[i, j])
                        T.writes(tile[i, j])
                        T.sblock_attr({"tvm_hopper.async_copy": "tma"})
                        tile[i, j] = T.if_then_else(i < 7 and j < 100, A[i, j], T.float16(0))

    @T.prim_func(private=True, s_tir=True)
    def want(A: T.Buffer((7, 100), "float16")):
        for _bx in T.thread_binding(1, thread="blockIdx.x"):
            with T.sblock("kernel"):
                tile = T.sblock_alloc_buffer((2, 8, 64), "float16", scope="shared.dyn", align=1024)
                for p, r, s in T.grid(2, 8, 64):
                    with T.sblock("copy"):
                        T.reads(A[r, p * 64 + s])
                        T.writes(tile[p, r, s])
                        T.sblock_attr({"tvm_hopper.async_copy": "tma", "tvm_hopper.swizzle": 128})
                        tile[p, r, s] = T.if_then_else(
                            r < 7 and p * 64 + s < 100, A[r, p * 64 + s], T.float16(0)
                        )

    check(run(func, LayoutShared()), want)


def test_a_kernel_without_our_copies_stays():
    @T.prim_func(private=True, s_tir=True)
    def two(A: T.Buffer((8, 64), "float16"), B: T.Buffer((8, 64), "float16")):
        for _bx in T.thread_binding(1, thread="blockIdx.x"):
            with T.sblock("ours"):
                tile = T.sblock_alloc_buffer((8, 64), "float16", scope="shared.dyn")
                for i, j in T.grid(8, 64):
                    with T.sblock("copy"):
                        T.reads(A[i, j])
                        T.writes(tile[i, j])
                        T.sblock_attr({"tvm_hopper.async_copy": "tma"})
                        tile[i, j] = A[i, j]
        for _bx in T.thread_binding(1, thread="blockIdx.x"):
            with T.sblock("other"):
                plain = T.sblock_alloc_buffer((8, 64), "float16", scope="shared.dyn")
                for i, j in T.grid(8, 64):
                    with T.sblock("copy"):
                        plain[i, j] = B[i, j]

    got = run(two, LayoutShared())
    ours, other = ir.kernels(got)
    assert other.same_as(ir.kernels(two)[1])
    (block,) = ir.find_blocks(ours, "tvm_hopper.async_copy")
    assert tuple(int(x) for x in block.body.buffer.shape) == (1, 8, 64)


def test_columns_that_warp_groups_share_are_no_wider_than_their_parts():
    """A panel of 64 columns could not be read from column 32 on."""

    @T.prim_func(private=True, s_tir=True)
    def func(A: T.Buffer((16, 64), "float16")):
        for _bx in T.thread_binding(1, thread="blockIdx.x"):
            for w in T.thread_binding(2, thread="threadIdx.y"):
                with T.sblock("kernel"):
                    tile = T.sblock_alloc_buffer((16, 64), "float16", scope="shared.dyn")
                    for i, j in T.grid(16, 64):
                        with T.sblock("copy"):
                            T.sblock_attr({"tvm_hopper.async_copy": "tma"})
                            tile[i, j] = A[i, j]
                    with T.sblock("update"):
                        T.reads(tile[0:16, w * 32 : w * 32 + 32])
                        T.writes()
                        T.sblock_attr({"tvm_hopper.wgmma": 1})
                        T.evaluate(0)

    got = run(func, LayoutShared())
    (block,) = ir.find_blocks(got.body, "tvm_hopper.async_copy")
    assert int(block.annotations["tvm_hopper.swizzle"]) == 64
    assert tuple(int(x) for x in block.body.buffer.shape) == (2, 16, 32)
