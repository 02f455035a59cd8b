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

from tvm import s_tir

from tvm_hopper import ir, keys
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts import swizzle as swizzle_facts
from tvm_hopper.facts import wgmma as wgmma_facts

from .config import MECHANISMS, Roles, check_choice, check_stages, check_tile
from .fuse import as_block
from .recognise import OPERAND_TYPES, Axis, Matmul, find_matmul

SAMPLE = "tvm_hopper.sample"  # never left in the IR, see `pipeline`
Int = Any  # an int, or a random variable of the schedule


# -- before the product ---------------------------------------------------------------------------


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
    check_tile("pad", tile)
    matmul = find_matmul(sch, block)
    axes = list(zip((matmul.m, matmul.n, matmul.k), tile, strict=True))
    multiple = {axis.iter_var.var: math.lcm(*candidates(sch, t)) for axis, t in axes}
    ragged = [
        not ir.is_const(ir.simplify(axis.iter_var.dom.extent % multiple[axis.iter_var.var]), 0)
        for axis, _ in axes
    ]
    for (axis, _), pads in zip(axes, ragged, strict=True):
        if pads:
            check_whole(matmul, axis)
    if any(ragged):
        sch.pad_einsum(block, [multiple.get(var.var, 1) for var in sch.get(block).iter_vars])


# -- copies ---------------------------------------------------------------------------------------


def check_whole(matmul: Matmul, axis: Axis) -> None:
    """Refuse to pad an axis along which a tensor goes on: the pad's bounds are the tensor's.

    Beyond the sum's own extent the tensor holds values that the program leaves out, and beyond the
    output's part elements that it leaves alone. Rows of an operand may go on: they meet the crop.
    """
    extent = axis.iter_var.dom.extent
    if axis is matmul.k:
        sides = [(x.name, x.buffer.shape[x.kept[x.major == "k"]]) for x in (matmul.lhs, matmul.rhs)]
    else:
        position = matmul.output_kept[axis is matmul.n]
        sides = [(str(matmul.output.name), matmul.output.shape[position])]
    for name, size in sides:
        if not ir.is_const(ir.simplify(size - extent), 0):
            raise cannot_schedule(
                f"block {matmul.name}, tensor {name}",
                f"{size} elements along an axis of which the program takes {extent}, no multiple "
                "of the tile",
                "the whole axis, or a part that is a multiple of the tile",
                "choose another tile, or copy the part into a tensor of its own",
            )


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
    copy = as_block(sch, copy)
    node = sch.get(copy)
    where = f"block {node.name_hint}"
    check_choice(where, "mechanism", mechanism, MECHANISMS)
    check_choice(where, "swizzle", swizzle, swizzle_facts.SWIZZLES)
    scopes = [str(region.source.scope()) for region in node.writes]
    if scopes != ["shared.dyn"]:
        raise cannot_schedule(where, f"a write to {scopes}", 'a cache_read to "shared.dyn"')
    for producer in sch.get_producers(copy):
        if _is_pad(sch, producer):
            sch.compute_inline(producer)
    sch.annotate(copy, keys.ASYNC_COPY, mechanism)
    if swizzle is not None:
        sch.annotate(copy, keys.SWIZZLE, swizzle)


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
    if any(e is None or e % step for e, step in zip(extents, steps, strict=True)):
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


def candidates(sch: s_tir.Schedule, value: Int) -> list[int]:
    """Return the values that a size can take: itself, or what a random variable is sampled from."""
    if isinstance(value, int):
        return [value]
    for inst in sch.trace.insts if sch.trace is not None else ():
        if inst.kind.name == "SampleCategorical" and any(o.same_as(value) for o in inst.outputs):
            return [int(c) for c in inst.attrs[0]]
    return [int(sch.get(value))]


def _is_pad(sch: s_tir.Schedule, block: Any) -> bool:
    """Tell a pad of `pad_einsum` from other blocks: `if_then_else(in bounds, load, 0)`.

    Where the tensor has as many elements as the pad its bounds fold away, and the pad is a copy.
    """
    node = sch.get(block)
    value = node.body.value if isinstance(node.body, ir.BufferStore) else None
    if isinstance(value, ir.Call) and str(value.op.name).endswith("if_then_else"):
        return True
    bound = any(sch.get(loop).thread_binding is not None for loop in sch.get_loops(block))
    if not isinstance(value, ir.TensorLoad) or bound:
        return False
    to, of = list(node.body.indices), list(value.indices)
    root = sch.get_sref(block)
    while root.parent is not None:
        root = root.parent
    inner = any(buffer.same_as(node.body.buffer) for buffer in root.stmt.alloc_buffers)
    return inner and len(to) == len(of) and all(a.same_as(b) for a, b in zip(to, of, strict=True))


def raster(
    sch: s_tir.Schedule, loop: Any, group: int | None = None, persistent: int | None = None
) -> None:
    """Say in which order output tiles are computed, and by how many thread blocks.

    Parameters
    ----------
    sch : Schedule
        Changed in place.
    loop : LoopRV
        The loop over columns of tiles, bound to blockIdx.x; rows of tiles are on blockIdx.y.
    group : int, optional
        Rows of tiles that are visited together; None or 1 is the hardware's order.
    persistent : int, optional
        Thread blocks that share all tiles; None or 0 is one block a tile.
    """
    where = f"loop {sch.get(loop).loop_var.name}"
    binding = sch.get(loop).thread_binding
    if binding is None or str(binding.thread_tag) != "blockIdx.x":
        found = "a loop that is not bound" if binding is None else f"{binding.thread_tag}"
        raise cannot_schedule(where, found, "the loop over columns of tiles, bound to blockIdx.x")
    for key, value in ((keys.RASTER_GROUP, group), (keys.PERSISTENT, persistent)):
        if value is not None and value < 0:
            raise cannot_schedule(where, f"{key} = {value}", "0 or more")
    if group is not None and group > 1:
        sch.annotate(loop, keys.RASTER_GROUP, group)
    if persistent:
        sch.annotate(loop, keys.PERSISTENT, persistent)
