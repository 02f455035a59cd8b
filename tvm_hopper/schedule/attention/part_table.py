"""Parts of the keys of sequences whose lengths device memory tells.

    keys of two sequences: 1000, 70                           2 parts, steps of 64 keys
  ->
    part, sequence     0, 0      0, 1      1, 0      1, 1
    steps              8         1         8         1
    first step         0         0         8         1

The host knows how many sequences there are, and so how many parts keep all SMs busy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir

INT32 = "int32"
NAME = "part_table"  # of the block, whose loops are over parts and sequences
COLUMNS = "first_key", "keys", "first_step", "steps"


@dataclass(frozen=True)
class PartTable:
    """A table that tells each part of the keys its steps: `table[part, sequence, column]`, int32.

    Columns are the first key of the sequence, the number of its keys, the part's first step, and
    the number of its steps.

    - `count`, `sequences`: how many parts and sequences there are.
    - `keys`: keys of a step.
    - `buffer`: the table.
    """

    count: Any
    sequences: Any
    keys: int
    buffer: Any

    @staticmethod
    def of(count: Any, sequences: Any, keys: int) -> PartTable:
        """Declare the table."""
        shape = (count, sequences, len(COLUMNS))
        return PartTable(count, sequences, keys, ir.new_buffer(NAME, shape, INT32, "global"))

    def of_part(self, part: Any, sequence: Any) -> dict[str, Any]:
        """Return the columns of a part by their names."""
        return {x: self.buffer[part, sequence, n] for n, x in enumerate(COLUMNS)}

    def build(self, keys_of: Callable[[Any], tuple[Any, Any]]) -> ir.Stmt:
        """Return the loops that write the table.

        `keys_of` tells the first key and the number of keys of a sequence.
        """
        part, sequence, column = (ir.Var(x, INT32) for x in ("vp", "vb", "vx"))
        first_key, keys = keys_of(sequence)
        steps = tirx.floordiv(keys + (self.keys - 1), self.keys)
        most = tirx.floordiv(steps + (self.count - 1), self.count)
        first = tirx.min(part * most, steps)
        values = [first_key, keys, first, tirx.min(most, steps - first)]
        value = values[-1]
        for n, x in reversed(list(enumerate(values[:-1]))):
            value = tirx.Select(tirx.EQ(column, n), x, value)
        store = ir.BufferStore(self.buffer, value, [part, sequence, column])
        extents = [ir.cast_like(x, part) for x in (self.count, self.sequences, len(COLUMNS))]
        return ir.block_nest(NAME, [part, sequence, column], extents, store)
