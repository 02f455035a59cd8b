"""Plan DMA copies (Hexagon): the longest runs of bytes contiguous at both ends.

    for i, j in grid(8, 512): tile[i, j] = A[m + i, j]          A of 512 columns: one copy
    for i, j in grid(8, 512): tile[i, j] = A[m + i, n + j]      of more: eight copies, a group

A group must not be empty (`facts.async_ops.OPENED`), so that nothing may be left out of a copy.
"""

from __future__ import annotations

from typing import Any

from tvm_hopper import ir
from tvm_hopper.analysis.effects import function_of
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.hexagon import Hexagon
from tvm_hopper.requests.keys import DMA_COPY
from tvm_hopper.transforms.common.copy_rules import check_alone, check_once
from tvm_hopper.transforms.common.shared_layout import Demand, plain_rows
from tvm_hopper.transforms.common.transfer import Transfer

from .bulk_plan import BulkTransfer, static_runs


def demand_rows(copy: Transfer) -> Demand:
    """Return what DMA needs of a tile: rows as they are declared."""
    return plain_rows(copy, "by DMA", "leave the swizzle out")


def plan_dma_copies(
    kernel: Any, copies: tuple[Transfer, ...], processor: Any
) -> tuple[BulkTransfer, ...]:
    """Plan the copies of a function by DMA; every reason to refuse is raised here."""
    return tuple(_plan(kernel, copy, processor) for copy in copies)


def _plan(kernel: Any, copy: Transfer, processor: Hexagon) -> BulkTransfer:
    check_alone(kernel, copy)
    check_once(copy)
    demand_rows(copy)  # no pass lays out tiles of a processor without threads
    if copy.condition is not None:
        raise cannot_lower(
            copy.where,
            f"the predicate {copy.condition}",
            "a copy of all its elements: DMA fills nothing and leaves nothing out",
            "choose a tile that divides the tensor, or pad the tensor",
        )
    plan = static_runs(copy)
    if plan.run_bytes > processor.max_copy_bytes:
        raise cannot_lower(
            copy.where,
            f"{plan.run_bytes} contiguous bytes",
            f"at most {processor.max_copy_bytes}, the limit of a DMA descriptor",
            "choose a smaller tile",
        )
    return plan


def count_copies(load: ir.SBlock) -> int:
    """Return how many descriptors one execution of a block of loads takes."""
    return _count(load.body)


def _count(stmt: ir.Stmt) -> int:
    if isinstance(stmt, ir.For):
        return int(stmt.extent) * _count(stmt.body)
    parts = ir.statements(stmt)
    if len(parts) > 1:
        return sum(map(_count, parts))
    return sum(function_of(call) == DMA_COPY for call in ir.find_all(stmt, ir.Call))


def check_queue(loads: list[tuple[ir.SBlock, int]], processor: Any) -> None:
    """Refuse more copies in flight than there are descriptors; `loads` are blocks and slots."""
    if not isinstance(processor, Hexagon):
        return
    most = sum(count_copies(block) * slots for block, slots in loads)
    if most > processor.max_copies_in_flight:
        raise cannot_lower(
            f"copies {', '.join(block.name_hint for block, _ in loads)}",
            f"{most} DMA copies in flight",
            f"at most {processor.max_copies_in_flight}, the descriptors of TVM's runtime",
            "take fewer stages, or tiles whose rows are contiguous in the tensor",
        )
