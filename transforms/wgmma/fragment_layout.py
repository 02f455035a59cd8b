"""The accumulator layout of WGMMA: which element each register of a thread holds.

The registers of a fragment come in fours for each eight columns: register 4 g + 2 h + e is in row
`row(h, lane)` of its subtile and column 8 g + 2 (lane % 4) + e.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_hopper import ir
from tvm_hopper.facts import registers, wgmma

SUBTILE_ROWS = wgmma.INSTRUCTION_M  # rows that one instruction multiplies
MIN_TRANSPOSED_COLUMNS = (
    64  # columns of a tile from which on rows along memory are turned between lanes
)


@dataclass(frozen=True)
class AccumulatorLayout:
    """How the threads of a warp group hold `m` x `n` elements: as instructions leave them.

    Each instruction computes 64 rows and `width` columns. Which register holds an element follows
    from `m` and `n` alone: eight columns are four registers, whichever instruction they are from.
    """

    m: int
    n: int
    width: int

    @property
    def count(self) -> int:
        """Registers of a thread."""
        return registers.accumulator_registers(self.m, self.n, 1)

    def register(self, subtile: Any, chunk: Any, i: Any) -> Any:
        """Return the index of register `i` of an instruction: 64-row `subtile`, column `chunk`."""
        return (subtile * (self.n // self.width) + chunk) * (self.width // 2) + i


@dataclass(frozen=True)
class RowLayout:
    """How the threads of a warp group hold an element for each of `m` rows.

    The four threads that hold a row of an accumulator each have its element.
    """

    m: int

    @property
    def count(self) -> int:
        """Registers of a thread."""
        return self.m // SUBTILE_ROWS * wgmma.ROWS_OF_THREAD

    def register(self, subtile: Any, _: Any, i: Any) -> Any:
        """Return the index of the row of an accumulator's register `i`, of any instruction."""
        return self.of_half(subtile, i // 2 % 2)

    def of_half(self, subtile: Any, half: Any) -> Any:
        """Return the index of a row of a 64-row `subtile`, see `row`."""
        return subtile * wgmma.ROWS_OF_THREAD + half


@dataclass(frozen=True)
class FragmentTile:
    """A local buffer of the program that a warp group holds in registers.

    - `buffer`: as the program indexes it, by rows and columns.
    - `registers`: the registers of one thread that hold it.
    - `dtype`: type of an element in its register: a sum may be wider than its buffer.
    """

    buffer: ir.Var
    registers: ir.Var
    layout: AccumulatorLayout | RowLayout
    dtype: str

    @property
    def register_dtype(self) -> str:
        """Type that the registers are declared in."""
        return ir.dtype_of(self.registers)


def row(half: Any, lane: Any) -> Any:
    """Return the row, in its subtile, of a thread's registers 2 h and 2 h + 1 of every four."""
    return wgmma.accumulator_row(half * 2, lane)


def column(register: Any, lane: Any) -> Any:
    """Return the column of a thread's register, counted in its instruction."""
    return wgmma.accumulator_col(register, lane)
