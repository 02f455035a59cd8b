"""The layout of a shared tile: panels of rows, swizzle, padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_hopper import ir
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.swizzle import CHUNK_BYTES, alignment, swizzle_chunk
from tvm_hopper.requests.keys import SWIZZLE

from .transfer import Transfer


@dataclass(frozen=True)
class SharedLayout:
    """`rows` x `columns` elements as panels of `span` columns, XORed within `swizzle` bytes.

    A single panel may be wider than the columns, and have more rows than the tile: padding, which
    nothing reads.
    """

    dtype: str
    rows: int
    columns: int
    span: int
    swizzle: int

    @property
    def panels(self) -> int:
        """Number of panels."""
        return max(self.columns // self.span, 1)

    @property
    def has_wide_rows(self) -> bool:
        """Tell whether rows of the panel are longer than those of the tile."""
        return self.panels * self.span != self.columns

    @property
    def shape(self) -> tuple[int, int, int]:
        """The tile as a buffer."""
        return self.panels, self.rows, self.span

    @property
    def panel_bytes(self) -> int:
        """Bytes of one panel, which one box fills, or several with their rows one after another."""
        return self.rows * self.span * dtype_bytes(self.dtype)

    @property
    def alignment(self) -> int:
        """Bytes of whose multiples the tile's address is one."""
        return alignment(self.swizzle)

    def index(self, row: Any, column: Any) -> tuple[Any, Any, Any]:
        """Return where an element lies for plain loads and stores, ints or TIR expressions."""
        return self.swizzled(*self.panel_index(row, column))

    def panel_index(self, row: Any, column: Any) -> tuple[Any, Any, Any]:
        """Return the unswizzled position of an element: the hardware applies the XOR."""
        if self.panels == 1:  # said outright: a predicate may keep columns inside, not the loops
            return column * 0, row, column
        return column // self.span, row, column % self.span

    def swizzled(self, panel: Any, row: Any, inside: Any) -> tuple[Any, Any, Any]:
        """Return the swizzled position of a position in a panel.

        Up to 16 bytes that lie in a row, at a multiple of their size, stay neighbors: the XOR moves
        16-byte chunks.
        """
        if not self.swizzle:
            return panel, row, inside
        chunk = CHUNK_BYTES // dtype_bytes(self.dtype)
        moved = swizzle_chunk(panel * self.rows + row, inside // chunk, self.swizzle)
        return panel, row, moved * chunk + inside % chunk


def layout_of(copy: Transfer) -> SharedLayout:
    """Return the layout that a copy's tile was given."""
    tile = copy.tile.buffer
    panels, rows, span = (int(extent) for extent in tile.shape)
    swizzle = int(copy.block.annotations[SWIZZLE])
    return SharedLayout(ir.dtype_of(tile), rows, panels * span, span, swizzle)
