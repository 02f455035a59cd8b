"""Keep an accumulator in the registers of warp groups and multiply into it with WGMMA.

    for w in thread_binding(2, "threadIdx.y"):
        for i, j in grid(64, 256): acc[i, j] = 0
        for k in ...:
            with sblock(annotations={"tvm_hopper.wgmma": 1}):
                for i, j, kk in grid(64, 256, 64):
                    acc[i, j] += A_shared[w * 64 + i, kk] * B_shared[j, kk]
        for i, j in grid(64, 256): C[m + w * 64 + i, n + j] = f(acc[i, j])
  ->
    for t in thread_binding(256, "threadIdx.x"):                      w := t // 128
        for i in range(128): acc[i] = 0                               128 registers of a 64x256 tile
        for k in ...:
            with sblock(annotations={"tvm_hopper.async_op": "wgmma"}):
                descriptor_a, descriptor_b = ...                 of the operands' first elements
                for kk in unroll(4): wgmma.mma_async(acc, descriptor_a + .., descriptor_b + ..)
        for g, h in unroll(32, 2):                                  see fragment_global_stores.py
            if in bounds: C[row(t, h), col(t, g) + 0:2] = f(acc[4 g + 2 h + 0:2])

A store to a shared tile may be of a part: fragment_shared_stores.py. Vectors by columns:
epilogue_prefetch.py.

If the loop over k has one iteration there is no fill, see `plan_threads`: the first instruction on
each register overwrites it (`kk != 0` in place of True).

Before: shared operands are panels (SwizzleSharedTiles).  After: no `wgmma` annotation, no
accumulator indexed by rows and columns; the instructions are neither fenced, committed nor waited
for. Not here: that (insert_syncs.py); who loads the operands (specialize_warps.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.hold import hold_all
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.requests.fallbacks import Fallback, report
from tvm_hopper.requests.keys import CHOSEN
from tvm_hopper.requests.targets import arch_of
from tvm_hopper.transforms.common.explain_notes import (
    FallbackNote,
    MmaNote,
    Note,
    RemarkNote,
    StoreNote,
)
from tvm_hopper.transforms.common.stage_annotations import drop_stages, repeat_stages
from tvm_hopper.transforms.common.unroll_accumulator_parts import unroll
from tvm_hopper.transforms.kernel_pass import function_pass, kernel_step, map_noted
from tvm_hopper.transforms.split_k.lower_split_k_plan import find_cluster_loops

from .epilogue_prefetch import put_ahead, take_ahead
from .fragment_layout import FragmentTile, RowLayout
from .fragment_loops import Fragment
from .fragment_loops_plan import FragmentNest
from .fragment_rows import ReducedRows, RowFragment
from .fragment_updates import UpdatedFragment, is_first
from .instructions import emit_instructions, find_source
from .lower_wgmma_plan import MmaPlan, plan_mma
from .operands.register_operand import emit_operand
from .operands.register_operand_plan import RegisterOperand
from .operands.tile_operand import TileOperand
from .register_tiles import HeldTile
from .single_iteration import runs_once, starts_from_zero
from .split_columns import plan_columns, split_columns
from .stores.fragment_shared_stores import StagedFragment
from .stores.fragment_transposed_stores import stored_by
from .warp_group_threads import bind_warp_groups


@dataclass(frozen=True)
class Threads:
    """Register tiles distributed: the thread axis, a thread's registers, and the nests over them.

    `tiles` are the accumulators of the products, in order, then what is computed with them.
    `overwrites` says of which products the first instruction on each register ignores what it
    holds, so that the fill with zeros is left out.
    """

    axis: ir.Var
    tiles: tuple[FragmentTile, ...]
    fragments: tuple[Fragment, ...]
    overwrites: tuple[bool, ...]


def plan_threads(kernel: ir.For, plans: tuple[MmaPlan, ...]) -> Threads:
    """Name the registers, choose how they are filled and how wide each nest's stores are.

    Where the product runs once there is no loop in the CUDA compiler's eyes, and it computes what
    fills the accumulator right before the instruction that takes it. That is after `wgmma.fence`:
    ptxas then serialises (C7517 and C7519, NVRTC and nvcc 13.0). So zeros are left to WGMMA's
    `scale-d`, and other values are held before the fence. The last product of a chain may stand
    behind the loop, where a sum that began in it is computed again (C7515): it is held, too.
    """
    axis = ir.Var("threadIdx_x", "int32")
    tiles = (*map(_sum_tile, plans), *(_computed_tile(x, y) for x in plans for y in x.computed))
    overwrites = tuple(runs_once(kernel, x) and starts_from_zero(kernel, x) for x in plans)
    parts = bool(find_cluster_loops(kernel))
    fragments = []
    for nest in {x.realize: x for plan in plans for x in plan.nests}.values():
        own = tuple(x for y in nest.accumulators for x in tiles if x.buffer.same_as(y))
        sums = [x for x in plans if x.accumulator.same_as(own[0].buffer)]
        chained = any(isinstance(x.left, TileOperand) for x in sums)
        held = chained or any(runs_once(kernel, x, in_each_block=True) for x in sums)
        fragments.append(_kind(nest, parts)(nest, own, axis, held, parts))
    take_ahead(kernel, plans, fragments, axis)
    return Threads(axis, tiles, tuple(fragments), overwrites)


def _sum_tile(plan: MmaPlan) -> FragmentTile:
    """Name the registers of an accumulator."""
    name, layout = plan.accumulator.name, plan.layout
    registers = ir.new_buffer(name, (layout.count,), plan.register_dtype, "local")
    return FragmentTile(plan.accumulator, registers, layout, plan.accumulate)


def _computed_tile(plan: MmaPlan, tile: HeldTile) -> FragmentTile:
    """Name the registers of what is computed with an accumulator."""
    dtype = ir.dtype_of(tile.buffer)
    layout = RowLayout(plan.m) if tile.is_rows else plan.layout
    registers = ir.new_buffer(tile.buffer.name, (layout.count,), dtype, "local")
    return FragmentTile(tile.buffer, registers, layout, dtype)


def _kind(nest: FragmentNest, in_parts: bool) -> type[Fragment]:
    if nest.reduces_rows or nest.is_over_rows:
        return ReducedRows if nest.reduces_rows else RowFragment
    if nest.target.same_as(nest.accumulators[0]):
        value = nest.realize.block.body.value
        reads = any(ir.uses(value, x) for x in nest.accumulators)
        return UpdatedFragment if reads else Fragment
    return StagedFragment if ir.is_shared(nest.target) else stored_by(nest, in_parts)


def needless_fills(threads: Threads) -> list[ir.Stmt]:
    """Return the fills of what the first instructions overwrite."""
    tiles = [x for x, y in zip(threads.tiles, threads.overwrites, strict=False) if y]
    firsts = filter(is_first, threads.fragments)
    return [x.nest.nest for x in firsts if any(x.tile is y for y in tiles)]


@dataclass
class _Operands:
    """What computed operands need around the statements that compute them.

    `ahead_of` has what stands before a loop, by its variable; `twice` are statements that became
    two, `buffers` the registers.
    """

    ahead_of: dict[Any, list[ir.Stmt]] = field(default_factory=dict)
    twice: list[ir.Stmt] = field(default_factory=list)
    buffers: list[ir.Var] = field(default_factory=list)


def _replace_operands(
    planned: dict[Any, Any], plans: tuple[MmaPlan, ...], thread: ir.Var
) -> _Operands:
    """Replace the statements that compute operands at each step."""
    found = _Operands()
    for operand in (x.left for x in plans):
        if isinstance(operand, RegisterOperand):
            emitted = emit_operand(operand, thread)
            planned[operand.nest] = ir.seq(emitted.ahead, emitted.computed)
            found.twice += [] if emitted.ahead is None else [operand.nest]
            if operand.before is not None:
                found.ahead_of.setdefault(operand.before.loop_var, []).append(emitted.outside)
            found.buffers += emitted.buffers
    return found


def _held(computed: Any, words: Any) -> ir.Stmt:
    """Hold an operand's words: `wgmma.fence` names no register (C7519)."""
    block = computed.block
    body = ir.seq(computed, words, hold_all(words.buffer))
    return ir.opaque_block(block.name_hint, body, reads=block.reads, writes=block.writes)


def rewrite_mma(kernel: ir.For, plans: tuple[MmaPlan, ...], threads: Threads) -> ir.Stmt:
    """Replace the blocks, the nests over their accumulators, and the thread axis."""
    thread = threads.axis
    planned = {x.nest.nest: x.emit() for x in threads.fragments}
    needless = needless_fills(threads)
    planned.update((fill, ir.seq()) for fill in needless)
    operands = _replace_operands(planned, plans, thread)
    for plan, tile, overwrites in zip(plans, threads.tiles, threads.overwrites, strict=False):
        left = find_source(plan.left, "a", threads.tiles)
        planned[plan.product.realize] = emit_instructions(plan, left, tile.registers, overwrites)
        for nest in (x.nest for x in threads.fragments):
            if nest.target.same_as(plan.left.buffer):
                planned[nest.nest] = _held(planned[nest.nest], left.defined)
    ahead = put_ahead(planned, threads.fragments, thread)
    kernel = repeat_stages(drop_stages(kernel, needless), operands.twice)

    def rewrite(node: Any, mutator: Any) -> Any:
        new = planned.get(node)
        new = mutator.default_mutate(node) if new is None else new
        loads = operands.ahead_of.get(node.loop_var) if isinstance(node, ir.For) else None
        return ir.seq(loads, new) if loads else new

    body = ir.drop_empty(ir.mutate(kernel, [(ir.Stmt, rewrite)]))
    gone = [*(x.buffer for x in threads.tiles), *(x.left.buffer for x in plans if x.in_registers)]

    reading = next((x.tile for x in threads.fragments if x.ahead), threads.tiles[0])

    def move_allocation(block: ir.SBlock) -> ir.SBlock:
        rest = [b for b in block.alloc_buffers if not any(b.same_as(x) for x in gone)]
        if len(rest) == len(block.alloc_buffers):
            return block
        homed = [x for x in threads.tiles if any(b.same_as(x.buffer) for b in block.alloc_buffers)]
        more = ahead if reading in homed else []
        more = [*(operands.buffers if threads.tiles[0] in homed else []), *more]
        return ir.with_block(block, alloc_buffers=[*rest, *(x.registers for x in homed), *more])

    body = unroll(body, [loop.loop_var for x in threads.fragments for loop in x.nest.parts])
    body = ir.replace(body, ir.SBlock, move_allocation)
    body = ir.move_regions(body, {x.buffer: x.registers for x in threads.tiles})
    return bind_warp_groups(body, plans[0].warp_groups, thread)


def _lower_mma(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Lower the multiply-add blocks of one function."""
    arch = arch_of(func)

    def lower(kernel: ir.For, notes: list[Note]) -> ir.Stmt:
        plans = plan_mma(kernel, arch)
        if not plans:
            return kernel
        threads = plan_threads(kernel, plans)
        slow = report(func, find_fallbacks(plans, threads))
        notes[:] = [*_facts(plans, threads), *map(FallbackNote, slow)]
        kernel = rewrite_mma(kernel, plans, threads)
        assert not plan_mma(kernel, arch), "LowerWgmma left a block after"
        return kernel

    return map_noted(func, lower)


LowerWgmma = function_pass("LowerWgmma", kernel_step(plan_columns, split_columns), _lower_mma)


def find_fallbacks(plans: tuple[MmaPlan, ...], threads: Threads) -> list[Fallback]:
    """List narrower stores than the accumulators' layout allows, and narrower instructions."""
    narrow = [
        Fallback(
            plan.product.where,
            f"instructions of {plan.instruction_n} columns instead of {plan.widest()}, for "
            f"which ptxas has no registers next to {plan.warp_groups} consumers",
            "fewer consumers, or fewer columns for each",
            "take 2 consumers, or another tile",
        )
        for plan in plans
        if plan.instruction_n < plan.widest()
    ]
    return narrow + [
        Fallback(f"store of {fragment.store.buffer.name}", *why)
        for fragment in threads.fragments
        if (why := fragment.shortfall) is not None
    ]


def _facts(plans: tuple[MmaPlan, ...], threads: Threads) -> list[Note]:
    """Return what `explain` says of the multiplications and of what follows them."""
    remarks = list(dict.fromkeys(x for x in map(_remark, plans) if x))
    made = [x.left.buffer.name for x in plans if x.in_registers]
    remarks += [f"operand {x} is computed by threads, into the registers of WGMMA" for x in made]
    stores = [
        StoreNote(fragment.store.buffer.name, fragment.run_length * dtype_bytes(fragment.dtype))
        for fragment in threads.fragments
        if not fragment.is_fill
    ]
    return [*map(_product_note, plans), *stores, *map(RemarkNote, remarks)]


def _product_note(plan: MmaPlan) -> MmaNote:
    block, tile = plan.product.block, (plan.m, plan.n, plan.k)
    choice = str(block.annotations.get(CHOSEN, ""))
    return MmaNote(block.name_hint, tile, plan.instruction, sum(plan.held), choice)


def _remark(plan: MmaPlan) -> str:
    """Say in which type a product is summed, where that is not the program's."""
    summed = ir.dtype_of(plan.accumulator)
    if summed != plan.accumulate:
        return f"accumulates in {plan.accumulate} where the program says {summed}"
    if plan.product.product_dtype == plan.dtype:
        return f"products are summed unrounded: the program rounds each product to {plan.dtype}"
    return ""
