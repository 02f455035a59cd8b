"""Group CTAs of several launches by data flow: final stores and their producers."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_hopper.sim.coverage.points import UndecidedError
from tvm_hopper.sim.coverage.traffic import Traffic, with_those_they_need
from tvm_hopper.sim.grid import index_of
from tvm_hopper.sim.kernel_code import touched_tensors
from tvm_hopper.sim.kinds.groups import groups_of
from tvm_hopper.sim.kinds.representatives import Representatives, representatives
from tvm_hopper.verification.launches import BoundLaunch, Rest

Block = tuple[int, ...]


@dataclass(frozen=True)
class Related:
    """Accesses of a function's launches to tensors that some of them store.

    - `last` (tuple of int): launches that are the last to store to some tensor of the caller.
    """

    launches: Sequence[BoundLaunch]
    traffic: list[Traffic]
    groups: list[np.ndarray]
    checked: frozenset[tuple[int, str]]

    @property
    def last(self) -> tuple[int, ...]:
        """Return the numbers of the launches that are the last to store to some tensor."""
        return tuple(sorted({number for number, _ in self.checked}))

    @staticmethod
    def of_several(
        launches: Sequence[BoundLaunch], values: Mapping[str, Any], max_ctas: int
    ) -> Related | None:
        """Analyse several launches that do not all run whole; None if undecided."""
        totals = [int(np.prod(launch.setup["grid"])) for launch in launches]
        if len(launches) < 2 or max(totals) <= max_ctas:
            return None
        try:
            return Related.of(launches, values)
        except UndecidedError:
            return None

    @staticmethod
    def of(launches: Sequence[BoundLaunch], values: Mapping[str, Any]) -> Related:
        """Look at the launches.

        - raises UndecidedError: indices do not determine the accesses.
        """
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        touched = [touched_tensors(x.func, x.setup["params"]) for x in launches]
        stored = set().union(*(stores for stores, _ in touched))
        checked = {
            (max(i for i, (stores, _) in enumerate(touched) if name in stores), name)
            for name in stored & arrays.keys()
        }
        for launch in launches:
            for name, workspace in launch.workspaces.items():
                arrays.setdefault(name, workspace.array())
        traffic, groups = [], []
        for launch in launches:
            mine = {name: arrays[name] for name in stored & launch.tensors}
            traffic.append(Traffic(launch.func, launch.setup, mine))
            together = groups_of(launch.func, launch.setup)
            if together.communication and together.label is None:
                raise UndecidedError(together.trouble)
            label = together.launched(launch.setup["cluster"])
            alone = np.arange(together.values.total, dtype=np.int64)
            groups.append(alone if label is None else label)
        return Related(launches, traffic, groups, frozenset(checked))

    @functools.cached_property
    def extra_keys(self) -> list[list[np.ndarray]]:
        """Return keys of each launch's CTAs that differ if earlier launches left them other data.

        CTAs of one kind load from the same kinds of CTAs of an earlier launch, and either all or
        none of them find data stored there.
        """
        kinds: list[Representatives | None] = []
        found: list[list[np.ndarray]] = []
        for number, one in enumerate(self.traffic):
            mine: list[np.ndarray] = []
            for earlier, of_earlier in enumerate(kinds):
                for name in one.cells.keys() & self.traffic[earlier].cells.keys():
                    mine += self._fed(name, number, earlier, of_earlier)
            launch = self.launches[number]
            x, y, z = launch.setup["grid"]
            found.append([flags.reshape(z, y, x).transpose(2, 1, 0).ravel() for flags in mine])
            kinds.append(representatives(launch.func, launch.setup, found[-1]))
        return found

    def _fed(
        self, name: str, number: int, earlier: int, kinds: Representatives | None
    ) -> list[np.ndarray]:
        """Return flags of CTAs that touch cells stored by each earlier kind, or by none of them."""
        source, one = self.traffic[earlier], self.traffic[number]
        x, y, z = self.launches[earlier].setup["grid"]
        label = np.zeros(x * y * z, np.int64) if kinds is None else kinds.label
        label = label.reshape(x, y, z).transpose(2, 1, 0).ravel()
        by_kind = [source.stored(name, label == kind) for kind in range(int(label.max()) + 1)]
        stored = np.logical_or.reduce(by_kind)
        if not stored.any():
            return []
        return [
            touch(name, cells)
            for cells in (*by_kind, ~stored)
            for touch in (one.loading, one.storing)
        ]

    def with_needed(self, chosen: Mapping[int, Sequence[Block]]) -> list[list[Block] | None]:
        """Return the CTAs that run, of each launch; None: all of them.

        - `chosen`: CTAs by the number of their launch.
        """
        flags = self._flags(chosen)
        found = with_those_they_need(self.traffic, flags, self.groups, self.checked)
        return [
            _blocks(mine, x.setup["grid"]) for mine, x in zip(found, self.launches, strict=True)
        ]

    def rest(self, blocks: Sequence[Sequence[Block] | None]) -> Rest:
        """Return a function for the bytes of a workspace that CTAs which do not run store to."""

        def bytes_of(number: int, name: str) -> np.ndarray | None:
            one, ran = self.traffic[number], blocks[number]
            if name not in one.cells or ran is None:
                return None
            cells = one.stored(name, ~self._flags({number: ran})[number])
            return np.repeat(cells, one.cells[name].width)

        return bytes_of

    def _flags(self, chosen: Mapping[int, Sequence[Block]]) -> list[np.ndarray]:
        flags = []
        for number, launch in enumerate(self.launches):
            gx, gy, _ = launch.setup["grid"]
            mine = np.zeros(len(self.groups[number]), bool)
            mine[[(z * gy + y) * gx + x for x, y, z in chosen.get(number, ())]] = True
            flags.append(mine)
        return flags


def _blocks(flags: np.ndarray, grid: Sequence[int]) -> list[Block] | None:
    if flags.all():
        return None
    if not flags.any():  # nothing depends on it, but a part must run
        return [(0, 0, 0)]
    return [index_of(number, grid) for number in map(int, np.flatnonzero(flags))]
