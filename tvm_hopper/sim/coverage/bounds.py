"""Bounds and alignment of one statement's accesses in every CTA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from tvm_hopper.sim.coverage.accesses import LOAD, GlobalAccess
from tvm_hopper.sim.coverage.footprint import Piece, Prepared, starts_of
from tvm_hopper.sim.launch.tensors import TensorPlacement
from tvm_hopper.sim.launch.tma import TensorMapArg
from tvm_hopper.sim.tir import numpy_dtype

INT32_MAX = (1 << 31) - 1


class FindingSink(Protocol):
    """A receiver of findings."""

    def cta(self, number: int) -> str:
        """Return a CTA's name."""

    def tensor(self, param: str | None) -> str:
        """Return the tensor that a parameter points into."""

    def report(self, rule: str, access: GlobalAccess, message: str, **more: Any) -> None:
        """Report a broken rule."""


def _verb(access: GlobalAccess) -> str:
    return "reads" if access.kind == LOAD else "writes"


def _first(wrong: Any, owners: np.ndarray) -> int:
    """Return the place of the lowest CTA among those that are wrong."""
    candidates = np.flatnonzero(wrong)
    return int(candidates[np.argmin(owners[candidates])])


def out_of_bounds(to: FindingSink, piece: Piece, where: TensorPlacement) -> bool:
    """Report the first CTA that touches bytes outside of a tensor's memory."""
    access, size = piece.access, where.base.size
    low, high = piece.base + piece.offsets.low, piece.base + piece.offsets.high
    wrong = (low < 0) | (high > size)
    if access.index_bits == 32:
        wrong |= (high - 1) // access.size > INT32_MAX
    if not wrong.any():
        return False
    at = _first(wrong, piece.owner)
    name, begin, end = to.tensor(access.param), int(low[at]), int(high[at])
    if begin < 0 or end > size:
        byte = begin if begin < 0 else end - piece.offsets.width
        text = (
            f"{to.cta(int(piece.owner[at]))} {_verb(access)} bytes [{byte}, "
            f"{byte + piece.offsets.width}) of {name}, which has {size} bytes: index "
            f"{byte // access.size}"
        )
    else:
        byte = end - piece.offsets.width
        text = (
            f"{to.cta(int(piece.owner[at]))}: index {byte // access.size} of {name} in 32 bits, "
            f"which hold at most {INT32_MAX}"
        )
    to.report(
        "OOB_ACCESS", access, text, buffer=name, byte_range=(byte, byte + piece.offsets.width)
    )
    return True


def misaligned(to: FindingSink, pieces: Sequence[Piece]) -> None:
    """Report the first CTA with an address that is not aligned as its access needs."""
    for piece in pieces:
        access, need = piece.access, piece.access.align
        if need <= 1:
            continue
        residues = piece.offsets.residues(need)
        found = (piece.base % need)[:, None] + residues
        wrong = (found % need != 0).any(axis=1)
        if access.whole and piece.offsets.width % need:
            wrong |= True
        if wrong.any():
            at = _first(wrong, piece.owner)
            bad = next((int(r) for r in found[at] % need if r % need), 0)
            text = (
                f"{to.cta(int(piece.owner[at]))} {_verb(access)} {piece.offsets.width} bytes of "
                f"{to.tensor(access.param)} at an address that is {bad} modulo {need}: need {need}"
            )
            to.report("MISALIGNED", access, text, buffer=to.tensor(access.param))
            return


def misaligned_box(to: FindingSink, prepared: Prepared, tensor_map: TensorMapArg) -> None:
    """Report the first CTA whose box begins where TMA cannot begin, along the innermost dimension.

    See `launch.tma.START_ALIGNMENT`.
    """
    access, itemsize = prepared.access, numpy_dtype(tensor_map.dtype).itemsize
    for index, starts in starts_of(prepared, 0):
        wrong = (starts * itemsize % access.align != 0).any(axis=1)
        if wrong.any():
            owners = prepared.points.cta[index]
            at = _first(wrong, owners)
            start = next(int(s) for s in starts[at] if s * itemsize % access.align)
            text = (
                f"{to.cta(int(owners[at]))}: TMA box of {tensor_map.tensor} from innermost "
                f"coordinate {start}, {start * itemsize} bytes: need a multiple of {access.align}"
            )
            to.report("MISALIGNED", access, text, buffer=tensor_map.tensor)
            return


def negative_box(to: FindingSink, prepared: Prepared) -> None:
    """Report the first CTA that stores a box from a negative coordinate."""
    access = prepared.access
    for dimension in range(len(access.offsets)):
        for index, starts in starts_of(prepared, dimension):
            wrong = (starts < 0).any(axis=1)
            if wrong.any():
                owners = prepared.points.cta[index]
                at = _first(wrong, owners)
                text = (
                    f"{to.cta(int(owners[at]))}: TMA store at coordinate {int(starts[at].min())} "
                    f"of dimension {dimension}"
                )
                to.report("OOB_ACCESS", access, text, buffer=to.tensor(access.param))
                return
