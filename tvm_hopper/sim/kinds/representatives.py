"""Choose CTAs whose values represent all others.

Two CTAs are of one kind if every condition, choice (select, min, max) and iteration count is the
same in both, for each thread and iteration, and every box of a tensor map is cut off alike at its
tensor's ends. CTAs of a kind run one program with different numbers, which depend on the block
index: indices and coordinates of global memory, operands, integers that become values. Each number
is the sum of a part of the CTA and a part of threads and loops. The CTA's parts in all places, with
the block index, are its vector. The CTAs of a kind that run have vectors that span all vectors of
the kind; the last CTA along each axis also runs.

Theorem. Let the vectors of a kind be affine in the block index, and what the plain program reads be
affine in the index of the element that it computes. If those that run are right, on numbers that
tell places apart, so are all of the kind.

Proof. A CTA addresses memory by offsets, which are affine in the block index. The index of an
element along one dimension is then, for each thread, the floor of an affine function, and what the
plain program reads for it an affine function of such; what the CTA reads is affine. The two agree
at neighbours, and at both ends of an axis of the grid. A floor of an affine function less an affine
function that it meets at both ends is monotone: zero at both ends, zero in between.

    C[bx * 64 + i] = A[bx * 64 + i]                  two CTAs, and the last
    C[bx * 64 + i] = A[select(bx == 41, 40, bx) ...  CTA 41 is a kind of its own
    ... = A[(bx + t * 132) // 8 * 64 ...             tiles of a persistent loop: a number for each t

A division or a remainder is not affine: its value for each thread and iteration is part of the
vector. A CTA whose numbers are no combination of others' numbers then runs, but this proves
nothing. Indices and conditions that depend on data are not covered, nor are conditions of the plain
program that the kernel lacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir, tirx

from tvm_hopper.sim.kinds.flow import BLOCK, Flow, flow_of
from tvm_hopper.sim.kinds.grid_values import GridValues
from tvm_hopper.sim.kinds.groups import MAX_SORTED
from tvm_hopper.sim.kinds.keys import Keys, UnprovableError, children_of
from tvm_hopper.sim.kinds.operands import operands
from tvm_hopper.sim.kinds.reach import Reach
from tvm_hopper.sim.launch.tma import TensorMapArg
from tvm_hopper.sim.tir import (
    decode_ptx,
    dtype_of,
    nodes_in,
    numpy_dtype,
    param_names,
    short_name,
    thread_extents,
)
from tvm_hopper.sim.walk import walk_nodes

PRIME = (1 << 31) - 1  # ranks are taken modulo it


@dataclass(frozen=True)
class Representatives:
    """CTAs that speak for all others of a launch.

    - `blocks`: rare kinds first, and of each kind one CTA before the second of another.
    - `label` (numpy.ndarray): the number of each CTA's kind, by the CTA's number.
    """

    blocks: tuple[tuple[int, int, int], ...]
    label: np.ndarray

    @property
    def kinds(self) -> int:
        """Return how many kinds there are."""
        return int(self.label.max()) + 1


def representatives(
    func: tirx.PrimFunc, setup: Mapping[str, Any], extra_keys: Sequence[np.ndarray] = ()
) -> Representatives | None:
    """Return which CTAs speak for all; None if there are too many to look at.

    - `setup` (dict): params, grid, cluster: see `Launch.bind`.
    - `extra_keys` (sequence of numpy.ndarray): further keys, by the CTA's number, that are equal in
      CTAs of a kind.
    """
    flow = flow_of(func)
    values = GridValues(func, setup["params"], setup["grid"], flow.block_vars, flow.binds)
    if values.total > MAX_SORTED:
        return None
    places = _Places(func, setup, flow, values)
    places.statement(func.body)
    label = np.zeros(values.total, np.int64)
    for key in (*places.keys.values(), *extra_keys):
        pair = np.stack([label, np.unique(key, return_inverse=True)[1].reshape(-1)], axis=1)
        label = np.unique(pair, axis=0, return_inverse=True)[1].reshape(-1)
    vectors = np.stack([*places.parts.values(), np.zeros(values.total, np.int64)], axis=1)
    order = np.argsort(label, kind="stable")
    starts = np.flatnonzero(np.diff(label[order], prepend=-1))
    hulls = []
    for members in np.split(order, starts[1:]):
        last = [int(values.axis(axis)[members].argmax()) for axis in "xyz"]
        hulls.append(members[[*dict.fromkeys([*_spanning(vectors[members]), *last])]])
    sizes = np.diff(starts, append=values.total)
    ranked = sorted(
        (iteration, int(size), int(number))
        for hull, size in zip(hulls, sizes, strict=True)
        for iteration, number in enumerate(hull)
    )
    numbers = np.asarray([number for _, _, number in ranked], np.int64)
    return Representatives(tuple(values.blocks(numbers)), label)


def _spanning(vectors: np.ndarray) -> list[int]:
    """Return rows in whose affine hull all rows lie."""
    rest = (vectors - vectors[0]) % PRIME
    found = [0]
    while (open_ := rest.any(axis=1)).any():
        row = int(open_.argmax())
        found.append(row)
        column = int((rest[row] != 0).argmax())
        unit = rest[row] * pow(int(rest[row, column]), -1, PRIME) % PRIME
        rest = (rest - rest[:, column : column + 1] * unit) % PRIME
    return found


class _Places:
    """Collects the numbers of a kernel that depend on the block index.

    - `keys`, `parts` (dict): one number for each CTA: keys that are equal within a kind; the CTA's
      part of an integer.
    """

    def __init__(
        self, func: tirx.PrimFunc, setup: Mapping[str, Any], flow: Flow, values: GridValues
    ) -> None:
        self.flow, self.values = flow, values
        self.reader = Keys(flow, values)
        self.keys: dict[bytes, np.ndarray] = {}
        self.parts: dict[bytes, np.ndarray] = {}
        self.met: set[Any] = set()
        self.chosen: set[Any] = set()
        for axis in "xyz":
            self._part(values.axis(axis))
        names = zip(func.params, param_names(func), strict=True)
        self.params = {param: setup["params"].get(name) for param, name in names}
        tags = thread_extents(func)
        for axis, extent in zip("xyz", setup["cluster"], strict=True):
            if int(extent) > 1:  # CTAs of one rank in their clusters are of a kind
                rank = values.axis(axis) % int(extent)
                self._key(rank)
                if tag := tags.get(f"clusterCtaIdx.{axis}"):
                    values.env[tag[0]] = rank

    def _key(self, numbers: Any) -> None:
        self._note(self.keys, numbers)

    def _part(self, numbers: Any) -> None:
        self._note(self.parts, numbers)

    def _note(self, found: dict[bytes, np.ndarray], numbers: Any) -> None:
        if isinstance(numbers, np.ndarray) and (numbers != numbers[0]).any():
            moved = numbers - numbers[0]
            found.setdefault(moved.tobytes(), moved)

    # -- statements -------------------------------------------------------------------------------

    def statement(self, body: Any) -> None:
        """Look at all statements of a kernel."""
        walk_nodes(
            body,
            [
                (tirx.IfThenElse, lambda x: self.condition(x.condition)),
                (tirx.While, lambda x: self.condition(x.condition)),
                (tirx.For, self._loop),
                (tirx.BufferStore, self._store),
                (tirx.Evaluate, lambda x: self._call(x.value)),
            ],
            order="pre",
        )

    def _loop(self, loop: tirx.For) -> None:
        self.condition(loop.extent)
        self.expression(loop.min)

    def _store(self, store: tirx.BufferStore) -> None:
        for expr in (*store.indices, store.value):
            self.expression(expr)

    def _call(self, call: Any) -> None:
        self.expression(call)
        ptx = decode_ptx(call)
        if ptx is None:
            return
        named = list(operands(ptx))
        coordinates = [value for name, value in named if name == "coords"]
        for name, value in named:
            if name == "tmap" and coordinates:
                for var in nodes_in(value, ir.Var):
                    self._box(self.params.get(var), coordinates)

    def _box(self, tensor_map: Any, coordinates: list[Any]) -> None:
        """Return how a box is cut off at the ends of its tensor."""
        if not isinstance(tensor_map, TensorMapArg):
            return
        for start, extent, length in zip(
            coordinates, tensor_map.dims, tensor_map.box, strict=False
        ):
            total = self.reader.sum(start)
            if total is not None:
                if isinstance(total.block, np.ndarray):
                    ends = total.added.plus(Reach(0, int(length) - 1))
                    self._key(ends.side("GE", total.block - int(extent)))
                    self._key(total.added.side("LT", total.block))
            elif (table := self.reader.table(start)) is not None:
                over = np.clip(table + (int(length) - int(extent)), 0, int(length))
                rows = np.concatenate([over, np.minimum(table, 0)], axis=1)
                self._key(np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1))

    # -- expressions ------------------------------------------------------------------------------

    def condition(self, expr: Any) -> None:
        """Add a key that two CTAs of a kind share."""
        try:
            for key in self.reader.of(expr):
                self._key(key)
        except UnprovableError:
            for child in children_of(expr):
                self.expression(child)

    def expression(self, expr: Any) -> None:
        """Add the CTAs' parts of an expression."""
        if not isinstance(expr, ir.Expr) or expr in self.met:
            return
        self.met.add(expr)
        kind, dtype = type(expr).__name__, _dtype(expr)
        if kind == "TensorLoad":
            for index in expr.indices:
                self.expression(index)
        elif kind == "Var":
            if expr in self.flow.binds:
                self.expression(self.flow.binds[expr])
        elif dtype == "bool":
            self.condition(expr)
        else:
            self.choices(expr)
            if not self._integer(expr, dtype):
                for child in children_of(expr):
                    self.expression(child)

    def choices(self, expr: Any) -> None:
        """Take the conditions by which an expression chooses."""
        if not isinstance(expr, ir.Expr) or expr in self.chosen:
            return
        self.chosen.add(expr)
        kind = type(expr).__name__
        if kind == "Select":
            self.condition(expr.condition)
        elif kind == "Call" and short_name(expr) == "if_then_else":
            self.condition(expr.args[0])
        elif kind in ("Min", "Max") and numpy_dtype(dtype_of(expr)).kind in "iu":
            self.condition(tirx.LT(expr.a, expr.b))
        elif kind == "Cast" and dtype_of(expr.value) == "bool":
            self.condition(expr.value)
        children = [self.flow.binds.get(expr)] if kind == "Var" else children_of(expr)
        for child in children:
            self.choices(child)

    def _integer(self, expr: Any, dtype: str) -> bool:
        """Take the CTAs' parts of an integer; False if it has to be looked at piece by piece."""
        if not dtype or numpy_dtype(dtype).kind not in "iu" or nodes_in(expr, ir.TensorLoad):
            return False
        if BLOCK not in self.flow.taint(expr) and not any(
            isinstance(self.values.env.get(var), np.ndarray) for var in nodes_in(expr, ir.Var)
        ):
            return True
        total = self.reader.sum(expr)
        if total is not None:
            self._part(total.block)
            return True
        table = self.reader.table(expr)
        if table is None:
            return False
        self._part(table[:, 0])
        moved = table - table[:, :1]
        for column in np.flatnonzero((moved != moved[0]).any(axis=0)):
            self._part(moved[:, column])
        return True


def _dtype(expr: Any) -> str:
    try:
        return dtype_of(expr)
    except (AttributeError, TypeError, ValueError):
        return ""
