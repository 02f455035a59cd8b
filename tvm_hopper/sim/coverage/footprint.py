"""Footprints: the bytes that each statement touches in each CTA, as base plus offsets.

CTAs whose keys agree have the same offsets (`split`), so that a launch of a million CTAs has a few
sets of offsets and a list of bases.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvm_hopper.sim.coverage.accesses import GlobalAccess, PathStep
from tvm_hopper.sim.coverage.loops import monotone
from tvm_hopper.sim.coverage.nodes import (
    FAR,
    INNER,
    KEY,
    OUTER,
    Node,
    Nodes,
    Variable,
    conjuncts,
    evaluate,
)
from tvm_hopper.sim.coverage.offsets import MAX_LISTED, Group, Offsets, groups_of, listed
from tvm_hopper.sim.coverage.points import MAX_POINTS, Deadline, Points, UndecidedError
from tvm_hopper.sim.coverage.split import SplitSum, Splitter
from tvm_hopper.sim.launch.tma import TensorMapArg
from tvm_hopper.sim.tir import numpy_dtype

BUDGET_S = 60.0  # time for one launch
MAX_CLASSES = 1 << 12  # sets of offsets of one statement
MAX_WORK = 1 << 26  # values listed for one statement


@dataclass(frozen=True)
class Piece:
    """Bytes that a statement touches: `offsets` from each of the bases, by the CTA `owner`.

    - `base` (numpy.ndarray): bytes from the beginning of the tensor's memory, (points,) int64.
    - `owner` (numpy.ndarray): numbers of CTAs, (points,) int64.
    """

    access: GlobalAccess
    base: np.ndarray
    owner: np.ndarray
    offsets: Offsets


@dataclass
class _Class:
    """Points whose keys agree."""

    index: np.ndarray
    keys: dict[Variable, int]


@dataclass
class Prepared:
    """An access at the points that reach it.

    - `doubt`: an unknown condition of the path; empty if the listed accesses happen.
    """

    access: GlobalAccess
    points: Points
    splitter: Splitter
    conditions: list[Node]
    doubt: str = ""
    deadline: Deadline = field(default_factory=lambda: Deadline(BUDGET_S))
    _sets: dict[Any, np.ndarray] = field(default_factory=dict)

    def sums(self, nodes: list[Node]) -> list[SplitSum]:
        """Split expressions of this access."""
        return [self.splitter.sum(node) for node in nodes]

    def classes(self) -> Iterator[_Class]:
        """Yield the points by their keys; to be called when every expression has been split."""
        keys = self.splitter.keys
        if not len(self.points):
            return
        if not keys:
            yield _Class(np.arange(len(self.points), dtype=np.int64), {})
            return
        columns = np.stack([self.points.array(k.definition or _none()) for k in keys])
        lows = columns.min(axis=1)
        spans = columns.max(axis=1) - lows + 1
        if float(np.prod(spans.astype(float))) < 2**62:
            code = np.zeros(len(self.points), np.int64)
            for column, low, span in zip(columns, lows, spans, strict=True):
                code = code * int(span) + (column - low)
            _, first, which = np.unique(code, return_index=True, return_inverse=True)
        else:
            _, first, which = np.unique(columns, axis=1, return_index=True, return_inverse=True)
        if len(first) > MAX_CLASSES:
            raise UndecidedError(f"{len(first)} kinds of CTA by what their threads compute")
        order = np.argsort(which.ravel(), kind="stable")
        edges = np.concatenate(([0], np.cumsum(np.bincount(which.ravel()))))
        for number, place in enumerate(first):
            self.deadline.check()
            index = order[edges[number] : edges[number + 1]]
            yield _Class(index, {k: int(c[place]) for k, c in zip(keys, columns, strict=True)})

    def listed(self, group: Group, keys: dict[Variable, int], width: int = 1) -> np.ndarray:
        """Return a group's values in one class; those of the same keys are listed once."""
        known = (group, width, tuple(keys[k] for k in group.keys))
        found = self._sets.get(known)
        if found is None:
            size = 1
            for variable in group.variables:
                size *= variable.high - variable.low + 1
            if size * (len(self._sets) + 1) > MAX_WORK:
                raise UndecidedError(f"{size} values for {len(self._sets)} kinds of CTA")
            found = self._sets[known] = listed(group, keys, width)
        return found


def _none() -> Node:
    raise AssertionError("a key without a definition")


class Preparer:
    """Finds the points at which accesses happen; accesses share common prefixes of their paths."""

    def __init__(self, nodes: Nodes, root: Points, deadline: Deadline) -> None:
        self.nodes, self.root, self.deadline = nodes, root, deadline
        self._known: dict[Any, Points] = {}

    def may_reach(self, path: tuple[PathStep, ...]) -> bool:
        """Return whether a path leads anywhere, in doubt that it does."""
        try:
            points, *_ = self._follow(path, set())
        except UndecidedError:
            return True
        return len(points) > 0

    def prepare(self, access: GlobalAccess) -> Prepared:
        """Follow the way to an access."""
        used = set().union(*(n.uses for n in (*access.offsets, access.width)))
        return Prepared(access, *self._follow(access.path, used), self.deadline)

    def _follow(
        self, path: tuple[PathStep, ...], used: set[Variable]
    ) -> tuple[Points, Splitter, list[Node], str]:
        """Return where a path leads, conditions that remain, and why it may not lead there."""
        for step in reversed(path):
            if step.kind != "for" or step.variable in used or step.node.constant is None:
                used |= step.node.uses
        points, inner, doubt = self.root, [], ""
        for step in path:
            for part in self._parts(step, used):
                if isinstance(part, PathStep):
                    points = self._iterated(points, part)
                elif part.unknown:
                    doubt = doubt or part.unknown
                elif part.has(INNER):
                    inner.append(part)
                else:
                    points = self._where(points, part)
        splitter = Splitter(self.nodes, points)
        held: list[Node] = []
        for node in inner:
            for condition in splitter.conditions(node):
                if condition.has(INNER, KEY):
                    held.append(condition)
                elif condition.constant != 1:
                    points = points.where(condition)
        splitter.points = points
        return points, splitter, held, doubt

    def _parts(self, step: PathStep, used: set[Variable]) -> list[PathStep | Node]:
        """Return the conditions of a step, or its loop of the CTA."""
        nodes, variable = self.nodes, step.variable
        if step.kind == "if":
            return list(conjuncts(step.node))
        assert variable is not None
        if step.kind == "for" and variable not in used:
            return list(conjuncts(nodes.make("lt", nodes.zero, step.node)))
        if step.node.unknown:
            if variable in used and (variable.high >= (1 << 31) - 1 or step.kind == "while"):
                raise UndecidedError(step.node.unknown)
            return [step.node]
        if variable.role == OUTER:
            return [step]
        if step.kind == "while":
            return [*conjuncts(step.node)] if monotone(step) else [
                nodes.unknown("a while loop whose iterations are not counted")
            ]  # fmt: skip
        return [nodes.make("lt", nodes.var(variable), step.node)]

    def _where(self, points: Points, condition: Node) -> Points:
        key = (id(points), condition)
        if key not in self._known:
            self._known[key] = points.where(condition)
        return self._known[key]

    def _iterated(self, points: Points, step: PathStep) -> Points:
        key = (id(points), step)
        if key not in self._known:
            assert step.variable is not None
            iteration = points.iterated if step.kind == "for" else points.repeated
            self._known[key] = iteration(step.variable, step.node)
        return self._known[key]


def plain_pieces(prepared: Prepared, start: int) -> list[Piece]:
    """Return the pieces of an access through a pointer to the byte `start`."""
    access = prepared.access
    if not len(prepared.points):
        return []
    (place,) = prepared.sums([access.offsets[0]])
    width = prepared.splitter.keyed(access.width)
    if width.has(INNER):
        raise UndecidedError(f"a size that differs among threads: {access.buffer}")
    groups = groups_of([place.inner], prepared.conditions)
    pieces = []
    outer = prepared.points.array(place.outer)
    for part in prepared.classes():
        sets = tuple(prepared.listed(g, part.keys)[:, 0] for g in groups)
        size = int(evaluate(width, part.keys, {}))
        offsets = Offsets(sets, size)
        if offsets.empty or size <= 0:
            continue
        base = outer[part.index] + start
        if abs(int(base.max())) + offsets.high >= FAR:
            raise UndecidedError("an address beyond 64 bits")
        pieces.append(Piece(access, base, prepared.points.cta[part.index], offsets))
    return pieces


def starts_of(prepared: Prepared, dimension: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield for CTAs of each kind one coordinate of their boxes: bases, and offsets."""
    if not len(prepared.points):
        return
    (place,) = prepared.sums([prepared.access.offsets[dimension]])
    groups = groups_of([place.inner], prepared.conditions)
    outer = prepared.points.array(place.outer)
    for part in prepared.classes():
        sets = tuple(prepared.listed(g, part.keys)[:, 0] for g in groups)
        offsets = Offsets(sets, 1)
        if not offsets.empty:
            runs, lengths = offsets.runs()
            values = np.concatenate(
                [np.arange(s, s + n) for s, n in zip(runs, lengths, strict=True)]
            )
            yield part.index, outer[part.index][:, None] + (values + offsets.low)


def box_pieces(prepared: Prepared, tensor_map: TensorMapArg) -> list[Piece]:
    """Return the boxes of an access through a tensor map, cut to the map's extents."""
    access, rank = prepared.access, len(tensor_map.box)
    if len(access.offsets) != rank:
        raise UndecidedError(f"{len(access.offsets)} coordinates for a map of rank {rank}")
    if not len(prepared.points):
        return []
    sums = prepared.sums(list(access.offsets))
    groups = groups_of([s.inner for s in sums], prepared.conditions)
    outer = np.stack([prepared.points.array(s.outer) for s in sums], axis=1)
    found: list[tuple[np.ndarray, np.ndarray]] = []
    total = 0
    for part in prepared.classes():
        inner = np.zeros((1, rank), np.int64)
        for group in groups:
            values = prepared.listed(group, part.keys, rank)
            if values.ndim != 2 or values.shape[1] != rank:
                values = np.broadcast_to(values, (len(values), rank))
            if len(inner) * len(values) > MAX_LISTED:
                raise UndecidedError(f"{len(inner) * len(values)} boxes in one CTA")
            inner = (inner[:, None] + values).reshape(-1, rank)
        inner = np.unique(inner, axis=0)
        total += len(part.index) * len(inner)
        if total > MAX_POINTS:
            raise UndecidedError(f"{total} boxes")
        places = (outer[part.index][:, None] + inner).reshape(-1, rank)
        found.append((places, np.repeat(prepared.points.cta[part.index], len(inner))))
    if not found:
        return []
    places = np.concatenate([p for p, _ in found])
    owner = np.concatenate([o for _, o in found])
    return cut_boxes(access, tensor_map, places, owner)


def cut_boxes(
    access: GlobalAccess, arg: TensorMapArg, places: np.ndarray, owner: np.ndarray
) -> list[Piece]:
    """Return boxes at some places, (boxes, rank), as far as they are inside of a tensor map."""
    itemsize = numpy_dtype(arg.dtype).itemsize
    steps, counts = np.array(arg.steps, np.int64), np.array(arg.counts, np.int64)
    strides = np.array((itemsize, *arg.strides_bytes), np.int64)
    dims = np.array(arg.dims, np.int64)
    first = np.maximum(-(places // steps), 0)  # the first element inside each box
    last = np.minimum(counts, -((places - dims) // steps))
    sizes = last - first
    inside = (sizes > 0).all(axis=1)
    places, first, sizes, owner = places[inside], first[inside], sizes[inside], owner[inside]
    base = ((places + first * steps) * strides).sum(axis=1) + arg.byte_offset
    pieces = []
    for size in np.unique(sizes, axis=0):
        same = (sizes == size).all(axis=1)
        sets = tuple(
            np.arange(n, dtype=np.int64) * step * stride
            for n, step, stride in zip(size, steps, strides, strict=True)
        )
        pieces.append(Piece(access, base[same], owner[same], Offsets(sets, itemsize)))
    return pieces
