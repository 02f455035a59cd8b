"""Turn annotated copies into asynchronous operations: TMA, bulk copies, cp.async or DMA.

    for p, r, s in grid(2, 128, 64):             annotations={"tvm_hopper.async_copy": "tma", ...}
        A_shared[p, r, s] = if_then_else(
            m + r < M and k + p * 64 + s < K, A[m + r, k + p * 64 + s], 0)
  ->
    A_map = tvm_stack_alloca("tensormap", 1)                          on the host, at each call
    cuTensorMapEncodeTiled(A_map, A, dims (K, M), box (64, 128), 128 B swizzle, zero fill)
    with sblock(annotations={"tvm_hopper.async_op": "tma_load"}):
        for p in range(2):
            tma_load(&A_shared[p, 0, 0], A_map, k + p * 64, m)

    for p, r, s in grid(2, 128, 64): C[m + r, n + p * 64 + s] = C_shared[p, r, s]
  ->
    with sblock(annotations={"tvm_hopper.async_op": "tma_store"}):
        for p in range(2):
            cp.async.bulk.tensor.2d.global(C_map, n + p * 64, m, &C_shared[p, 0, 0])

    for i, j in grid(8, 512): tile[i, j] = A[m + i, n + j]                 async_copy="bulk"
  ->
    with sblock(annotations={"tvm_hopper.async_op": "bulk_load"}):
        for i in range(8):
            bulk_load(&tile[i, 0], &A[m + i, n], 1024)

    ... the same with tile in global.vtcm                                async_copy="dma"
  ->
    with sblock(annotations={"tvm_hopper.async_op": "dma_load"}):
        for i in range(8):
            dma_copy(0, &tile[i, 0], &A[m + i, n], 1024, 0)

    ... = A_shared[p, i, j]                             in plain loops, under a swizzle
  ->
    ... = A_shared[p, i, (j // 8 ^ i % 8) * 8 + j % 8]

TMA and the tensor cores apply the swizzle themselves; plain loads and stores have to do it
themselves. A load out of bounds is filled with zeros by the hardware, and a store there left out,
which is what the predicate says; any other predicate or fill is refused. A map ends where the
predicate says, which may be inside the tensor, and steps over rows where the source is read with a
step; copies whose maps would be alike share one. It has the dimensions of the tensor that are
longer than one, five at most; a box has at most 256 rows, and longer panels take several.

Before: tiles that TMA touches are panels (SwizzleSharedTiles).  After: no `async_copy` annotation
is left; a `tma_load` or `bulk_load` call has no barrier yet. Not here: barriers, groups and waiting
(insert_syncs.py, lower_channels_to_mbarriers.py); loads for other blocks (multicast_loads.py), for
which a tile is cut into as many boxes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.arch import Processor
from tvm_hopper.requests.bodies import map_bodies
from tvm_hopper.requests.keys import ASYNC_COPY, ASYNC_OP, CACHE_HINT, SWIZZLE
from tvm_hopper.requests.targets import processor_of
from tvm_hopper.transforms.common.explain_notes import Note, RemarkNote
from tvm_hopper.transforms.common.transfer import find_transfers
from tvm_hopper.transforms.kernel_pass import function_pass, map_noted
from tvm_hopper.transforms.layouts.swizzled_accesses import swizzle_accesses
from tvm_hopper.transforms.mechanisms.bulk_emit import run_block
from tvm_hopper.transforms.mechanisms.bulk_plan import BulkTransfer, plan_bulk_copies
from tvm_hopper.transforms.mechanisms.cp_async_emit import chunk_block
from tvm_hopper.transforms.mechanisms.cp_async_plan import CpAsyncTransfer, plan_cp_async_copies
from tvm_hopper.transforms.mechanisms.dma_emit import dma_block
from tvm_hopper.transforms.mechanisms.dma_plan import DmaTransfer, plan_dma_copies
from tvm_hopper.transforms.mechanisms.tma_emit import (
    box_block,
    encode_unless_empty,
    find_guards,
    group_by_map,
    guard_empty,
    note_of,
)
from tvm_hopper.transforms.mechanisms.tma_plan import TmaTransfer, plan_tma_copies


@dataclass(frozen=True)
class CopyPlan:
    """The copies of a kernel, by mechanism."""

    boxes: tuple[TmaTransfer, ...]
    runs: tuple[BulkTransfer, ...]
    chunks: tuple[CpAsyncTransfer, ...]
    queued: tuple[DmaTransfer, ...]

    def __bool__(self) -> bool:
        return bool(self.boxes or self.runs or self.chunks or self.queued)


def plan_copies(kernel: Any, processor: Processor) -> CopyPlan:
    """Plan every annotated copy of a kernel; reasons to refuse are raised here."""
    for copy in find_transfers(kernel):
        if copy.op.name not in processor.async_ops:
            able = processor.mechanisms(copy.op.is_load)
            names = " or ".join(map(repr, able)) or "none that copies this way"
            other = "request that one" if able else "let threads copy"
            fix = f"{other}, or build for a chip that has the other"
            others = [str(x.annotations[ASYNC_OP]) for x in ir.find_blocks(kernel, ASYNC_OP)]
            if missing := [x for x in others if x not in processor.async_ops]:
                fix = f'it has no {missing[0]} either: build with target="nvidia/nvidia-h200"'
            raise cannot_lower(
                copy.where,
                f"{ASYNC_COPY} = {copy.op.mechanism!r} on {processor.name}",
                f"a mechanism that it has: {names}",
                fix,
            )
    return CopyPlan(
        plan_tma_copies(kernel),
        plan_bulk_copies(kernel),
        plan_cp_async_copies(kernel),
        plan_dma_copies(kernel, processor),
    )


def rewrite_copies(kernel: Any, plan: CopyPlan, no_input: list[ir.Var], names: ir.Names) -> ir.Stmt:
    """Put instructions in place of the copy nests, and what encodes the maps on the host."""
    host: list[Any] = []
    planned: dict[Any, Any] = {}
    for group in group_by_map(plan.boxes):
        handle = tirx.tvm_stack_alloca("tensormap", 1)
        tensor_map = ir.Var(names.take(f"{group[0].copy.tensor.buffer.name}_map"), handle.ty)
        host += [tirx.Bind(tensor_map, handle), encode_unless_empty(group, tensor_map, no_input)]
        tail_map = None
        if group[0].tail is not None:
            tail_map = ir.Var(names.take(f"{group[0].copy.tensor.buffer.name}_tail_map"), handle.ty)
            handle = tirx.tvm_stack_alloca("tensormap", 1)
            host += [
                tirx.Bind(tail_map, handle),
                encode_unless_empty(group, tail_map, no_input, is_tail=True),
            ]
        planned.update({boxes.copy.nest: box_block(boxes, tensor_map, tail_map) for boxes in group})
    for run in plan.runs:
        planned[run.copy.nest] = run_block(run)
    for chunks in plan.chunks:
        planned[chunks.copy.nest] = chunk_block(chunks)
    for queued in plan.queued:
        planned[queued.copy.nest] = dma_block(queued)
    kernel = ir.replace_nodes(kernel, ir.Stmt, planned)
    copies = [*(boxes.copy for boxes in plan.boxes), *(chunks.copy for chunks in plan.chunks)]
    swizzled = [copy for copy in copies if int(copy.block.annotations.get(SWIZZLE, 0))]
    tiles = {copy.tile.buffer: copy for copy in swizzled}  # one of them may be copied both ways
    return ir.seq(host, swizzle_accesses(kernel, tiles.values()))


def _say_hints(kernel: Any) -> list[RemarkNote]:
    hints = [(x.where, x.block.annotations.get(CACHE_HINT)) for x in find_transfers(kernel)]
    return [RemarkNote(f"{where}: L2 policy {hint}") for where, hint in hints if hint is not None]


def _lower_copies(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Replace the annotated copies of one function."""
    processor = processor_of(func)
    names = ir.Names(param.name for param in func.params)

    def lower(kernel: Any, notes: list[Note]) -> ir.Stmt:
        if not (plan := plan_copies(kernel, processor)):
            return kernel
        told: list[Note] = [*map(note_of, group_by_map(plan.boxes)), *_say_hints(kernel)]
        notes += told
        others = [*(runs.copy for runs in plan.runs), *(chunks.copy for chunks in plan.chunks)]
        no_tile, no_input = find_guards(kernel, plan.boxes, others)
        after = rewrite_copies(kernel, plan, no_input, names)
        assert not plan_copies(after, processor), "LowerAsyncCopies left a copy after"
        return guard_empty(after, no_tile)

    return map_noted(func, lower, map_bodies)


LowerAsyncCopies = function_pass("LowerAsyncCopies", _lower_copies)
