"""What the passes refuse that see a whole kernel: rings, roles, waits, memory, order of tiles."""

from tests.transforms.pipeline import test_plan_ring_buffers
from tests.transforms.pipeline.test_plan_ring_buffers import (
    ASK_PERSISTENT,
    K_LOOP,
    LOAD_B,
    LOAD_Q,
    NESTED,
    OUTSIDE,
    PLAIN_READER,
)
from tests.transforms.refusals.case import case, on, rows
from tests.transforms.scripts import deeper
from tests.transforms.sync import test_merge_shared_buffers
from tests.transforms.tile_scheduling import test_schedule_tiles, test_size_persistent_grid
from tvm_hopper.transforms import (
    FuseThreadAxes,
    MergeSharedBuffers,
    PlanRingBuffers,
    RejectUnloweredRequests,
    ScheduleTiles,
    SizePersistentGrid,
    SpecializeWarps,
)

RING = test_plan_ring_buffers.BEFORE
MERGE = test_merge_shared_buffers.BEFORE
RASTER = test_schedule_tiles.KERNEL

TILES = '                    with T.sblock("", reads=[], writes=[]):\n'
OUTSIDE_IF = (*OUTSIDE, (LOAD_Q, f"                if bx < 2:\n{deeper(LOAD_Q)}"))


def ring(name, match, *changes):
    return case(name, RING, (PlanRingBuffers,), match, *changes)


def roles(name, match, *changes):
    return case(name, RING, (PlanRingBuffers, SpecializeWarps), match, *changes)


RINGS = [
    *rows(ring)("""
more rows of tiles than a grid has
    T.thread_binding(3, thread="blockIdx.x") => T.thread_binding(65536, thread="blockIdx.y")
    loop bx, blockIdx.y: found 65536 thread blocks; need at most 65535; let thread blocks share the
    tiles (tvm_hopper.persistent)
    """),
    ring(
        "more bytes than an mbarrier counts",
        r"loop k: found \d+ bytes a stage; need at most 1048575, what an mbarrier can count",
        ("(2, 64, 64)", "(2, 8192, 64)"),
        ("a[0:2, 0:64, 0:64]", "a[0:2, 0:8192, 0:64]"),
    ),
    *rows(ring)("""
shared memory, itemised
    [0, 0, 1] => [0, 0, 19]
    loop k: found a 20 x 16384 + b 20 x 2048 + barriers 320 = 368960 bytes of shared memory; need at
    most 232448; take 12 stages
a tile that fits not once
    (2, 64, 64) => (2, 1024, 64)
    a[0:2, 0:64, 0:64] => a[0:2, 0:1024, 0:64]
    need at most 232448; choose a smaller tile
copies in a kernel without threads
    for tx in T.thread_binding(256, thread="threadIdx.x") => for tx in range(256)
    copies load_a, load_b: found no loop bound to threadIdx.x in their kernel; need threads that
    read what they bring; bind the loops of a plain statement, schedule a product
    (tvm_hopper.schedule.wgmma), or remove tvm_hopper.async_copy
    """),
    ring(
        "copies in a kernel of two thread axes",
        r"load_a, load_b: found threads on threadIdx.y next to threadIdx.x; need threadIdx.x "
        r"alone; fuse the loops, and bind the fused one",
        (
            '(256, thread="threadIdx.x"):\n',
            '(256, thread="threadIdx.x"):\n'
            '          for ty in T.thread_binding(2, thread="threadIdx.y"):\n',
        ),
        PLAIN_READER,
    ),
    ring(
        "pipeline around the loop that loads",
        r"loop k: found loop inner inside it; need one loop over k around the copies and what "
        r"reads them; compute_at the copies at the innermost loop over k, or fuse the loops",
        (TILES, f"                   for inner in range(2):\n{TILES}"),
    ),
    *rows(ring, ASK_PERSISTENT=ASK_PERSISTENT, NESTED=NESTED)("""
ping-pong tiles of different depth
    range(8, => range(bx + 1,
    + ASK_PERSISTENT
    persistent=2 => persistent=2, turns=2
    loop k, tvm_hopper.persistent: found bx + 1 iterations, which differ from tile to tile; need the
    same number for each output tile; remove persistent
inner loops of different length
    + NESTED
    range(8, => range(n + 1,
    loop k: found n + 1 iterations, which differ from tile to tile; need the same number for each
    output tile; pad the loop to its longest
    """),
    ring(
        "copy under a condition in the loop",
        r"copy load_b: found the condition k < 4 around it in loop k; need copies that every "
        r"iteration makes: skipped iterations would be counted; remove the condition around it",
        (LOAD_B, f"                        if k < 4:\n{deeper(LOAD_B)}"),
    ),
    ring(
        "statement next to the block of the tiles",
        r"copy load_a: found a copy that is no statement of loop k by itself; need copies that are "
        r"statements of the loop, or of the one block in it; move the other",
        (TILES, f'                    T.call_extern("int32", "f")\n{TILES}'),
    ),
    *rows(ring)("""
unrolled loop
    for k in range( => for k in T.unroll(
    loop k: found a loop of kind unrolled from 0; need a serial loop from 0
    """),
    ring(
        "order without stages",
        r"loop k: found software_pipeline_order without software_pipeline_stage; need both",
        ("stage=[0, 0, 1], ", ""),
    ),
    *rows(ring)("""
stage for each statement
    [0, 0, 1] => [0, 1]
    loop k: found software_pipeline_stage = [0, 1] and software_pipeline_order = [0, 1, 2]; need one
    entry for each of the 3 statements ['load_a', 'load_b', 'mma']
copies in different stages
    [0, 0, 1] => [0, 1, 2]
    loop k: found software_pipeline_async_stages = [0]; need stage 1, where the asynchronous copies
    are, in it
multiplication before its copies
    [0, 0, 1] => [1, 1, 0]
    loop k: found software_pipeline_stage = [1, 1, 0]; need a stage for copies
copies that are not asynchronous
    async_stages=[0] => async_stages=[]
    loop k: found software_pipeline_async_stages = []; need stage 0, where the asynchronous copies
    are, in it
    """),
    *rows(roles)("""
more pending groups than slots
    async_stages=[0] => async_stages=[0], wgmma_pending=1
    [0, 0, 1] => [0, 0, 0]
    loop k: found tvm_hopper.wgmma_pending = 1 with 1 stages; need at most 0: a slot is released 1
    iterations late, and the producer would wait for it forever; take more
registers that the chip has not
    async_stages=[0] => async_stages=[0], registers=[40, 240]
    loop k, tvm_hopper.registers: found 40 + 2 x 240 = 520 registers; need at most 3 x 168 = 504, or
    a consumer waits forever; take [40, 232], or leave the annotation
number of consumers
    async_stages=[0] => async_stages=[0], consumers=3
    loop k, tvm_hopper.consumers: found 3 with 2 warp groups on threadIdx.y; need the same number;
    split the tile by the number of consumers and bind that loop
too many consumers
    T.thread_binding(256 => T.thread_binding(512
    loop k: found 4 consumer warp groups; need 1, 2 or 3
registers of consumers that do not multiply
    async_stages=[0] => async_stages=[0], consumers=2, registers=[40, 232]
    async_op="wgmma" => other=1
    loop k, tvm_hopper.registers: found registers for consumers of plain loops; need consumers that
    multiply: only their accumulators need more ...; remove the annotation
number of plain consumers
    async_stages=[0] => async_stages=[0], consumers=3
    async_op="wgmma" => other=1
    loop k, tvm_hopper.consumers: found 3 with 256 threads; need 128 threads a warp group; bind as
    many threads, or name as many consumers as there are
no room for a producer next to plain consumers
    async_stages=[0] => async_stages=[0], consumers=8
    async_op="wgmma" => other=1
    T.thread_binding(256 => T.thread_binding(1024
    loop k: found 1024 threads of consumers and a warp of the producer; need at most 1024; bind
    fewer threads, or remove the consumers: every thread then loads and computes
half a warp
    async_stages=[0] => async_stages=[0], consumers=2
    async_op="wgmma" => other=1
    T.thread_binding(256 => T.thread_binding(144
    loop k: found 144 threads; need whole warps, their number static
    """),
    roles(
        "number of threads that run time knows",
        r"loop k: found n threads; need whole warps, their number static",
        ("T.thread_binding(256", "T.thread_binding(n"),
        ("def func(", "def func(n: T.int32, "),
    ),
    roles(
        "loop under a condition in a kernel of roles",
        r"copy load_a: found a copy inside of a IfThenElse; need copies that every iteration "
        r"makes; remove the condition around it",
        (K_LOOP, f"                if bx < 2:\n{deeper(K_LOOP)}"),
    ),
    *rows(roles, OUTSIDE_IF=OUTSIDE_IF)("""
copy under a condition outside of loops
    + *OUTSIDE_IF
    copy load_q: found a copy inside of a IfThenElse; need copies that every iteration
    """),
]

HOST = """
def func(A: T.Buffer((64,), "float16"), B: T.Buffer((64,), "float16"), n: T.int32):
    BEFORE
    for q in T.serial(4):
        for bx in T.thread_binding(64, thread="blockIdx.x"):
            for tx in T.thread_binding(1, thread="threadIdx.x"):
                with T.sblock("copy", reads=[], writes=[]):
                    B[bx] = A[bx]
"""


def block(*lines):
    """Return a block of its own in front of the kernel."""
    body = "".join(f"\n            {line}" for line in lines)
    left = "with T.sblock('left', reads=[], writes=[])"
    return ("BEFORE", f"for i in range(8):\n        {left}:{body}")


def host(name, match, *change):
    return case(name, HOST, (RejectUnloweredRequests,), match, *change)


HOSTS = [
    *(
        host(
            f"{kind} loop around a kernel",
            rf"loop q: found an? {kind}\w* loop around a kernel; need a serial loop, which",
            ("    BEFORE\n", ""),
            ("T.serial", f"T.{word}"),
        )
        for kind, word in (
            ("parallel", "parallel"),
            ("unrolled", "unroll"),
            ("vectorized", "vectorized"),
        )
    ),
    host(
        "two stores on the host",
        r"block left: found a store into B outside of every kernel; need loops bound to blockIdx",
        block("B[i] = T.float16(0)", "B[i + 1] = T.float16(0)"),
    ),
    host(
        "a store under a condition on the host",
        r"block left: found a store into B outside of every kernel",
        block("if n > i:", "    B[i] = T.float16(0)"),
    ),
    host(
        "a load on the host",
        r"block left: found a load of A outside of every kernel; need loops bound to blockIdx and",
        block("T.evaluate(A[i])"),
    ),
    *rows(host)("""
a load outside of every block
    BEFORE => T.evaluate(A[0])
    host code: found a load of A outside of every kernel; need loops bound to blockIdx
    """),
    host(
        "a tensor handed to a host function",
        r"block left: found a call that takes A outside of every kernel",
        block("T.call_packed('f', A.data)"),
    ),
]

LEFT = """
def func(C: T.Buffer((8,), "float32")):
    for i in T.serial(8, consumers=1):
        for j in range(1):
            with T.sblock("C", wgmma=1):
                C[i] = T.float32(0)
"""

UNBOUND = """
def func(A: T.Buffer((64,), "float16"), B: T.Buffer((64,), "float16")):
    for i in range(64):
        with T.sblock("copy", reads=[], writes=[]):
            B[i] = A[i]
"""

REST = [
    *rows(on(UNBOUND, (RejectUnloweredRequests,)))("""
a block that is in no kernel
    block copy: found a store into B outside of every kernel; need loops bound to blockIdx and
    threadIdx around it; schedule the block as a kernel, or inline it
    """),
    *rows(on(RASTER, (ScheduleTiles,)))("""
more tiles than 32 bits count
    (5, => (536870912,
    annotations=NOTES => annotations={'tvm_hopper.raster_group': 2}
    loop bx: found 536870912 x 8 output tiles in an order of their own; need at most 2147483647;
    choose a larger tile, or leave the order to the hardware
    """),
    *HOSTS,
    *rows(on(MERGE, (MergeSharedBuffers,)))("""
shared memory of a whole kernel
    (48,) => (200000,)
    shared memory: found ring 400000 + rest 12 + full 16 = 400032 bytes with alignment; need at most
    232448; take fewer stages or a smaller tile
    """),
    case(
        "shared buffer of unknown size",
        MERGE,
        (MergeSharedBuffers,),
        r"shared buffer ring: found shape \[n\]; need a static shape",
        ("(48,)", "(n,)"),
        ("def func(", "def func(n: T.int32, "),
    ),
    *rows(on(RASTER, (ScheduleTiles,)))("""
raster group of no rows
    annotations=NOTES => annotations={'tvm_hopper.raster_group': 0}
    loop bx, tvm_hopper.raster_group: found 0; need at least one row of tiles
pairs of tiles of a block with one tile
    annotations=NOTES => annotations={'tvm_hopper.raster_curve': 'pairs'}
    loop bx, tvm_hopper.raster_curve: found pairs of tiles of one block each; need
    tvm_hopper.persistent, without groups of rows, equal shares or a table of rows; leave the
pairs of tiles in groups of rows
    annotations=NOTES => annotations={'tvm_hopper.raster_curve': 'pairs', GROUP}
    GROUP => 'tvm_hopper.persistent': 3, 'tvm_hopper.raster_group': 2
    loop bx, tvm_hopper.raster_curve: found pairs of tiles next to another order; need
table that the kernel does not read
    annotations=NOTES => annotations={'tvm_hopper.persistent': 3, 'tvm_hopper.row_table': 'tiles'}
    block kernel, tvm_hopper.row_table: found 'tiles'; need a tensor of int32 with two
    dimensions, which the kernel reads
persistent kernel of no blocks
    annotations=NOTES => annotations={'tvm_hopper.persistent': 0}
    loop bx, tvm_hopper.persistent: found 0; need at least one thread block
    """),
    *rows(on(test_size_persistent_grid.HOST, (SizePersistentGrid,)))("""
launch without a tensor, which would say on which device
    args, 0, 9 => args, 0, 8
    args, 1, 9 => args, 1, 8
    a host function: found a kernel launch without a tensor argument; need one, which tells
    """),
    *rows(on(RASTER, (ScheduleTiles,)))("""
raster order without rows
    annotations=NOTES => annotations={'tvm_hopper.raster_group': 2}
    blockIdx.y => blockIdx.z
    loop bx, tvm_hopper.raster_group: found no loop bound to blockIdx.y; need rows of output tiles
    on blockIdx.y and columns on blockIdx.x, around a pipelined loop
raster order of a kernel without a pipelined loop
    annotations=NOTES => annotations={'tvm_hopper.raster_group': 2}
    , kernel=1 =>
    loop bx, tvm_hopper.raster_group: found a kernel without a pipelined loop; need rows
    """),
    *rows(on(LEFT, (RejectUnloweredRequests,)))("""
annotation that nothing acts on: a block outside of kernels
    block C, tvm_hopper.wgmma: found an annotation outside of the kernel, or of the loop, that it is
    about; need it inside loops bound to blockIdx, with asynchronous copies in a pipelined loop;
    bind the loops first, or remove the annotation
annotation that nothing acts on: a loop that is no pipeline
    , wgmma=1 =>
    loop i, tvm_hopper.consumers: found an annotation outside of the kernel, or of the loop
work left on the host
    , wgmma=1 =>
    , consumers=1 =>
    block C: found a store into C outside of every kernel; need loops bound to blockIdx and
    threadIdx around it; schedule the block as a kernel, or inline it
    """),
]

TWO_AXES = """
def func(A: T.Buffer((32,), "float16"), C: T.Buffer((32,), "float16"), n: T.int32):
    for tx in T.thread_binding(16, thread="threadIdx.x"):
        for ty in T.thread_binding(2, thread="threadIdx.y"):
            with T.sblock(""):
                fragment = T.sblock_alloc_buffer((16,), "float16", scope="warp")
                tile = T.sblock_alloc_buffer((32,), "float16", scope="shared.dyn")
                for i in range(32):
                    with T.sblock("copy", async_copy="tma"):
                        tile[i] = A[i]
                fragment[tx] = tile[tx]
                C[ty * 16 + tx] = fragment[tx]
"""
THREADS = [
    *rows(on(TWO_AXES, (FuseThreadAxes,)))("""
a warp's buffer on half a warp
    buffer fragment: found scope 'warp' with 16 threads on threadIdx.x, and others next to it; need
    32 threads on threadIdx.x: the lanes of a warp; bind a loop of 32 to threadIdx.x, warps to
    threadIdx.y
a symbolic number of threads
    T.thread_binding(2 => T.thread_binding(n
    loop ty, threadIdx.y: found n threads; need a static number of threads; split the loop by a
    constant and bind the inner one
    """),
]
