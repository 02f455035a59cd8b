"""Build loop nests around one block, as `te` makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import IterVar

from .types import BufferStore, For, ForKind, SBlock, SBlockRealize, Stmt, TensorLoad, Var
from .walk import dtype_of, find_all


def block_nest(
    name: str,
    axes: Sequence[tuple[str, Any]],
    store: Callable[..., BufferStore],
    *,
    reduced: Iterable[str] = (),
    predicate: Callable[..., Any] | None = None,
    dtype: str = "int32",
) -> Stmt:
    """Build plain loops around a block of one store.

    Parameters
    ----------
    name : str
        Name of the block.
    axes : sequence of (str, extent)
        The loops, outermost first.
    store : callable
        Takes the block's variables and returns its store.
    reduced : iterable of str
        Axes that the block reduces over; it has no initial value.
    predicate : callable, optional
        Takes the loop variables and returns when the block runs.
    dtype : str
        Type of extents that are given as ints.
    """
    extents = [tirx.IntImm(dtype, x) if isinstance(x, int) else x for _, x in axes]
    variables = [Var(f"v{x}", dtype_of(e)) for (x, _), e in zip(axes, extents, strict=True)]
    loops = [Var(x, dtype_of(e)) for (x, _), e in zip(axes, extents, strict=True)]
    zeros = [tirx.IntImm(dtype_of(e), 0) for e in extents]
    reduced = set(reduced)
    iter_vars = [
        IterVar(
            ir.Range.from_min_extent(zero, extent),
            var,
            IterVar.CommReduce if axis in reduced else IterVar.DataPar,
        )
        for (axis, _), zero, extent, var in zip(axes, zeros, extents, variables, strict=True)
    ]
    node = store(*variables)
    without = node.buffer if reduced else None
    block = SBlock(
        iter_vars,
        read_regions([node.value], without),
        [element_region(node.buffer, list(node.indices))],
        name,
        node,
    )
    condition = True if predicate is None else predicate(*loops)
    stmt: Stmt = SBlockRealize(loops, condition, block)
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
