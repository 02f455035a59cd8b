"""Offsets that the threads of one CTA add to its base: a sum of sets, one a group of variables.

    for i in 8, j in 16: C[base + i*512 + tx % 4 * 2 + tx // 4 * 64 + j*8]
                  ->   {0, 512 ..} + {0, 2, .., 64, ..} + {0, 8, ..}

Variables that no term and no condition joins vary alone, so that their sets are listed one by one:
the cost is the sum of their sizes and not the product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_hopper.sim.coverage.nodes import INNER, Node, Variable, evaluate
from tvm_hopper.sim.coverage.points import UndecidedError

MAX_LISTED = 1 << 22  # values of the variables of one group
MAX_RUNS = 1 << 20  # runs of one access in one CTA


@dataclass(frozen=True)
class Group:
    """Variables that vary together, with the terms and the conditions over them."""

    variables: tuple[Variable, ...]
    terms: tuple[tuple[int, Node, int], ...]  # (position in the result, term, factor)
    conditions: tuple[Node, ...]
    keys: tuple[Variable, ...]


def groups_of(sums: Sequence[Mapping[Node, int]], conditions: Sequence[Node]) -> list[Group]:
    """Group the inner variables of some sums, the parts of one place, and of conditions."""
    terms = [(i, t, f) for i, inner in enumerate(sums) for t, f in inner.items()]
    parts = [*(t for _, t, _ in terms), *conditions]
    group_of: dict[Variable, set[Variable]] = {}
    for part in parts:
        joined: set[Variable] = set()
        for var in part.uses:
            if var.role == INNER:
                joined |= group_of.get(var, {var})
        for var in joined:
            group_of[var] = joined
    # parts that depend on keys alone are decided separately
    found: dict[frozenset[Variable], list[Any]] = {}
    for position, term, factor in terms:
        found.setdefault(_group(term, group_of), [[], []])[0].append((position, term, factor))
    for condition in conditions:
        found.setdefault(_group(condition, group_of), [[], []])[1].append(condition)
    groups = []
    for variables, (mine, held) in found.items():
        used = frozenset[Variable]().union(*(n.uses for n in (*(t for _, t, _ in mine), *held)))
        keys = tuple(sorted((v for v in used if v.role != INNER), key=lambda v: v.name))
        ordered = tuple(sorted(variables, key=lambda v: v.name))
        groups.append(Group(ordered, tuple(mine), tuple(held), keys))
    return groups


def _group(node: Node, group_of: dict[Variable, set[Variable]]) -> frozenset[Variable]:
    inner = next((v for v in node.uses if v.role == INNER), None)
    return frozenset() if inner is None else frozenset(group_of[inner])


def listed(group: Group, keys: Mapping[Variable, int], width: int = 1) -> np.ndarray:
    """Return the values of a group's terms, each once, ascending; (values, width) int64.

    `width` is the number of sums; none if the conditions never hold.
    """
    count = 1
    env: dict[Variable, Any] = dict(keys)
    rank = len(group.variables)
    for axis, var in enumerate(group.variables):
        size = var.high - var.low + 1
        count *= size
        along = [1] * rank
        along[axis] = size
        if count <= MAX_LISTED:
            env[var] = np.arange(var.low, var.high + 1, dtype=np.int64).reshape(along)
    if count > MAX_LISTED:
        names = ", ".join(v.name for v in group.variables)
        raise UndecidedError(f"{count} values of {names} together")
    shape = tuple(v.high - v.low + 1 for v in group.variables)
    memo: dict[Node, Any] = {}
    holds: Any = True
    for condition in group.conditions:
        holds = np.logical_and(holds, evaluate(condition, env, memo))
    sums = [np.zeros((1,) * rank, np.int64) for _ in range(width)]
    for position, term, factor in group.terms:
        sums[position] = sums[position] + evaluate(term, env, memo) * factor
    together = np.broadcast_shapes(*(s.shape for s in sums), np.shape(holds))
    values = np.stack([np.broadcast_to(s, together).ravel() for s in sums], axis=1)
    if holds is not True and not np.all(holds):
        values = values[np.broadcast_to(holds, together).ravel()]
    assert all(a in (1, b) for a, b in zip(together, shape, strict=True))
    return np.unique(values, axis=0) if width > 1 else np.unique(values)[:, None]


@dataclass(frozen=True)
class Offsets:
    """Byte offsets from a base: sums of one value of each set, `width` bytes from each on.

    - `sets` (tuple[numpy.ndarray, ...]): ascending values without repetition, (values,) int64.
    """

    sets: tuple[np.ndarray, ...]
    width: int

    @property
    def empty(self) -> bool:
        """Return whether there is no offset, since a condition never holds."""
        return any(not s.size for s in self.sets)

    @property
    def low(self) -> int:
        """First byte."""
        return sum(int(s[0]) for s in self.sets)

    @property
    def high(self) -> int:
        """End of the last byte."""
        return sum(int(s[-1]) for s in self.sets) + self.width

    def residues(self, modulus: int) -> np.ndarray:
        """Return the values that offsets have modulo a number."""
        found = np.zeros(1, np.int64)
        for values in self.sets:
            parts = np.unique(values % modulus)
            found = np.unique((found[:, None] + parts) % modulus)
        return found

    def runs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return starts and lengths of the runs of bytes, ascending and separate, from `low` on."""
        starts, lengths = np.zeros(1, np.int64), np.full(1, self.width, np.int64)
        for values in sorted(self.sets, key=_step):
            if len(values) == 1:
                continue
            if len(starts) * len(values) > MAX_RUNS * 4:
                raise UndecidedError(f"{len(starts) * len(values)} pieces in one CTA")
            begins = (starts[:, None] + (values - values[0])).ravel()
            sizes = np.repeat(lengths, len(values))
            starts, lengths = merged(begins, sizes)
        if len(starts) > MAX_RUNS:
            raise UndecidedError(f"{len(starts)} pieces in one CTA")
        return starts, lengths


def _step(values: np.ndarray) -> int:
    return int(np.diff(values).min()) if len(values) > 1 else 0


def merged(starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the runs that some ranges of bytes make together."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], (starts + lengths)[order]
    reach = np.maximum.accumulate(ends)
    first = np.flatnonzero(np.concatenate(([True], starts[1:] > reach[:-1])))
    last = np.concatenate((first[1:] - 1, [len(starts) - 1]))
    return starts[first], reach[last] - starts[first]
