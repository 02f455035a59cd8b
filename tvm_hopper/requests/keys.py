"""All annotation, attribute and option keys of the package: where each goes, its type and meaning.

Values are int, float, bool, str or flat lists of these: nothing else survives a schedule trace.
Pipelines use TVM's own `software_pipeline_stage`, `_order` and `_async_stages`. A key exists here
only if TVM has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_hopper.facts import async_ops, reductions
from tvm_hopper.facts.programming_model import (
    MAX_THREADS,
    SETMAXNREG_MAX,
    SETMAXNREG_MIN,
    WARP_GROUP_THREADS,
)

PREFIX = "tvm_hopper."
# One warp group is the producer, which leaves at most three consumers.
MOST_CONSUMERS = MAX_THREADS // WARP_GROUP_THREADS - 1
INT32_MAX = 2**31 - 1  # tiles and thread blocks are counted in 32 bits

# -- on the block that copies a tile from global to shared memory
ASYNC_COPY = "tvm_hopper.async_copy"
SWIZZLE = "tvm_hopper.swizzle"
CACHE_HINT = "tvm_hopper.cache_hint"
SPARE_ROWS = "tvm_hopper.spare_rows"
# -- on the block that loads a vector into registers
LOAD_HINT = "tvm_hopper.load_hint"
EARLY_LOADS = "tvm_hopper.early_loads"
# -- on the block that copies a tile from shared to global memory
STORE_SLOTS = "tvm_hopper.store_slots"
REDUCE = "tvm_hopper.reduce"
COPY_OPTIONS = (SWIZZLE, STORE_SLOTS, REDUCE, CACHE_HINT, SPARE_ROWS)  # next to ASYNC_COPY
# -- on a serial loop around such copies
ACROSS_BLOCKS = "tvm_hopper.across_blocks"
# -- on a serial loop around the pipelined loop of a product
ACROSS_CLUSTER = "tvm_hopper.across_cluster"
BY_CLUSTER, BY_KERNELS, BY_CALLER, IN_TURNS, BY_TURNS, BY_ATOMICS = 1, 2, 3, 4, 5, 6  # values
MOST_PARTS = 64  # by kernels
# -- on the block that multiplies two shared tiles into a register tile
ROW_TABLE = "tvm_hopper.row_table"
WGMMA = "tvm_hopper.wgmma"
ACCUMULATE = "tvm_hopper.accumulate"
OPERANDS = "tvm_hopper.operands"
# -- on the block that multiplies two register tiles of a warp
MMA_SYNC = "tvm_hopper.mma_sync"
# -- on the pipelined loop
CONSUMERS = "tvm_hopper.consumers"
REGISTERS = "tvm_hopper.registers"
WGMMA_PENDING = "tvm_hopper.wgmma_pending"
IN_ORDER = "tvm_hopper.in_order"
# -- on the loop bound to blockIdx.x
RASTER_GROUP = "tvm_hopper.raster_group"
RASTER_CURVE = "tvm_hopper.raster_curve"
PERSISTENT = "tvm_hopper.persistent"
TURNS = "tvm_hopper.turns"
STREAM = "tvm_hopper.stream"
STREAM_BY_CALLER, STREAM_ALWAYS = 1, 2  # values
CHOSEN_FOR = "tvm_hopper.chosen_for"
SHARE_LOADS = "tvm_hopper.share_loads"
EARLY_LAUNCH = "tvm_hopper.early_launch"
# -- on the loop bound to blockIdx.x of a memory-bound kernel
MEMORY_BOUND = "tvm_hopper.memory_bound"
CHOSEN = "tvm_hopper.chosen"  # also on the block of a product
BLOCKS_PER_SM = "tvm_hopper.blocks_per_sm"
MOST_BLOCKS_PER_SM = 32
KEPT_END = "tvm_hopper.kept_end"
LAUNCHED_TOGETHER = "tvm_hopper.launched_together"
MOST_LAUNCHED_TOGETHER = 8  # of any chip with clusters
ROW_CLUSTER = "tvm_hopper.row_cluster"
MOST_ROW_CLUSTER = 16  # of a chip that we know
# -- on the loop bound to blockIdx.x of a tuned kernel
CONFIGURATION = "tvm_hopper.configuration"
# -- on the row loop of a memory-bound kernel
PREFETCH_ROWS = "tvm_hopper.prefetch_rows"
STAGE_ROWS = "tvm_hopper.stage_rows"
SKEW_TURNS = "tvm_hopper.skew_turns"
HILBERT, PAIRS = "hilbert", "pairs"  # orders of tiles
CURVES = (HILBERT,)  # of products
ORDERS = (HILBERT, PAIRS)
MOST_TURNS = 3  # consumer groups
MOST_TURNS_AHEAD = 8  # iterations of the row loop
MOST_STORE_SLOTS = 1 << 16  # no shared memory holds more
BY_DEVICE = -1  # value of PERSISTENT: the host counts thread blocks for the device at each launch
# -- options of a whole compilation (function attribute or PassContext)
STRICT = "tvm_hopper.strict"
CHECKS = "tvm_hopper.checks"
COMPILER = "tvm_hopper.compiler"
DETERMINISTIC = "tvm_hopper.deterministic"
FUNCTIONS = "tvm_hopper.functions"
LINE_INFO = "tvm_hopper.line_info"
# -- TVM's own keys, with their TVM meaning
STAGE = "software_pipeline_stage"
ORDER = "software_pipeline_order"
ASYNC_STAGES = "software_pipeline_async_stages"
PIPELINE_KEYS = (STAGE, ORDER, ASYNC_STAGES)
DIM_ALIGN = "buffer_dim_align"  # Schedule.storage_align
FAST_MATH = "tirx.enable_fast_math"  # PassContext alone: also turns on --use_fast_math

BLOCK, LOOP, FUNCTION = "block", "loop", "function"


@dataclass(frozen=True)
class Key:
    """One key: `places` that may carry it, its type `kind`, its `legal` values (empty: any).

    An int without `legal` values lies within `bounds` (inclusive) or is one of `beyond`.
    """

    name: str
    places: tuple[str, ...]
    kind: type
    meaning: str
    legal: tuple[object, ...] = ()
    length: int = 0  # of a list of `kind`; 0 = a scalar
    bounds: tuple[int, int] = (1, INT32_MAX)
    beyond: tuple[int, ...] = ()  # legal values outside the bounds
    axis: str = ""  # the thread axis that the loop must be bound to
    option: bool = False  # also a PassContext key and a function attribute


# Copies: "auto" takes the first mechanism that can; "none" leaves the schedule's loops to threads.
AUTO, BY_THREADS = "auto", "none"
MECHANISMS = (*async_ops.MECHANISMS, AUTO, BY_THREADS)
CACHE_HINTS = ("evict_first", "evict_last")

# Of checks.
SYNCHRONIZATION, ASSEMBLER_LOG = "synchronization", "assembler_log"

# Of memory-bound kernels.
POINTWISE, ROW_REDUCTION = "pointwise", "row_reduction"
COLUMN_REDUCTION, DOT_PRODUCTS, FRAGMENTS = "column_reduction", "dot_products", "fragments"
KINDS = (POINTWISE, ROW_REDUCTION, COLUMN_REDUCTION, DOT_PRODUCTS, FRAGMENTS)


def _block(name: str, kind: type, meaning: str, legal: tuple[object, ...] = (), **more: Any) -> Key:
    return Key(name, (BLOCK,), kind, meaning, legal, **more)


def _loop(name: str, kind: type, meaning: str, legal: tuple[object, ...] = (), **more: Any) -> Key:
    return Key(name, (LOOP,), kind, meaning, legal, **more)


def _grid(name: str, kind: type, meaning: str, legal: tuple[object, ...] = (), **more: Any) -> Key:
    """Describe a key of the loop bound to blockIdx.x."""
    return _loop(name, kind, meaning, legal, axis="blockIdx.x", **more)


def _option(name: str, kind: type, meaning: str, legal: tuple[object, ...] = ()) -> Key:
    """Describe an option of a whole compilation."""
    return Key(name, (FUNCTION,), kind, meaning, legal, option=True)


KEYS: dict[str, Key] = {
    key.name: key
    for key in (
        _block(ASYNC_COPY, str, "mechanism of an asynchronous copy", MECHANISMS, option=True),
        _block(SWIZZLE, int, "swizzle of the shared tile, in bytes", (0, 32, 64, 128)),
        _block(
            CACHE_HINT,
            str,
            "L2 eviction policy of a load: evict its bytes first, or last",
            CACHE_HINTS,
        ),
        _block(
            SPARE_ROWS,
            int,
            "out-of-bounds rows of the loaded tile need not be zero-filled; their contents are "
            "ignored",
            (1,),
        ),
        _block(
            LOAD_HINT,
            str,
            "L1 and L2 eviction policy of a thread's vector loads: evict first, or last",
            CACHE_HINTS,
        ),
        _block(
            EARLY_LOADS,
            int,
            "register loads of data that no earlier launch writes: they do not wait for one",
            (1,),
        ),
        _block(
            STORE_SLOTS,
            int,
            "ring slots of the tile that an asynchronous store reads; all but one may be in flight",
            bounds=(1, MOST_STORE_SLOTS),
        ),
        _block(
            REDUCE,
            str,
            "operation that combines the copied elements with the destination's",
            reductions.OPERATIONS,
        ),
        _loop(
            ACROSS_BLOCKS,
            str,
            "grid axis whose thread blocks share the iterations of a serial loop",
            ("blockIdx.y", "blockIdx.z"),
        ),
        _loop(
            ACROSS_CLUSTER,
            int,
            "split-K: thread blocks share the reduction loop. 1: a cluster; 2: partial sums in a "
            "workspace, added by a second kernel; 3: 2 if the call has an allocator, else 1; 4: "
            "serially, in one sum in global memory; 5: 4 if the call has an allocator, else 1; "
            "6: atomic reductions",
            (BY_CLUSTER, BY_KERNELS, BY_CALLER, IN_TURNS, BY_TURNS, BY_ATOMICS),
        ),
        Key(
            ROW_TABLE,
            (BLOCK, LOOP),
            str,
            "table that says where rows of a product's tiles begin, so that no two tiles store the "
            "same row; the first element of its last row counts the tiles",
            axis="blockIdx.x",
        ),
        _block(WGMMA, int, "lower this multiply-add block to WGMMA", (1,)),
        _block(
            MMA_SYNC,
            int,
            "lower this multiply-add block to mma.sync; each lane loads its operands",
            (1,),
        ),
        _block(ACCUMULATE, str, "type of the accumulator in registers", ("float32",)),
        _block(OPERANDS, str, "what float32 operands are multiplied as", ("tf32",)),
        _loop(CONSUMERS, int, "consumer warp groups", bounds=(1, MOST_CONSUMERS)),
        _loop(IN_ORDER, int, "consumers multiply one after another in an iteration", (1,)),
        _loop(
            REGISTERS,
            int,
            "registers of a producer thread and of a consumer thread (setmaxnreg)",
            length=2,
            bounds=(SETMAXNREG_MIN, SETMAXNREG_MAX),
        ),
        _loop(
            WGMMA_PENDING,
            int,
            "WGMMA groups left in flight at the end of an iteration",
            (0, 1),
            option=True,
        ),
        _grid(RASTER_GROUP, int, "rasterization: rows of output tiles in a group", option=True),
        _grid(RASTER_CURVE, str, "curve through a group, or pairs of rows", ORDERS),
        _grid(
            PERSISTENT,
            int,
            "thread blocks of a persistent kernel; -1: chosen at launch for the device",
            beyond=(BY_DEVICE,),
        ),
        _grid(
            TURNS,
            int,
            "consumer groups that take turns on a thread block's output tiles (ping-pong)",
            bounds=(2, MOST_TURNS),
        ),
        _grid(
            STREAM,
            int,
            "stream-K: persistent thread blocks take equal shares of all k steps, and add a "
            "tile's parts in order. 1: if the call has an allocator, else whole tiles; 2: always",
            (STREAM_BY_CALLER, STREAM_ALWAYS),
        ),
        _grid(
            CHOSEN_FOR,
            int,
            "rows that the kernel was chosen for, and its estimate in 0.1 us, for `explain`",
            length=2,
        ),
        _grid(
            SHARE_LOADS,
            int,
            "multicast: thread blocks along blockIdx.z are a cluster and load shared tiles once",
            (1,),
        ),
        _grid(
            EARLY_LAUNCH,
            int,
            "programmatic dependent launch: start early, and wait before reading earlier results",
            (1,),
        ),
        _grid(MEMORY_BOUND, str, "marks a memory-bound kernel, with its kind", KINDS),
        Key(
            CHOSEN,
            (LOOP, BLOCK),
            str,
            "the cost model's choice and the runners-up, for `explain`; of a product a line "
            "each, on its block",
            axis="blockIdx.x",
        ),
        _grid(CONFIGURATION, str, "the tuned configuration, as its record has it"),
        _grid(
            BLOCKS_PER_SM,
            int,
            "occupancy: thread blocks per SM that the register limit must allow",
            bounds=(1, MOST_BLOCKS_PER_SM),
        ),
        _grid(
            KEPT_END,
            int,
            "number of last thread blocks whose stores L2 evicts last, and whose loads with "
            "`tvm_hopper.load_hint` it evicts first",
        ),
        _grid(
            LAUNCHED_TOGETHER,
            int,
            "neighbouring thread blocks that start together, as a cluster",
            bounds=(2, MOST_LAUNCHED_TOGETHER),
        ),
        _grid(
            ROW_CLUSTER,
            int,
            "thread blocks of a cluster that share a row; threadIdx.z counts them",
            bounds=(2, MOST_ROW_CLUSTER),
        ),
        _loop(
            PREFETCH_ROWS,
            int,
            "row-loop iterations by which rows are prefetched into L2 ahead of their loads",
            bounds=(1, MOST_TURNS_AHEAD),
        ),
        _loop(
            STAGE_ROWS,
            int,
            "row-loop iterations by which rows are copied to shared memory ahead of their use",
            bounds=(1, MOST_TURNS_AHEAD),
        ),
        _loop(
            SKEW_TURNS,
            int,
            "software-pipeline the row loop: reduce row r + 1 before the cluster sum of row r",
            bounds=(1, 1),
        ),
        _option(STRICT, bool, "raise an error for each fallback"),
        _option(
            CHECKS,
            str,
            "checks of a build that raise errors: of its synchronisation; of the assembler's log "
            "(serialised WGMMA, ignored setmaxnreg, stack frames; if strict, spills)",
            ("all", SYNCHRONIZATION, ASSEMBLER_LOG, "none"),
        ),
        _option(COMPILER, str, "CUDA compiler", ("nvrtc", "nvcc")),
        _option(
            FUNCTIONS,
            str,
            "how activations with 16-bit results are computed",
            ("short", "approximate", "library"),
        ),
        _option(LINE_INFO, str, "folder for the TIR that profilers show as the source of kernels"),
        _option(DETERMINISTIC, bool, "refuse kernels whose results may differ from run to run"),
    )
}


# -- internal: one pass writes them, a later one reads them, users never do
# On the block that computes one output tile; in a persistent kernel, one tile after another.
TILE_WORK = "tvm_hopper.tile_work"
# On the block around a whole kernel: its rings, its barriers, its statements.
KERNEL = "tvm_hopper.kernel"
# On a copy whose requested row padding was dropped.
UNPADDED = "tvm_hopper.unpadded"
# On a copy that an option requests: if it cannot be made, the function is left to TVM.
BY_OPTION = "tvm_hopper.by_option"
# On a block that issues asynchronous operations: the operation's name in `facts.async_ops`.
ASYNC_OP = "tvm_hopper.async_op"
# call_extern(TMA_LOAD, tile, tensor_map, coordinates...): loads one box; no mbarrier yet.
TMA_LOAD = "tvm_hopper.tma_load"
# call_extern(TMA_MULTICAST, tile, tensor_map, mask, coordinates...): the same to a cluster.
TMA_MULTICAST = "tvm_hopper.tma_multicast"
MULTICAST = {TMA_LOAD: TMA_MULTICAST}  # loads that one block may make for others
# call_extern(BULK_LOAD, tile, tensor, num_bytes): loads contiguous bytes; no mbarrier yet.
BULK_LOAD = "tvm_hopper.bulk_load"
# call_extern(CP_ASYNC, tile, tensor, num_bytes, source_bytes): one thread's chunk, zero-filled.
CP_ASYNC = "tvm_hopper.cp_async"
# Separates such a name from an L2 eviction policy: "tvm_hopper.tma_load@evict_first".
WITH_HINT = "@"
# On a loop of such calls: its iterations are distributed over the threads that copy.
SHARED_OUT = "tvm_hopper.shared_out"
# TVM's own call: queue, tile, tensor, bytes, and whether to bypass the cache.
DMA_COPY = "tirx.dma_copy"
# A channel passes the slots of a ring buffer from producer to consumers. Its number is on the block
# of loads, its slot count on the loop around them. `trip` counts iterations from the kernel's
# start: slot = trip % slots. The loop that binds it advances it.
CHANNEL = "tvm_hopper.channel"
NUM_SLOTS = "tvm_hopper.num_slots"
# On a block of loads: slots that stores in flight or late statements still read.
RESERVED_SLOTS = "tvm_hopper.reserved_slots"
AHEAD = "tvm_hopper.ahead"  # on a block of loads: iterations that each load runs ahead
IN_PARTS = "tvm_hopper.in_parts"  # on a block of loads: each thread arrives for its part
FILL_SLOT = "tvm_hopper.fill_slot"  # call_extern(.., channel, trip[, bytes]): fill the slot
AWAIT_FILLED = "tvm_hopper.await_filled"  # call_extern(.., channel, trip): wait until it is full
AWAIT_FREE = "tvm_hopper.await_free"  # call_extern(.., channel, trip): wait until it is empty
# call_extern(.., channel, trip[, peer]): a reader arrives, at that thread block of the cluster
FREE_SLOT = "tvm_hopper.free_slot"
READ_SLOT = "tvm_hopper.read_slot"  # call_extern(.., channel, trip): names the slot that is read
# A ring of tiles that threads write and asynchronous stores read: its number, counted on from the
# channels, is on the blocks of its stores.
STORE_RING = "tvm_hopper.store_ring"
STORE_SLOT = "tvm_hopper.store_slot"  # call_extern(.., ring, trip): the slot that is stored
# On statements of a pipelined loop: SHIFT, the iterations that they are to lag after the first
# compute stage; LATE, once they do, the age of their data in iterations.
SHIFT = "tvm_hopper.shift"
LATE = "tvm_hopper.late"
# On a block that allocates rings of plain arrays: the channel that counts their slots.
HANDED_ON = "tvm_hopper.handed_on"
CHANNEL_CALLS = (FILL_SLOT, AWAIT_FILLED, AWAIT_FREE, FREE_SLOT, STORE_SLOT, READ_SLOT)
# On a block: no two of its threads or iterations write the same element of shared memory.
DISJOINT_WRITES = "tvm_hopper.disjoint_writes"
TAKES_PLACE = "tvm_hopper.takes_place"  # on a store of accumulators: reuses an operand's tile
OVERLAY = "tvm_hopper.overlay"  # call_extern(.., &a, &b): two shared arrays may share bytes
# On a block, [n, arrivals]: so many threads release the slot of n iterations ago.
RELEASE = "tvm_hopper.release"
