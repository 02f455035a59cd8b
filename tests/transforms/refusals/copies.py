"""What LayoutShared and LowerCopies refuse."""

from textwrap import indent

from tests.transforms.refusals.case import case
from tvm_hopper.transforms import LayoutShared, LowerCopies

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
LAYOUT, TMA = (LayoutShared,), (LayoutShared, LowerCopies)

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
        r"copy of tile into A: found other accesses of A in the same kernel; need a tensor that "
        r"this copy alone touches: it may be written before or after; give them a tensor of their "
        r"own, or take tvm_hopper.async_copy away",
        ("tile[i, j] = A[bx * 8 + i, j]", "A[bx * 8 + i, j] = tile[i, j]"),
        ("            for i, j", "            other[0, 0] = A[0, 0]\n            for i, j"),
    ),
    case(
        "elements that several thread blocks store",
        COPY,
        TMA,
        r"copy of tile into A: found elements A\[r, p \* 64 \+ s\] that several iterations of bx "
        r"may store; need an element of its own for each: asynchronous stores are not ordered; "
        r"store behind the loop, or take tvm_hopper.async_copy away",
        ("tile[i, j] = A[bx * 8 + i, j]", "A[i, j] = tile[i, j]"),
    ),
    case(
        "a store of something else out of bounds",
        COPY,
        TMA,
        r"block copy, tvm_hopper.async_copy: found T.if_then_else\(.*\); need a store of the "
        r"tile's own elements; bound the block \(T.where\), which leaves out what lies outside",
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
        r"\[8, 64\]; need copies of the whole tile; give one of them a tile of its own",
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
        "another tile that nothing bounds",
        COPY,
        LAYOUT,
        r"tile other: found a shape \[2147483647, 64\] that nothing bounds; need indices within "
        r"bounds that are known now; split its loops by constants",
        ('other = T.sblock_alloc_buffer((8, 64), "float16", scope="local")', WITHOUT_BOUNDS),
        ("            for i, j", "            other[n, 0] = T.float16(0)\n            for i, j"),
    ),
    case(
        "another tile that nothing bounds, behind a pointer",
        COPY,
        LAYOUT,
        r"tile other: found a shape \[2147483647, 64\] that nothing bounds",
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
        r"need one layout for all of them; ask for another swizzle, or read through a tile of its",
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

LOADS = [
    case(
        "a tensor that the kernel writes",
        COPY,
        TMA,
        r"copy of A into tile: found stores to A in the same kernel; need a tensor that stays as "
        r"it is while the kernel runs: .*; write the result to another tensor, or take",
        (NEST, NEST + "            A[bx * 8, 0] = T.float16(0)\n"),
    ),
    case(
        "a tensor that the kernel may write behind a pointer",
        COPY,
        TMA,
        r"copy of A into tile: found stores to A in the same kernel; need a tensor that stays as ",
        (NEST, NEST + '            T.call_extern("int32", "f", A.access_ptr("w"))\n'),
    ),
    case(
        "a dimension that coordinates cannot reach",
        COPY,
        TMA,
        r"copy of A into tile: found a dimension of 4294967296; need at most 2147483647: the "
        r"instruction's coordinates have 32 bits",
        ("(64, 128)", "(T.int64(4294967296), 128)"),
        ("A[bx * 8 + i, j]", "A[T.int64(0) + T.Cast('int64', bx * 8 + i), j]"),
    ),
    case(
        "row stride, with the padding that helps",
        COPY,
        TMA,
        r"copy of A into tile: found stride 1 of 200 bytes; need a multiple of 16 bytes; "
        r"pad its last dimension from 100 to 104",
        ("(64, 128)", "(64, 100)"),
    ),
    case(
        "several rules at once",
        COPY,
        TMA,
        r"found dimension 1 of 0 and stride 1 of 200 bytes; need 1 to 4294967296 and a multiple",
        ("(64, 128)", "(0, 100)"),
    ),
    case(
        "empty tensor",
        COPY,
        TMA,
        r"found dimension 1 of 0; need 1 to 4294967296; copy the tensor into one of another shape",
        ("(64, 128)", "(0, 128)"),
    ),
    case(
        "rank",
        COPY,
        TMA,
        r"found rank 6; need 1 to 5",
        ("(64, 128)", "(2, 2, 2, 2, 64, 128)"),
        ("A[bx", "A[0, 0, 0, 0, bx"),
    ),
    case(
        "type without a tensor map",
        COPY,
        TMA,
        r"found type int16; need one of float8_e4m3fn, .*, uint64; copy",
        ('"float16"', '"int16"'),
    ),
    case(
        "long dimension between the first and the last",
        COPY,
        TMA,
        r"copy of A into tile: found a tile with 512 in the middle of its dimensions; need at most "
        r"256 there, what a box holds; choose another tile",
        ("(64, 128)", "(2, 512, 128)"),
        ("tile = T.sblock_alloc_buffer((8, 64)", "tile = T.sblock_alloc_buffer((2, 512, 64)"),
        ("for i, j in T.grid(8, 64)", "for b, i, j in T.grid(2, 512, 64)"),
        ("tile[i, j] = A[bx * 8 + i, j]", "tile[b, i, j] = A[b, i, j]"),
    ),
    case(
        "rows that a swizzle does not cut into equal boxes",
        COPY,
        TMA,
        r"copy of A into tile: found a tile of 300 rows, 128 bytes each; need rows that fall into "
        r"equal boxes of at most 256, each at a multiple of 1024 bytes; choose a multiple of 8 row",
        ("(64, 128)", "(1200, 128)"),
        ("tile = T.sblock_alloc_buffer((8, 64)", "tile = T.sblock_alloc_buffer((300, 64)"),
        ("for i, j in T.grid(8, 64)", "for i, j in T.grid(300, 64)"),
        ('"tma"}', '"tma", "tvm_hopper.swizzle": 128}'),
        ("bx * 8 + i", "bx * 300 + i"),
    ),
    case(
        "two dimensions of a tile along one of the tensor",
        COPY,
        TMA,
        r"found index \[.*\]; need rows along one dimension of A",
        ("tile = T.sblock_alloc_buffer((8, 64)", "tile = T.sblock_alloc_buffer((2, 4, 64)"),
        ("for i, j in T.grid(8, 64)", "for b, i, j in T.grid(2, 4, 64)"),
        ("tile[i, j] = A[bx * 8 + i, j]", "tile[b, i, j] = A[bx * 8 + b + i, j]"),
    ),
    case(
        "strided columns",
        COPY,
        TMA,
        r"rows along dimension 1 of A, whose stride is 2 elements; need rows that are contiguous "
        r"in memory; cache_read the tensor so that",
        ("func(A: ", "func(a: T.handle, X: "),
        (
            "    for bx",
            '    A = T.match_buffer(a, (64, 128), "float16", strides=[256, 2])\n    for bx',
        ),
    ),
    case(
        "rows of no multiple of 16 bytes",
        COPY,
        TMA,
        r"found stride 1 of 260 bytes; need a multiple of 16 bytes; copy the tensor",
        ("func(A: ", "func(a: T.handle, X: "),
        (
            "    for bx",
            '    A = T.match_buffer(a, (64, 128), "float16", strides=[130, 1])\n    for bx',
        ),
    ),
    case(
        "an offset of no multiple of 16 bytes",
        COPY,
        TMA,
        r"found an offset of 4 elements, 8 bytes; need a multiple of 16 bytes; copy the part",
        ("func(A: ", "func(a: T.handle, X: "),
        (
            "    for bx",
            '    A = T.match_buffer(a, (64, 128), "float16", elem_offset=4)\n    for bx',
        ),
    ),
    case(
        "transposed tile",
        COPY,
        TMA,
        r"found index \[.*\]; need rows along one dimension of A, columns along its last, each "
        r"evenly; cache_read the tensor with its last dimension as the tile's last",
        ("A[bx * 8 + i, j]", "A[j, bx * 8 + i]"),
    ),
    case(
        "each row twice",
        COPY,
        TMA,
        r"found index \[bx \* 4 \+ r // 2, .*\]; need rows along one dimension of A",
        ("A[bx * 8 + i, j]", "A[bx * 4 + i // 2, j]"),
    ),
    case(
        "every ninth row",
        COPY,
        TMA,
        r"copy of A into tile: found rows at each 9 of dimension 0 of A; need a step of 1 to 8, "
        r"what a tensor map has; copy in bulk, or let threads copy",
        ("A[bx * 8 + i, j]", "A[bx * 8 + i * 9, j]"),
    ),
    case(
        "rows from the last to the first",
        COPY,
        TMA,
        r"found rows at each -1 of dimension 0 of A; need a step of 1 to 8",
        ("A[bx * 8 + i, j]", "A[bx * 8 + 7 - i, j]"),
    ),
    case(
        "every second row is stored",
        COPY,
        TMA,
        r"copy of tile into A: found stores at each 2 of dimension 0 of A; need each row; copy in "
        r"bulk, or let threads copy",
        ("tile[i, j] = A[bx * 8 + i, j]", "A[bx * 16 + i * 2, j] = tile[i, j]"),
    ),
    case(
        "a hint for L2 on a store",
        COPY,
        TMA,
        r"block copy, tvm_hopper.cache_hint: found 'evict_first' on tma_store; need a load by "
        r"'tma' or 'bulk', which can say that to L2; leave it out",
        ("tile[i, j] = A[bx * 8 + i, j]", "A[bx * 8 + i, j] = tile[i, j]"),
        ('"tma"}', '"tma", "tvm_hopper.cache_hint": "evict_first"}'),
    ),
    case(
        "every fourth column",
        COPY,
        TMA,
        r"copy of A into tile: found columns at each 4 elements of A; need columns one beside the "
        r"other: the tensor map steps over rows alone; let threads copy, or cp.async, or transpose "
        r"the tensor before",
        ("A[bx * 8 + i, j]", "A[bx * 8 + i, j * 4]"),
    ),
    case(
        "rows of two dimensions, at steps that leave a box too little",
        COPY,
        TMA,
        r"copy of A into tile: found a tile with 64 in the middle of its dimensions, at each 5 of "
        r"the tensor's; need at most 256 there, what a box holds, what is stepped over included",
        ("(64, 128)", "(2, 512, 128)"),
        ("tile = T.sblock_alloc_buffer((8, 64)", "tile = T.sblock_alloc_buffer((2, 64, 64)"),
        ("for i, j in T.grid(8, 64)", "for b, i, j in T.grid(2, 64, 64)"),
        ("tile[i, j] = A[bx * 8 + i, j]", "tile[b, i, j] = A[b, i * 5, j]"),
    ),
    case(
        "symbolic row stride",
        COPY,
        TMA,
        r"copy of A into tile: found a symbolic dimension m, so rows at multiples of 2 bytes; need "
        r"rows at multiples of 16 bytes; make every dimension but the first static",
        ("func(A: ", "func(a: T.handle, X: "),
        (
            "    for bx",
            '    m = T.int32()\n    A = T.match_buffer(a, (64, m), "float16")\n    for bx',
        ),
    ),
    case(
        "fill",
        COPY,
        TMA,
        r"copy of A into tile: found a fill of T.float16\(.-inf.\) out of bounds; need a fill of 0",
        ("A[bx * 8 + i, j]", 'T.if_then_else(i < 60, A[bx * 8 + i, j], T.float16("-inf"))'),
    ),
    case(
        "another predicate",
        COPY,
        TMA,
        r"found the predicate r <= bx; need bounds of the indices of A\[64, 128\] alone, by which "
        r"the hardware fills; apply any other predicate where the tile is used",
        ("A[bx * 8 + i, j]", "T.if_then_else(i <= bx, A[bx * 8 + i, j], T.float16(0))"),
    ),
    case(
        "columns between two multiples of 16 bytes",
        COPY,
        TMA,
        r"found columns of A from 4 elements, 8 bytes; need a start at a multiple of 16 bytes",
        ("A[bx * 8 + i, j]", "A[bx * 8 + i, j + 4]"),
    ),
    case(
        "columns that begin anywhere",
        COPY,
        TMA,
        r"found columns of A from p \* 64 \+ bx \* 4; need a start at a multiple of 16 bytes",
        ("A[bx * 8 + i, j]", "A[i, j + bx * 4]"),
    ),
    case(
        "one row for every row of the tile",
        COPY,
        TMA,
        r"found index \[bx, .*\]; need rows along one dimension of A",
        ("A[bx * 8 + i, j]", "A[bx, j]"),
    ),
    case(
        "one row for two rows of the tile",
        COPY,
        TMA,
        r"found index \[bx, .*\]; need rows along one dimension of A",
        ("A[bx * 8 + i, j]", "T.if_then_else(i < 2, A[bx, j], T.float16(0))"),
    ),
    case(
        "a diagonal",
        COPY,
        TMA,
        r"found index \[.*\]; need rows along one dimension of A",
        ("A[bx * 8 + i, j]", "A[bx * 8 + i + j, j]"),
    ),
]
