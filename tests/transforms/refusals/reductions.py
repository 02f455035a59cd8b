"""What is refused about stores that combine, and about sums that thread blocks share."""

from tests.transforms.copies.test_copy_instructions import COPY
from tests.transforms.refusals.case import case, on, rows
from tests.transforms.scripts import deeper, nest
from tests.transforms.split_k.test_bind_reduction_loop_to_grid import BEFORE as BLOCKS
from tests.transforms.split_k.test_lower_split_k import BEFORE as CLUSTER
from tests.transforms.split_k.test_split_k_by_atomics import BEFORE as ANY_ORDER
from tvm_hopper.transforms import (
    LowerAsyncCopies,
    LowerSplitK,
    MakeSplitKKernels,
    SelectCopyMechanisms,
)

UPDATE = (
    "tile[i, j] = A[bx * 8 + i, j]",
    "A[bx * 8 + i, j] = A[bx * 8 + i, j] + tile[i, j]",
)
ADD = ('async_copy="bulk"', 'async_copy="bulk", reduce="add"')
MAX = (ADD[0], ADD[1].replace("add", "max"))
FLOAT32 = ("float16", "float32")
STORE = nest(BLOCKS, 'T.sblock("add"')
TILE = '                    tile = T.sblock_alloc_buffer((64,), "float32", scope="shared.dyn")\n'
AROUND = "            for part in"
HEAD, TAIL = BLOCKS[: BLOCKS.index(AROUND)], BLOCKS[BLOCKS.index(AROUND) :]


def copies(name, match, *changes, passes=(LowerAsyncCopies,)):
    return case(name, COPY, passes, match, *changes)


def blocks(name, match, *changes, script=BLOCKS):
    return case(name, script, (LowerSplitK,), match, *changes)


def cluster(name, match, *changes):
    return case(name, CLUSTER, (LowerSplitK,), match, *changes)


def unordered(name, match, *changes):
    return case(name, CLUSTER, (MakeSplitKKernels,), match, UNORDERED, *changes)


def caller(name, match, *changes):
    return case(name, CLUSTER, (MakeSplitKKernels,), match, BY_CALLER, *changes)


UNORDERED = ("across_cluster=1", "across_cluster=6")
BY_CALLER = ("across_cluster=1", "across_cluster=3")

REDUCTIONS = [
    *rows(copies, UPDATE=UPDATE)("""
an update that no request names
    + UPDATE
    block copy, tvm_hopper.async_copy: found an update of A by 'add'; need tvm_hopper.reduce = 'add'
    next to it, which lets each element be combined in any order; request it: hs.async_store(...,
    reduce="add")
a request for another operation
    + UPDATE
    async_copy="bulk" => async_copy="bulk", reduce="max"
    tvm_hopper.reduce = 'max': found an update of A by 'add'; need A[...] = A[...] max tile[...];
    request 'add'
a request without an update
    tile[i, j] = A[bx * 8 + i, j] => A[bx * 8 + i, j] = tile[i, j]
    async_copy="bulk" => async_copy="bulk", reduce="add"
    tvm_hopper.reduce = 'add': found no update of A in place; need ...; remove tvm_hopper.reduce
a type that no mechanism combines
    tile[i, j] = A[bx * 8 + i, j] => A[bx * 8 + i, j] = T.max(A[bx * 8 + i, j], tile[i, j])
    async_copy="bulk" => async_copy="bulk", reduce="max"
    float16 => float32
    tvm_hopper.reduce = 'max': found elements of float32; need one of int32, uint32, int64, uint64,
    float16, bfloat16; let threads combine them$
a type that the other mechanism combines
    + UPDATE
    async_copy="bulk" => async_copy="tma", reduce="add"
    float16 => float64
    tvm_hopper.reduce = 'add': found elements of float64; need one of ...; take 'bulk', which has it
a load that combines
    tile[i, j] = A[bx * 8 + i, j] => tile[i, j] = tile[i, j] + A[bx * 8 + i, j]
    async_copy="bulk" => async_copy="bulk", reduce="add"
    tvm_hopper.reduce: found 'bulk' from global memory to shared; need a reduction from shared
    memory to global memory, by 'bulk' or 'tma'
    """),
    copies(
        "a reduction that threads would make",
        r"store copy, tvm_hopper.reduce: found a reduction that no mechanism can make; need one "
        r"that TMA or a bulk copy can make: updates by threads would race; remove "
        r"tvm_hopper.reduce where no other thread block updates the same elements",
        UPDATE,
        (ADD[0], ADD[1].replace('"bulk"', '"none"')),
        passes=(SelectCopyMechanisms,),
    ),
    copies(
        "a reduction that no mechanism can make",
        r"store copy, tvm_hopper.reduce: found a reduction that no mechanism can make; not tma: "
        r".*; not bulk: ",
        (UPDATE[0], "A[bx * 8 + i, j] = T.max(A[bx * 8 + i, j], tile[i, j])"),
        (ADD[0], MAX[1].replace('"bulk"', '"auto"')),
        FLOAT32,
        passes=(SelectCopyMechanisms,),
    ),
    blocks(
        "sums in any order where the same bits are wanted",
        r"store add, tvm_hopper.deterministic: found sums of float32 in C whose terms come in any "
        r"order; need results that are the same bits in each run; sum integers, or store each part",
        (
            'func(C: T.Buffer((256,), "float32"), D: T.Buffer((256,), "float32")):\n',
            'func(C: T.Buffer((256,), "float32"), D: T.Buffer((256,), "float32")):\n'
            '    T.func_attr({"tvm_hopper.deterministic": True})\n',
        ),
    ),
    *rows(blocks)(r"""
an axis that is taken
    thread="blockIdx.x" => thread="blockIdx.z"
    loop part, tvm_hopper.across_blocks = 'blockIdx.z': found another loop on blockIdx.z; need a
    separate axis
an unrolled loop across blocks
    T.serial(8 => T.unroll(8
    found a loop of kind unrolled from 0; need a serial loop from 0
a statement next to the loop
    for part in => D[tx] = T.float32(0)\n            for part in
    loop part, ...: found a SeqStmt around it; need a loop around all that the kernel does, inside
    of the axes of its thread blocks; reorder it outwards
    """),
    blocks(
        "a condition around the loop",
        r"loop part, .*: found a For again around it",
        script=HEAD + "            for again in range(2):\n" + deeper(TAIL),
    ),
    blocks(
        "no reduction in the loop",
        r"found no store that combines; need one, which combines the iterations",
        (STORE, "                    D[tx] = tile[tx]\n"),
    ),
    blocks(
        "a store next to the reduction",
        r"found accesses of D that are no reductions; need iterations that combine by reductions "
        r"alone: other blocks may access the same elements",
        (STORE, "                    D[tx] = tile[tx]\n" + STORE),
    ),
    *rows(blocks)("""
an access of what is combined
    T.Cast("float32", part) => C[tx]
    found accesses of C that are no reductions
    """),
    blocks(
        "a tile that outlives an iteration",
        r"found tile in shared.dyn, which is allocated around it; need tiles that are allocated in "
        r"each iteration; compute_at what writes it inside of the loop",
        script=HEAD
        + '            with T.sblock("outer", reads=[], writes=[]):\n'
        + TILE[4:]
        + deeper(TAIL.replace(TILE, "")),
    ),
    *rows(cluster)("""
more blocks than a cluster has
    T.serial(4, => T.serial(17,
    loop part, tvm_hopper.across_cluster: found a loop from 0 of 17 iterations; need from 0, 2 to
    16: as many blocks as a cluster may have; split the sum into fewer parts
more parts than a second kernel adds
    T.serial(4, across_cluster=1 => T.serial(65, across_cluster=2
    found a loop from 0 of 65 iterations; need from 0, 2 to 64, as many as are added one by
    """),
    *rows(unordered)("""
parts in any order that threads store
    found a sum that threads store to memory themselves; need tiles in shared memory that are copied
    out: the hardware adds them to the output; take store="tma"
    """),
    *rows(on(ANY_ORDER, (MakeSplitKKernels,)))("""
parts in any order, and an epilogue
    T.Cast("float16", acc[e]) => T.Cast("float16", acc[e] * T.float32(2.0))
    found an epilogue, what is stored to tile; need the sum itself, or rounded: each part is added
    to the output by itself; put the epilogue into a kernel after it, or take another
    """),
    *rows(caller)("""
parts that no cluster divides
    part in T.serial(4 => part in T.serial(11
    loop part, tvm_hopper.across_cluster: found 11 parts; need a multiple of a number from 2 to 8,
    the thread blocks of a cluster: calls without an allocator have no workspace
parts that a cluster shares otherwise, and no loop of steps
    part in T.serial(4 => part in T.serial(12
    for k in range(2) => for k in range(1, 2)
    found no loop of steps right inside of it; need a serial loop from 0 alone: blocks of a
    """),
    *rows(cluster)("""
an axis that a cluster needs
    thread="blockIdx.x" => thread="blockIdx.z"
    found another loop on blockIdx.z; need a separate axis
    """),
    cluster(
        "more parts than a cluster has room for",
        r"found 4 parts of 4 thread blocks that load for one another; need at most 8 blocks in a",
        ('thread="blockIdx.x"', 'thread="blockIdx.x", share_loads=1'),
        (
            "        for tx in T.thread_binding(128",
            '      for b in T.thread_binding(4, thread="blockIdx.z"):\n'
            "        for tx in T.thread_binding(128",
        ),
    ),
    cluster(
        "parts in turn of blocks that load together",
        r"found 4 thread blocks that load for one another; need no cluster: blocks",
        ("across_cluster=1", "across_cluster=4"),
        ('thread="blockIdx.x"', 'thread="blockIdx.x", share_loads=1'),
        (
            "        for tx in T.thread_binding(128",
            '      for b in T.thread_binding(4, thread="blockIdx.z"):\n'
            "        for tx in T.thread_binding(128",
        ),
    ),
    *rows(cluster)("""
two loops of one cluster
    for k in range(2) => for k in range(2, across_cluster=1)
    found 2 such loops in one kernel; need one: its iterations are the blocks of a cluster
no product in the loop
    async_op="wgmma" => disjoint_writes=1
    found 0 products in it; need one product by WGMMA whose registers are
    """),
    cluster(
        "a sum of halves",
        r"found sums of acc; need one product by WGMMA whose registers are",
        (
            'acc = T.sblock_alloc_buffer((8,), scope="local")',
            'acc = T.sblock_alloc_buffer((8,), "float16", scope="local")',
        ),
        ("acc[i] = T.float32(0.0)", "acc[i] = T.float16(0.0)"),
        ("= acc[g * 2 + e]", '= T.Cast("float32", acc[g * 2 + e])'),
    ),
    *rows(cluster)(r"""
a statement before the sum
    acc[i] = T.float32(0.0) => E[i] = T.float32(0.0)
    found statements before it that set no initial value; need the initial value of the sum alone:
    each block of the cluster executes the others; put them into a
a loop around the parts
    for part in => if bx == 0:\n                     for part in
    found other loops or statements around it; need the outermost loop
a statement after the sum that is another one's
    for g in => E[tx] = T.float32(1)\n                    for g in
    found a statement after it that does not read the sum; need stores of the sum alone
a store without a loop
    D[tx, bx * 8 + g * 2 + e] = acc[g * 2 + e] => D[tx, bx * 8 + g * 2 + e] = acc[0]
    found a store of the sum without a loop over its registers; need loops whose iterations
    """),
]
