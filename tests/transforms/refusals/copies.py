"""What SwizzleSharedTiles and LowerAsyncCopies refuse."""

from tests.transforms.refusals.case import case, on, rows
from tests.transforms.scripts import deeper, nest
from tvm_hopper.transforms import LowerAsyncCopies, SwizzleSharedTiles

COPY = """
def func(A: T.Buffer((64, 128), "float16"), n: T.int32):
    for bx in T.thread_binding(4, thread="blockIdx.x"):
        with T.sblock("kernel"):
            other = T.sblock_alloc_buffer((8, 64), "float16", scope="local")
            tile = T.sblock_alloc_buffer((8, 64), "float16", scope="shared.dyn")
            for i, j in T.grid(8, 64):
                with T.sblock("copy", reads=[], writes=[], async_copy="tma"):
                    tile[i, j] = A[bx * 8 + i, j]
"""

PRODUCT = """
            with T.sblock("update", reads=[tile[0:8, 0:64]], writes=[], wgmma=1):
                T.evaluate(0)
"""
NEST = nest(COPY, "for i, j")
BLOCK = 'T.sblock("copy"'
WITHOUT_BOUNDS = 'other = T.sblock_alloc_buffer((2147483647, 64), "float16", scope="shared.dyn")'
LAYOUT, TMA = (SwizzleSharedTiles,), (SwizzleSharedTiles, LowerAsyncCopies)
IN_A_BRANCH = "            for u in range(2):\n                if n > u:\n" + deeper(NEST, 8)
POINTER = '            T.evaluate(T.call_extern("int32", "f", T.address_of(tile[0, 0])))\n'
DATA = '            T.evaluate(T.call_extern("int32", "f", tile.data))\n'

COPIES = [
    *rows(on(COPY, LAYOUT))("""
copy without loops
    for i, j in T.grid(8, 64): => if n > 0:
    tile[i, j] = A[bx * 8 + i, j] => tile[0, 0] = A[0, 0]
    block copy: found a copy without loops; need loops over a tile's rows
no store
    tile[i, j] = A[bx * 8 + i, j] => T.call_extern("int32", "f", A[i, j])
    block copy, tvm_hopper.async_copy: found Evaluate; need one store into shared memory
store into registers
    tile[i, j] = A => other[i, j] = A
    found a store into other in scope 'local'; need a store into shared.dyn, the one shared memory
    of a kernel; make the block with cache_read(..., "shared.dyn")
    """),
    *rows(on(COPY, TMA))(r"""
a stored tensor that something else touches
    tile[i, j] = A[bx * 8 + i, j] => A[bx * 8 + i, j] = tile[i, j]
    for i, j => other[0, 0] = A[0, 0]\n            for i, j
    copy of tile into A: found other accesses of A in the same kernel; need a tensor that only this
    copy accesses: it may write it at any time; give them a separate tensor, or remove
    tvm_hopper.async_copy
elements that several thread blocks store
    tile[i, j] = A[bx * 8 + i, j] => A[i, j] = tile[i, j]
    copy of tile into A: found elements A[r, p * 64 + s] that several iterations of bx may store;
    need a different element for each: asynchronous stores are not ordered; store after the loop, or
    remove tvm_hopper.async_copy
    """),
    case(
        "a store of something else out of bounds",
        COPY,
        TMA,
        r"block copy, tvm_hopper.async_copy: found T.if_then_else\(.*\); need a store of the "
        r"tile's own elements; bound the block \(T.where\), which omits elements outside",
        (
            "tile[i, j] = A[bx * 8 + i, j]",
            "A[bx * 8 + i, j] = T.if_then_else(i < n, tile[i, j], T.float16(0))",
        ),
    ),
    case(
        "a load and a store of different parts",
        COPY,
        LAYOUT,
        r"copy of tile into other: found \[5, 64\] elements of tile, of which another copy takes "
        r"\[8, 64\]; need copies of the whole tile; give one of them a separate tile",
        ('other = T.sblock_alloc_buffer((8, 64), "float16", scope="local")', ""),
        (
            'T.sblock_alloc_buffer((8, 64), "float16", scope="shared.dyn")',
            'T.sblock_alloc_buffer((5, 64), "float16", scope="shared.dyn")',
        ),
        ("func(A", 'func(other: T.Buffer((64, 64), "float16"), A'),
        (
            NEST,
            NEST.replace(BLOCK, BLOCK + ", where=i < 5")
            + NEST.replace("T.grid(8, 64)", "T.grid(5, 64)").replace(
                "tile[i, j] = A[bx * 8 + i, j]", "other[bx * 5 + i, j] = tile[i, j]"
            ),
        ),
    ),
    *rows(on(COPY, LAYOUT))("""
computation in the copy
    A[bx * 8 + i, j] => A[bx * 8 + i, j] * T.float16(2)
    found A[bx * 8 + i, j] * T.float16(2.0); need a plain load: the hardware copies
load from registers
    A[bx * 8 + i, j] => other[i, j]
    found a load from other in scope 'local'; need a load from global memory
    """),
]

TILES = [
    *rows(on(COPY, LAYOUT))("""
swizzle wider than the rows
    (8, 64) => (8, 96)
    "tma" => "tma", swizzle=128
    copy of A into tile: found rows of 96 elements with a 128 B swizzle; need rows of a multiple of
    64 elements; choose a tile of 128 or another swizzle
    """),
    case(
        "another tile without known bounds",
        COPY,
        LAYOUT,
        r"tile other: found a shape \[2147483647, 64\] without known bounds; need indices within "
        r"bounds that are known now; split its loops by constants",
        ('other = T.sblock_alloc_buffer((8, 64), "float16", scope="local")', WITHOUT_BOUNDS),
        ("            for i, j", "            other[n, 0] = T.float16(0)\n            for i, j"),
    ),
    case(
        "another tile without known bounds, behind a pointer",
        COPY,
        LAYOUT,
        r"tile other: found a shape \[2147483647, 64\] without known bounds",
        ('other = T.sblock_alloc_buffer((8, 64), "float16", scope="local")', WITHOUT_BOUNDS),
        (
            "            for i, j",
            '            T.evaluate(T.call_extern("int32", "f", T.address_of(other[0, 0])))\n'
            "            for i, j",
        ),
    ),
    *rows(on(COPY + NEST, LAYOUT))("""
two copies into a tile
    copy of A into tile: found a second copy into one tile; need one copy per tile
    """),
    case(
        "two copies into a tile, another between them",
        COPY + NEST.replace("tile[", "next[") + NEST,
        LAYOUT,
        r"copy of A into tile: found a second copy into one tile; need one copy per tile",
        (
            "            other =",
            '            next = T.sblock_alloc_buffer((8, 64), "float16", '
            'scope="shared.dyn")\n            other =',
        ),
    ),
    *rows(on(COPY, LAYOUT))("""
tile of unknown size
    tile = T.sblock_alloc_buffer((8, 64) => tile = T.sblock_alloc_buffer((n, 64)
    T.grid(8, 64) => T.grid(n, 64)
    copy of A into tile: found a tile of shape [n, 64]; need a static shape
    """),
    *rows(on(COPY + IN_A_BRANCH, LAYOUT))("""
two copies into a tile, one of them in a branch of a loop
    copy of A into tile: found a second copy into one tile; need one copy per tile
    """),
    *rows(on(COPY, LAYOUT))("""
loop that a dimension of the tile lacks
    tile = T.sblock_alloc_buffer((8, 64) => tile = T.sblock_alloc_buffer((2, 8, 64)
    tile[i, j] => tile[0, i, j]
    found loops ['i<8', 'j<64'] that store at [0, i, j]; need one loop over each dimension of the
    whole tile [2, 8, 64]
    """),
    *rows(on(COPY + "            other[0, 0] = tile[0, 40]\n", LAYOUT))("""
loops that do not cover the tile
    T.grid(8, 64) => T.grid(8, 32)
    found loops ['i<8', 'j<32'] that store at [i, j]; need one loop over each dimension of the whole
    tile [8, 64]; leave the copy's loops as compute_at made them
    """),
    *rows(on(COPY, LAYOUT))("""
tile of one element
    tile = T.sblock_alloc_buffer((8, 64) => tile = T.sblock_alloc_buffer((1, 1)
    T.grid(8, 64) => T.grid(1, 1)
    copy of A into tile: found a tile of one element; need a tile of 16 bytes or more
    """),
    case(
        "predicate on the store into a tile that a loop goes round",
        COPY,
        LAYOUT,
        r"found a predicate on the store \(i < n\) into a tile that keeps other elements; need a "
        r"store of the whole tile, or a tile that is new in each iteration; pad the block",
        (
            NEST,
            "            for u in range(2):\n"
            + deeper(NEST.replace(BLOCK, BLOCK + ", where=i < n"))
            + "                T.evaluate(u)\n",
        ),
    ),
    *rows(on(COPY, LAYOUT))("""
rows that fall into no equal boxes
    (8, 64) => (1, 1000)
    copy of A into tile: found 1 rows of 1000 elements of float16; need equal boxes of at most 256
    elements a row, each at a multiple of 128 B, in a tile of whole atoms
panels that would begin inside of a swizzle
    (8, 64) => (2, 128)
    "tma" => "tma", swizzle=128
    copy of A into tile: found 2 rows of 128 elements of float16; need equal boxes ... atoms of its
    swizzle; choose another tile, or a narrower swizzle
    """),
    *rows(on(COPY + POINTER, LAYOUT))("""
swizzle of a tile whose address is taken
    "tma" => "tma", swizzle=64
    tile tile: found boxes of A by TMA with a 64 B swizzle and an address of its elements; need one
    layout for all of them; request another swizzle, or read through a separate
    """),
    *rows(on(COPY + DATA + PRODUCT, LAYOUT))("""
product of a tile whose data is handed on
    tile tile: found block update, panels for WGMMA and an address of its elements; need one
    """),
    *rows(on(COPY + PRODUCT.replace("64", "4"), LAYOUT))("""
product of rows shorter than 16 bytes
    (8, 64) => (8, 4)
    copy of A into tile: found rows of 8 B; need rows of a multiple of 16 B; choose another
    """),
    *rows(on(COPY, LAYOUT))("""
a store of rows shorter than 16 bytes
    tile[i, j] = A[bx * 8 + i, j] => A[bx * 8 + i, j] = tile[i, j]
    (8, 64) => (8, 4)
    copy of tile into A: found 8 rows of 4 elements of float16; need equal boxes
    """),
]
