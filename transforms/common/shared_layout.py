"""The layout of a shared tile: panels of rows, swizzle, padding; what an access demands of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.swizzle import CHUNK_BYTES, alignment, swizzle_chunk
from tvm_hopper.facts.tensor_map import MAX_BOX
from tvm_hopper.requests.keys import SWIZZLE

from .transfer import Transfer

BOX_ALIGNMENT = 128  # bytes, of where a box lands (PTX ISA 9.1, 5.5.6)


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
    def is_as_declared(self) -> bool:
        """Tell whether rows lie one after the other, as the tile was declared."""
        return self.panels == 1 and not self.swizzle and not self.has_wide_rows

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


@dataclass(frozen=True)
class Demand:
    """What one access of a tile needs of its layout."""

    who: str  # as an error names it
    accepts: Callable[[SharedLayout], bool]


def asked_swizzle(copy: Transfer) -> int | None:
    """Return the swizzle that a schedule requests, if it does."""
    found = copy.block.annotations.get(SWIZZLE)
    return None if found is None else int(found)


def plain_rows(copy: Transfer, how: str, fix: str) -> Demand:
    """Return what a mechanism needs that moves rows as they are; a swizzle is refused."""
    if asked := asked_swizzle(copy):
        found, need = f"a copy {how} with a {asked} B swizzle", "none: it moves rows as they are"
        raise cannot_lower(copy.where, found, need, fix)
    return Demand(f"{copy.where} {how}", lambda layout: layout.is_as_declared)


def panels(copy: Transfer, what: str, how: str) -> Demand:
    """Return what TMA needs: where boxes land, and that a slot of a ring starts where one may."""
    asked = asked_swizzle(copy)

    def accepts(layout: SharedLayout) -> bool:
        row_bytes = layout.span * dtype_bytes(layout.dtype)
        return (
            layout.swizzle == (layout.swizzle if asked is None else asked)
            and (copy.fills_shared or not layout.has_wide_rows)
            and layout.span <= MAX_BOX
            and row_bytes % CHUNK_BYTES == 0
            and row_bytes == (layout.swizzle or row_bytes)
            and (layout.panels == 1 or layout.panel_bytes % BOX_ALIGNMENT == 0)
            and layout.panels * layout.panel_bytes % layout.alignment == 0
        )

    pattern = f" with a {asked} B swizzle" if asked is not None else ""
    return Demand(f"{what} of {copy.tensor.buffer.name} by {how}{pattern}", accepts)
