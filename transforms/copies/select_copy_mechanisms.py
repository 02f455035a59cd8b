"""Choose the mechanism of each copy, and find the tile after it.

    for i in range(4):
        for v in vectorized(8):
            with sblock("copy", annotations={"tvm_hopper.async_copy": "auto"}):
                tile[f // 64, f % 64] = A[m + f // 64, k + f % 64]          f of i, tx and v
  ->
    for i0, i1 in grid(16, 64):
        with sblock("copy", annotations={"tvm_hopper.async_copy": "tma"}):
            tile[i0, i1] = A[m + i0, k + i1]

Schedules for earlier chips deal a copy out to threads; the mechanism decides which thread copies
what. "auto" takes the first of TMA, bulk and cp.async that can make the copy on the target's chip,
in this kernel: what the tensor core reads is in panels, which not each of them fills. Else threads
make it, as the schedule says, or in equal parts where it says nothing (thread_copies.py); `explain`
says which, and why not the others. Where that leaves a product without its tiles, or roles with
nothing to load, it is an error. "none" leaves a copy to the threads as well. In a kernel with
asynchronous copies all shared memory is dynamic.

Before: indices are plain (CompactTiles).  After: a copy that asks for a mechanism is a nest
of loops over its tile, and no "auto" or "none" is left. Not here: how a mechanism makes a copy
(lower_async_copies.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.errors import LoweringError, cannot_lower
from tvm_hopper.facts.arch import Arch
from tvm_hopper.facts.async_ops import HINTED
from tvm_hopper.requests.fallbacks import Fallback, report
from tvm_hopper.requests.keys import (
    ASYNC_COPY,
    AUTO,
    BY_OPTION,
    BY_THREADS,
    CACHE_HINT,
    COPY_OPTIONS,
    DIM_ALIGN,
    SPARE_ROWS,
    UNPADDED,
)
from tvm_hopper.requests.targets import arch_of
from tvm_hopper.transforms.common.copy_nests import (
    CopyNest,
    as_box_nest,
    fills_tile,
    find_copy_nests,
    tile_of,
)
from tvm_hopper.transforms.common.explain_notes import FallbackNote, Note, RemarkNote
from tvm_hopper.transforms.common.load_sites import check_sites
from tvm_hopper.transforms.kernel_pass import function_pass, map_noted
from tvm_hopper.transforms.layouts.swizzle_shared_tiles import rewrite_layouts, rewrite_shapes
from tvm_hopper.transforms.layouts.swizzle_shared_tiles_plan import (
    has_bounds,
    plan_layouts,
    plan_shapes,
)
from tvm_hopper.transforms.mechanisms.table import MECHANISMS
from tvm_hopper.transforms.prepare.fuse_thread_axes import bind_warp, copies_alone, fuse_threads

from .lower_async_copies import plan_copies, rewrite_copies
from .pipelines_without_producer import without_producers
from .store_coalescing import is_offered, reason_against
from .thread_copies import deal_out
from .thread_copy_pipelines import with_plain_stages
from .unsupported_copies import (
    check_not_reduced,
    check_roles_have_loads,
    no_mechanism,
    threads_may_copy,
)

NEED = "a copy that hardware can make"


@dataclass(frozen=True)
class CopyChoice:
    """The mechanism of one copy, and why not those before it."""

    copy: CopyNest
    nest: ir.Stmt  # what takes the copy's place
    mechanism: str
    reasons: tuple[str, ...] = ()


def plan_selection(kernel: ir.For, arch: Arch) -> tuple[CopyChoice, ...]:
    """Choose for each copy of a kernel; reasons to refuse are raised here."""
    plan = tuple(_choose(kernel, copy, arch) for copy in find_copy_nests(kernel))
    check_roles_have_loads(
        kernel,
        [(x.copy, x.reasons) for x in plan if x.mechanism == BY_THREADS],
        [x.copy for x in plan if x.mechanism != BY_THREADS],
    )
    return plan


def _choose(kernel: ir.For, copy: CopyNest, arch: Arch) -> CopyChoice:
    if copy.mechanism == BY_THREADS:
        check_not_reduced(copy, ())
        return CopyChoice(copy, _asking(deal_out(kernel, copy.nest), None), BY_THREADS)
    if copy.mechanism != AUTO:
        return CopyChoice(copy, as_box_nest(kernel, copy), copy.mechanism)
    if is_offered(copy) and (why := reason_against(kernel, copy)):
        return CopyChoice(copy, _asking(copy.nest, None), BY_THREADS, (why,))
    reasons: list[str] = []
    try:
        nest = as_box_nest(kernel, copy)
    except LoweringError as error:
        return _by_threads(kernel, copy, (str(error),))
    if BY_OPTION not in copy.realize.block.annotations and _has_rivals(kernel, copy):
        return _by_threads(kernel, copy, ("by hardware: several copies fill its tile",))
    able = arch.mechanisms(is_load=fills_tile(copy))
    for mechanism in (x for x in MECHANISMS if x in able):
        asking = _asking(nest, mechanism)
        try:
            _try(kernel, copy, asking, arch)
        except LoweringError as error:
            reasons.append(f"{mechanism}: {error}")
        else:
            return CopyChoice(copy, asking, mechanism, tuple(reasons))
    if is_offered(copy):  # side by side, where the schedule has them apart
        return CopyChoice(copy, _asking(deal_out(kernel, nest), None), BY_THREADS, tuple(reasons))
    return _by_threads(kernel, copy, tuple(reasons))


def _has_rivals(kernel: ir.For, copy: CopyNest) -> bool:
    """Tell whether a tile is filled by another copy too, which no hardware waits for."""
    tiles = [x.realize.block.body.buffer for x in find_copy_nests(kernel) if fills_tile(x)]
    own = copy.realize.block.body.buffer
    return fills_tile(copy) and sum(tile.same_as(own) for tile in tiles) > 1


def _by_threads(kernel: ir.For, copy: CopyNest, reasons: tuple[str, ...]) -> CopyChoice:
    """Leave a copy to the threads; refuse where there are none that could make it."""
    check_not_reduced(copy, reasons)
    if not threads_may_copy(kernel):
        raise no_mechanism(copy, reasons)
    nest = _asking(deal_out(kernel, copy.nest), None)
    return CopyChoice(copy, nest, BY_THREADS, reasons)


def _try(kernel: ir.For, copy: CopyNest, nest: ir.Stmt, arch: Arch) -> None:
    """Plan one copy by a mechanism as if it were the kernel's only one, or raise why not."""
    trial = _alone(kernel, copy, nest)
    if copies_alone(kernel):  # which gets a warp
        trial = bind_warp(trial)
    by_threads = threads_may_copy(trial)
    trial = rewrite_layouts(fuse_threads(trial) if by_threads else trial, plan_layouts(trial))
    plan = plan_copies(trial, arch)
    if by_threads and BY_OPTION not in copy.realize.block.annotations:  # where it is, too
        *_, lowered = ir.statements(rewrite_copies(trial, plan, [], ir.Names()))
        check_sites(lowered, arch)


def _alone(kernel: ir.For, copy: CopyNest, nest: ir.Stmt) -> ir.For:
    """Return a kernel with one copy, as `nest`, and its others as plain statements."""
    others = {
        other.nest: _asking(other.nest, None)
        for other in find_copy_nests(kernel)
        if not other.realize.same_as(copy.realize)
    }
    return ir.replace_nodes(kernel, ir.Stmt, {**others, copy.nest: nest})


def _asking(nest: ir.Stmt, mechanism: str | None) -> ir.Stmt:
    """Let the block of a nest request a mechanism, or for none."""

    def ask(block: ir.SBlock) -> ir.SBlock:
        if ASYNC_COPY not in block.annotations:
            return block
        notes = {
            k: v for k, v in block.annotations.items() if k not in (ASYNC_COPY, UNPADDED, BY_OPTION)
        }
        if mechanism is None:
            notes = {k: v for k, v in notes.items() if k not in COPY_OPTIONS}
        else:
            notes[ASYNC_COPY] = mechanism
            notes = {k: v for k, v in notes.items() if k != CACHE_HINT or mechanism in HINTED}
            if not MECHANISMS[mechanism].fills_by_bounds:
                notes.pop(SPARE_ROWS, None)
        return ir.with_block(block, annotations=notes)

    return ir.replace(nest, ir.SBlock, ask)


def find_extents(kernel: ir.For, plan: tuple[CopyChoice, ...]) -> dict[ir.Var, tuple[int, ...]]:
    """Return the extents of tiles that threads copy, where TVM has found no bound of them.

    Hardware would have cut them to its copies; threads copy as much.
    """
    shapes: dict[ir.Var, tuple[int, ...]] = {}
    for choice in plan:
        tile = tile_of(choice.copy)
        if choice.mechanism != BY_THREADS or tile is None or has_bounds(tile):
            continue
        any_one = next(iter(MECHANISMS))  # shapes are the same by all
        nest = _asking(as_box_nest(kernel, choice.copy), any_one)
        shapes.update(plan_shapes(_alone(kernel, choice.copy, nest)))
        if tile not in shapes:
            raise cannot_lower(
                f"tile {tile.name}",
                f"a shape {list(tile.shape)} without known bounds",
                "indices within bounds that are known now",
                "split its loops by constants",
            )
    return shapes


def rewrite_selection(kernel: ir.For, plan: tuple[CopyChoice, ...]) -> ir.For:
    """Put each copy as it was chosen in place."""
    nests = {choice.copy.nest: choice.nest for choice in plan}
    return rewrite_shapes(ir.replace_nodes(kernel, ir.Stmt, nests), find_extents(kernel, plan))


def _select_copies(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Choose for the copies of one function."""
    arch = arch_of(func)

    def select(kernel: ir.For, notes: list[Note]) -> ir.For:
        if not find_copy_nests(kernel):
            return kernel
        kernel = in_dynamic_memory(kernel)
        plan = plan_selection(kernel, arch)
        kernel, told = without_producers(func, rewrite_selection(kernel, plan), arch)
        if told := [*told, *(note for choice in plan for note in _notes(func, choice))]:
            notes += told
        return with_plain_stages(kernel)

    return map_noted(func, select)


SelectCopyMechanisms = function_pass("SelectCopyMechanisms", _select_copies)


def _notes(func: Any, choice: CopyChoice) -> list[Note]:
    """Return what `explain` says of a choice that was the lowering's."""
    block = choice.copy.realize.block
    name = block.name_hint
    told: list[Note] = []
    if UNPADDED in block.annotations:
        told.append(RemarkNote(f"copy {name}: {DIM_ALIGN} is ignored; tiles get new layouts"))
    if CACHE_HINT in block.annotations and choice.mechanism not in HINTED:
        told.append(RemarkNote(f"copy {name}: {CACHE_HINT} is ignored; threads load as usual"))
    if choice.copy.mechanism != AUTO:
        return told
    why = tuple(f"not {reason}" for reason in choice.reasons)
    if choice.mechanism != BY_THREADS:
        return [*told, RemarkNote("\n".join([f"copy {name}: by {choice.mechanism}", *why]))]
    if is_offered(choice.copy):
        return [*told, RemarkNote("\n".join([f"copy {name}: left to threads", *why]))]
    slow = Fallback(f"copy {name}", "made by threads", NEED, reasons=why)
    return [*told, *(FallbackNote(text) for text in report(func, [slow]))]


STATIC, DYNAMIC = "shared", "shared.dyn"


def in_dynamic_memory(kernel: ir.For) -> ir.For:
    """Move the static shared arrays of a kernel to its dynamic shared memory."""
    for block in ir.find_all(kernel, ir.SBlock):
        for old in block.alloc_buffers:
            if old.scope() == STATIC:
                kernel = _move(kernel, old)
    return kernel


def _move(kernel: ir.For, old: ir.Var) -> ir.For:
    new = ir.new_buffer(
        old.name, tuple(old.shape), ir.dtype_of(old), DYNAMIC, int(old.ty.data_alignment)
    )
    return ir.reallocate(ir.reindex(kernel, old, new, lambda x: x, lambda x: x), old, new)
