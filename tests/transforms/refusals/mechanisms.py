"""What is refused to be copied in bulk and by cp.async; what a chip has no mechanism for."""

from tests.transforms.pipeline.test_plan_ring_buffers import ASK_CONSUMERS
from tests.transforms.refusals.case import case
from tests.transforms.refusals.copies import COPY, LAYOUT, NEST, TMA
from tests.transforms.refusals.kernels import RING
from tvm_hopper.transforms import PlanRingBuffers, SpecializeWarps

LOWER = TMA
LOOP = '    for bx in T.thread_binding(4, thread="blockIdx.x"):\n'
THREADS = (LOOP, LOOP + '     for tx in T.thread_binding(32, thread="threadIdx.x"):\n')
ELEMENT = "tile[i, j] = A[bx * 8 + i, j]"
STORED = (ELEMENT, "A[bx * 8 + i, j] = tile[i, j]")
BOUND = "                    T.where({})\n"
WHERE = '                with T.sblock("copy"):\n'
TENSOR = "func(A: ", "func(a: T.handle, X: "


def where(condition):
    """Return the change that puts a predicate on the copy."""
    return WHERE, WHERE + BOUND.format(condition)


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
    bulk(
        "bulk: a loop that a dimension of the tile lacks",
        r"copy of A into tile: found tile\[0, i, j\] of shape \[2, 8, 64\]; need a static shape, "
        r"and a loop over each of its dimensions; leave the copy's loops as compute_at made them",
        ("tile = T.sblock_alloc_buffer((8, 64)", "tile = T.sblock_alloc_buffer((2, 8, 64)"),
        ("tile[i, j]", "tile[0, i, j]"),
    ),
    bulk(
        "bulk: loops over a part of the tile",
        r"copy of A into tile: found tile\[i, j\] of shape \[8, 64\]; need a static shape, and a",
        ("T.grid(8, 64)", "T.grid(8, 32)"),
    ),
    bulk(
        "bulk: a tile that a loop fills from after",
        r"copy of A into tile: found tile\[7 - i, j\] of shape \[8, 64\]; need a static shape, and",
        ("tile[i, j]", "tile[7 - i, j]"),
    ),
    bulk(
        "bulk: a diagonal",
        r"copy of A into tile: found tile\[i, j \+ i\] of shape \[8, 64\]; need a static shape",
        ("tile[i, j]", "tile[i, j + i]"),
    ),
    bulk(
        "bulk: loops of a number of iterations that is not known",
        r"copy of A into tile: found loop u from 0 of n iterations; need loops from 0, each of a "
        r"static number of iterations; split by a constant",
        ("i, j in T.grid(8, 64)", "u, i, j in T.grid(n, 8, 64)"),
    ),
    bulk(
        "bulk: a store of the transposed tile",
        r"copy of tile into A: found A\[j, bx \* 8 \+ i\] and tile\[i, j\]; need elements that "
        r"are contiguous at both ends; let the tile's last dimension be the contiguous one of "
        r"the tensor",
        STORED,
        ("A[bx * 8 + i, j]", "A[j, bx * 8 + i]"),
    ),
    bulk(
        "bulk: strided columns",
        r"copy of A into tile: found A\[bx \* 8 \+ i, j \* 2\] and tile\[i, j\]; need elements",
        ("A[bx * 8 + i, j]", "A[bx * 8 + i, j * 2]"),
    ),
    bulk(
        "bulk: rows of no multiple of 16 bytes",
        r"copy of A into tile: found 8 contiguous bytes; need a multiple of 16; pad the rows, or "
        r"take \"cp_async\"$",
        ("(8, 64)", "(8, 4)"),
    ),
    bulk(
        "bulk: stored rows that end anywhere",
        r"copy of tile into A: found .*T.min\(64, n\).* contiguous bytes; need a multiple of "
        r"16; pad "
        r"the rows, or remove the request: threads store them$",
        STORED,
        where("j < n"),
    ),
    bulk(
        "bulk: rows that may begin before the tensor",
        r"copy of A into tile: found a bound from below: bx \* 8 \+ i - 3 may be negative; need "
        r"indices from 0 on: a bulk copy starts where loops do, and fills nothing; take \"cp_as",
        ("A[bx * 8 + i, j]", "A[bx * 8 + i - 3, j]"),
        where("0 <= bx * 8 + i - 3"),
    ),
    bulk(
        "bulk: a fill before the tensor",
        r"copy of A into tile: found a bound from below: bx - 3 may be negative; need indices from",
        (ELEMENT, "tile[i, j] = T.if_then_else(0 <= bx - 3, A[bx - 3, j], T.float16(0))"),
    ),
    bulk(
        "bulk: elements that are stored over",
        r"copy of A into tile: found tile\[i, j\], which several iterations of u, i, j store; need "
        r"each element of the tile stored once: asynchronous copies are not ordered; remove",
        ("i, j in T.grid(8, 64)", "u, i, j in T.grid(2, 8, 64)"),
        ("A[bx * 8 + i, j]", "A[bx * 8 + i + u, j]"),
    ),
    bulk(
        "bulk: a store from a tile that slots cannot follow",
        r"copy of tile into A: found a tile tile of shape \[1, 68\]; need a multiple of 16 bytes: "
        r"the slots of a ring lie one after the other; pad its last dimension, or remove the",
        STORED,
        ("T.sblock_alloc_buffer((8, 64)", "T.sblock_alloc_buffer((1, 68)"),
        ("T.grid(8, 64)", "T.grid(1, 64)"),
    ),
    bulk(
        "bulk: rows that start anywhere",
        r"copy of A into tile: found runs of A that start at \[bx \* 8 \+ i, 4\], rows of "
        r"\[128, 1\] elements; need starts at multiples of 16 bytes; pad the rows, or take",
        ("A[bx * 8 + i, j]", "A[bx * 8 + i, j + 4]"),
    ),
    bulk(
        "bulk: a symbolic row stride",
        r"copy of A into tile: found runs of A that start at \[bx \* 8 \+ i, 0\], rows of "
        r"\[.*m.*, 1\] elements; need starts at multiples of 16 bytes",
        TENSOR,
        (
            "    for bx",
            '    m = T.int32()\n    A = T.match_buffer(a, (64, m), "float16")\n    for bx',
        ),
    ),
    bulk(
        "bulk: an offset of no multiple of 16 bytes",
        r"copy of A into tile: found runs of A that start at .* after an elem_offset of 4, rows "
        r"of \[128, 1\] elements; need starts at multiples of 16",
        TENSOR,
        (
            "    for bx",
            '    A = T.match_buffer(a, (64, 128), "float16", elem_offset=4)\n    for bx',
        ),
    ),
    bulk(
        "bulk: a fill",
        r"copy of A into tile: found a fill of T.float16\(0.0\) after 30; need a copy without a "
        r"fill: a bulk copy moves bytes and stores no others; take \"tma\", which fills with",
        (
            "A[bx * 8 + i, j]",
            "T.if_then_else(bx * 8 + i < 30, A[bx * 8 + i, j], T.float16(0))",
        ),
    ),
    bulk(
        "bulk: a fill that is not zero",
        r"found a fill of T.float16\(1.0\) after 30; .*; apply the fill where the tile is used$",
        (
            "A[bx * 8 + i, j]",
            "T.if_then_else(bx * 8 + i < 30, A[bx * 8 + i, j], T.float16(1))",
        ),
    ),
    bulk(
        "bulk: another predicate",
        r"copy of A into tile: found the predicate i <= bx; need bounds, each of an index that one "
        r"of the copy's loops moves, by 1; apply any other predicate where the tile is used",
        where("i <= bx"),
    ),
    bulk(
        "bulk: a bound of an index that two loops move",
        r"copy of tile into A: found the predicate bx \* 8 \+ b \* 4 \+ i < 29; need bounds, each "
        r"of .*, by 1; let threads store the tile$",
        ("tile[i, j] = A[bx * 8 + i, j]", "A[bx * 8 + b * 4 + i, j] = tile[b * 4 + i, j]"),
        ("for i, j in T.grid(8, 64)", "for b, i, j in T.grid(2, 4, 64)"),
        where("bx * 8 + b * 4 + i < 29"),
    ),
    bulk(
        "bulk: a predicate on the store into a tile that a loop goes round",
        r"copy of A into tile: found a predicate on the store \(.*\) into a tile that keeps other "
        r"elements; need a store of the whole tile, or a tile that is new in each iteration; pad",
        (
            NEST,
            "            for u in range(2):\n"
            + "".join("    " + x for x in NEST.splitlines(keepends=True))
            + "                T.evaluate(u)\n",
        ),
        (
            '                    with T.sblock("copy"):\n',
            '                    with T.sblock("copy"):\n                        T.where(i < n)\n',
        ),
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
    bulk(
        "bulk: elements that several thread blocks store",
        r"copy of tile into A: found elements A\[i, j\] that several iterations of bx may store",
        (ELEMENT, "A[i, j] = tile[i, j]"),
    ),
    bulk(
        "bulk: a swizzle",
        r"copy of A into tile: found a copy in bulk with a 64 B swizzle; need none: it moves rows "
        r"as they are; take \"tma\", or leave the swizzle out",
        ('"tma"}', '"tma", "tvm_hopper.swizzle": 64}'),
    ),
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
        ('"tma"}', '"tma", "tvm_hopper.swizzle": 64}'),
        ("func(A", 'func(out: T.Buffer((64, 128), "float16"), A'),
    ),
]

CP_ASYNC = [
    cp_async(
        "cp.async: elements that are stored over",
        r"copy of A into tile: found tile\[j, 0\], which several iterations of i, j store; need",
        THREADS,
        ("tile[i, j]", "tile[j, 0]"),
        ('(8, 64), "float16"', '(64, 8), "float16"'),
    ),
    cp_async(
        "cp.async: a kernel without threads",
        r"copy of A into tile: found no loop bound to a static number of threads \(threadIdx.x\) "
        r"in its kernel; need threads that distribute the copy; bind the loops of what reads the",
    ),
    cp_async(
        "cp.async: loops of a number of iterations that is not known",
        r"copy of A into tile: found loop i from 0 of n iterations; need loops from 0, each of a "
        r"static number of iterations; split by a constant",
        THREADS,
        ("T.grid(8, 64)", "T.grid(n, 64)"),
    ),
    cp_async(
        "cp.async: a fill of something else",
        r"copy of A into tile: found a fill of T.float16\(1.0\) out of bounds; need a fill of 0; "
        r"apply any other fill where the tile is used",
        THREADS,
        ("A[bx * 8 + i, j]", "T.if_then_else(i < n, A[bx * 8 + i, j], T.float16(1))"),
    ),
    cp_async(
        "cp.async: a transposed tile",
        r"copy of A into tile: found A\[j, bx \* 8 \+ i\] into tile\[i, j\]; need rows that are "
        r"contiguous at both ends and start at multiples of 4 bytes, bounded at their end if at "
        r"all; let threads copy them: remove the request",
        THREADS,
        ("A[bx * 8 + i, j]", "A[j, bx * 8 + i]"),
    ),
    cp_async(
        "cp.async: a predicate that keeps the copy from storing next to its tile",
        r"copy of A into tile: found a store at \[i - 4, j\] under the predicate 4 <= i; need "
        r"places inside of the tile \[8, 64\] for what it leaves out, too: zeros are stored there; "
        r"let threads copy, or begin the tile where its first element is",
        THREADS,
        (ELEMENT, "tile[i - 4, j] = A[bx * 8 + i, j]"),
        where("4 <= i"),
    ),
    cp_async(
        "cp.async: rows that start between two multiples of 4 bytes",
        r"copy of A into tile: found A\[bx \* 8 \+ i, j \+ 1\] into tile\[i, j\]; need rows that",
        THREADS,
        ("A[bx * 8 + i, j]", "A[bx * 8 + i, j + 1]"),
    ),
    cp_async(
        "cp.async: rows bounded at their start",
        r"copy of A into tile: found A\[bx \* 8 \+ i, j\] into tile\[i, j\] where n <= j; need ",
        THREADS,
        ("A[bx * 8 + i, j]", "T.if_then_else(n <= j, A[bx * 8 + i, j], T.float16(0))"),
    ),
    cp_async(
        "cp.async: rows bounded by every second element",
        r"copy of A into tile: found .* where j \* 2 < n; need rows that are contiguous",
        THREADS,
        ("A[bx * 8 + i, j]", "T.if_then_else(j * 2 < n, A[bx * 8 + i, j], T.float16(0))"),
    ),
    cp_async(
        "cp.async: rows bounded by what no order says",
        r"copy of A into tile: found .* where j % 3 == 0; need rows that are contiguous",
        THREADS,
        ("A[bx * 8 + i, j]", "T.if_then_else(j % 3 == 0, A[bx * 8 + i, j], T.float16(0))"),
    ),
    cp_async(
        "cp.async: a store",
        r"block copy, tvm_hopper.async_copy: found a store by 'cp_async'; need a mechanism that "
        r"stores: 'bulk' or 'tma'; request one of these, or let threads store the tile",
        THREADS,
        STORED,
    ),
    case(
        "cp.async next to a producer",
        RING,
        (PlanRingBuffers, SpecializeWarps),
        r"copy load_a: found copies by cp_async next to a producer on sm_80; need a chip where a "
        r"producer's threads hand them over by mbarriers: sm_90a; build for that one, or remove "
        r"tvm_hopper.consumers",
        ASK_CONSUMERS,
        (BLOCKS, f"    {TARGET}{BLOCKS}"),
        ('"tvm_hopper.async_op": "tma_load"', '"tvm_hopper.async_op": "cp_async"'),
        ("'tvm_hopper.tma_load'", "'tvm_hopper.cp_async'"),
    ),
]

MECHANISMS = CHIPS + BULK + CP_ASYNC
