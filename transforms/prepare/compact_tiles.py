"""Give a tile the extent that its accesses have, where TVM left a larger one.

    for bx in thread_binding((m + 127) // 128, "blockIdx.x"):
        tile = alloc((m, 64), "shared.dyn")
        for i, j in grid(128, 64): if bx * 128 + i < m: tile[bx * 128 + i, j] = R[bx * 128 + i, j]
        for i, j in grid(128, 64): if bx * 128 + i < m: ... tile[bx * 128 + i, j]
  ->
        tile = alloc((128, 64), "shared.dyn")
        for i, j in grid(128, 64): if bx * 128 + i < m: tile[i, j] = R[bx * 128 + i, j]

Stock CompactBufferAllocation finds a tile's place under a predicate where extents have 32 bits, and
keeps the tensor's extent where they have 64, as those of a Relax model have. A value may have a
condition next to the predicate (`if_then_else(bx * 64 + j < 36, ..)`, where a product's columns do
not divide). There it finds the place but keeps the extent, also of registers: (64, 128) for (64,
64). It sizes registers that several blocks share for all threads: (2, 256, 8) for (2, 1, 8).

What TVM's places of buffers leave in indices is then simplified (simplify_index_bounds.py), and
sums are divided term by term (simplify_digits.py).

Before: blocks and regions, buffers as TVM left them.  After: tiles are static,
indices of products plain.
Not here: tiles whose accesses do not all begin at one place, or that a pointer reaches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir as tvm_ir, sym, tirx

from tvm_hopper import ir
from tvm_hopper.transforms.kernel_pass import function_pass, kernel_step

from .compact_registers import plan_registers, rewrite_arrays
from .simplify_digits import simplify_digits
from .simplify_index_bounds import simplify_index_bounds


@dataclass(frozen=True)
class TileShape:
    """A tile that is smaller than its buffer: where each dimension begins, and its extent."""

    buffer: ir.Var
    starts: tuple[Any, ...]
    extents: tuple[Any, ...]

    def index(self, old: list[Any]) -> list[Any]:
        """Count from where the tile begins."""
        pairs = zip(old, self.starts, strict=True)
        return [ir.simplify(x - ir.cast_like(start, x)) for x, start in pairs]

    def region(self, old: list[Any]) -> list[Any]:
        """Move a region."""
        pairs = zip(self.index([x.min for x in old]), old, strict=True)
        return [tvm_ir.Range.from_min_extent(x, r.extent) for x, r in pairs]


def plan_tiles(kernel: ir.For) -> tuple[TileShape, ...]:
    """Find the tiles of which every access lies after one place, as far as is static."""
    found = []
    for block in ir.find_all(kernel, ir.SBlock):
        tiles = [x for x in block.alloc_buffers if ir.is_shared(x) or x.scope() == "local"]
        if not tiles:
            continue
        outside = [x for x in ir.find_all(kernel, ir.For) if ir.uses_node(x.body, block)]
        shapes = [_shape(outside, block, x) for x in tiles]
        found += [x for x in shapes if x is not None]
    return tuple(found)


def _shape(outside: list[ir.For], block: ir.SBlock, buffer: ir.Var) -> TileShape | None:
    accesses = ir.accesses(block, buffer)
    if not accesses or not all(_is_plain(x) for x in accesses) or buffer.ty.strides:
        return None
    loops = [x for x in ir.find_all(block, ir.For) if x not in outside]
    inside = [x for x in (*outside, *loops) if _is_inner(x, outside, ir.is_shared(buffer))]
    analyzer = sym.Analyzer()
    for loop in inside:
        analyzer.bind(loop.loop_var, ir.range_of(loop))
    starts: list[Any] = []
    extents: list[Any] = []
    is_smaller = False
    for axis, extent in enumerate(buffer.shape):
        bounds = [_bounds(list(x.indices)[axis], inside, analyzer) for x in accesses]
        first, _ = bounds[0]
        known = all(tvm_ffi.structural_equal(first, x) and most is not None for x, most in bounds)
        most = max(most or 0 for _, most in bounds) if known else None
        size = ir.static_int(extent)
        if most is None and size is None:
            return None
        if most is None or (size is not None and most >= size):
            starts.append(tirx.IntImm(ir.dtype_of(extent), 0))
            extents.append(extent)
            continue
        is_smaller = True
        starts.append(first)
        extents.append(tirx.IntImm(ir.dtype_of(extent), most))
    return TileShape(buffer, tuple(starts), tuple(extents)) if is_smaller else None


def _is_plain(access: Any) -> bool:
    """Tell whether an access names single elements: no pointer, no vector."""
    is_plain = isinstance(access, (ir.TensorLoad, ir.BufferStore))
    return is_plain and not any("x" in ir.dtype_of(x) for x in access.indices)


def _is_inner(loop: ir.For, outside: list[ir.For], is_shared: bool) -> bool:
    """Tell whether a loop may count elements of one tile: thread blocks and iterations do not."""
    if loop.kind == ir.ForKind.THREAD_BINDING:
        is_thread = not str(loop.thread_binding.thread_tag).startswith("block")
        return is_thread and (is_shared or loop not in outside)
    return loop not in outside


def _bounds(index: Any, loops: list[ir.For], analyzer: sym.Analyzer) -> tuple[Any, int | None]:
    """Return where an index begins, and how many places it has from there on."""
    if isinstance(index, tirx.IntImm):
        return index, 1
    start = ir.simplify(ir.substitute(index, {x.loop_var: 0 for x in loops}))
    rest = ir.simplify(index - ir.cast_like(start, index), analyzer)
    known = analyzer.const_int_bound(rest)
    if int(known.min_value) < 0 or int(known.max_value) >= 2**31:
        return start, None
    return start, int(known.max_value) + 1


compact_tiles = kernel_step(plan_tiles, rewrite_arrays)
compact_registers = kernel_step(plan_registers, rewrite_arrays)
CompactTiles = function_pass(
    "CompactTiles", compact_tiles, compact_registers, simplify_index_bounds, simplify_digits
)
