"""Read rows from global memory on chips that have no bulk copies to stage them.

    with sblock("X_shared", annotations={"tvm_hopper.async_copy": "bulk"}):
        X_shared[0, i] = X[bx, i]
    ... = X_shared[0, c * 256 + tx * 8 + v]
  ->
    ... = X[bx, c * 256 + tx * 8 + v]

Before: a row is staged by one copy, and read by vectors.  After: on such a chip, kernels bound by
memory stage nothing; `explain` reports it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.facts.arch import Arch
from tvm_hopper.facts.async_ops import MECHANISMS
from tvm_hopper.requests.bodies import is_memory_bound
from tvm_hopper.requests.fallbacks import Fallback, report
from tvm_hopper.requests.keys import ASYNC_COPY
from tvm_hopper.requests.targets import arch_of
from tvm_hopper.transforms.common.explain_notes import FallbackNote, Note
from tvm_hopper.transforms.kernel_pass import map_noted


@dataclass(frozen=True)
class StagedRow:
    """A copy of a row to shared memory: its block, and the store that it is made of."""

    block: Any
    store: ir.BufferStore


def plan_unstaged(kernel: ir.For, arch: Arch) -> tuple[StagedRow, ...]:
    """Find the rows staged by what a chip has not, element by element of the same number."""
    found, lacks = [], {*MECHANISMS} - {*arch.mechanisms(is_load=True)}
    for block in ir.find_blocks(kernel, ASYNC_COPY):
        store = block.body
        if (
            str(block.annotations[ASYNC_COPY]) in lacks
            and isinstance(store, ir.BufferStore)
            and isinstance(store.value, ir.TensorLoad)
            and ir.is_shared(store.buffer)
            and tvm_ffi.structural_equal(store.indices[-1], store.value.indices[-1])
        ):
            found.append(StagedRow(block, store))
    return tuple(found)


def rewrite_unstaged(kernel: ir.For, plan: tuple[StagedRow, ...]) -> Any:
    """Let what reads the copies read the tensors."""
    gone = [x.block for x in plan]

    def drop(realize: ir.SBlockRealize, mutator: Any) -> Any:
        if any(realize.block.same_as(x) for x in gone):
            return ir.seq()
        return mutator.default_mutate(realize)

    def empty(loop: ir.For, mutator: Any) -> Any:
        loop = mutator.default_mutate(loop)
        is_done = isinstance(loop.body, ir.Evaluate) and ir.is_const(loop.body.value, 0)
        return loop.body if is_done else loop

    kernel = ir.mutate(kernel, [(ir.SBlockRealize, drop), (ir.For, empty)])
    for one in plan:
        old, source = one.store.buffer, one.store.value
        row = list(source.indices)[:-1]

        def index(indices: list[Any], row: list[Any] = row) -> list[Any]:
            return [*row, indices[-1]]

        def region(ranges: list[Any], row: list[Any] = row) -> list[Any]:
            one = [tvm.ir.Range.from_min_extent(x, ir.cast_like(1, x)) for x in row]
            return [*one, ranges[-1]]

        kernel = ir.reindex(kernel, old, source.source, index, region)

    def plain(block: ir.SBlock) -> ir.SBlock:
        kept = [x for x in block.alloc_buffers if not any(x.same_as(y.store.buffer) for y in plan)]
        return ir.with_block(block, alloc_buffers=kept)

    return ir.drop_empty(ir.replace(kernel, ir.SBlock, plain))


def unstage_rows(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Take the staged rows off one function's kernels, if the chip has no bulk copies."""
    arch = arch_of(func)

    def unstage(kernel: ir.For, notes: list[Note]) -> Any:
        if not is_memory_bound(kernel) or not (plan := plan_unstaged(kernel, arch)):
            return kernel
        slow = report(func, [_unstaged(arch.name)])
        notes += [FallbackNote(x) for x in slow]
        after = rewrite_unstaged(kernel, plan)
        assert not plan_unstaged(after, arch), "unstage_rows left a staged row"
        return after

    return map_noted(func, unstage)


def _unstaged(chip: str) -> Fallback:
    return Fallback(
        "rows in shared memory",
        f"each pass reads them from memory: {chip} has no bulk copies",
        "a configuration for it",
        "schedule inside of `with target:`, or give hs.RowReductionConfig(stage=False)",
    )
