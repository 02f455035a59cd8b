"""Select the CTAs to simulate: all if they are few, else one group of each kind.

Groups, and which of them are alike, are proved without running them: see `sim.kinds.groups`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvm_hopper.sim.findings import Finding, finding
from tvm_hopper.sim.grid import check_blocks
from tvm_hopper.sim.kernel_code import compiled
from tvm_hopper.sim.kinds.groups import CtaGroups, groups_of
from tvm_hopper.sim.launch.tensors import Pointer
from tvm_hopper.sim.launch.tma import TensorMapArg

MAX_COMMUNICATING = 1024  # CTAs that communicate, and so run together
MAX_KINDS = 32  # CTAs that run for others, where they do not


@dataclass(frozen=True)
class Choice:
    """The CTAs chosen of one launch.

    - `kinds`: one CTA of each kind: the others of its kind execute the same instructions, at places
      that differ by their index alone. Empty if that is not known.
    - `span`: CTAs that communicate lie no further apart than so many, in the order of launch;
      None: not looked at yet, see `span_of`.
    """

    kernel: str
    blocks: tuple[tuple[int, ...], ...]
    total: int
    covered: bool
    reason: str
    only_written: frozenset[str] = field(default=frozenset())
    kinds: tuple[tuple[int, ...], ...] = ()
    span: int | None = 1

    @property
    def everything(self) -> bool:
        """Return whether every CTA of the launch runs."""
        return len(self.blocks) >= self.total

    def findings(self) -> list[Finding]:
        """Return `INCOMPLETE` if the CTAs that do not run are not covered."""
        if self.covered:
            return []
        text = f"{self.kernel}: {len(self.blocks)} of {self.total} CTAs ran: {self.reason}"
        return [finding("INCOMPLETE", text, hint="run more CTAs (max_ctas)")]

    def __str__(self) -> str:
        """State how many CTAs ran and why."""
        return f"{self.kernel}: {len(self.blocks)} of {self.total} CTAs ({self.reason})"


def choose_requested(func: Any, setup: dict[str, Any], blocks: Sequence[tuple[int, ...]]) -> Choice:
    """Take the requested CTAs; nothing is known of the others."""
    grid = setup["grid"]
    total = grid[0] * grid[1] * grid[2]
    requested = tuple(dict.fromkeys(check_blocks(blocks, grid)))
    name = str(func.attrs["global_symbol"])
    whole = len(requested) >= total
    return Choice(name, requested, total, whole, "as requested", span=None if whole else 1)


def choose_blocks(
    func: Any, setup: dict[str, Any], max_ctas: int, extra_keys: Sequence[np.ndarray] = ()
) -> Choice:
    """Choose the CTAs of one launch: one group of each kind, the first and the last CTA, corners.

    - `max_ctas`: a launch of at most this many CTAs runs whole. Of a larger one each kind runs: at
      most `MAX_KINDS` CTAs, or `MAX_COMMUNICATING` where they communicate.
    - `extra_keys` (sequence of numpy.ndarray): further keys that distinguish kinds, by the CTA's
      number: the data that an earlier launch left to each.
    """
    name = str(func.attrs["global_symbol"])
    grid = setup["grid"]
    total = grid[0] * grid[1] * grid[2]
    only_written = _only_written(compiled(func), setup["params"])
    if total <= max_ctas:
        return Choice(name, tuple(_all(grid)), total, True, "all", only_written, span=None)
    groups = groups_of(func, setup, extra_keys)
    most = MAX_COMMUNICATING if groups.communication else max(max_ctas, MAX_KINDS)
    numbers = np.concatenate([*groups.kinds, np.zeros(0, np.int64)])
    corners = _corners(setup, max_ctas)
    if groups.trouble or len(numbers) > most:
        if total <= most:
            reason = (
                f"all: they communicate ({groups.communication})" if groups.communication else "all"
            )
            span = _span(groups, grid)
            return Choice(name, tuple(_all(grid)), total, True, reason, only_written, span=span)
        count = f"{len(groups.kinds)} kinds with {len(numbers)} CTAs are more than {most}"
        reason = groups.trouble or count
        if not groups.communication:
            return Choice(name, corners, total, False, reason, only_written)
        some = tuple(itertools.islice(_all(grid), most))
        how = f"they communicate ({groups.communication})"
        reason = f"{how}, and only the first {most} were run: {reason}"
        return Choice(name, some, total, False, reason, only_written)
    blocks: list[tuple[int, ...]] = [*groups.values.blocks(numbers)]
    if len(groups.kinds) == 1:
        reason = "the others run the same protocol"
    else:
        reason = f"one of each of the {len(groups.kinds)} kinds of CTA"
    if groups.communication:
        sizes = sorted({len(kind) for kind in groups.kinds})
        reason += (
            f"; they communicate ({groups.communication}) in groups of {', '.join(map(str, sizes))}"
        )
    else:
        blocks += corners[:2]  # the first and the last
    kinds = tuple(groups.values.blocks(numbers))
    span = _span(groups, grid)
    return Choice(
        name, tuple(dict.fromkeys(blocks)), total, True, reason, only_written, kinds, span
    )


def span_of(func: Any, setup: dict[str, Any]) -> int:
    """Return the largest launch distance of CTAs that communicate; a cluster counts as one."""
    return _span(groups_of(func, setup), setup["grid"])


def _span(groups: CtaGroups, grid: tuple[int, int, int]) -> int:
    """Return the largest launch distance of CTAs that communicate, x fastest; one if none do."""
    total = grid[0] * grid[1] * grid[2]
    if not groups.communication:
        return 1
    if groups.label is None:
        return total
    x, y, z = (groups.values.axis(axis) for axis in "xyz")
    launched = (z * grid[1] + y) * grid[0] + x
    first, last = np.full(total, total, np.int64), np.zeros(total, np.int64)
    np.minimum.at(first, groups.label, launched)
    np.maximum.at(last, groups.label, launched)
    return int((last - first + 1).max())


def _corners(setup: dict[str, Any], max_ctas: int) -> tuple[tuple[int, ...], ...]:
    """Return the first and the last CTA, edges, and the one in the middle."""
    grid, cluster = setup["grid"], setup["cluster"]
    axes = [sorted({0, min(c, g - 1), g - 1}) for g, c in zip(grid, cluster, strict=True)]
    ends = [(0, 0, 0), tuple(g - 1 for g in grid)]
    corners = itertools.islice(itertools.product(*axes), max(max_ctas - 3, 0))
    middle = np.unravel_index(grid[0] * grid[1] * grid[2] // 2, grid)
    return tuple(dict.fromkeys([*ends, *corners, tuple(map(int, middle))]))


def _all(grid: tuple[int, int, int]) -> Iterator[tuple[int, ...]]:
    """Yield every block index, the last axis fastest."""
    return itertools.product(*map(range, grid))


def _only_written(program: Any, params: dict[str, Any]) -> frozenset[str]:
    written, read = set(), set()
    for name, value in params.items():
        if isinstance(value, (Pointer, TensorMapArg)):
            if name in program.stored_params:
                written.add(value.tensor)
            if name in program.loaded_params:
                read.add(value.tensor)
    return frozenset(written - read)
