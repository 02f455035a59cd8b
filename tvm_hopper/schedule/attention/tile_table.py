"""Tiles of query rows of sequences whose lengths device memory tells.

    rows of three sequences: 0, 200, 128                       in tiles of 128 rows
  ->
    tile         0          1          2          3 and more
    sequence     2          1          1          none: no rows, no keys
    rows from    0          128        0

The host knows how many rows and sequences there are, and so the most tiles. The last tiles of a
sequence stand first: under a causal mask they take longest. A kernel in front writes the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import ir as tvm_ir, tirx
from tvm.tirx import IterVar

from tvm_hopper import ir

INT32 = "int32"
NAME = "tile_table"  # of the block, whose loop is over tiles
COLUMNS = "query", "rows", "first_key", "keys", "diagonal", "full", "end"
WINDOW_COLUMNS = "lowest", "sink", "gap"  # of sequences with a window


@dataclass(frozen=True)
class TileTable:
    """What attention needs to know of each tile: `table[tile, column]`, int32.

    Its first row in the queries; how many rows it has; the first key of its sequence, and how many
    keys that has. Row i sees those before `min(keys, diagonal + i)`: all rows those before `full`,
    none of them any from `end` on.

    Of sequences with a window also: row i sees keys from `lowest + i` on; keys from `sink` on are
    `gap` places further on in the sequence.

    - `offsets`: the first row of each sequence, and the first one behind the last; int32.
    - `rows`: rows of a tile.
    - `buffer`: the table.
    - `columns`: the names of what it tells.
    """

    offsets: Any
    rows: int
    buffer: Any
    columns: tuple[str, ...]

    @staticmethod
    def of(offsets: Any, total: Any, rows: int, slides: bool) -> TileTable:
        """Declare the table of sequences that have `total` rows together; of none without rows."""
        sequences = offsets.shape[0] - 1
        most = ir.simplify((tirx.floordiv(total, rows) + sequences) * tirx.min(total, 1))
        columns = (*COLUMNS, *(WINDOW_COLUMNS if slides else ()))
        buffer = ir.new_buffer(NAME, (most, len(columns)), INT32, "global")
        return TileTable(offsets, rows, buffer, columns)

    @property
    def count(self) -> Any:
        """How many tiles there are at most."""
        return self.buffer.shape[0]

    def of_tile(self, tile: Any) -> dict[str, Any]:
        """Return the columns of a tile by their names."""
        return {x: self.buffer[tile, place] for place, x in enumerate(self.columns)}

    def build(
        self,
        keys_of: Callable[[Any], tuple[Any, Any]],
        causal: Any,
        window: Callable[[Any, Any], tuple[Any, ...]] | None = None,
    ) -> ir.Stmt:
        """Return the loop that writes the table.

        - `keys_of`: the first key and the number of keys of a sequence.
        - `causal`: whether the last row of a sequence sees all keys, and each one before it one
          less.
        - `window`: the columns of windows of a sequence, by its number of keys, for its first row.
        """
        tile, behind, loop = (ir.Var(x, INT32) for x in ("vt", "s", "t"))
        zero = tirx.IntImm(INT32, 0)
        before, found, start = (
            ir.new_buffer(x, (1,), INT32, "local")
            for x in ("tiles_before", "found_sequence", "found_start")
        )
        sequences = ir.simplify(self.offsets.shape[0] - 1)
        sequence = sequences - 1 - behind
        tiles = tirx.floordiv(self._length(sequence) + (self.rows - 1), self.rows)
        place = tile - before[zero]
        hit = ir.seq(
            ir.BufferStore(found, sequence, [zero]),
            ir.BufferStore(start, (tiles - 1 - place) * self.rows, [zero]),
        )
        step = ir.seq(
            ir.IfThenElse(tirx.And(place >= 0, place < tiles), hit, None),
            ir.BufferStore(before, before[zero] + tiles, [zero]),
        )
        body = ir.seq(
            ir.BufferStore(before, zero, [zero]),
            ir.BufferStore(found, zero, [zero]),
            ir.BufferStore(start, zero, [zero]),
            ir.For(behind, zero, sequences, ir.ForKind.SERIAL, step),
            self._row(tile, found[zero], start[zero], tile < before[zero], keys_of, causal, window),
        )
        axis = IterVar(tvm_ir.Range.from_min_extent(zero, self.count), tile, IterVar.DataPar)
        own = [before, found, start]
        used = [x.source for x in ir.find_all(body, ir.TensorLoad)]
        reads = [ir.full_region(x) for x in ir.once(used) if not any(x.same_as(y) for y in own)]
        columns = tvm_ir.Range.from_min_extent(zero, len(self.columns))
        writes = [tirx.BufferRegion(self.buffer, [tvm_ir.Range.from_min_extent(tile, 1), columns])]
        block = ir.SBlock([axis], reads, writes, NAME, body, alloc_buffers=own)
        realize = ir.SBlockRealize([loop], True, block)
        return ir.For(loop, zero, self.count, ir.ForKind.SERIAL, realize)

    def _length(self, sequence: Any) -> Any:
        return self.offsets[sequence + 1] - self.offsets[sequence]

    def _row(
        self,
        tile: Any,
        sequence: Any,
        start: Any,
        exists: Any,
        keys_of: Callable[[Any], tuple[Any, Any]],
        causal: Any,
        window: Callable[[Any, Any], tuple[Any, ...]] | None,
    ) -> ir.Stmt:
        """Return the stores of a tile's columns."""
        zero = tirx.IntImm(INT32, 0)
        length = self._length(sequence)
        first_key, keys = keys_of(sequence)
        rows = tirx.min(length - start, self.rows)
        diagonal = keys + 1 + start - tirx.Select(causal, length, zero)
        columns = {
            "query": self.offsets[sequence] + start,
            "rows": rows,
            "first_key": first_key,
            "keys": keys,
            "diagonal": diagonal,
            "full": tirx.min(keys, diagonal),
            "end": tirx.min(keys, diagonal + rows - 1),
        }
        if window is not None:
            lowest, *places = window(sequence, keys)
            columns.update(zip(WINDOW_COLUMNS, (lowest + start, *places), strict=True))
        stores = []
        for n, x in enumerate(self.columns):
            value = tirx.Select(exists, columns[x], zero)
            stores.append(ir.BufferStore(self.buffer, value, [tile, tirx.IntImm(INT32, n)]))
        return ir.seq(stores)
