"""What SwizzleSharedTiles and LowerAsyncCopies refuse."""

from textwrap import indent

from tests.transforms.refusals.case import case
from tvm_hopper.transforms import LowerAsyncCopies, SwizzleSharedTiles

COPY = """
@T.prim_func(private=True, s_tir=True)
def func(A: T.Buffer((64, 128), "float16"), n: T.int32):
    for bx in T.thread_binding(4, thread="blockIdx.x"):
        with T.sblock("kernel"):
            other = T.sblock_alloc_buffer((8, 64), "float16", scope="local")
            tile = T.sblock_alloc_buffer((8, 64), "float16", scope="shared.dyn")
            for i, j in T.grid(8, 64):
                with T.sblock("copy"):
                    T.reads()
                    T.writes()
                    T.sblock_attr({"tvm_hopper.async_copy": "tma"})
                    tile[i, j] = A[bx * 8 + i, j]
"""

PRODUCT = """
            with T.sblock("update"):
                T.reads(tile[0:8, 0:64])
                T.writes()
                T.sblock_attr({"tvm_hopper.wgmma": 1})
                T.evaluate(0)
"""
NEST = COPY[COPY.index("            for i, j") :]
BLOCK = '                with T.sblock("copy"):\n'
WITHOUT_BOUNDS = 'other = T.sblock_alloc_buffer((2147483647, 64), "float16", scope="shared.dyn")'
LAYOUT, TMA = (SwizzleSharedTiles,), (SwizzleSharedTiles, LowerAsyncCopies)

COPIES = [
    case(
        "copy without loops",
        COPY,
        LAYOUT,
        r"block copy: found a copy without loops; need loops over a tile's rows",
        ("for i, j in T.grid(8, 64):", "if n > 0:"),
        ("tile[i, j] = A[bx * 8 + i, j]", "tile[0, 0] = A[0, 0]"),
    ),
    case(
        "no store",
        COPY,
        LAYOUT,
        r"block copy, tvm_hopper.async_copy: found Evaluate; need one store into shared memory",
        ("tile[i, j] = A[bx * 8 + i, j]", 'T.call_extern("int32", "f", A[i, j])'),
    ),
    case(
        "store into registers",
        COPY,
        LAYOUT,
        r"found a store into other in scope 'local'; need a store into shared.dyn, the one "
        r"shared memory of a kernel; make the "
        r'block with cache_read\(..., "shared.dyn"\)',
        ("tile[i, j] = A", "other[i, j] = A"),
    ),
    case(
        "a stored tensor that something else touches",
        COPY,
        TMA,
        r"copy of tile into A: found other accesses of A in the same kernel; need a tensor "
        r"that only this copy accesses: it may write it at any time; give them a "
        r"separate tensor, or remove tvm_hopper.async_copy",
        ("tile[i, j] = A[bx * 8 + i, j]", "A[bx * 8 + i, j] = tile[i, j]"),
        ("            for i, j", "            other[0, 0] = A[0, 0]\n            for i, j"),
    ),
    case(
        "elements that several thread blocks store",
        COPY,
        TMA,
        r"copy of tile into A: found elements A\[r, p \* 64 \+ s\] that several iterations of bx "
        r"may store; need a different element for each: asynchronous stores are not ordered; "
        r"store after the loop, or "
        r"remove tvm_hopper.async_copy",
        ("tile[i, j] = A[bx * 8 + i, j]", "A[i, j] = tile[i, j]"),
    ),
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
            NEST.replace(BLOCK, BLOCK + "                    T.where(i < 5)\n")
            + NEST.replace("T.grid(8, 64)", "T.grid(5, 64)").replace(
                "tile[i, j] = A[bx * 8 + i, j]", "other[bx * 5 + i, j] = tile[i, j]"
            ),
        ),
    ),
    case(
        "computation in the copy",
        COPY,
        LAYOUT,
        r"found A\[bx \* 8 \+ i, j\] \* T.float16\(2.0\); need a plain load: the hardware copies",
        ("A[bx * 8 + i, j]", "A[bx * 8 + i, j] * T.float16(2)"),
    ),
    case(
        "load from registers",
        COPY,
        LAYOUT,
        r"found a load from other in scope 'local'; need a load from global memory",
        ("A[bx * 8 + i, j]", "other[i, j]"),
    ),
]

TILES = [
    case(
        "swizzle wider than the rows",
        COPY,
        LAYOUT,
        r"copy of A into tile: found rows of 96 elements with a 128 B swizzle; need rows of a "
        r"multiple of 64 elements; choose a tile of 128 or another swizzle",
        ("(8, 64)", "(8, 96)"),
        ('"tma"}', '"tma", "tvm_hopper.swizzle": 128}'),
    ),
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
    case(
        "two copies into a tile",
        COPY + NEST,
        LAYOUT,
        r"copy of A into tile: found a second copy into one tile; need one copy per tile",
    ),
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
    case(
        "tile of unknown size",
        COPY,
        LAYOUT,
        r"copy of A into tile: found a tile of shape \[n, 64\]; need a static shape",
        ("tile = T.sblock_alloc_buffer((8, 64)", "tile = T.sblock_alloc_buffer((n, 64)"),
        ("T.grid(8, 64)", "T.grid(n, 64)"),
    ),
    case(
        "two copies into a tile, one of them in a branch of a loop",
        COPY
        + "            for u in range(2):\n                if n > u:\n"
        + indent(NEST, " " * 8),
        LAYOUT,
        r"copy of A into tile: found a second copy into one tile; need one copy per tile",
    ),
    case(
        "loop that a dimension of the tile lacks",
        COPY,
        LAYOUT,
        r"found loops \['i<8', 'j<64'\] that store at \[0, i, j\]; need one loop over each "
        r"dimension of the whole tile \[2, 8, 64\]",
        ("tile = T.sblock_alloc_buffer((8, 64)", "tile = T.sblock_alloc_buffer((2, 8, 64)"),
        ("tile[i, j]", "tile[0, i, j]"),
    ),
    case(
        "loops that do not cover the tile",
        COPY + "            other[0, 0] = tile[0, 40]\n",
        LAYOUT,
        r"found loops \['i<8', 'j<32'\] that store at \[i, j\]; need one loop over each "
        r"dimension of the whole tile \[8, 64\]; leave the copy's loops as compute_at made them",
        ("T.grid(8, 64)", "T.grid(8, 32)"),
    ),
    case(
        "tile of one element",
        COPY,
        LAYOUT,
        r"copy of A into tile: found a tile of one element; need a tile of 16 bytes or more",
        ("tile = T.sblock_alloc_buffer((8, 64)", "tile = T.sblock_alloc_buffer((1, 1)"),
        ("T.grid(8, 64)", "T.grid(1, 1)"),
    ),
    case(
        "predicate on the store into a tile that a loop goes round",
        COPY,
        LAYOUT,
        r"found a predicate on the store \(i < n\) into a tile that keeps other elements; need a "
        r"store of the whole tile, or a tile that is new in each iteration; pad the block",
        (
            NEST,
            "            for u in range(2):\n"
            + indent(NEST.replace(BLOCK, BLOCK + "                    T.where(i < n)\n"), " " * 4)
            + "                T.evaluate(u)\n",
        ),
    ),
    case(
        "rows that fall into no equal boxes",
        COPY,
        LAYOUT,
        r"copy of A into tile: found 1 rows of 1000 elements of float16; need equal boxes of at "
        r"most 256 elements a row, each at a multiple of 128 B, in a tile of whole atoms",
        ("(8, 64)", "(1, 1000)"),
    ),
    case(
        "panels that would begin inside of a swizzle",
        COPY,
        LAYOUT,
        r"copy of A into tile: found 2 rows of 128 elements of float16; need equal boxes .* atoms "
        r"of its swizzle; choose another tile, or a narrower swizzle",
        ("(8, 64)", "(2, 128)"),
        ('"tma"}', '"tma", "tvm_hopper.swizzle": 128}'),
    ),
    case(
        "swizzle of a tile whose address is taken",
        COPY + '            T.evaluate(T.call_extern("int32", "f", T.address_of(tile[0, 0])))\n',
        LAYOUT,
        r"tile tile: found boxes of A by TMA with a 64 B swizzle and an address of its elements; "
        r"need one layout for all of them; request another swizzle, or read through a separate",
        ('"tma"}', '"tma", "tvm_hopper.swizzle": 64}'),
    ),
    case(
        "product of a tile whose data is handed on",
        COPY + '            T.evaluate(T.call_extern("int32", "f", tile.data))\n' + PRODUCT,
        LAYOUT,
        r"tile tile: found block update, panels for WGMMA and an address of its elements; need one",
    ),
    case(
        "product of rows shorter than 16 bytes",
        COPY + PRODUCT.replace("64", "4"),
        LAYOUT,
        r"copy of A into tile: found rows of 8 B; need rows of a multiple of 16 B; choose another",
        ("(8, 64)", "(8, 4)"),
    ),
    case(
        "a store of rows shorter than 16 bytes",
        COPY,
        LAYOUT,
        r"copy of tile into A: found 8 rows of 4 elements of float16; need equal boxes",
        ("tile[i, j] = A[bx * 8 + i, j]", "A[bx * 8 + i, j] = tile[i, j]"),
        ("(8, 64)", "(8, 4)"),
    ),
]
