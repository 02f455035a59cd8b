"""What is refused to be copied in bulk and by cp.async; what a chip has no mechanism for."""

from tests.transforms.pipeline.test_plan_ring_buffers import ASK_CONSUMERS
from tests.transforms.refusals.case import case, rows
from tests.transforms.refusals.copies import COPY, LAYOUT, NEST, TMA
from tests.transforms.refusals.kernels import RING
from tests.transforms.scripts import deeper
from tvm_hopper.transforms import PlanRingBuffers, SpecializeWarps

LOWER = TMA
LOOP = '    for bx in T.thread_binding(4, thread="blockIdx.x"):\n'
THREADS = (LOOP, LOOP + '     for tx in T.thread_binding(32, thread="threadIdx.x"):\n')
ELEMENT = "tile[i, j] = A[bx * 8 + i, j]"
STORED = (ELEMENT, "A[bx * 8 + i, j] = tile[i, j]")
TENSOR = "func(A: ", "func(a: T.handle, X: "


def where(condition):
    """Return the change that puts a predicate on the copy."""
    return '"copy"', f'"copy", where={condition}'


def declared(rest):
    """Return the changes that declare the tensor otherwise."""
    return TENSOR, ("    for bx", f'    A = T.match_buffer(a, {rest}, "float16")\n    for bx')


def bulk(name, match, *changes):
    return case(name, COPY, LOWER, match, *changes, ('"tma"', '"bulk"'))


def cp_async(name, match, *changes):
    return case(name, COPY, LOWER, match, *changes, ('"tma"', '"cp_async"'))


BLOCKS = '    for bx in T.thread_binding(3, thread="blockIdx.x"):\n'
TARGET = 'T.func_attr({"target": T.target({"kind": "cuda", "arch": "sm_80"})})\n'


def on_sm_80(mechanism):
    """Return the changes that ask for a mechanism on an older chip."""
    return ('"tma"', f'"{mechanism}"'), (LOOP, f"    {TARGET}{LOOP}")


CHIPS = [
    case(
        f"{mechanism} on a chip without it",
        COPY,
        LOWER,
        rf"copy of A into tile: found tvm_hopper.async_copy = '{mechanism}' on sm_80; need a "
        r"mechanism that it has: 'cp_async'; request that one, or build for a chip that has the",
        *on_sm_80(mechanism),
    )
    for mechanism in ("tma", "bulk")
]

BULK = [
    *rows(bulk, STORED=STORED)("""
bulk: a loop that a dimension of the tile lacks
    tile = T.sblock_alloc_buffer((8, 64) => tile = T.sblock_alloc_buffer((2, 8, 64)
    tile[i, j] => tile[0, i, j]
    copy of A into tile: found tile[0, i, j] of shape [2, 8, 64]; need a static shape, and a loop
    over each of its dimensions; leave the copy's loops as compute_at made them
bulk: loops over a part of the tile
    T.grid(8, 64) => T.grid(8, 32)
    copy of A into tile: found tile[i, j] of shape [8, 64]; need a static shape, and a
bulk: a tile that a loop fills from after
    tile[i, j] => tile[7 - i, j]
    copy of A into tile: found tile[7 - i, j] of shape [8, 64]; need a static shape, and
bulk: a diagonal
    tile[i, j] => tile[i, j + i]
    copy of A into tile: found tile[i, j + i] of shape [8, 64]; need a static shape
bulk: loops of a number of iterations that is not known
    i, j in T.grid(8, 64) => u, i, j in T.grid(n, 8, 64)
    copy of A into tile: found loop u from 0 of n iterations; need loops from 0, each of a static
    number of iterations; split by a constant
bulk: a store of the transposed tile
    + STORED
    A[bx * 8 + i, j] => A[j, bx * 8 + i]
    copy of tile into A: found A[j, bx * 8 + i] and tile[i, j]; need elements that are contiguous at
    both ends; let the tile's last dimension be the contiguous one of the tensor
bulk: strided columns
    A[bx * 8 + i, j] => A[bx * 8 + i, j * 2]
    copy of A into tile: found A[bx * 8 + i, j * 2] and tile[i, j]; need elements
bulk: rows of no multiple of 16 bytes
    (8, 64) => (8, 4)
    copy of A into tile: found 8 contiguous bytes; need a multiple of 16; pad the rows, or take
    "cp_async"$
bulk: stored rows that end anywhere
    + STORED
    "copy" => "copy", where=j < n
    copy of tile into A: found ...T.min(64, n)... contiguous bytes; need a multiple of 16; pad the
    rows, or remove the request: threads store them$
bulk: rows that may begin before the tensor
    A[bx * 8 + i, j] => A[bx * 8 + i - 3, j]
    "copy" => "copy", where=0 <= bx * 8 + i - 3
    copy of A into tile: found a bound from below: bx * 8 + i - 3 may be negative; need indices from
    0 on: a bulk copy starts where loops do, and fills nothing; take "cp_as
    """),
    bulk(
        "bulk: a fill before the tensor",
        r"copy of A into tile: found a bound from below: bx - 3 may be negative; need indices from",
        (ELEMENT, "tile[i, j] = T.if_then_else(0 <= bx - 3, A[bx - 3, j], T.float16(0))"),
    ),
    *rows(bulk, STORED=STORED)(r"""
bulk: elements that are stored over
    i, j in T.grid(8, 64) => u, i, j in T.grid(2, 8, 64)
    A[bx * 8 + i, j] => A[bx * 8 + i + u, j]
    copy of A into tile: found tile[i, j], which several iterations of u, i, j store; need each
    element of the tile stored once: asynchronous copies are not ordered; remove
bulk: a store from a tile that slots cannot follow
    + STORED
    T.sblock_alloc_buffer((8, 64) => T.sblock_alloc_buffer((1, 68)
    T.grid(8, 64) => T.grid(1, 64)
    copy of tile into A: found a tile tile of shape [1, 68]; need a multiple of 16 bytes: the slots
    of a ring lie one after the other; pad its last dimension, or remove the
bulk: rows that start anywhere
    A[bx * 8 + i, j] => A[bx * 8 + i, j + 4]
    copy of A into tile: found runs of A that start at [bx * 8 + i, 4], rows of [128, 1] elements;
    need starts at multiples of 16 bytes; pad the rows, or take
bulk: a symbolic row stride
    func(A: => func(a: T.handle, X:
    for bx => m = T.int32()\n    A = T.match_buffer(a, (64, m), "float16")\n    for bx
    copy of A into tile: found runs of A that start at [bx * 8 + i, 0], rows of [...m..., 1]
    elements; need starts at multiples of 16 bytes
bulk: an offset of no multiple of 16 bytes
    func(A: => func(a: T.handle, X:
    for bx => A = T.match_buffer(a, (64, 128), "float16", elem_offset=4)\n    for bx
    copy of A into tile: found runs of A that start at ... after an elem_offset of 4, rows of [128,
    1] elements; need starts at multiples of 16
bulk: a fill
    A[bx * 8 + i, j] => T.if_then_else(bx * 8 + i < 30, A[bx * 8 + i, j], T.float16(0))
    copy of A into tile: found a fill of T.float16(0.0) after 30; need a copy without a fill: a bulk
    copy moves bytes and stores no others; take "tma", which fills with
bulk: a fill that is not zero
    A[bx * 8 + i, j] => T.if_then_else(bx * 8 + i < 30, A[bx * 8 + i, j], T.float16(1))
    found a fill of T.float16(1.0) after 30; ...; apply the fill where the tile is used$
bulk: another predicate
    "copy" => "copy", where=i <= bx
    copy of A into tile: found the predicate i <= bx; need bounds, each of an index that one of the
    copy's loops moves, by 1; apply any other predicate where the tile is used
bulk: a bound of an index that two loops move
    tile[i, j] = A[bx * 8 + i, j] => A[bx * 8 + b * 4 + i, j] = tile[b * 4 + i, j]
    for i, j in T.grid(8, 64) => for b, i, j in T.grid(2, 4, 64)
    "copy" => "copy", where=bx * 8 + b * 4 + i < 29
    copy of tile into A: found the predicate bx * 8 + b * 4 + i < 29; need bounds, each of ..., by
    1; let threads store the tile$
    """),
    bulk(
        "bulk: a predicate on the store into a tile that a loop goes round",
        r"copy of A into tile: found a predicate on the store \(.*\) into a tile that keeps other "
        r"elements; need a store of the whole tile, or a tile that is new in each iteration; pad",
        (
            NEST,
            "            for u in range(2):\n" + deeper(NEST) + "                T.evaluate(u)\n",
        ),
        where("i < n"),
    ),
    bulk(
        "bulk: a tensor that the kernel writes",
        r"copy of A into tile: found stores to A in the same kernel; need a tensor that ",
        (NEST, NEST + "            A[bx * 8, 0] = T.float16(0)\n"),
    ),
    bulk(
        "bulk: a stored tensor that something else touches",
        r"copy of tile into A: found other accesses of A in the same kernel; need a tensor that ",
        STORED,
        ("            for i, j", "            other[0, 0] = A[0, 0]\n            for i, j"),
    ),
    *rows(bulk)("""
bulk: elements that several thread blocks store
    tile[i, j] = A[bx * 8 + i, j] => A[i, j] = tile[i, j]
    copy of tile into A: found elements A[i, j] that several iterations of bx may store
bulk: a swizzle
    "tma" => "tma", swizzle=64
    copy of A into tile: found a copy in bulk with a 64 B swizzle; need none: it moves rows as they
    are; take "tma", or leave the swizzle out
    """),
    case(
        "bulk: a swizzle that boxes request",
        COPY,
        LAYOUT,
        r"tile tile: found boxes of A by TMA with a 64 B swizzle and copy of tile into out in "
        r"bulk; need one layout for all of them; request another swizzle, or read through a",
        (
            NEST,
            NEST
            + NEST.replace('"tma"', '"bulk"').replace(ELEMENT, "out[bx * 8 + i, j] = tile[i, j]"),
        ),
        ('"tma"', '"tma", swizzle=64'),
        ("func(A", 'func(out: T.Buffer((64, 128), "float16"), A'),
    ),
]

CP_ASYNC = [
    *rows(cp_async, THREADS=THREADS)("""
cp.async: elements that are stored over
    + THREADS
    tile[i, j] => tile[j, 0]
    (8, 64), "float16" => (64, 8), "float16"
    copy of A into tile: found tile[j, 0], which several iterations of i, j store; need
cp.async: a kernel without threads
    copy of A into tile: found no loop bound to a static number of threads (threadIdx.x) in its
    kernel; need threads that distribute the copy; bind the loops of what reads the
cp.async: loops of a number of iterations that is not known
    + THREADS
    T.grid(8, 64) => T.grid(n, 64)
    copy of A into tile: found loop i from 0 of n iterations; need loops from 0, each of a static
    number of iterations; split by a constant
cp.async: a fill of something else
    + THREADS
    A[bx * 8 + i, j] => T.if_then_else(i < n, A[bx * 8 + i, j], T.float16(1))
    copy of A into tile: found a fill of T.float16(1.0) out of bounds; need a fill of 0; apply any
    other fill where the tile is used
cp.async: a transposed tile
    + THREADS
    A[bx * 8 + i, j] => A[j, bx * 8 + i]
    copy of A into tile: found A[j, bx * 8 + i] into tile[i, j]; need rows that are contiguous at
    both ends and start at multiples of 4 bytes, bounded at their end if at all; let threads copy
    them: remove the request
cp.async: a predicate that keeps the copy from storing next to its tile
    + THREADS
    tile[i, j] = A[bx * 8 + i, j] => tile[i - 4, j] = A[bx * 8 + i, j]
    "copy" => "copy", where=4 <= i
    copy of A into tile: found a store at [i - 4, j] under the predicate 4 <= i; need places inside
    of the tile [8, 64] for what it leaves out, too: zeros are stored there; let threads copy, or
    begin the tile where its first element is
cp.async: rows that start between two multiples of 4 bytes
    + THREADS
    A[bx * 8 + i, j] => A[bx * 8 + i, j + 1]
    copy of A into tile: found A[bx * 8 + i, j + 1] into tile[i, j]; need rows that
    """),
    cp_async(
        "cp.async: rows bounded at their start",
        r"copy of A into tile: found A\[bx \* 8 \+ i, j\] into tile\[i, j\] where n <= j; need ",
        THREADS,
        ("A[bx * 8 + i, j]", "T.if_then_else(n <= j, A[bx * 8 + i, j], T.float16(0))"),
    ),
    *rows(cp_async, STORED=STORED, THREADS=THREADS)("""
cp.async: rows bounded by every second element
    + THREADS
    A[bx * 8 + i, j] => T.if_then_else(j * 2 < n, A[bx * 8 + i, j], T.float16(0))
    copy of A into tile: found ... where j * 2 < n; need rows that are contiguous
cp.async: rows bounded by what no order says
    + THREADS
    A[bx * 8 + i, j] => T.if_then_else(j % 3 == 0, A[bx * 8 + i, j], T.float16(0))
    copy of A into tile: found ... where j % 3 == 0; need rows that are contiguous
cp.async: a store
    + THREADS
    + STORED
    block copy, tvm_hopper.async_copy: found a store by 'cp_async'; need a mechanism that stores:
    'bulk' or 'tma'; request one of these, or let threads store the tile
    """),
    case(
        "cp.async next to a producer",
        RING,
        (PlanRingBuffers, SpecializeWarps),
        r"copy load_a: found copies by cp_async next to a producer on sm_80; need a chip where a "
        r"producer's threads hand them over by mbarriers: sm_90a; build for that one, or remove "
        r"tvm_hopper.consumers",
        ASK_CONSUMERS,
        (BLOCKS, f"    {TARGET}{BLOCKS}"),
        ('async_op="tma_load"', 'async_op="cp_async"'),
        ("'tvm_hopper.tma_load'", "'tvm_hopper.cp_async'"),
    ),
]

MECHANISMS = CHIPS + BULK + CP_ASYNC
