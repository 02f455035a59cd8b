"""What is refused about loads of tiles, where they stand."""

from tests.transforms.refusals.case import case
from tests.transforms.refusals.copies import COPY, NEST, TMA

LOADS = [
    case(
        "a tensor that the kernel writes",
        COPY,
        TMA,
        r"copy of A into tile: found stores to A in the same kernel; need a tensor that "
        r".*; write the result to another tensor, or remove",
        (NEST, NEST + "            A[bx * 8, 0] = T.float16(0)\n"),
    ),
    case(
        "a tensor that the kernel may write behind a pointer",
        COPY,
        TMA,
        r"copy of A into tile: found stores to A in the same kernel; need a tensor that ",
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
        r"what a tensor map has; use a bulk copy, or let threads copy",
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
        r"copy of tile into A: found stores at each 2 of dimension 0 of A; need each row; use a "
        r"bulk copy, or let threads copy",
        ("tile[i, j] = A[bx * 8 + i, j]", "A[bx * 16 + i * 2, j] = tile[i, j]"),
    ),
    case(
        "a hint for L2 on a store",
        COPY,
        TMA,
        r"block copy, tvm_hopper.cache_hint: found 'evict_first' on tma_store; need a load by "
        r"'tma' or 'bulk', which takes L2 hints; leave it out",
        ("tile[i, j] = A[bx * 8 + i, j]", "A[bx * 8 + i, j] = tile[i, j]"),
        ('"tma"}', '"tma", "tvm_hopper.cache_hint": "evict_first"}'),
    ),
    case(
        "spare rows of a store",
        COPY,
        TMA,
        r"block copy, tvm_hopper.spare_rows: found spare rows on tma_store; need them on the "
        r"load of a tile: stores omit these rows anyway; leave it out",
        ("tile[i, j] = A[bx * 8 + i, j]", "A[bx * 8 + i, j] = tile[i, j]"),
        ('"tma"}', '"tma", "tvm_hopper.spare_rows": 1}'),
    ),
    case(
        "every fourth column",
        COPY,
        TMA,
        r"copy of A into tile: found columns at each 4 elements of A; need columns one next to the "
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
