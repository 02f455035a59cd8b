"""The accumulator layout of WGMMA: which element each register of a thread holds.

The registers of a fragment come in fours for each eight columns: register 4 g + 2 h + e is in row
`row(h, lane)` of its subtile and column 8 g + 2 (lane % 4) + e.
"""

from __future__ import annotations

from typing import Any

from tvm_hopper.facts import wgmma

SUBTILE_ROWS = wgmma.INSTRUCTION_M  # rows that one instruction multiplies
MIN_TRANSPOSED_COLUMNS = (
    64  # columns of a tile from which on rows along memory are turned between lanes
)


def row(half: Any, lane: Any) -> Any:
    """Return the row, in its subtile, of a thread's registers 2 h and 2 h + 1 of every four."""
    return wgmma.accumulator_row(half * 2, lane)


def column(register: Any, lane: Any) -> Any:
    """Return the column of a thread's register, counted in its instruction."""
    return wgmma.accumulator_col(register, lane)
