"""Steps of a Hopper kernel: `pad`, `async_copy`, `async_store`, `wgmma`, `pipeline`.

    hs.fuse_prologue(sch, block)              casts before the product become part of it
    hs.pad(sch, block, tile)                  pad_einsum, when a shape does not divide
    ... split, reorder, bind, cache_write, cache_read, compute_at: TVM's own ...
    hs.async_copy(sch, copy, swizzle=128)     annotate; the pad becomes the copy's bounds
    hs.fuse_epilogue(sch, store)              the crop and what follows become part of the store
    hs.wgmma(sch, block)                      decompose_reduction, blockize, annotate
    hs.pipeline(sch, k0, stages=4, roles=hs.Roles(consumers=2))
    hs.async_store(sch, store)                annotate the copy out of a shared tile

Plain loops over tiles take `async_copy`, `pipeline` and `async_store` alone.

They are next to TVM's primitives and replay from a trace in a process that knows nothing of this
package.  What they cannot serve is one error, and the schedule stays as it was.  A request that is
made twice is refused where the second one says something else, and does nothing where it does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm import s_tir

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts import swizzle as swizzle_facts, wgmma as wgmma_facts
from tvm_hopper.facts.async_ops import find_copy_op, find_mechanisms
from tvm_hopper.facts.dtypes import OPERAND_DTYPES
from tvm_hopper.requests import keys

from . import dry_run, plain_loops, reductions
from .arguments import (
    as_block,
    as_choice,
    as_int,
    as_loop,
    as_stages,
    as_tile,
    check_sampled,
    check_type,
    last_stage,
)
from .asking import ask as _ask
from .products import tiles
from .products.config import ACCUMULATE, OPERANDS, PENDING, Roles, check_consumers, check_pending
from .products.fuse import is_own_kernel
from .products.recognize import Axis, Matmul, find_matmul
from .trial import all_or_nothing

SAMPLE = "tvm_hopper.sample"  # never left in the IR, see `pipeline`
Int = Any  # an int, or a random variable of the schedule


# -- before the product ---------------------------------------------------------------------------


PADDED = "a matmul in plain loops whose tensors nothing else writes"


@all_or_nothing(PADDED)
def pad(sch: s_tir.Schedule, block: Any, tile: tuple[Int, Int, Int]) -> None:
    """Pad a matmul to whole tiles, unless its shape is known to be a multiple of the tile.

    Nothing is padded in memory: `async_copy` and `fuse_epilogue` inline the pads and the crop.
    A sampled tile pads to a multiple of all its candidates.

    Parameters
    ----------
    sch : Schedule
        Changed in place.
    block : SBlockRV or str
        The multiply-add, in plain loops.
    tile : tuple
        Rows, columns and depth of the tile, ints or random variables.

    Raises
    ------
    ScheduleError
        The block is not a supported matmul, or the tile does not fit it.
    """
    block = as_block(sch, block)
    tile = as_tile("pad", tile)
    check_sampled(sch, "pad", "tile", *tile)
    pad_matmul(sch, block, find_matmul(sch, block), tile)


@all_or_nothing(PADDED)
def pad_matmul(
    sch: s_tir.Schedule, block: Any, matmul: Matmul, tile: tuple[Int, Int, Int]
) -> Matmul:
    """Pad a matmul that was recognised to whole tiles, see `pad`; return what it is then."""
    axes = list(zip((matmul.m, matmul.n, matmul.k), tile, strict=True))
    multiple = {axis.iter_var.var: math.lcm(*candidates(sch, t)) for axis, t in axes}
    ragged = [
        not ir.is_const(ir.simplify(axis.extent % multiple[axis.iter_var.var]), 0)
        for axis, _ in axes
    ]
    for (axis, _), pads in zip(axes, ragged, strict=True):
        if pads:
            check_whole(matmul, axis)
        if any(ragged) and not axis.is_whole:
            var, extent = axis.iter_var.var.name, axis.iter_var.dom.extent
            raise cannot_schedule(
                f"block {matmul.name}",
                f"{axis.extent} iterations over {var}, which the block declares as {extent}",
                "loops over all that the block declares, or tiles that divide the loops",
                f"declare {var} as {axis.extent} (T.axis), or choose another tile",
            )
    if not any(ragged):
        return matmul
    try:
        sch.pad_einsum(block, [multiple.get(var.var, 1) for var in sch.get(block).iter_vars])
        padded = find_matmul(sch, block)  # its operands may be pads now
        return replace(padded, ragged=(ragged[0], ragged[1]))
    except s_tir.ScheduleError as error:
        if beside := dry_run.cut_kernel(sch, block):
            found = f"tiles that do not divide it, in the kernel of {beside}, whose tiles cross"
            need = "tiles that divide one of the two: TVM pads nothing next to such a kernel"
            fix = "give each product a separate function, or pad the tensors"
            where = f"block {matmul.name}"
            raise cannot_schedule(where, f"{found} an edge, too", need, fix) from error
        raise


# -- copies ---------------------------------------------------------------------------------------


def check_whole(matmul: Matmul, axis: Axis) -> None:
    """Refuse to pad an axis along which a tensor goes on: the pad's bounds are the tensor's.

    Beyond the sum's own extent the tensor holds values that the program leaves out, and beyond the
    output's part elements that it leaves alone. Rows of an operand may go on: the crop
    removes them.
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
                "choose another tile, or copy the part into a separate tensor",
            )


@all_or_nothing("a copy by cache_read, and no more before it than a pad of its tensor")
def async_copy(
    sch: s_tir.Schedule,
    copy: Any,
    mechanism: str = "auto",
    swizzle: int | None = None,
    cache_hint: str | None = None,
    spare_rows: bool = False,
) -> None:
    """Make a copy to shared memory (or VTCM) asynchronous, by a mechanism of the hardware.

    A pad before the copy is inlined: it becomes `if_then_else(in bounds, load, 0)`, which TMA
    does by itself at the bounds of the tensor.

    Parameters
    ----------
    sch : Schedule
        Changed in place.
    copy : SBlockRV
        What `cache_read(..., "shared.dyn")` returned, already at the loop that is pipelined; on
        Hexagon `cache_read(..., "global.vtcm")`.
    mechanism : str
        * "auto": the first of "tma", "bulk" and "cp_async" that can make the copy on the target's
          chip, else threads copy: `explain` reports it, and `tvm_hopper.strict` raises an error.
          Threads cannot copy operands of WGMMA: that is an error.
        * "tma": boxes of a tensor of up to five dimensions, with bounds.
        * "bulk": contiguous bytes; each start and length is a multiple of 16.
        * "cp_async": threads (of the producer, if there is one) copy 16, 8 or 4 bytes at once.
        * "dma": on Hexagon; also what "auto" takes there.
        * "none": threads copy.
    swizzle : int, optional
        Swizzle of the shared tile in bytes, 0, 32, 64 or 128. None: the widest that fits for a
        product's tile, no swizzle for plain loops.
    cache_hint : str, optional
        L2 eviction policy: "evict_first" or "evict_last".
    spare_rows : bool
        Out-of-bounds rows of the tile need not be zero-filled, which is slower for TMA than
        loading: their contents are ignored. No effect on a copy without a pad.

    Raises
    ------
    ScheduleError
        The block does not write shared memory, or the mechanism, swizzle or hint is unknown.
    """
    copy = as_block(sch, copy)
    node = sch.get(copy)
    where = f"block {node.name_hint}"
    mechanism = as_choice(where, "mechanism", mechanism, keys.MECHANISMS) or keys.AUTO
    swizzle = as_choice(where, "swizzle", swizzle, swizzle_facts.SWIZZLES)
    cache_hint = as_choice(where, "cache_hint", cache_hint, keys.CACHE_HINTS)
    check_type(where, "spare_rows", spare_rows, bool, "whether rows beyond the end are free")
    scopes = [str(region.source.scope()) for region in node.writes]
    into_vtcm = find_mechanisms("global", "vtcm")
    if mechanism == keys.AUTO and scopes == [ir.VTCM]:
        (mechanism,) = into_vtcm
    scope = ir.VTCM if mechanism in into_vtcm else "shared.dyn"
    if scopes != [scope]:
        raise cannot_schedule(where, f"a write to {scopes}", f'a cache_read to "{scope}"')
    for producer in sch.get_producers(copy):
        inline_copies(sch, producer)
    _ask(sch, where, copy, keys.ASYNC_COPY, mechanism)
    if swizzle is not None:
        _ask(sch, where, copy, keys.SWIZZLE, swizzle)
    if cache_hint is not None:
        _ask(sch, where, copy, keys.CACHE_HINT, cache_hint)
    if spare_rows and _has_pad(sch, copy):
        _ask(sch, where, copy, keys.SPARE_ROWS, 1)


def _has_pad(sch: s_tir.Schedule, copy: Any) -> bool:
    """Tell whether a copy fills what lies outside of its tensor."""
    is_pad = lambda x: x.op.name.endswith("if_then_else")  # noqa: E731
    return bool(ir.find_all(sch.get(copy).body, ir.Call, is_pad))


STORES = tuple(
    name
    for name in keys.MECHANISMS
    if find_copy_op(name, "shared", "global") or name in (keys.AUTO, keys.BY_THREADS)
)


@all_or_nothing("a copy by cache_write, which stores what a shared tile holds and nothing else")
def async_store(
    sch: s_tir.Schedule,
    copy: Any,
    mechanism: str = "auto",
    swizzle: int | None = None,
    slots: int | None = None,
    reduce: str | None = None,
) -> None:
    """Make a copy out of shared memory asynchronous: a fire-and-forget store by the hardware.

    The kernel waits for it only before the tile is overwritten. Out-of-bounds elements are not
    stored. The tile may be one that `async_copy` fills.

    A tile that threads write in each iteration of a serial loop, or for each output tile of a
    persistent kernel, can have several `slots`: the stores of all but one are in flight while the
    next one is written. A later stage of the store in `software_pipeline_stage` means the same,
    e.g. [0, 0, 3, 4] for two slots. A tile that is both loaded and stored uses the ring of the
    loads: `slots` of it are reserved for stores, and the loads run ahead in the rest.

    Parameters
    ----------
    sch : Schedule
        Changed in place.
    copy : SBlockRV
        What stores the tile of `cache_write(..., "shared.dyn")`, or of a `cache_read`, to global
        memory.
    mechanism : str
        "auto", "tma", "bulk" or "none", as for `async_copy`.
    swizzle : int, optional
        Swizzle of the shared tile in bytes, 0, 32, 64 or 128. None: the widest that fits for a
        product's tile, no swizzle for plain loops.
    slots : int, optional
        Slots of the tile. None: one, or by the stages of the loop; for a tile that is also loaded,
        two if its ring has three or more.
    reduce : str, optional
        "add", "min", "max", "and", "or" or "xor": the block is `C[...] = C[...] op tile[...]`, an
        atomic reduction of each element, in any order.

    Raises
    ------
    ScheduleError
        The block is not a copy out of shared memory, or one of more elements than the threads
        write; an argument is illegal, or the block does not compute the given `reduce`.
    """
    copy = as_block(sch, copy)
    where = f"block {sch.get(copy).name_hint}"
    mechanism = as_choice(where, "mechanism", mechanism, STORES) or keys.AUTO
    swizzle = as_choice(where, "swizzle", swizzle, swizzle_facts.SWIZZLES)
    slots = as_int(where, "slots", slots, 1, keys.MOST_STORE_SLOTS)
    reduce = reductions.check_update(sch, where, copy, mechanism, reduce)
    plain_loops.check_store(sch, where, copy, reduce is not None)
    _ask(sch, where, copy, keys.ASYNC_COPY, mechanism)
    if swizzle is not None:
        _ask(sch, where, copy, keys.SWIZZLE, swizzle)
    if slots is not None:
        _ask(sch, where, copy, keys.STORE_SLOTS, slots)
    if reduce is not None:
        _ask(sch, where, copy, keys.REDUCE, reduce)


# -- the product ----------------------------------------------------------------------------------


@all_or_nothing("a tile of plain loops around the multiply-add alone")
def wgmma(
    sch: s_tir.Schedule, block: Any, accumulate: str | None = None, operands: str | None = None
) -> Any:
    """Compute a multiply-add of two shared tiles into registers by WGMMA.

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
    operands : str, optional
        "tf32": multiply float32 operands by the 10 highest bits of their mantissas.

    Returns
    -------
    block : SBlockRV
        The block around one consumer's tile, which carries the annotation.

    Raises
    ------
    ScheduleError
        The block is not a multiply-add of a tile that WGMMA supports.
    """
    block = as_block(sch, block)
    where = f"block {sch.get(block).name_hint}"
    accumulate = as_choice(where, "accumulate", accumulate, ACCUMULATE)
    operands = as_choice(where, "operands", operands, OPERANDS)
    requests = {k: v for k, v in ((keys.ACCUMULATE, accumulate), (keys.OPERANDS, operands)) if v}
    asked = _asked_around(sch, block)
    if asked is not None:
        for key, value in requests.items():
            _ask(sch, where, asked, key, value)
        return asked
    loops = sch.get_loops(block)
    has_init = sch.get(block).init is not None
    if len(loops) < 3 + has_init:
        need = "a loop over k, and in it the rows, columns and depth of a tile"
        raise cannot_schedule(where, f"{len(loops)} loops", need)
    dtype = ir.dtype_of(tiles.find_operands(where, sch.get(block))[0])
    if dtype not in OPERAND_DTYPES or (dtype == "float32" and operands is None):
        need = " or ".join(x for x in OPERAND_DTYPES if x != dtype)
        fix = 'give operands="tf32"' if dtype == "float32" else ""
        raise cannot_schedule(where, f"operands of {dtype}", need, fix)
    tile = tiles.find_tile(sch, block)
    steps = (wgmma_facts.INSTRUCTION_M, 8, wgmma_facts.instruction_k(dtype))
    if any(e is None or e % step for e, step in zip(tile, steps, strict=True)):
        found = "x".join("?" if e is None else str(e) for e in tile)
        need = "multiples of " + "x".join(map(str, steps))
        raise cannot_schedule(where, f"a tile of {found} in the three innermost loops", need)
    if has_init:
        sch.decompose_reduction(block, loops[-4])
    outer = sch.blockize(loops[-3])
    sch.annotate(outer, keys.WGMMA, 1)
    for key, value in requests.items():
        sch.annotate(outer, key, value)
    return outer


@all_or_nothing("a loop over copies, and one product or plain loops")
def pipeline(
    sch: s_tir.Schedule,
    loop: Any,
    stages: Int,
    roles: Roles | None = None,
    *,
    wgmma_pending: int | None = None,
    late: Sequence[Any] = (),
    in_order: bool = False,
) -> None:
    """Software-pipeline a loop: a ring buffer of `stages` slots, and producer and consumer roles.

    Parameters
    ----------
    sch : Schedule
        Changed in place.
    loop : LoopRV
        Its body is the copies, then products or plain thread loops; several products are requested
        first (`wgmma`). One of these may contain a pipeline of its own, which must be requested
        first, too.
    stages : int or expression
        Slots of the ring buffer. For tuning: `last + 1`, where `last` is a sampled random variable
        of the schedule.
    roles : Roles, optional
        Consumer warp groups and registers. None: one consumer for a product; no roles for plain
        loops, whose threads also issue the copies.
    wgmma_pending : int, optional
        WGMMA groups left in flight at the end of an iteration, 0 or 1.
    late : sequence of SBlockRV or str
        Products that are multiplied one iteration late, behind the first product of the next one,
        while threads compute on what that leaves.
    in_order : bool
        Whether consumers issue the products of an iteration one after another, next to late
        products: while one computes, another one multiplies.

    Raises
    ------
    ScheduleError
        The loop's body is not copies and their readers, or roles and stages do not fit it.
    """
    loop = as_loop(sch, loop)
    where = f"loop {sch.get(loop).loop_var.name}"
    if stages is None:
        raise cannot_schedule(where, "stages=None", "the slots of the ring buffer")
    stages = as_stages(where, stages)
    last = last_stage(stages)  # a trace can hold a sampled value, but no expression of it
    check_sampled(sch, where, "stages", last)
    wgmma_pending = as_choice(where, "wgmma_pending", wgmma_pending, PENDING)
    check_pending(where, stages, wgmma_pending)
    check_type(where, "roles", roles, Roles, "an hs.Roles")
    num_copies = len(plain_loops.find_loads(sch.get(loop)))
    if not num_copies:
        need = f"copies that carry {keys.ASYNC_COPY} (async_copy) before the pipeline is requested"
        raise cannot_schedule(where, "no asynchronous copy in it", need)
    if plain_loops.has_product(sch, loop):
        roles, num_others = roles or Roles(), plain_loops.count_others(sch.get(loop))
        check_consumers(where, roles.consumers)
    else:
        num_copies, num_others = plain_loops.count_statements(where, sch.get(loop))
        plain_loops.check_roles(where, sch, loop, roles, wgmma_pending)
    if not isinstance(last, int):
        # a trace forgets a sample that it sees inside of a list only (Trace.simplified)
        sch.annotate(loop, SAMPLE, last)
        sch.unannotate(loop, SAMPLE)
    computed = plain_loops.stages_of_others(sch, loop, last, late) if late else [last] * num_others
    _ask(sch, where, loop, "software_pipeline_stage", [*[0] * num_copies, *computed])
    _ask(sch, where, loop, "software_pipeline_order", list(range(num_copies + num_others)))
    _ask(sch, where, loop, "software_pipeline_async_stages", [0])
    if roles is not None:
        _ask(sch, where, loop, keys.CONSUMERS, roles.consumers)
    if roles is not None and roles.registers is not None:
        _ask(sch, where, loop, keys.REGISTERS, list(roles.registers))
    if wgmma_pending is not None:
        _ask(sch, where, loop, keys.WGMMA_PENDING, wgmma_pending)
    if plain_loops.check_in_order(where, in_order, late, roles):
        _ask(sch, where, loop, keys.IN_ORDER, 1)


# -- what the steps share -------------------------------------------------------------------------


def _asked_around(sch: s_tir.Schedule, block: Any) -> Any:
    """Return the block that carries a request for WGMMA, if it is this one or the one around it."""
    if keys.WGMMA in sch.get(block).annotations:
        return block
    place = sch.get_sref(block).parent
    while place is not None and not isinstance(place.stmt, ir.SBlock):
        place = place.parent
    if place is None or keys.WGMMA not in place.stmt.annotations:
        return None
    return sch.get_sblock(place.stmt.name_hint)


def candidates(sch: s_tir.Schedule, value: Int) -> list[int]:
    """Return the values that a size can take: itself, or what a random variable is sampled from."""
    if isinstance(value, int):
        return [value]
    for inst in sch.trace.insts if sch.trace is not None else ():
        if inst.kind.name == "SampleCategorical" and any(o.same_as(value) for o in inst.outputs):
            return [int(c) for c in inst.attrs[0]]
    return [int(sch.get(value))]


def inline_copies(sch: s_tir.Schedule, block: Any) -> None:
    """Inline a pad or a view, and what it copies from; leave every other block alone."""
    if not _is_copy(sch, block):
        return
    producers = sch.get_producers(block)
    for producer in producers:
        inline_copies(sch, producer)
    sch.compute_inline(block)


def _is_copy(sch: s_tir.Schedule, block: Any) -> bool:
    """Tell a pad, `if_then_else(in bounds, load, 0)`, or a plain copy in global memory."""
    node = sch.get(block)
    value = node.body.value if isinstance(node.body, ir.BufferStore) else None
    if isinstance(value, ir.Call) and str(value.op.name).endswith("if_then_else"):
        return True
    return (
        isinstance(value, ir.TensorLoad)
        and str(node.body.buffer.scope()) == "global"
        and not is_own_kernel(sch, block)
    )
