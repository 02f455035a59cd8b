"""SwizzleSharedTiles: each tile gets the layout that all of its writers and readers accept."""

import pytest

from tests.transforms.scripts import check, parse, run
from tvm_hopper import ir
from tvm_hopper.transforms.layouts.swizzle_shared_tiles import SwizzleSharedTiles

before = parse("""
def before(A: T.Buffer((64, 256), "float16"), C: T.Buffer((8, 128), "float16")):
    for bx in T.thread_binding(2, thread="blockIdx.x"):
        with T.sblock("kernel"):
            tile = T.sblock_alloc_buffer((8, 128), "float16", scope="shared.dyn")
            for i, j in T.grid(8, 128):
                with T.sblock("copy", async_copy="tma"):
                    tile[i, j] = A[bx * 8 + i, j + 64]
            with T.sblock("product", reads=[tile[0:8, 64:128]], writes=[C[0:8, 0:128]], wgmma=1):
                for i, j in T.grid(8, 64):
                    C[i, j] = tile[i, j + 64]
            with T.sblock("use", reads=[tile[0:8, 64:128]], writes=[C[0:8, 0:128]]):
                for i, j in T.grid(8, 128):
                    C[i, j] = tile[i, j]
""")


after = parse("""
def after(A: T.Buffer((64, 256), "float16"), C: T.Buffer((8, 128), "float16")):
    for bx in T.thread_binding(2, thread="blockIdx.x"):
        with T.sblock("kernel"):
            tile = T.sblock_alloc_buffer((2, 8, 64), "float16", scope="shared.dyn", align=1024)
            for p, r, s in T.grid(2, 8, 64):
                with T.sblock("copy", async_copy="tma", swizzle=128):
                    tile[p, r, s] = A[bx * 8 + r, p * 64 + s + 64]
            with T.sblock("product", reads=[tile[1, 0:8, 0:64]], writes=[C[0:8, 0:128]], wgmma=1):
                for i, j in T.grid(8, 64):
                    C[i, j] = tile[1, i, j]
            with T.sblock("use", reads=[tile[1, 0:8, 0:64]], writes=[C[0:8, 0:128]]):
                for i, j in T.grid(8, 128):
                    C[i, j] = tile[j // 64, i, j % 64]
""")


def test_tile_its_copy_its_readers_and_their_regions_become_panels():
    check(run(before, SwizzleSharedTiles()), after)


COPY = """
def func(A: T.Buffer((ROWS, COLUMNS), "DTYPE"), C: T.Buffer((ROWS, COLUMNS), "DTYPE")):
    for _bx in T.thread_binding(1, thread="blockIdx.x"):
        with T.sblock("kernel"):
            tile = T.sblock_alloc_buffer((ROWS, COLUMNS), "DTYPE", scope="shared.dyn")
            for i, j in T.grid(ROWS, COLUMNS):
                with T.sblock("copy", reads=[A[i, j]], writes=[tile[i, j]], async_copy="tma"ASKED):
                    tile[i, j] = A[i, j]
READER
"""
PLAIN = """
            for t in T.thread_binding(128, thread="threadIdx.x"):
                C[t // COLUMNS, t % COLUMNS] = tile[t // COLUMNS, t % COLUMNS]
"""
PRODUCT = """
            with T.sblock("product", reads=[tile[0:ROWS, 0:COLUMNS]], writes=[], wgmma=1):
                T.evaluate(0)
"""


def tile_of(rows, columns, asked="", reader=PRODUCT, dtype="float16", mechanism="tma"):
    """Return the swizzle, the shape and the alignment that a tile gets."""
    asked = f", swizzle={asked}" if asked != "" else ""
    text = COPY.replace("READER", reader).replace("ASKED", asked).replace("DTYPE", dtype)
    text = (
        text.replace('"tma"', f'"{mechanism}"')
        .replace("ROWS", str(rows))
        .replace("COLUMNS", str(columns))
    )
    got = run(parse(text), SwizzleSharedTiles())
    (block,) = ir.find_blocks(got.body, "tvm_hopper.async_copy")
    tile = block.body.buffer
    shape = tuple(int(x) for x in tile.shape)
    return int(block.annotations["tvm_hopper.swizzle"]), shape, int(tile.ty.data_alignment)


@pytest.mark.parametrize(
    ("columns", "asked", "swizzle", "shape", "align"),
    [
        # rows of 128 B and its multiples take the widest pattern, others what divides them
        (64, "", 128, (1, 8, 64), 1024),
        (192, "", 128, (3, 8, 64), 1024),
        (96, "", 64, (3, 8, 32), 512),
        (16, "", 32, (1, 8, 16), 256),
        (8, "", 0, (1, 8, 8), 128),
        (24, "", 0, (3, 8, 8), 128),
        # asked for on the copy
        (64, 32, 32, (4, 8, 16), 256),
        (64, 0, 0, (8, 8, 8), 128),
    ],
)
def test_panels_for_a_product(columns, asked, swizzle, shape, align):
    assert tile_of(8, columns, asked) == (swizzle, shape, align)


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "asked", "swizzle", "shape", "align"),
    [
        (8, 64, "float16", "", 0, (1, 8, 64), 128),
        (8, 256, "float32", "", 0, (1, 8, 256), 128),
        (8, 512, "float16", "", 0, (2, 8, 256), 128),  # a box holds 256 elements
        (8, 264, "float16", "", 0, (3, 8, 88), 128),  # two halves would begin within 16 bytes
        (3, 96, "float32", "", 0, (1, 3, 96), 128),  # any number of rows
        (1, 2048, "float32", "", 0, (8, 1, 256), 128),
        (1, 384, "float16", "", 0, (2, 1, 192), 128),
        (8, 64, "float16", 0, 0, (1, 8, 64), 128),
        (8, 64, "float16", 32, 32, (4, 8, 16), 256),
        (8, 64, "float32", 128, 128, (2, 8, 32), 1024),
        (4, 64, "float16", 64, 64, (2, 4, 32), 512),
    ],
)
def test_rows_for_plain_loops(rows, columns, dtype, asked, swizzle, shape, align):
    assert tile_of(rows, columns, asked, PLAIN, dtype) == (swizzle, shape, align)


def test_dimensions_of_one_are_dropped():
    func = parse("""
    def func(A: T.Buffer((2, 8, 64), "float16"), C: T.Buffer((8, 64), "float16")):
        for b in T.thread_binding(2, thread="blockIdx.x"):
            with T.sblock("kernel"):
                tile = T.sblock_alloc_buffer((1, 8, 64), "float16", scope="shared.dyn")
                for u, i, j in T.grid(1, 8, 64):
                    with T.sblock("copy", async_copy="tma"):
                        tile[u, i, j] = A[b, i, j]
                C[0, 0] = tile[0, 1, 2]
    """)

    want = parse("""
    def want(A: T.Buffer((2, 8, 64), "float16"), C: T.Buffer((8, 64), "float16")):
        for b in T.thread_binding(2, thread="blockIdx.x"):
            with T.sblock("kernel"):
                tile = T.sblock_alloc_buffer((1, 8, 64), "float16", scope="shared.dyn", align=128)
                for p, r, s in T.grid(1, 8, 64):
                    with T.sblock("copy", async_copy="tma", swizzle=0):
                        tile[p, r, s] = A[b, r, p * 64 + s]
                C[0, 0] = tile[0, 1, 2]
    """)

    check(run(func, SwizzleSharedTiles()), want)


def test_bounds_of_a_padded_load_move_along():
    func = parse("""
    def func(A: T.Buffer((7, 100), "float16")):
        for _bx in T.thread_binding(1, thread="blockIdx.x"):
            with T.sblock("kernel"):
                tile = T.sblock_alloc_buffer((8, 128), "float16", scope="shared.dyn")
                for i, j in T.grid(8, 128):
                    with T.sblock("copy", async_copy="tma"):
                        tile[i, j] = T.if_then_else(i < 7 and j < 100, A[i, j], T.float16(0))
    """)

    want = parse("""
    def want(A: T.Buffer((7, 100), "float16")):
        for _bx in T.thread_binding(1, thread="blockIdx.x"):
            with T.sblock("kernel"):
                tile = T.sblock_alloc_buffer((1, 8, 128), "float16", scope="shared.dyn", align=128)
                for p, r, s in T.grid(1, 8, 128):
                    with T.sblock("copy", async_copy="tma", swizzle=0):
                        tile[p, r, s] = T.if_then_else(r < 7 and p * 128 + s < 100,
                            A[r, p * 128 + s], T.float16(0))
    """)

    check(run(func, SwizzleSharedTiles()), want)


def test_a_predicate_on_the_store_becomes_bounds_of_the_load():
    """Elements that the store leaves out hold nothing: TMA may fill them."""
    text = """
def func(A: T.Buffer((7, 100), "float16")):
    for _bx in T.thread_binding(1, thread="blockIdx.x"):
        with T.sblock("kernel", reads=[], writes=[]):
            tile = T.sblock_alloc_buffer((7, 128), "float16", scope="shared.dyn")
            for i, j in T.grid(8, 128):
                with T.sblock("copy", where=i < 7 and j < 100, async_copy="tma"):
                    tile[i, j] = A[i, j]
"""

    want = parse("""
    def want(A: T.Buffer((7, 100), "float16")):
        for _bx in T.thread_binding(1, thread="blockIdx.x"):
            with T.sblock("kernel", reads=[], writes=[]):
                # compaction had cut the tile to the rows that are stored
                tile = T.sblock_alloc_buffer((1, 8, 128), "float16", scope="shared.dyn", align=128)
                for p, r, s in T.grid(1, 8, 128):
                    with T.sblock("copy", async_copy="tma", swizzle=0):
                        tile[p, r, s] = T.if_then_else(r < 7 and p * 128 + s < 100,
                            A[r, p * 128 + s], T.float16(0))
    """)

    check(run(parse(text), SwizzleSharedTiles()), want)
    padded = text.replace("= A[i, j]", "= T.if_then_else(j < 90, A[i, j], T.float16(1))")
    (block,) = ir.find_blocks(
        run(parse(padded), SwizzleSharedTiles()).body, "tvm_hopper.async_copy"
    )
    bounds = "r < 7 and p * 128 + s < 100 and p * 128 + s < 90"
    assert str(block.body.value) == (f"T.if_then_else({bounds}, A[r, p * 128 + s], T.float16(1.0))")


def test_leading_dimensions_become_rows():
    func = parse("""
    def func(A: T.Buffer((4, 16, 64), "float16"), C: T.Buffer((4, 64), "float16")):
        for bx in T.thread_binding(2, thread="blockIdx.x"):
            with T.sblock("kernel", reads=[], writes=[]):
                tile = T.sblock_alloc_buffer((4, 8, 64), "float16", scope="shared.dyn")
                for b, i, j in T.grid(4, 8, 64):
                    with T.sblock("copy", async_copy="tma"):
                        tile[b, i, j] = A[b, bx * 8 + i, j]
                with T.sblock("use", reads=[tile[0:4, 0:8, 0:64], tile[3, 2:6, 0:64]], writes=[]):
                    for b, j in T.grid(4, 64):
                        C[b, j] = tile[b, 5, j]
    """)

    want = parse("""
    def want(A: T.Buffer((4, 16, 64), "float16"), C: T.Buffer((4, 64), "float16")):
        for bx in T.thread_binding(2, thread="blockIdx.x"):
            with T.sblock("kernel", reads=[], writes=[]):
                tile = T.sblock_alloc_buffer((1, 32, 64), "float16", scope="shared.dyn", align=128)
                for p, r0, r1, s in T.grid(1, 4, 8, 64):
                    with T.sblock("copy", async_copy="tma", swizzle=0):
                        tile[p, r0 * 8 + r1, s] = A[r0, bx * 8 + r1, p * 64 + s]
                with T.sblock("use", reads=[tile[0, 0:32, 0:64], tile[0, 26:30, 0:64]], writes=[]):
                    for b, j in T.grid(4, 64):
                        C[b, j] = tile[0, b * 8 + 5, j]
    """)

    check(run(func, SwizzleSharedTiles()), want)


def test_one_dimension_becomes_panels_of_one_row():
    func = parse("""
    def func(A: T.Buffer((4096,), "float32"), C: T.Buffer((4096,), "float32")):
        for bx in T.thread_binding(8, thread="blockIdx.x"):
            for t in T.thread_binding(128, thread="threadIdx.x"):
                with T.sblock("kernel", reads=[], writes=[]):
                    tile = T.sblock_alloc_buffer((512,), "float32", scope="shared.dyn")
                    for i in range(512):
                        with T.sblock("copy", async_copy="tma"):
                            tile[i] = A[bx * 512 + i]
                    for v in T.vectorized(4):
                        with T.sblock("use"):
                            C[bx * 512 + t * 4 + v] = tile[t * 4 + v] * T.float32(2)
    """)

    want = parse("""
    def want(A: T.Buffer((4096,), "float32"), C: T.Buffer((4096,), "float32")):
        for bx in T.thread_binding(8, thread="blockIdx.x"):
            for t in T.thread_binding(128, thread="threadIdx.x"):
                with T.sblock("kernel", reads=[], writes=[]):
                    tile = T.sblock_alloc_buffer((2, 1, 256), scope="shared.dyn", align=128)
                    for p, r, s in T.grid(2, 1, 256):
                        with T.sblock("copy", async_copy="tma", swizzle=0):
                            tile[p, r, s] = A[bx * 512 + (p * 256 + s)]
                    for v in T.vectorized(4):
                        with T.sblock("use", reads=[tile[0:2, 0, 0:256]],
                            writes=[C[bx * 512 + t * 4 + v]]):
                            C[bx * 512 + t * 4 + v] = tile[t // 64, 0,
                                t % 64 * 4 + v] * T.float32(2)
    """)

    check(run(func, SwizzleSharedTiles()), want)


def test_a_kernel_without_our_copies_stays():
    two = parse("""
    def two(A: T.Buffer((8, 64), "float16"), B: T.Buffer((8, 64), "float16")):
        for _bx in T.thread_binding(1, thread="blockIdx.x"):
            with T.sblock("ours"):
                tile = T.sblock_alloc_buffer((8, 64), "float16", scope="shared.dyn")
                for i, j in T.grid(8, 64):
                    with T.sblock("copy", async_copy="tma"):
                        tile[i, j] = A[i, j]
        for _bx in T.thread_binding(1, thread="blockIdx.x"):
            with T.sblock("other"):
                plain = T.sblock_alloc_buffer((8, 64), "float16", scope="shared.dyn")
                for i, j in T.grid(8, 64):
                    with T.sblock("copy"):
                        plain[i, j] = B[i, j]
    """)

    got = run(two, SwizzleSharedTiles())
    ours, other = ir.kernels(got)
    assert other.same_as(ir.kernels(two)[1])
    (block,) = ir.find_blocks(ours, "tvm_hopper.async_copy")
    assert tuple(int(x) for x in block.body.buffer.shape) == (1, 8, 64)


def test_columns_that_warp_groups_share_are_no_wider_than_their_parts():
    """A panel of 64 columns could not be read from column 32 on."""
    func = parse("""
    def func(A: T.Buffer((16, 64), "float16")):
        for _bx in T.thread_binding(1, thread="blockIdx.x"):
            for w in T.thread_binding(2, thread="threadIdx.y"):
                with T.sblock("kernel"):
                    tile = T.sblock_alloc_buffer((16, 64), "float16", scope="shared.dyn")
                    for i, j in T.grid(16, 64):
                        with T.sblock("copy", async_copy="tma"):
                            tile[i, j] = A[i, j]
                    with T.sblock("update", reads=[tile[0:16, w * 32 : w * 32 + 32]], writes=[],
                        wgmma=1):
                        T.evaluate(0)
    """)

    got = run(func, SwizzleSharedTiles())
    (block,) = ir.find_blocks(got.body, "tvm_hopper.async_copy")
    assert int(block.annotations["tvm_hopper.swizzle"]) == 64
    assert tuple(int(x) for x in block.body.buffer.shape) == (2, 16, 32)


STORE = """
def func(A: T.Buffer((64, 512), "float16"), n: T.int32):
    for bx in T.thread_binding(8, thread="blockIdx.x"):
        with T.sblock("kernel", reads=[], writes=[]):
            tile = T.sblock_alloc_buffer((8, 512), "float16", scope="shared.dyn")
            for i, j in T.grid(8, 512):
                with T.sblock("store", where=bx * 8 + i < n, async_copy="tma"):
                    A[bx * 8 + i, j] = tile[i, j]
"""


def test_a_copy_out_of_a_tile_keeps_its_predicate():
    check(
        run(parse(STORE), SwizzleSharedTiles()),
        parse(
            STORE,
            ('(8, 512), "float16", scope="shared.dyn"',
             '(2, 8, 256), "float16", scope="shared.dyn", align=128'),
            ("for i, j in T.grid(8, 512):", "for p, i, j in T.grid(2, 8, 256):"),
            ('"tma"', '"tma", swizzle=0'),
            ("tile[i, j]", "tile[p, i, j]"),
            ("A[bx * 8 + i, j]", "A[bx * 8 + i, p * 256 + j]"),
        ),
    )  # fmt: skip


POINTED = """
def func(A: T.Buffer((8, 128), "float16")):
    for bx in T.thread_binding(2, thread="blockIdx.x"):
        with T.sblock("kernel"):
            tile = T.sblock_alloc_buffer(SHAPE, "float16", scope="shared.dyn"ALIGN)
            for LOOPS:
                with T.sblock("copy", reads=[A[i, j]], writes=[tile[AT]], async_copy="tma"SWIZZLE):
                    tile[AT] = A[i, j]
            T.call_extern("int32", "use",
                T.tvm_access_ptr(T.type_annotation("float16"), tile.data, bx * 64, 512, 1),
                tile.data)
"""


def test_pointers_stay_where_they_were():
    """The tile lies as it was declared, so that offsets keep their meaning."""
    before = POINTED.replace("AT]", "i, j]").replace("LOOPS", "i, j in T.grid(8, 128)")
    before = before.replace("SHAPE", "(8, 128)").replace("ALIGN", "").replace("SWIZZLE", "")
    after = POINTED.replace("AT]", "0, i, j]").replace("LOOPS", "p, i, j in T.grid(1, 8, 128)")
    after = after.replace("SHAPE", "(1, 8, 128)").replace("ALIGN", ", align=128")
    after = after.replace("SWIZZLE", ", swizzle=0").replace("A[i, j]", "A[i, p * 128 + j]")
    after = after.replace("tile[0, i, j]", "tile[p, i, j]")
    check(run(parse(before), SwizzleSharedTiles()), parse(after))
