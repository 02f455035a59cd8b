"""What is refused about loads of tiles, where they stand."""

from tests.transforms.refusals.case import case, on, rows
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
    *rows(on(COPY, TMA))(r"""
a dimension that coordinates cannot reach
    (64, 128) => (T.int64(4294967296), 128)
    A[bx * 8 + i, j] => A[T.int64(0) + T.Cast('int64', bx * 8 + i), j]
    copy of A into tile: found a dimension of 4294967296; need at most 2147483647: the instruction's
    coordinates have 32 bits
row stride, with the padding that helps
    (64, 128) => (64, 100)
    copy of A into tile: found stride 1 of 200 bytes; need a multiple of 16 bytes; pad its last
    dimension from 100 to 104
several rules at once
    (64, 128) => (0, 100)
    found dimension 1 of 0 and stride 1 of 200 bytes; need 1 to 4294967296 and a multiple
empty tensor
    (64, 128) => (0, 128)
    found dimension 1 of 0; need 1 to 4294967296; copy the tensor into one of another shape
rank
    (64, 128) => (2, 2, 2, 2, 64, 128)
    A[bx => A[0, 0, 0, 0, bx
    found rank 6; need 1 to 5
type without a tensor map
    "float16" => "int16"
    found type int16; need one of float8_e4m3fn, ..., uint64; copy
long dimension between the first and the last
    (64, 128) => (2, 512, 128)
    tile = T.sblock_alloc_buffer((8, 64) => tile = T.sblock_alloc_buffer((2, 512, 64)
    for i, j in T.grid(8, 64) => for b, i, j in T.grid(2, 512, 64)
    tile[i, j] = A[bx * 8 + i, j] => tile[b, i, j] = A[b, i, j]
    copy of A into tile: found a tile with 512 in the middle of its dimensions; need at most 256
    there, what a box holds; choose another tile
rows that a swizzle does not cut into equal boxes
    (64, 128) => (1200, 128)
    tile = T.sblock_alloc_buffer((8, 64) => tile = T.sblock_alloc_buffer((300, 64)
    for i, j in T.grid(8, 64) => for i, j in T.grid(300, 64)
    "tma" => "tma", swizzle=128
    bx * 8 + i => bx * 300 + i
    copy of A into tile: found a tile of 300 rows, 128 bytes each; need rows that fall into equal
    boxes of at most 256, each at a multiple of 1024 bytes; choose a multiple of 8 row
two dimensions of a tile along one of the tensor
    tile = T.sblock_alloc_buffer((8, 64) => tile = T.sblock_alloc_buffer((2, 4, 64)
    for i, j in T.grid(8, 64) => for b, i, j in T.grid(2, 4, 64)
    tile[i, j] = A[bx * 8 + i, j] => tile[b, i, j] = A[bx * 8 + b + i, j]
    found index [...]; need rows along one dimension of A
strided columns
    func(A: => func(a: T.handle, X:
    for bx => A = T.match_buffer(a, (64, 128), "float16", strides=[256, 2])\n    for bx
    rows along dimension 1 of A, whose stride is 2 elements; need rows that are contiguous in
    memory; cache_read the tensor so that
rows of no multiple of 16 bytes
    func(A: => func(a: T.handle, X:
    for bx => A = T.match_buffer(a, (64, 128), "float16", strides=[130, 1])\n    for bx
    found stride 1 of 260 bytes; need a multiple of 16 bytes; copy the tensor
an offset of no multiple of 16 bytes
    func(A: => func(a: T.handle, X:
    for bx => A = T.match_buffer(a, (64, 128), "float16", elem_offset=4)\n    for bx
    found an offset of 4 elements, 8 bytes; need a multiple of 16 bytes; copy the part
transposed tile
    A[bx * 8 + i, j] => A[j, bx * 8 + i]
    found index [...]; need rows along one dimension of A, columns along its last, each evenly;
    cache_read the tensor with its last dimension as the tile's last
each row twice
    A[bx * 8 + i, j] => A[bx * 4 + i // 2, j]
    found index [bx * 4 + r // 2, ...]; need rows along one dimension of A
every ninth row
    A[bx * 8 + i, j] => A[bx * 8 + i * 9, j]
    copy of A into tile: found rows at each 9 of dimension 0 of A; need a step of 1 to 8, what a
    tensor map has; use a bulk copy, or let threads copy
rows from the last to the first
    A[bx * 8 + i, j] => A[bx * 8 + 7 - i, j]
    found rows at each -1 of dimension 0 of A; need a step of 1 to 8
every second row is stored
    tile[i, j] = A[bx * 8 + i, j] => A[bx * 16 + i * 2, j] = tile[i, j]
    copy of tile into A: found stores at each 2 of dimension 0 of A; need each row; use a bulk copy,
    or let threads copy
a hint for L2 on a store
    tile[i, j] = A[bx * 8 + i, j] => A[bx * 8 + i, j] = tile[i, j]
    "tma" => "tma", cache_hint="evict_first"
    block copy, tvm_hopper.cache_hint: found 'evict_first' on tma_store; need a load by 'tma' or
    'bulk', which takes L2 hints; leave it out
spare rows of a store
    tile[i, j] = A[bx * 8 + i, j] => A[bx * 8 + i, j] = tile[i, j]
    "tma" => "tma", spare_rows=1
    block copy, tvm_hopper.spare_rows: found spare rows on tma_store; need them on the load of a
    tile: stores omit these rows anyway; leave it out
every fourth column
    A[bx * 8 + i, j] => A[bx * 8 + i, j * 4]
    copy of A into tile: found columns at each 4 elements of A; need columns one next to the other:
    the tensor map steps over rows alone; let threads copy, or cp.async, or transpose the tensor
    before
rows of two dimensions, at steps that leave a box too little
    (64, 128) => (2, 512, 128)
    tile = T.sblock_alloc_buffer((8, 64) => tile = T.sblock_alloc_buffer((2, 64, 64)
    for i, j in T.grid(8, 64) => for b, i, j in T.grid(2, 64, 64)
    tile[i, j] = A[bx * 8 + i, j] => tile[b, i, j] = A[b, i * 5, j]
    copy of A into tile: found a tile with 64 in the middle of its dimensions, at each 5 of the
    tensor's; need at most 256 there, what a box holds, what is stepped over included
symbolic row stride
    func(A: => func(a: T.handle, X:
    for bx => m = T.int32()\n    A = T.match_buffer(a, (64, m), "float16")\n    for bx
    copy of A into tile: found a symbolic dimension m, so rows at multiples of 2 bytes; need rows at
    multiples of 16 bytes; make every dimension but the first static
fill
    A[bx * 8 + i, j] => T.if_then_else(i < 60, A[bx * 8 + i, j], T.float16("-inf"))
    copy of A into tile: found a fill of T.float16("-inf") out of bounds; need a fill of 0
another predicate
    A[bx * 8 + i, j] => T.if_then_else(i <= bx, A[bx * 8 + i, j], T.float16(0))
    found the predicate r <= bx; need bounds of the indices of A[64, 128] alone, by which the
    hardware fills; apply any other predicate where the tile is used
rows whose places the kernel writes
    n: T.int32 => N: T.Buffer((8,), "int32")
    for i, j in => N[0] = 1\n            for i, j in
    A[bx * 8 + i, j] => A[N[bx] * 8 + i, j]
    copy of A into tile: found stores to N, which says where rows lie, in the same kernel; need
    places that the kernel does not write; write them in a kernel before
rows of 64 bytes that memory counts
    n: T.int32 => N: T.Buffer((8,), "int32")
    (8, 64), "float16", scope="shared.dyn" => (8, 32), "float16", scope="shared.dyn"
    T.grid(8, 64) => T.grid(8, 32)
    A[bx * 8 + i, j] => T.if_then_else(i < N[bx], A[bx * 8 + i, j], T.float16(0))
    found a number of rows of 64 bytes, in 1 loops, that memory tells; need one loop over rows of a
    multiple of 128 bytes: a load may begin at each, ...; request "cp_async"
columns between two multiples of 16 bytes
    A[bx * 8 + i, j] => A[bx * 8 + i, j + 4]
    found columns of A from 4 elements, 8 bytes; need a start at a multiple of 16 bytes
columns that begin anywhere
    A[bx * 8 + i, j] => A[i, j + bx * 4]
    found columns of A from p * 64 + bx * 4; need a start at a multiple of 16 bytes
one row for every row of the tile
    A[bx * 8 + i, j] => A[bx, j]
    found index [bx, ...]; need rows along one dimension of A
one row for two rows of the tile
    A[bx * 8 + i, j] => T.if_then_else(i < 2, A[bx, j], T.float16(0))
    found index [bx, ...]; need rows along one dimension of A
a diagonal
    A[bx * 8 + i, j] => A[bx * 8 + i + j, j]
    found index [...]; need rows along one dimension of A
    """),
]
