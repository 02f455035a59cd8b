"""The configuration that an elementwise kernel gets when the user names none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_hopper import ir
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.schedule.memory_bound.tiles import RegisterTile

from .config import PointwiseConfig
from .recognize import ElementProgram


@dataclass(frozen=True)
class ElementChoice:
    tile: RegisterTile
    text: str


def choose_elements(program: ElementProgram, tensors: list[Any], given: PointwiseConfig) -> ElementChoice:
    widest = max(dtype_bytes(ir.dtype_of(x)) for x in tensors)
    vector = given.vector or 16 // widest
    if program.rows:
        while not ir.is_const(ir.simplify(program.columns % vector), 0):
            vector //= 2
    tile = RegisterTile(given.threads or 256, vector, given.chunks or 2)
    return ElementChoice(tile, f"{tile.threads} threads, {tile.chunks} vectors of {vector}")
