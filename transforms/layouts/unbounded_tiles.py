"""Bound the arrays of a kernel for which TVM found no bound, by their accesses.

    Y = alloc((2147483647, 64), "shared.dyn")                 rows of a tile that a symbol may cut
    for i in range(min(8, m)): Y[i, tx] = ...
  ->
    Y = alloc((8, 64), "shared.dyn")

A tile that hardware copies has the extents of its copy (swizzle_shared_tiles_plan.py); this is
about the others.
"""

from __future__ import annotations

import contextlib
from typing import Any

from tvm import sym

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower

from .swizzle_shared_tiles_plan import has_bounds, takes_address

LARGEST = (1 << 31) - 1  # an extent; bounds of products of symbols are larger than TVM's integers


def plan_bounds_of_tiles(kernel: ir.For) -> dict[ir.Var, tuple[int, ...]]:
    """Return new extents for arrays without bounds; refuse those without known bounds."""
    blocks = ir.find_all(kernel, ir.SBlock)
    unbounded = [x for block in blocks for x in block.alloc_buffers if not has_bounds(x)]
    return {buffer: _extents(kernel, buffer) for buffer in unbounded}


def _extents(kernel: ir.For, buffer: ir.Var) -> tuple[int, ...]:
    analyzer = sym.Analyzer()
    for loop in ir.find_all(kernel, ir.For):
        analyzer.bind(loop.loop_var, ir.range_of(loop))
    blocks = ir.find_all(kernel, ir.SBlockRealize, lambda x: not ir.is_const(x.predicate, 1))
    accesses = ir.accesses(kernel, buffer)
    is_within_reach = not takes_address(kernel, buffer)  # what is done after it nobody sees
    needed = [1] * len(buffer.shape)
    for access in accesses if is_within_reach else ():
        with contextlib.ExitStack() as known:
            for block in blocks:
                if ir.uses_node(block, access):
                    known.enter_context(analyzer.constraint_scope(block.predicate))
            tops = [int(analyzer.const_int_bound(x).max_value) for x in access.indices]
        needed = [max(size, top + 1) for size, top in zip(needed, tops, strict=True)]
    kept = [
        size if old is None else min(size, old)
        for size, old in zip(needed, map(ir.static_int, buffer.shape), strict=True)
    ]
    if not is_within_reach or max(kept) > LARGEST:
        raise _not_bounded(buffer)
    new: Any = ir.new_buffer(buffer.name, tuple(kept), ir.dtype_of(buffer), buffer.scope())
    if not has_bounds(new):
        raise _not_bounded(buffer)
    return tuple(kept)


def _not_bounded(buffer: ir.Var) -> Exception:
    return cannot_lower(
        f"tile {buffer.name}",
        f"a shape {list(buffer.shape)} without known bounds",
        "indices within bounds that are known now",
        "split its loops by constants",
    )
