"""Traffic between CTAs: which of them store the bytes that others load.

Each element is a cell here. A statement under an unknown condition counts with all cells that it
may touch, so that no needed CTA is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from tvm_hopper.sim.coverage.accesses import LOAD, STORE, GlobalAccess
from tvm_hopper.sim.coverage.footprint import BUDGET_S, Piece, Preparer, box_pieces, plain_pieces
from tvm_hopper.sim.coverage.loops import assign_roles
from tvm_hopper.sim.coverage.points import Deadline, Points, UndecidedError
from tvm_hopper.sim.coverage.walk import Walker
from tvm_hopper.sim.launch.tensors import place
from tvm_hopper.sim.launch.tma import TensorMapArg

MAX_CELLS = 1 << 27  # cells of one tensor
MAX_RUNS = 1 << 24  # runs of one statement in all CTAs


class Traffic:
    """Cells of some tensors that one launch touches.

    - `func` (PrimFunc): the device function.
    - `setup` (dict): params, grid, block, cluster: see `Launch.bind`.
    - `arrays` (dict): the tensors that are requested, by name.
    - raises UndecidedError: something depends on data, or would take too long to tell.
    """

    def __init__(
        self,
        func: Any,
        setup: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray],
        budget_s: float = BUDGET_S,
    ) -> None:
        grid = tuple(int(g) for g in setup["grid"])
        self.num_ctas = int(np.prod(grid))
        self.cells = {name: _Cells.of(name, array) for name, array in arrays.items()}
        self.loads: dict[str, list[Piece]] = {name: [] for name in arrays}
        self.stores: dict[str, list[Piece]] = {name: [] for name in arrays}
        params = dict(setup["params"])
        walker = Walker(func, params, grid, setup["block"], setup["cluster"])
        assign_roles(walker.accesses, self.num_ctas)
        preparer = Preparer(
            walker.nodes, Points.of_grid(grid, walker.axes), Deadline(budget_s)
        )  # fmt: skip
        for unknown in walker.undecided:
            value = params.get(unknown.param or "")
            relevant = unknown.param is None or getattr(value, "tensor", "") in arrays
            if relevant and preparer.may_reach(unknown.path):
                raise UndecidedError(unknown.reason)
        for access in walker.accesses:
            value = params.get(access.param)
            name = str(getattr(value, "tensor", access.param))
            if name in arrays:
                pieces = _pieces(preparer, access, value)
                (self.loads if access.kind == LOAD else self.stores)[name] += pieces

    def loaded(self, name: str, ctas: np.ndarray) -> np.ndarray:
        """Return which cells of a tensor some CTAs, one flag for each of the grid, load."""
        return self.cells[name].touched(self.loads[name], ctas)

    def stored(self, name: str, ctas: np.ndarray) -> np.ndarray:
        """Return which cells of a tensor some CTAs store to."""
        return self.cells[name].touched(self.stores[name], ctas)

    def storing(self, name: str, cells: np.ndarray) -> np.ndarray:
        """Return which CTAs store to some cells, one flag for each CTA of the grid."""
        return self.cells[name].touching(self.stores[name], cells, self.num_ctas)

    def loading(self, name: str, cells: np.ndarray) -> np.ndarray:
        """Return which CTAs load some cells."""
        return self.cells[name].touching(self.loads[name], cells, self.num_ctas)

    def adds(self) -> bool:
        """Return whether a store of some CTA may be part of the final contents."""
        return any(piece.access.kind != STORE for some in self.stores.values() for piece in some)


def _pieces(preparer: Preparer, access: GlobalAccess, value: Any) -> list[Piece]:
    prepared = preparer.prepare(access)
    if not len(prepared.points):
        return []
    if isinstance(value, TensorMapArg):
        return box_pieces(prepared, value)
    return plain_pieces(prepared, value.offset)


class _Cells:
    """The memory of one tensor, an element a cell."""

    def __init__(self, number: int, start: int, width: int) -> None:
        self.number, self.start, self.width = number, start, width

    @staticmethod
    def of(name: str, array: np.ndarray) -> _Cells:
        where = place(array)
        number = -(-array.nbytes // max(array.itemsize, 1))
        if number > MAX_CELLS or (array.size and not array.flags.forc):
            raise UndecidedError(f"{name}: {number} elements, or with gaps")
        return _Cells(number, where.offset, array.itemsize)

    def runs(self, pieces: list[Piece]) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield owners (points,), and the cells (points, runs) from where on and up to where."""
        for piece in pieces:
            starts, lengths = piece.offsets.runs()
            if len(piece.base) * len(starts) > MAX_RUNS:
                raise UndecidedError(f"{len(piece.base) * len(starts)} pieces of {piece.access}")
            first = piece.base[:, None] + (piece.offsets.low + starts - self.start)
            last = -(-(first + lengths) // self.width)
            yield (
                piece.owner,
                np.clip(first // self.width, 0, self.number),
                np.clip(last, 0, self.number),
            )

    def touched(self, pieces: list[Piece], ctas: np.ndarray) -> np.ndarray:
        """Return which cells the pieces of some CTAs touch."""
        if not pieces:
            return np.zeros(self.number, bool)
        steps = np.zeros(self.number + 1, np.int32)
        for owner, first, last in self.runs(pieces):
            wanted = ctas[owner]
            np.add.at(steps, first[wanted].ravel(), 1)
            np.add.at(steps, last[wanted].ravel(), -1)
        return np.cumsum(steps[:-1], dtype=np.int32) > 0

    def touching(self, pieces: list[Piece], cells: np.ndarray, num_ctas: int) -> np.ndarray:
        """Return which CTAs have pieces that touch some cells."""
        found = np.zeros(num_ctas, bool)
        if not pieces:
            return found
        before = np.concatenate(([0], np.cumsum(cells, dtype=np.int32)))
        for owner, first, last in self.runs(pieces):
            found[owner[(before[last] > before[first]).any(axis=1)]] = True
        return found


def with_those_they_need(
    traffic: list[Traffic],
    chosen: list[np.ndarray],
    groups: list[np.ndarray],
    checked: Collection[Any],
) -> list[np.ndarray]:
    """Add to chosen CTAs of some launches those without which they compute something else.

    - `traffic`: traffic of each launch.
    - `chosen` (list of numpy.ndarray): for each launch a flag for each of its CTAs.
    - `groups` (list of numpy.ndarray): for each launch the number of each CTA's group, which runs
      as a whole.
    - `checked` (collection of (int, str)): launches and their checked tensors: the chosen CTAs'
      elements of them must be final, so all other CTAs that store there run too.
    """
    run = [_whole_groups(*pair) for pair in zip(chosen, groups, strict=True)]
    while True:
        before = [int(flags.sum()) for flags in run]
        for number, one in enumerate(traffic):
            for name in one.cells:
                needed = one.loaded(name, run[number])
                if (number, name) in checked:
                    needed |= one.stored(name, run[number])
                if needed.any():
                    _add_those_that_store(name, needed, traffic, run, groups)
        if before == [int(flags.sum()) for flags in run]:
            break
    for number, one in enumerate(traffic):  # the current contents suffice for these
        others = [(i, x) for i, x in enumerate(traffic) if i != number]
        mine = {name for i, name in checked if i == number}
        alone = not any(x.stores.get(name) for _, x in others for name in mine)
        if mine and alone and not one.adds():
            run[number] |= _served(one, others, run, groups[number])
    return run


def _add_those_that_store(
    name: str,
    needed: np.ndarray,
    traffic: list[Traffic],
    run: list[np.ndarray],
    groups: list[np.ndarray],
) -> None:
    """Add the CTAs that store to the needed cells of a tensor."""
    for i, other in enumerate(traffic):
        if name in other.cells:
            run[i] = _whole_groups(run[i] | other.storing(name, needed), groups[i])


def _served(
    one: Traffic, others: list[tuple[int, Traffic]], run: list[np.ndarray], groups: np.ndarray
) -> np.ndarray:
    """Return which CTAs of a launch load from those that run, and from none that do not."""
    fed, starved = np.zeros(one.num_ctas, bool), np.zeros(one.num_ctas, bool)
    for i, other in others:
        for name in one.cells.keys() & other.cells.keys():
            fed |= one.loading(name, other.stored(name, run[i]))
            starved |= one.loading(name, other.stored(name, ~run[i]))
    return fed & ~_whole_groups(starved | ~fed, groups)


def _whole_groups(flags: np.ndarray, groups: np.ndarray) -> np.ndarray:
    return np.isin(groups, groups[flags])
