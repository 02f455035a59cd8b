"""Find the part of a shared tile that each warp group stores by a separate copy.

  for w in thread_binding(2, "threadIdx.y"):
      for i, j in grid(64, 128): C[m + w * 64 + i, n + j] = tile[w * 64 + i, j]
->
  Share(extents=(64, 128), parts=(2, 1), starts=(w * 64, 0))       of a tile of 128 x 128
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import sym

from tvm_hopper import ir
from tvm_hopper.requests.keys import WGMMA
from tvm_hopper.transforms.common.transfer import Transfer

MAX_TILE = 1 << 16  # elements of one dimension, beyond any shared memory


@dataclass(frozen=True)
class Share:
    """A part of a tile along each of its dimensions: elements, equal parts, where it starts."""

    extents: tuple[int | None, ...]  # None: not known statically
    parts: tuple[int, ...]
    starts: tuple[Any, ...]

    @property
    def is_whole(self) -> bool:
        """Tell whether it is the tile."""
        return all(parts == 1 for parts in self.parts)

    @property
    def tile(self) -> tuple[int | None, ...]:
        """Extents of the tile that all parts make up."""
        pairs = zip(self.extents, self.parts, strict=True)
        return tuple(None if extent is None else extent * parts for extent, parts in pairs)


def find_share(kernel: Any, copy: Transfer) -> Share:
    """Return the part that a copy moves; the whole tile where its indices say nothing else.

    A part is counted by a thread axis: `axis * extent + loop`, the loop over `extent` elements.
    """
    rank = len(copy.tile.indices)
    extents: list[int | None] = [None] * rank
    parts, starts = [1] * rank, [_zero(x) for x in copy.tile.indices]
    for dim, index in enumerate(copy.tile.indices):
        loop = copy.tile.loop_of(dim)
        if loop is not None or copy.fills_shared:
            extents[dim] = None if loop is None else ir.static_int(loop.extent)
            continue
        found = _part(kernel, copy, index)
        if found is not None:
            extents[dim], parts[dim], starts[dim] = found
    return Share(tuple(extents), tuple(parts), tuple(starts))


def loop_over(copy: Transfer, share: Share, dim: int) -> ir.For | None:
    """Return the loop that moves along a dimension of the tile, from the start of the part on."""
    if share.parts[dim] == 1:
        return copy.tile.loop_of(dim)
    index = copy.tile.indices[dim]
    return next((x for x in copy.loops if ir.depends_on(index, [x.loop_var])), None)


def _part(kernel: Any, copy: Transfer, index: Any) -> tuple[int, int, Any] | None:
    for loop in copy.loops:
        start = ir.simplify(index - ir.cast_like(loop.loop_var, index))
        extent = ir.static_int(loop.extent)
        if extent is None or ir.depends_on(start, [x.loop_var for x in copy.loops]):
            continue
        threads = (x for tag, x in ir.thread_axes(kernel).items() if tag.startswith("threadIdx"))
        for axis in threads:
            parts = ir.static_int(axis.extent)
            step = ir.cast_like(axis.loop_var, start) * extent
            if parts is not None and ir.is_const(ir.simplify(start - step), 0):
                return extent, parts, start
    return None


def _zero(index: Any) -> Any:
    return ir.cast_like(0, index)


# -- tiles that registers are stored into


def fragment_stores(kernel: ir.For, tile: ir.Var) -> list[ir.BufferStore]:
    """Return the stores into a tile of what a multiplication has summed up."""
    sums = [x.source for block in ir.find_blocks(kernel, WGMMA) for x in block.writes]
    stores = ir.find_all(kernel, ir.BufferStore, lambda x: x.buffer.same_as(tile))
    return [store for store in stores if any(ir.uses(store.value, x) for x in sums)]


def widened(kernel: ir.For, tile: ir.Var, extents: list[int]) -> list[int]:
    """Let a tile hold all that is stored from registers, which come in whole fragments.

    If the tensor is smaller than a tile, the copy takes the tensor's elements alone.
    """
    analyzer = sym.Analyzer()
    for loop in ir.find_all(kernel, ir.For):
        analyzer.bind(loop.loop_var, ir.range_of(loop))
    for store in fragment_stores(kernel, tile):
        ends = [int(analyzer.const_int_bound(x).max_value) + 1 for x in store.indices]
        if max(ends) <= MAX_TILE:  # else the loops have no known end, which LowerWgmma refuses
            extents = [max(*pair) for pair in zip(extents, ends, strict=True)]
    return extents
