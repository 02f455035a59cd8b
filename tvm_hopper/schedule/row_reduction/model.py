"""The configuration that a kernel over rows gets when the user names none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_hopper import ir
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.schedule.memory_bound.tiles import RegisterTile

from .config import RowReductionConfig
from .recognize import RowProgram


@dataclass(frozen=True)
class RowChoice:
    tile: RegisterTile
    text: str


def choose_rows(program: RowProgram, tensors: list[Any], given: RowReductionConfig) -> RowChoice:
    widest = max(dtype_bytes(ir.dtype_of(x)) for x in tensors)
    vector = given.vector or 16 // widest
    while program.columns % vector:
        vector //= 2
    vectors = -(-program.columns // vector)
    threads = given.threads or min(1024, max(32, vectors // 2))
    threads = -(-threads // 32) * 32 if threads > 32 else threads
    rows = given.rows or max(1, 128 // threads)
    tile = RegisterTile(threads, vector, -(-vectors // threads), rows)
    return RowChoice(tile, f"{threads} threads a row, {rows} rows, {tile.chunks} vectors of {vector}")
