"""Every annotation, attribute and option key of the package, once: place, type, meaning.

Values are int, float, bool, str or flat lists of these, since nothing else survives a schedule
trace. Stages, order and asynchrony of a pipeline are TVM's own `software_pipeline_stage`, `_order`
and `_async_stages`; a key exists here only where TVM has no word.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm_hopper.facts import async_ops, reductions
from tvm_hopper.facts.programming_model import (
    MAX_THREADS,
    SETMAXNREG_MAX,
    SETMAXNREG_MIN,
    WARP_GROUP_THREADS,
)

PREFIX = "tvm_hopper."
# One warp group is the producer; a product takes no more than three consumers.
MOST_CONSUMERS = MAX_THREADS // WARP_GROUP_THREADS - 1
INT32_MAX = 2**31 - 1  # tiles and thread blocks are counted by 32 bits

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
BESIDE_COPY = (
    SWIZZLE,
    STORE_SLOTS,
    REDUCE,
    CACHE_HINT,
    SPARE_ROWS,
)  # what says how a copy is made, not that it is
# -- on a serial loop around such copies
ACROSS_BLOCKS = "tvm_hopper.across_blocks"
# -- on a serial loop around the pipelined loop of a product
ACROSS_CLUSTER = "tvm_hopper.across_cluster"
BY_CLUSTER, BY_KERNELS, BY_CALLER, IN_TURNS, BY_TURNS, BY_ATOMICS = 1, 2, 3, 4, 5, 6  # values
MOST_PARTS = 64  # by kernels
# -- on the block that multiplies two shared tiles into a register tile
WGMMA = "tvm_hopper.wgmma"
ACCUMULATE = "tvm_hopper.accumulate"
CHOICE = "tvm_hopper.choice"
# -- on the block that multiplies two register tiles of a warp
MMA_SYNC = "tvm_hopper.mma_sync"
# -- on the pipelined loop
CONSUMERS = "tvm_hopper.consumers"
REGISTERS = "tvm_hopper.registers"
WGMMA_PENDING = "tvm_hopper.wgmma_pending"
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
# -- on the loop bound to blockIdx.x of a kernel whose time is that of its bytes
MEMORY_BOUND = "tvm_hopper.memory_bound"
CHOSEN = "tvm_hopper.chosen"
BLOCKS_PER_SM = "tvm_hopper.blocks_per_sm"
MOST_BLOCKS_PER_SM = 32
KEPT_END = "tvm_hopper.kept_end"
LAUNCHED_TOGETHER = "tvm_hopper.launched_together"
MOST_LAUNCHED_TOGETHER = 8  # of any chip with clusters
ROW_CLUSTER = "tvm_hopper.row_cluster"
MOST_ROW_CLUSTER = 16  # of a chip that we know
# -- on the loop bound to blockIdx.x of a kernel of a tuner's
CONFIGURATION = "tvm_hopper.configuration"
# -- on the loop over rows of such a kernel
PREFETCH_ROWS = "tvm_hopper.prefetch_rows"
STAGE_ROWS = "tvm_hopper.stage_rows"
SKEW_TURNS = "tvm_hopper.skew_turns"
CURVES = ("hilbert",)
MOST_TURNS = 3  # sets of consumers: a product takes no more of them
MOST_TURNS_AHEAD = 8  # of rows that are brought into L2
MOST_STORE_SLOTS = 1 << 16  # no shared memory holds more
BY_DEVICE = -1  # a value of it: as many thread blocks as balance on the device of the launch
# -- options of a whole compilation (function attribute or PassContext)
STRICT = "tvm_hopper.strict"
VERIFY = "tvm_hopper.verify"
COMPILER = "tvm_hopper.compiler"
CHECK_ASSEMBLER_LOG = "tvm_hopper.check_assembler_log"
DETERMINISTIC = "tvm_hopper.deterministic"
FUNCTIONS = "tvm_hopper.functions"
# -- TVM's own words, which mean the same in a function of ours
STAGE = "software_pipeline_stage"
ORDER = "software_pipeline_order"
ASYNC_STAGES = "software_pipeline_async_stages"
PIPELINE_KEYS = (STAGE, ORDER, ASYNC_STAGES)
DIM_ALIGN = "buffer_dim_align"  # Schedule.storage_align
FAST_MATH = "tirx.enable_fast_math"  # PassContext alone: also turns on --use_fast_math

BLOCK, LOOP, FUNCTION = "block", "loop", "function"


@dataclass(frozen=True)
class Key:
    """One key: `places` says what may carry it, `kind` the type, `legal` the values (or any).

    An int without `legal` values lies in `bounds`, both included, or is one of `beyond`.
    """

    name: str
    places: tuple[str, ...]
    kind: type
    meaning: str
    legal: tuple[object, ...] = ()
    length: int = 0  # of a list of `kind`; 0 = a scalar
    bounds: tuple[int, int] = (1, INT32_MAX)
    beyond: tuple[int, ...] = ()  # ints outside of the bounds that mean something else
    axis: str = ""  # the thread axis that a loop carrying it is bound to
    option: bool = False  # also a PassContext key, and a function attribute


# Of copies: what makes them; the first one that can, and what the schedule says without us.
AUTO, BY_THREADS = "auto", "none"
MECHANISMS = (*async_ops.MECHANISMS, AUTO, BY_THREADS)
CACHE_HINTS = ("evict_first", "evict_last")

# Of memory-bound kernels.
POINTWISE, ROW_REDUCTION = "pointwise", "row_reduction"
COLUMN_REDUCTION, DOT_PRODUCTS, FRAGMENTS = "column_reduction", "dot_products", "fragments"
KINDS = (POINTWISE, ROW_REDUCTION, COLUMN_REDUCTION, DOT_PRODUCTS, FRAGMENTS)

KEYS: dict[str, Key] = {
    key.name: key
    for key in (
        Key(
            ASYNC_COPY,
            (BLOCK,),
            str,
            "mechanism of an asynchronous copy",
            MECHANISMS,
            option=True,
        ),
        Key(SWIZZLE, (BLOCK,), int, "swizzle of the shared tile, in bytes", (0, 32, 64, 128)),
        Key(
            CACHE_HINT,
            (BLOCK,),
            str,
            "what L2 is to do with the bytes of a load: give them up first, or last",
            CACHE_HINTS,
        ),
        Key(
            SPARE_ROWS,
            (BLOCK,),
            int,
            "nobody uses rows of a loaded tile that lie beyond the tensor's end: they may hold "
            "what an earlier load left there instead of zeros",
            (1,),
        ),
        Key(
            LOAD_HINT,
            (BLOCK,),
            str,
            "what L1 and L2 are to do with a vector that a thread loads: give it up first, or last",
            CACHE_HINTS,
        ),
        Key(
            EARLY_LOADS,
            (BLOCK,),
            int,
            "these loads to registers read what no earlier launch writes: do not wait for one",
            (1,),
        ),
        Key(
            STORE_SLOTS,
            (BLOCK,),
            int,
            "slots of the tile that an asynchronous store reads: all but one may be in flight",
            bounds=(1, MOST_STORE_SLOTS),
        ),
        Key(
            REDUCE,
            (BLOCK,),
            str,
            "operation by which a copy combines what it moves with what is there",
            reductions.OPERATIONS,
        ),
        Key(
            ACROSS_BLOCKS,
            (LOOP,),
            str,
            "axis of thread blocks that share a serial loop's iterations",
            ("blockIdx.y", "blockIdx.z"),
        ),
        Key(
            ACROSS_CLUSTER,
            (LOOP,),
            int,
            "thread blocks share the iterations of a sum's loop: 1, those of a cluster; 2, any, "
            "and a second kernel adds what they have summed; 3, as 2 where a call comes with an "
            "allocator, else as 1; 4, any, one after another in the same memory; 5, as 4 where a "
            "call comes with an allocator, else as 1; 6, any, by reductions of the hardware",
            (BY_CLUSTER, BY_KERNELS, BY_CALLER, IN_TURNS, BY_TURNS, BY_ATOMICS),
        ),
        Key(WGMMA, (BLOCK,), int, "lower this multiply-add block to WGMMA", (1,)),
        Key(
            MMA_SYNC,
            (BLOCK,),
            int,
            "lower this multiply-add block to mma.sync, whose operands each lane loads itself",
            (1,),
        ),
        Key(ACCUMULATE, (BLOCK,), str, "type of the accumulator in registers", ("float32",)),
        Key(CHOICE, (BLOCK,), str, "the best configurations by estimate, a line each, for explain"),
        Key(CONSUMERS, (LOOP,), int, "consumer warp groups", bounds=(1, MOST_CONSUMERS)),
        Key(
            REGISTERS,
            (LOOP,),
            int,
            "registers of a producer and of a consumer thread",
            length=2,
            bounds=(SETMAXNREG_MIN, SETMAXNREG_MAX),
        ),
        Key(
            WGMMA_PENDING,
            (LOOP,),
            int,
            "WGMMA groups left in flight over an iteration",
            (0, 1),
            option=True,
        ),
        Key(
            RASTER_GROUP,
            (LOOP,),
            int,
            "rows of output tiles that are visited together",
            axis="blockIdx.x",
            option=True,
        ),
        Key(RASTER_CURVE, (LOOP,), str, "through a group's tiles", CURVES, axis="blockIdx.x"),
        Key(
            PERSISTENT,
            (LOOP,),
            int,
            "thread blocks that share all output tiles; -1: counted at launch, by the device",
            beyond=(BY_DEVICE,),
            axis="blockIdx.x",
        ),
        Key(
            TURNS,
            (LOOP,),
            int,
            "sets of consumers that compute output tiles of a thread block in turn",
            bounds=(2, MOST_TURNS),
            axis="blockIdx.x",
        ),
        Key(
            STREAM,
            (LOOP,),
            int,
            "persistent blocks take equal shares of the steps of all output tiles; parts of a tile "
            "are added in their order: 1, where a call comes with an allocator, else each takes "
            "whole tiles; 2, at each call",
            (STREAM_BY_CALLER, STREAM_ALWAYS),
            axis="blockIdx.x",
        ),
        Key(
            CHOSEN_FOR,
            (LOOP,),
            int,
            "rows that the kernel was chosen for, and the time estimated in tenths of a us; noted",
            length=2,
            axis="blockIdx.x",
        ),
        Key(
            SHARE_LOADS,
            (LOOP,),
            int,
            "thread blocks along blockIdx.z are a cluster, and load once what several of them need",
            (1,),
            axis="blockIdx.x",
        ),
        Key(
            EARLY_LAUNCH,
            (LOOP,),
            int,
            "the kernel begins while the launch before it ends, and waits in front of memory",
            (1,),
            axis="blockIdx.x",
        ),
        Key(
            MEMORY_BOUND,
            (LOOP,),
            str,
            "a kernel of registers and plain vectors, and its kind",
            KINDS,
            axis="blockIdx.x",
        ),
        Key(
            CHOSEN,
            (LOOP,),
            str,
            "what a model chose for the kernel, and what came after it, for `explain`",
            axis="blockIdx.x",
        ),
        Key(
            CONFIGURATION,
            (LOOP,),
            str,
            "what a tuner scheduled the kernel with, as a record of it keeps it",
            axis="blockIdx.x",
        ),
        Key(
            BLOCKS_PER_SM,
            (LOOP,),
            int,
            "thread blocks of the kernel that are to share an SM, as far as registers go",
            bounds=(1, MOST_BLOCKS_PER_SM),
            axis="blockIdx.x",
        ),
        Key(
            KEPT_END,
            (LOOP,),
            int,
            "the last thread blocks: L2 gives up last what they store, and first what they load by "
            "`tvm_hopper.load_hint`",
            axis="blockIdx.x",
        ),
        Key(
            LAUNCHED_TOGETHER,
            (LOOP,),
            int,
            "neighbouring thread blocks that begin at the same time, on chips that have clusters",
            bounds=(2, MOST_LAUNCHED_TOGETHER),
            axis="blockIdx.x",
        ),
        Key(
            ROW_CLUSTER,
            (LOOP,),
            int,
            "thread blocks of a cluster that share a row: threadIdx.z of the schedule counts them",
            bounds=(2, MOST_ROW_CLUSTER),
            axis="blockIdx.x",
        ),
        Key(
            PREFETCH_ROWS,
            (LOOP,),
            int,
            "turns of the loop by which rows are brought into L2 before they are loaded",
            bounds=(1, MOST_TURNS_AHEAD),
        ),
        Key(
            STAGE_ROWS,
            (LOOP,),
            int,
            "turns of the loop by which rows are copied to shared memory before they are loaded",
            bounds=(1, MOST_TURNS_AHEAD),
        ),
        Key(
            SKEW_TURNS,
            (LOOP,),
            int,
            "the next turn's row is reduced before this turn waits for its cluster",
            bounds=(1, 1),
        ),
        Key(STRICT, (FUNCTION,), bool, "a reported fallback becomes an error", option=True),
        Key(VERIFY, (FUNCTION,), bool, "check the synchronisation of the result", option=True),
        Key(COMPILER, (FUNCTION,), str, "CUDA compiler", ("nvrtc", "nvcc"), option=True),
        Key(
            FUNCTIONS,
            (FUNCTION,),
            str,
            "how activations with 16-bit results are computed",
            ("short", "approximate", "library"),
            option=True,
        ),
        Key(
            CHECK_ASSEMBLER_LOG,
            (FUNCTION,),
            bool,
            "fail on serialised WGMMA, ignored setmaxnreg, stack frames; if strict, on spills",
            option=True,
        ),
        Key(
            DETERMINISTIC,
            (FUNCTION,),
            bool,
            "refuse what gives other bits from run to run",
            option=True,
        ),
    )
}


# -- between our own passes: written by one, read by a later one, never by users
# On the block that does the work of one output tile; in a persistent kernel, of one after another.
TILE_WORK = "tvm_hopper.tile_work"
# On the block that holds all that a kernel of ours does, from its rings to its barriers.
KERNEL = "tvm_hopper.kernel"
# On a copy whose tile was to have padded rows, and has none.
UNPADDED = "tvm_hopper.unpadded"
# On a copy that the option asks for: what its place forbids leaves the function to TVM.
BY_OPTION = "tvm_hopper.by_option"
# On a block that issues asynchronous operations: its row in `facts.async_ops`.
ASYNC_OP = "tvm_hopper.async_op"
# call_extern(TMA_LOAD, tile, tensor_map, coordinates...): one box, without a barrier yet.
TMA_LOAD = "tvm_hopper.tma_load"
# call_extern(TMA_MULTICAST, tile, tensor_map, mask, coordinates...): to blocks of a cluster.
TMA_MULTICAST = "tvm_hopper.tma_multicast"
MULTICAST = {TMA_LOAD: TMA_MULTICAST}  # loads that one block may make for others
# call_extern(BULK_LOAD, tile, tensor, num_bytes): contiguous bytes, without a barrier yet.
BULK_LOAD = "tvm_hopper.bulk_load"
# call_extern(CP_ASYNC, tile, tensor, num_bytes, source_bytes): a thread's chunk, zeros behind.
CP_ASYNC = "tvm_hopper.cp_async"
# Between the name of any of these and what L2 is to do with the bytes: "tvm_hopper.tma_load@...".
WITH_HINT = "@"
# On a loop of such calls: its iterations are shared out between the threads that make the copy.
SHARED_OUT = "tvm_hopper.shared_out"
# TVM's own call of a queue, tile, tensor, bytes, and whether it goes past the cache.
DMA_COPY = "tirx.dma_copy"
# A channel hands the slots of a ring from those that fill them to those that read them. Its number
# stands on the block of loads, the number of slots on the loop around it. A trip is the number of a
# use, counted from the kernel's start: slot = trip % slots. The loop that binds it advances it.
CHANNEL = "tvm_hopper.channel"
NUM_SLOTS = "tvm_hopper.num_slots"
STORES_IN_FLIGHT = "tvm_hopper.stores_in_flight"  # on a block of loads: slots left to stores
KEPT = "tvm_hopper.kept"  # beside it: slots left to statements that run trips later
AHEAD = "tvm_hopper.ahead"  # on a block of loads: how many trips ahead, one of each that it makes
IN_PARTS = "tvm_hopper.in_parts"  # on a block of loads: who makes a part arrives for it
FILL_SLOT = "tvm_hopper.fill_slot"  # call_extern(.., channel, trip[, bytes]): its loads go there
AWAIT_FILLED = "tvm_hopper.await_filled"  # call_extern(.., channel, trip): its loads have landed
AWAIT_FREE = "tvm_hopper.await_free"  # call_extern(.., channel, trip): its last readers are done
# call_extern(.., channel, trip[, peer]): one arrival of a reader, at that block of the cluster
FREE_SLOT = "tvm_hopper.free_slot"
READ_SLOT = "tvm_hopper.read_slot"  # call_extern(.., channel, trip): a trip that fills nothing
# A ring of tiles that threads write and that leave by asynchronous stores: its number, counted on
# from those of channels, stands on the blocks of its stores.
STORE_RING = "tvm_hopper.store_ring"
STORE_SLOT = "tvm_hopper.store_slot"  # call_extern(.., ring, trip): its stores leave from there
# On statements of a pipelined loop: how many trips behind the first that compute they are to run;
# then, where they do, of how many trips ago what they touch is.
SHIFT = "tvm_hopper.shift"
LATE = "tvm_hopper.late"
# On a block that allocates rings of plain arrays: the channel whose trips count their slots.
HANDED_ON = "tvm_hopper.handed_on"
CHANNEL_CALLS = (FILL_SLOT, AWAIT_FILLED, AWAIT_FREE, FREE_SLOT, STORE_SLOT, READ_SLOT)
# On a block: no two of its threads or iterations write the same element of shared memory.
APART = "tvm_hopper.apart"
TAKES_PLACE = "tvm_hopper.takes_place"  # on a store of accumulators: over an operand's tile
OVERLAY = "tvm_hopper.overlay"  # call_extern(.., &a, &b): two shared arrays may share bytes
RELEASE = "tvm_hopper.release"  # on a block that gives back the ring slot of so many trips ago
ARRIVALS = "tvm_hopper.arrivals"  # beside it: how many threads of the role arrive
