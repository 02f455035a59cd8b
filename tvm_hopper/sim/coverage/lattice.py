"""The memory of one tensor, cut where any access begins or ends: the CTAs that touch each cell.

Along each digit of an address (`boxes`) cells end where some box does, so that a box is a number of
whole cells, one as a rule: a million tiles are a million cells, however large they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_hopper.sim.coverage.boxes import (
    MAX_BOXES,
    Boxes,
    choose_moduli,
    piece_boxes,
    pitches,
    place_of,
    range_boxes,
)
from tvm_hopper.sim.coverage.footprint import Piece
from tvm_hopper.sim.coverage.points import Deadline, UndecidedError
from tvm_hopper.sim.launch.tensors import TensorPlacement

MAX_CELLS = 1 << 24
MAX_MARKED = 1 << 24  # positions along one digit that are marked rather than sorted


def own_ranges(place: TensorPlacement) -> tuple[np.ndarray, np.ndarray]:
    """Return the ranges of bytes that are elements of a tensor, ascending."""
    array = place.array
    starts, length = np.array([place.offset], np.int64), array.itemsize
    dims = sorted(zip(map(abs, array.strides), array.strides, array.shape, strict=True))
    for size, stride, extent in dims:
        if extent == 1 or stride == 0:
            continue
        if size == length and len(starts) == 1:  # dense so far
            starts = starts + min(stride * (extent - 1), 0)
            length *= extent
            continue
        if len(starts) * extent > MAX_CELLS:
            raise UndecidedError(f"{len(starts) * extent} rows of a view")
        starts = (starts[:, None] + np.arange(extent, dtype=np.int64) * stride).ravel()
    starts = np.sort(starts)
    return starts, starts + length


def fills_memory(place: TensorPlacement) -> bool:
    """Return whether every byte of a tensor's memory is one of its elements."""
    try:
        starts, ends = own_ranges(place)
    except UndecidedError:
        return False
    return len(starts) == 1 and bool(starts[0] == 0 and ends[0] == place.base.size)


@dataclass(frozen=True)
class Conflict:
    """Two pieces of different CTAs that meet at a byte."""

    first: Piece
    second: Piece
    owners: tuple[int, int]
    byte: int


class Lattice:
    """The cells of one tensor.

    - `pieces`: accesses that count.
    - `place`: the tensor; its own elements are cells of their own.
    """

    def __init__(
        self, pieces: Sequence[Piece], place: TensorPlacement, deadline: Deadline | None = None
    ) -> None:
        runs = []
        for piece in pieces:
            runs.append(piece.offsets.runs())
            if deadline is not None:
                deadline.check()
        starts, ends = own_ranges(place)
        weighted = [
            (pitch, len(piece.base) * len(begins))
            for piece, (begins, _) in zip(pieces, runs, strict=True)
            for pitch in pitches(begins)
        ]
        if len(starts) > 1:
            weighted += [(pitch, len(starts)) for pitch in pitches(starts)]
        self.moduli = choose_moduli(weighted)
        self.pieces = pieces
        self.boxes: list[Boxes] = []
        left = MAX_BOXES
        for piece, run in zip(pieces, runs, strict=True):
            self.boxes.append(piece_boxes(piece, run, self.moduli, left))
            left -= len(self.boxes[-1].low)
        low, high, _ = range_boxes(starts, ends, self.moduli)
        self.elements = Boxes(low, high, np.zeros(len(low), np.int64))
        self._cut()

    def _cut(self) -> None:
        self.edges: list[np.ndarray] = []
        tables: list[Any] = []
        every = [*self.boxes, self.elements]
        for digit in range(len(self.moduli) + 1):
            columns = [part[:, digit] for boxes in every for part in (boxes.low, boxes.high)]
            edges, table = _edges(columns)
            self.edges.append(edges)
            tables.append(table)
        self.shape = tuple(max(len(edges) - 1, 1) for edges in self.edges)
        if np.prod([float(n) for n in self.shape]) > MAX_CELLS:
            raise UndecidedError(f"{self.shape} cells of memory to compare")
        self._tables = tables
        self.num_cells = int(np.prod(self.shape))

    def _numbers(self, digit: int, values: np.ndarray) -> np.ndarray:
        scale, origin, table = self._tables[digit]
        if table is None:
            return np.searchsorted(self.edges[digit], values)
        return table[(values - origin) // scale]

    def cells(self, boxes: Boxes) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the cells of some boxes, and the box of each cell (None: one cell each)."""
        firsts, counts = [], []
        for digit in range(len(self.shape)):
            first = self._numbers(digit, boxes.low[:, digit])
            firsts.append(first)
            counts.append(self._numbers(digit, boxes.high[:, digit]) - first)
        cell = np.zeros(len(boxes.low), np.int64)
        for first, extent in zip(firsts, self.shape, strict=True):
            cell = cell * extent + first
        if all((c == 1).all() for c in counts):
            return cell, None
        total = np.prod(np.stack(counts).astype(float), axis=0).sum()
        if total > MAX_CELLS:
            raise UndecidedError(f"{int(total)} cells of memory to compare")
        which = np.arange(len(cell), dtype=np.int64)
        for digit, count in enumerate(counts):
            step = int(np.prod(self.shape[digit + 1 :], dtype=np.int64))
            here = count[which]
            begins = np.cumsum(here) - here
            within = np.arange(int(here.sum()), dtype=np.int64) - np.repeat(begins, here)
            cell = np.repeat(cell, here) + within * step
            which = np.repeat(which, here)
        return cell, which

    def conflict(self, group: np.ndarray | None = None) -> Conflict | None:
        """Return two accesses of different CTAs to one byte, at least one a store.

        Atomic accesses do not conflict with their like, nor CTAs of one group with each other:
        `group` has its number for each CTA.
        """
        stores = np.full(self.num_cells, -1, np.int32)
        found: list[tuple[str, np.ndarray, np.ndarray]] = []
        for piece, boxes in zip(self.pieces, self.boxes, strict=True):
            cell, which = self.cells(boxes)
            owner = boxes.owner if which is None else boxes.owner[which]
            owner = owner if group is None else group[owner]
            found.append((piece.access.kind, cell, owner))
        for kind, cell, owner in found:
            if kind == "store":
                before = stores[cell]
                stores[cell] = owner
                wrong = (stores[cell] != owner) | ((before >= 0) & (before != owner))
                if wrong.any():
                    return self._named(int(cell[np.argmax(wrong)]), {"store"}, group)
        for kind, cell, owner in found:
            if kind != "store":
                there = stores[cell]
                wrong = (there >= 0) & (there != owner)
                if wrong.any():
                    return self._named(int(cell[np.argmax(wrong)]), {"store", kind}, group)
        if any(kind == "atomic" for kind, _, _ in found):
            return self._against_atomics(found, group)
        return None

    def _against_atomics(
        self, found: list[tuple[str, np.ndarray, np.ndarray]], group: np.ndarray | None
    ) -> Conflict | None:
        """Compare plain loads with atomic accesses; many CTAs may access a cell atomically."""
        least = np.full(self.num_cells, np.iinfo(np.int64).max, np.int64)
        most = np.full(self.num_cells, -1, np.int64)
        for kind, cell, owner in found:
            if kind == "atomic":
                np.minimum.at(least, cell, owner)
                np.maximum.at(most, cell, owner)
        for kind, cell, owner in found:
            if kind == "load":
                wrong = (most[cell] >= 0) & ((least[cell] != owner) | (most[cell] != owner))
                if wrong.any():
                    return self._named(int(cell[np.argmax(wrong)]), {"atomic", "load"}, group)
        return None

    def _named(self, cell: int, kinds: set[str], group: np.ndarray | None) -> Conflict:
        """Find two accesses of a cell by different CTAs; all pairs of the kinds conflict."""
        there: list[tuple[Piece, int]] = []
        for piece, boxes in zip(self.pieces, self.boxes, strict=True):
            if piece.access.kind in kinds:
                cells, which = self.cells(boxes)
                at = np.flatnonzero(cells == cell)
                owners = boxes.owner[at if which is None else which[at]]
                there += [(piece, int(owner)) for owner in np.unique(owners)]
        quiet = {"load", "atomic"} if kinds != {"atomic", "load"} else {"load"}
        for i, (piece, owner) in enumerate(there):
            for other, second in there[i + 1 :]:
                both = {piece.access.kind, other.access.kind}
                alike = len(both) == 1 and both <= {"load", "atomic"}
                distinct = owner != second if group is None else group[owner] != group[second]
                if distinct and not alike and not both <= quiet:
                    pair = sorted(((owner, 0), (second, 1)))
                    ends = (piece, other)
                    return Conflict(
                        ends[pair[0][1]], ends[pair[1][1]], (pair[0][0], pair[1][0]),
                        self.byte_of(cell),
                    )  # fmt: skip
        raise AssertionError("a cell in conflict has two owners")

    def byte_of(self, cell: int) -> int:
        """Return the first byte of a cell."""
        parts = np.unravel_index(cell, self.shape)
        return place_of([int(self.edges[d][p]) for d, p in enumerate(parts)], self.moduli)

    def bytes_in(self, cells: np.ndarray) -> np.ndarray:
        """Return how many bytes cells have."""
        sizes = np.ones(len(cells), np.int64)
        for digit, part in enumerate(np.unravel_index(cells, self.shape)):
            sizes = sizes * np.diff(self.edges[digit])[part]
        return sizes

    def holes(self) -> np.ndarray:
        """Return the cells of the tensor's own elements that nothing stores to."""
        touched = np.zeros(self.num_cells, bool)
        for piece, boxes in zip(self.pieces, self.boxes, strict=True):
            if piece.access.kind != "load":
                touched[self.cells(boxes)[0]] = True
        elements = np.zeros(self.num_cells, bool)
        elements[self.cells(self.elements)[0]] = True
        return np.flatnonzero(elements & ~touched)

    def strangers(self) -> tuple[Piece, int, int] | None:
        """Return an access of bytes that are no element of the tensor: its CTA and the byte."""
        elements = np.zeros(self.num_cells, bool)
        elements[self.cells(self.elements)[0]] = True
        for piece, boxes in zip(self.pieces, self.boxes, strict=True):
            cell, which = self.cells(boxes)
            wrong = np.flatnonzero(~elements[cell])
            if len(wrong):
                owners = boxes.owner[wrong if which is None else which[wrong]]
                first = int(np.argmin(owners))
                return piece, int(owners[first]), self.byte_of(int(cell[wrong[first]]))
        return None


def _edges(columns: list[np.ndarray]) -> tuple[np.ndarray, Any]:
    """Return the distinct values of some columns, and how to look up the number of one."""
    low = min(int(c.min()) for c in columns if len(c))
    high = max(int(c.max()) for c in columns if len(c))
    scale = 0
    for column in columns:
        if len(column):
            scale = int(np.gcd.reduce(np.append(column - low, scale)))
    scale = max(scale, 1)
    count = (high - low) // scale + 1
    if count > MAX_MARKED:
        values = np.sort(np.concatenate(columns), kind="stable")  # columns are sorted as a rule
        return values[np.append(True, values[1:] != values[:-1])], (1, 0, None)
    marks = np.zeros(count, bool)
    for column in columns:
        marks[(column - low) // scale] = True
    edges = np.flatnonzero(marks) * scale + low
    return edges, (scale, low, np.cumsum(marks) - 1)
