"""Shrink shared arrays to one thread block's part of a row that a cluster shares.

    tile = alloc_buffer((1, 8192), "float16", scope="shared")        part runs over 8
    tile[0, part * 1024 + i] = X[bx, part * 1024 + i]
  ->
    tile = alloc_buffer((1, 1024), "float16", scope="shared")
    tile[0, i] = X[bx, part * 1024 + i]

Parts are numbered by a thread axis in the schedule, and TVM takes shared arrays for those of all
threads.
"""

from __future__ import annotations

from typing import Any

import tvm

from tvm_hopper import ir
from tvm_hopper.analysis.access import step_of
from tvm_hopper.errors import cannot_lower


def own_tiles(kernel: ir.For, part: ir.For) -> ir.For:
    """Cut the shared arrays of a kernel to what one part of a row has of them."""
    blocks = ir.find_all(kernel, ir.SBlock)
    for old in (x for block in blocks for x in block.alloc_buffers):
        if str(old.scope()).startswith("shared"):
            kernel = _cut(kernel, old, part)
    return kernel


def _cut(kernel: ir.For, old: ir.Var, part: ir.For) -> Any:
    """Cut one array along the dimension that is indexed by parts."""
    touched = ir.accesses(kernel, old)
    steps = {tuple(step_of(i, part.loop_var) for i in x.indices) for x in touched}
    found = next(iter(steps)) if len(steps) == 1 else ()
    dims = [n for n, step in enumerate(found) if step]
    if len(dims) != 1 or found[dims[0]] is None:
        raise cannot_lower(
            f"buffer {old.name}",
            "an array in shared memory that thread blocks of a cluster do not share",
            "an index of one dimension that is a number of elements for each part of a row",
            "split the loops over it as those of the row",
        )
    (dim,), (size,) = dims, [int(found[dims[0]] or 0)]
    shape = [size if n == dim else x for n, x in enumerate(old.shape)]
    alignment = int(old.ty.data_alignment)
    new = ir.new_buffer(old.name, tuple(shape), ir.dtype_of(old), str(old.scope()), alignment)

    def first(value: Any) -> Any:
        return ir.simplify(ir.substitute(value, {part.loop_var: ir.cast_like(0, part.loop_var)}))

    def index(indices: list[Any]) -> list[Any]:
        return [first(x) if n == dim else x for n, x in enumerate(indices)]

    def region(ranges: list[Any]) -> list[Any]:
        return [
            _within(first(x.min), x.extent, size) if n == dim else x for n, x in enumerate(ranges)
        ]

    return ir.reindex(ir.reallocate(kernel, old, new), old, new, index, region)


def _within(start: Any, extent: Any, size: int) -> Any:
    """Return a range that is no longer than an array."""
    most = ir.static_int(extent)
    kept = extent if most is not None and most < size else ir.cast_like(size, start)
    return tvm.ir.Range.from_min_extent(start, kept)
