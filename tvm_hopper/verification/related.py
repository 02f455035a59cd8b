"""Which CTAs of several launches belong together: those that store last, and whom they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_hopper.sim.coverage.points import UndecidedError
from tvm_hopper.sim.coverage.traffic import Traffic, with_those_they_need
from tvm_hopper.sim.kinds.groups import groups_of
from tvm_hopper.sim.run import touched_tensors
from tvm_hopper.verification.launches import BoundLaunch

Block = tuple[int, ...]


@dataclass(frozen=True)
class Related:
    """What the launches of a function do with tensors that some of them store to.

    Attributes
    ----------
    last : tuple of int
        Launches after which some tensor of the caller's is stored to by no other.
    """

    launches: Sequence[BoundLaunch]
    traffic: list[Traffic]
    groups: list[np.ndarray]
    judged: frozenset[tuple[int, str]]

    @property
    def last(self) -> tuple[int, ...]:
        """Return the numbers of the launches that store last to something."""
        return tuple(sorted({number for number, _ in self.judged}))

    @staticmethod
    def of(launches: Sequence[BoundLaunch], values: Mapping[str, Any]) -> Related:
        """Look at the launches.

        Raises
        ------
        UndecidedError
            It cannot be told from indices.
        """
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        touched = [touched_tensors(x.func, x.setup["params"]) for x in launches]
        stored = set().union(*(stores for stores, _ in touched))
        judged = {
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
            if together.talk and together.label is None:
                raise UndecidedError(together.trouble)
            label = together.launched(launch.setup["cluster"])
            alone = np.arange(together.values.total, dtype=np.int64)
            groups.append(alone if label is None else label)
        return Related(launches, traffic, groups, frozenset(judged))

    def with_needed(self, chosen: Mapping[int, Sequence[Block]]) -> list[list[Block] | None]:
        """Return the CTAs that run, of each launch; None: all of them.

        Parameters
        ----------
        chosen : dict
            CTAs by the number of their launch.
        """
        flags = []
        for number, launch in enumerate(self.launches):
            gx, gy, _ = launch.setup["grid"]
            mine = np.zeros(len(self.groups[number]), bool)
            mine[[(z * gy + y) * gx + x for x, y, z in chosen.get(number, ())]] = True
            flags.append(mine)
        found = with_those_they_need(self.traffic, flags, self.groups, self.judged)
        return [
            _blocks(mine, x.setup["grid"]) for mine, x in zip(found, self.launches, strict=True)
        ]


def _blocks(flags: np.ndarray, grid: Sequence[int]) -> list[Block] | None:
    if flags.all():
        return None
    x, y, _ = grid
    if not flags.any():  # nobody needs it: some of it has to run
        return [(0, 0, 0)]
    return [(n % x, n // x % y, n // (x * y)) for n in map(int, np.flatnonzero(flags))]
