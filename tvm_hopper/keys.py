"""Every annotation, attribute and option key of the package, once: place, type, meaning.

Values are int, float, bool, str or flat lists of these, since nothing else survives a schedule
trace. Stages, order and asynchrony of a pipeline are TVM's own `software_pipeline_stage`, `_order`
and `_async_stages`; a key exists here only where TVM has no word.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

PREFIX = "tvm_hopper."
NEARLY = 0.85  # likeness of a prefix that is taken for a misspelt one of ours

# -- on the block that copies a tile from global to shared memory
ASYNC_COPY = "tvm_hopper.async_copy"
SWIZZLE = "tvm_hopper.swizzle"
# -- on the block that multiplies two shared tiles into a register tile
WGMMA = "tvm_hopper.wgmma"
ACCUMULATE = "tvm_hopper.accumulate"
# -- on the pipelined loop
CONSUMERS = "tvm_hopper.consumers"
REGISTERS = "tvm_hopper.registers"
WGMMA_PENDING = "tvm_hopper.wgmma_pending"
# -- on the loop bound to blockIdx.x
RASTER_GROUP = "tvm_hopper.raster_group"
PERSISTENT = "tvm_hopper.persistent"
# -- options of a whole compilation (function attribute or PassContext)
STRICT = "tvm_hopper.strict"
VERIFY = "tvm_hopper.verify"
COMPILER = "tvm_hopper.compiler"
FAST_MATH = "tvm_hopper.fast_math"
CHECK_ASSEMBLER_LOG = "tvm_hopper.check_assembler_log"

BLOCK, LOOP, FUNCTION = "block", "loop", "function"


@dataclass(frozen=True)
class Key:
    """One key: `places` says what may carry it, `kind` the type, `legal` the values (or any)."""

    name: str
    places: tuple[str, ...]
    kind: type
    meaning: str
    legal: tuple[object, ...] = ()
    length: int = 0  # of a list of `kind`; 0 = a scalar
    axis: str = ""  # the thread axis that a loop carrying it is bound to
    option: bool = False  # also a PassContext key, and a function attribute


KEYS: dict[str, Key] = {
    key.name: key
    for key in (
        Key(ASYNC_COPY, (BLOCK,), str, "mechanism of an asynchronous copy", ("tma",), option=True),
        Key(SWIZZLE, (BLOCK,), int, "swizzle of the shared tile, in bytes", (0, 32, 64, 128)),
        Key(WGMMA, (BLOCK,), int, "lower this multiply-add block to WGMMA", (1,)),
        Key(ACCUMULATE, (BLOCK,), str, "type of the accumulator in registers", ("float32",)),
        Key(CONSUMERS, (LOOP,), int, "consumer warp groups", (1, 2, 3)),
        Key(REGISTERS, (LOOP,), int, "registers of a producer and of a consumer thread", length=2),
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
        Key(
            PERSISTENT,
            (LOOP,),
            int,
            "thread blocks that share all output tiles",
            axis="blockIdx.x",
        ),
        Key(STRICT, (FUNCTION,), bool, "a reported fallback becomes an error", option=True),
        Key(VERIFY, (FUNCTION,), bool, "check the synchronisation of the result", option=True),
        Key(COMPILER, (FUNCTION,), str, "CUDA compiler", ("nvrtc", "nvcc"), option=True),
        Key(FAST_MATH, (FUNCTION,), bool, "allow approximate arithmetic", option=True),
        Key(
            CHECK_ASSEMBLER_LOG,
            (FUNCTION,),
            bool,
            "fail on spills, serialised WGMMA and ignored setmaxnreg",
            option=True,
        ),
    )
}


def claims_to_be_ours(name: str) -> bool:
    """Tell whether a key has our prefix, or one that can only be meant for it."""
    prefix, dot, _ = name.partition(".")
    alike = difflib.SequenceMatcher(None, prefix, PREFIX[:-1]).ratio()
    return bool(dot) and alike > NEARLY


def closest(name: str) -> str:
    """Return the known key nearest to a misspelt one, or an empty string."""
    return next(iter(difflib.get_close_matches(name, KEYS, n=1, cutoff=0.6)), "")


# -- between our own passes: written by one, read by a later one, never by users
TILE_LOOP = "tvm_hopper.tile_loop"  # on a role's loop over the output tiles of one thread block
# On a block that issues asynchronous operations: its row in `facts.async_ops`.
ASYNC_OP = "tvm_hopper.async_op"
# call_extern(TMA_LOAD, tile, tensor_map, coordinates...): one box, without a barrier yet.
TMA_LOAD = "tvm_hopper.tma_load"
RELEASE = "tvm_hopper.release"  # on a block that gives back the ring slot of so many iterations ago
ALIGNMENT = "tvm_hopper.alignment"  # on a function: argument, bytes ...
