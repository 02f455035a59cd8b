"""Build loop nests around one block, as `te` makes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import IterVar

from .types import BufferStore, For, ForKind, SBlock, SBlockRealize, Stmt, TensorLoad, Var
from .walk import dtype_of, find_all


def block_nest(
    name: str,
    variables: Sequence[Var],
    extents: Sequence[Any],
    store: BufferStore,
    *,
    loops: Sequence[Var] | None = None,
    reduced: int = 0,
    predicate: Any = True,
) -> Stmt:
    """Build plain loops around a block of one store.

    - `name`: name of the block.
    - `variables`, `extents` (sequence): the block's variables, in the order of the loops.
    - `store`: in terms of the variables.
    - `loops`: the loop variables.
    - `reduced`: number of last variables that the block reduces over; it has no initial value.
    - `predicate` (Expr): when the block runs, in terms of the loop variables.
    """
    loops = loops or [Var(f"ax{i}", dtype_of(x)) for i, x in enumerate(variables)]
    zeros = [tirx.IntImm(dtype_of(x), 0) for x in variables]
    spatial = len(variables) - reduced
    iter_vars = [
        IterVar(
            ir.Range.from_min_extent(zero, extent),
            var,
            IterVar.DataPar if i < spatial else IterVar.CommReduce,
        )
        for i, (var, zero, extent) in enumerate(zip(variables, zeros, extents, strict=True))
    ]
    block = SBlock(
        iter_vars,
        read_regions([store.value], store.buffer if reduced else None),
        [element_region(store.buffer, list(store.indices))],
        name,
        store,
    )
    stmt: Stmt = SBlockRealize(list(loops), predicate, block)
    for var, zero, extent in reversed(list(zip(loops, zeros, extents, strict=True))):
        stmt = For(var, zero, extent, ForKind.SERIAL, stmt)
    return stmt


def read_regions(values: Iterable[Any], without: Any = None) -> list[Any]:
    """List what expressions read, each element once, but for one buffer."""
    found: list[Any] = []
    for value in values:
        for load in find_all(value, TensorLoad):
            if without is not None and load.source.same_as(without):
                continue
            region = element_region(load.source, list(load.indices))
            if not any(
                region.source.same_as(x.source)
                and tvm_ffi.structural_equal(region.region, x.region)
                for x in found
            ):
                found.append(region)
    return found


def element_region(buffer: Any, indices: list[Any]) -> Any:
    """Return the region of one element."""
    ranges = [ir.Range.from_min_extent(x, tirx.IntImm(dtype_of(x), 1)) for x in indices]
    return tirx.BufferRegion(buffer, ranges)
