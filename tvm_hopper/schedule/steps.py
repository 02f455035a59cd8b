"""The steps of a Hopper kernel as schedule helpers, each a few traced primitives and annotations.

    hs.fuse_prologue(sch, block)              casts before the product become part of it
    hs.pad(sch, block, tile)                  pad_einsum, when a shape does not divide
    ... split, reorder, bind, cache_write, cache_read, compute_at: TVM's own ...
    hs.async_copy(sch, copy, swizzle=128)     annotate; the pad becomes the copy's bounds
    hs.fuse_epilogue(sch, store)              the crop and what follows become part of the store
    hs.wgmma(sch, block)                      decompose_reduction, blockize, annotate
    hs.pipeline(sch, k0, stages=4, roles=hs.Roles(consumers=2))

They stand beside TVM's primitives and replay from a trace in a process that knows nothing of this
package.  What they cannot serve is refused before they change anything.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import s_tir, tirx

from tvm_hopper import ir, keys
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts import swizzle as swizzle_facts
from tvm_hopper.facts import wgmma as wgmma_facts

from .config import MECHANISMS, Roles, check_choice, check_stages
from .recognise import OPERAND_TYPES, find_matmul, loops_around

SAMPLE = "tvm_hopper.sample"  # never left in the IR, see `pipeline`
SEPARATE = "keep the rest in a function of its own"
Int = Any  # an int, or a random variable of the schedule


# -- before the product ---------------------------------------------------------------------------


def fuse_prologue(sch: s_tir.Schedule, block: Any) -> None:
    """Inline the blocks that only cast or re-index an operand into the product.

    Parameters
    ----------
    sch : Schedule
        Changed in place.
    block : SBlockRV or str
        The multiply-add.

    Raises
    ------
    ScheduleError
        An operand is computed by anything more than a cast.
    """
    block = as_block(sch, block)
    while producers := [p for p in sch.get_producers(block) if not is_own_kernel(sch, p)]:
        for producer in producers:
            node = sch.get(producer)
            value = node.body.value if isinstance(node.body, ir.BufferStore) else None
            load = value.value if isinstance(value, tirx.Cast) else value
            if node.init is not None or not isinstance(load, ir.TensorLoad):
                raise cannot_schedule(
                    f"block {node.name_hint}",
                    f"a computation before the matmul {sch.get(block).name_hint}",
                    "operands that are tensors, or casts of them",
                    SEPARATE,
                )
            _inline(sch, sch.compute_inline, producer)


def pad(sch: s_tir.Schedule, block: Any, tile: tuple[Int, Int, Int]) -> None:
    """Pad the matmul to whole tiles, when its shape is not known to be a multiple of the tile.

    The pads and the crop are blocks that `async_copy` and `fuse_epilogue` inline again: nothing is
    padded in memory.  A sampled tile pads to a multiple of all of its candidates, so that every
    decision of a tuner finds whole tiles.

    Parameters
    ----------
    sch : Schedule
        Changed in place.
    block : SBlockRV or str
        The multiply-add, in plain loops.
    tile : tuple
        Rows, columns and depth of the tile, ints or random variables.
    """
    block = as_block(sch, block)
    matmul = find_matmul(sch, block)
    axes = list(zip((matmul.m, matmul.n, matmul.k), tile, strict=True))
    multiple = {axis.iter_var.var: math.lcm(*candidates(sch, t)) for axis, t in axes}
    ragged = [
        not ir.is_const(ir.simplify(axis.iter_var.dom.extent % multiple[axis.iter_var.var]), 0)
        for axis, _ in axes
    ]
    if any(ragged):
        sch.pad_einsum(block, [multiple.get(var.var, 1) for var in sch.get(block).iter_vars])


# -- copies ---------------------------------------------------------------------------------------


def async_copy(
    sch: s_tir.Schedule, copy: Any, mechanism: str = "tma", swizzle: int | None = None
) -> None:
    """Ask for a copy to shared memory to be made by the hardware, asynchronously.

    A pad in front of the copy is inlined: it becomes `if_then_else(in bounds, load, 0)`, which TMA
    does by itself at the bounds of the tensor.

    Parameters
    ----------
    sch : Schedule
        Changed in place.
    copy : SBlockRV
        What `cache_read(..., "shared.dyn")` returned, already at the loop that is pipelined.
    mechanism : str
        "tma".
    swizzle : int, optional
        Bytes of the XOR pattern of the shared tile, 0, 32, 64 or 128; None: the widest that fits.
    """
    node = sch.get(copy)
    where = f"block {node.name_hint}"
    check_choice(where, "mechanism", mechanism, MECHANISMS)
    check_choice(where, "swizzle", swizzle, swizzle_facts.SWIZZLES)
    scopes = [str(region.source.scope()) for region in node.writes]
    if scopes != ["shared.dyn"]:
        raise cannot_schedule(where, f"a write to {scopes}", 'a cache_read to "shared.dyn"')
    for producer in sch.get_producers(copy):
        if _is_pad(sch.get(producer)):
            sch.compute_inline(producer)
    sch.annotate(copy, keys.ASYNC_COPY, mechanism)
    if swizzle is not None:
        sch.annotate(copy, keys.SWIZZLE, swizzle)


# -- behind the product ---------------------------------------------------------------------------


def fuse_epilogue(sch: s_tir.Schedule, store: Any) -> None:
    """Inline the crop of `pad` and every elementwise block behind the product into the store.

    Parameters
    ----------
    sch : Schedule
        Changed in place.
    store : SBlockRV
        What `cache_write` of the accumulator returned, already at its loop.

    Raises
    ------
    ScheduleError
        There are several outputs, or a block that is not elementwise.
    """
    while consumers := _followers(sch, store):
        _check_not_output(sch, store)
        last = [c for c in consumers if len(consumers) == 1 or not _followers(sch, c)]
        if len(last) > 1:
            names = ", ".join(sorted(_output_name(sch, c) for c in last))
            where = f"block {sch.get(store).name_hint}"
            raise cannot_schedule(where, f"several outputs ({names})", "one output", SEPARATE)
        for consumer in consumers:
            _fuse_side_inputs(sch, consumer, store)
            # a diamond: all but the last are recomputed inside it, since reverse_compute_inline of
            # one of several consumers leaves the others reading a buffer that is gone
            if consumer not in last:
                _check_not_output(sch, consumer)
                _inline(sch, sch.compute_inline, consumer)
        if len(consumers) == 1:
            _inline(sch, sch.reverse_compute_inline, consumers[0])


def _followers(sch: s_tir.Schedule, block: Any) -> list[Any]:
    """Return the blocks that read what a block writes and are not kernels of their own."""
    return [c for c in sch.get_consumers(block) if not is_own_kernel(sch, c)]


def _check_not_output(sch: s_tir.Schedule, block: Any) -> None:
    """Refuse a value that the epilogue reads on and that is needed in memory all the same."""
    result = sch.get(block).writes[0].source
    root = sch.get_sref(block)
    while root.parent is not None:
        root = root.parent
    is_argument = not any(b.same_as(result) for b in root.stmt.alloc_buffers)
    if is_argument or len(_followers(sch, block)) < len(sch.get_consumers(block)):
        where = f"block {sch.get(block).name_hint}"
        found = f"several outputs ({result.name} is one, and the blocks behind it read it)"
        raise cannot_schedule(where, found, "one output", SEPARATE)


def _fuse_side_inputs(sch: s_tir.Schedule, consumer: Any, store: Any) -> None:
    """Inline what computes another input of an epilogue block, e.g. the cast of a bias."""
    product = sch.get(store).writes[0].source
    while True:
        own = [
            p
            for p in sch.get_producers(consumer)
            if not any(r.source.same_as(product) for r in sch.get(p).writes)
            and not is_own_kernel(sch, p)
            and not _reads(sch.get(p), product)
        ]
        if not own:
            return
        for producer in own:
            _inline(sch, sch.compute_inline, producer)


# -- the product ----------------------------------------------------------------------------------


def wgmma(sch: s_tir.Schedule, block: Any, accumulate: str | None = None) -> Any:
    """Ask for a multiply-add of two shared tiles into registers to be made by WGMMA.

    The three innermost loops around the block are one consumer's tile, rows, columns and depth; the
    loop around them runs over k, and the initial value is set before it.  The lowering recognises
    the multiply-add and picks the instructions.

    Parameters
    ----------
    sch : Schedule
        Changed in place.
    block : SBlockRV or str
        The multiply-add, tiled and reordered.
    accumulate : str, optional
        "float32": sum in float32 although the block's own type is narrower.

    Returns
    -------
    block : SBlockRV
        The block around one consumer's tile, which carries the annotation.
    """
    block = as_block(sch, block)
    where = f"block {sch.get(block).name_hint}"
    check_choice(where, "accumulate", accumulate, ("float32",))
    loops = sch.get_loops(block)
    if len(loops) < 4:
        need = "a loop over k, and in it the rows, columns and depth of a tile"
        raise cannot_schedule(where, f"{len(loops)} loops", need)
    extents = [ir.static_int(sch.get(loop).extent) for loop in loops[-3:]]
    shared = [r.source for r in sch.get(block).reads if ir.is_shared(r.source)]
    if len(shared) != 2:
        need = 'two operands in shared memory, by cache_read(block, i, "shared.dyn")'
        raise cannot_schedule(where, f"{len(shared)} shared operands", need)
    dtype = ir.dtype_of(shared[0])
    if dtype not in OPERAND_TYPES:
        raise cannot_schedule(where, f"operands of {dtype}", " or ".join(OPERAND_TYPES))
    steps = (wgmma_facts.INSTRUCTION_M, 8, wgmma_facts.instruction_k(dtype))
    if None in extents or any(e % s for e, s in zip(extents, steps, strict=True)):
        found = "x".join("?" if e is None else str(e) for e in extents)
        need = "multiples of " + "x".join(map(str, steps))
        raise cannot_schedule(where, f"a tile of {found} in the three innermost loops", need)
    if sch.get(block).init is not None:
        sch.decompose_reduction(block, loops[-4])
    outer = sch.blockize(loops[-3])
    sch.annotate(outer, keys.WGMMA, 1)
    if accumulate is not None:
        sch.annotate(outer, keys.ACCUMULATE, accumulate)
    return outer


def pipeline(
    sch: s_tir.Schedule,
    loop: Any,
    stages: int | None = None,
    roles: Roles | None = None,
    *,
    last_stage: Int = None,
    wgmma_pending: int | None = None,
) -> None:
    """Overlap the copies and the product of a loop over k: a ring of `stages` slots, and roles.

    Parameters
    ----------
    sch : Schedule
        Changed in place.
    loop : LoopRV
        Its body is the copies, in order, and then one product.
    stages : int
        Slots of the ring.
    roles : Roles, optional
        Consumer warp groups, and registers.
    last_stage : int or random variable
        `stages - 1`, for tuning: a trace takes a sampled value as it is, but no expression of it.
    wgmma_pending : int, optional
        WGMMA groups left in flight over an iteration, 0 or 1.
    """
    where = f"loop {sch.get(loop).loop_var.name}"
    check_stages(where, stages, last_stage)
    if stages is None and last_stage is None:
        raise cannot_schedule(where, "neither stages nor last_stage", "one of the two")
    check_choice(where, "wgmma_pending", wgmma_pending, (0, 1))
    roles = roles or Roles()
    last = stages - 1 if stages is not None else last_stage
    num_copies = sum(
        keys.ASYNC_COPY in block.annotations for block in ir.find_all(sch.get(loop), ir.SBlock)
    )
    if not num_copies:
        need = f"copies that carry {keys.ASYNC_COPY} (async_copy) before the pipeline is asked for"
        raise cannot_schedule(where, "no asynchronous copy in it", need)
    if not isinstance(last, int):
        # a trace forgets a sample that it sees inside of a list only (Trace.simplified)
        sch.annotate(loop, SAMPLE, last)
        sch.unannotate(loop, SAMPLE)
    sch.annotate(loop, "software_pipeline_stage", [*[0] * num_copies, last])
    sch.annotate(loop, "software_pipeline_order", list(range(num_copies + 1)))
    sch.annotate(loop, "software_pipeline_async_stages", [0])
    sch.annotate(loop, keys.CONSUMERS, roles.consumers)
    if roles.registers is not None:
        sch.annotate(loop, keys.REGISTERS, list(roles.registers))
    if wgmma_pending is not None:
        sch.annotate(loop, keys.WGMMA_PENDING, wgmma_pending)


# -- what the steps share -------------------------------------------------------------------------


def as_block(sch: s_tir.Schedule, block: Any) -> Any:
    """Return the block itself, looked up when it is given by name."""
    if not isinstance(block, str):
        return block
    try:
        return sch.get_sblock(block)
    except s_tir.ScheduleError as error:
        found = f"what TVM cannot look up ({tvm_reason(error)})"
        raise cannot_schedule(f"block {block}", found, "the name of one block") from error


def tvm_reason(error: Exception) -> str:
    """Return the one line of a TVM schedule error that says what was wrong."""
    marker = "Error message: "
    text = str(error).splitlines()
    reason = next((line for line in text if line.startswith(marker)), text[0])
    return reason.removeprefix(marker).removeprefix("ScheduleError: ")


def candidates(sch: s_tir.Schedule, value: Int) -> list[int]:
    """Return the values that a size can take: itself, or what a random variable is sampled from."""
    if isinstance(value, int):
        return [value]
    for inst in sch.trace.insts if sch.trace is not None else ():
        if inst.kind.name == "SampleCategorical" and any(o.same_as(value) for o in inst.outputs):
            return [int(c) for c in inst.attrs[0]]
    return [int(sch.get(value))]


def is_own_kernel(sch: s_tir.Schedule, block: Any) -> bool:
    """Tell whether a block is bound to threads already: a kernel of its own, not ours to touch."""
    return any(x.kind == ir.ForKind.THREAD_BINDING for x in loops_around(sch, block))


def _reads(node: Any, buffer: Any) -> bool:
    return any(region.source.same_as(buffer) for region in node.reads)


def _is_pad(node: Any) -> bool:
    """Tell a pad of `pad_einsum` from other blocks: `if_then_else(in bounds, load, 0)`."""
    value = node.body.value if isinstance(node.body, ir.BufferStore) else None
    return isinstance(value, ir.Call) and str(value.op.name).endswith("if_then_else")


def _output_name(sch: s_tir.Schedule, block: Any) -> str:
    return str(sch.get(block).writes[0].source.name)


def _inline(sch: s_tir.Schedule, primitive: Any, block: Any) -> None:
    """Inline one block, and say which one it was when TVM refuses."""
    name = sch.get(block).name_hint
    try:
        primitive(block)
    except s_tir.ScheduleError as error:
        raise cannot_schedule(
            f"block {name}",
            f"what TVM cannot inline ({tvm_reason(error)})",
            "elementwise blocks around the matmul, and one output",
            SEPARATE,
        ) from error
