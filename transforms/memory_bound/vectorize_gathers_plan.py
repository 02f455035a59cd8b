"""Find elements of a thread's vector that are adjacent in a tensor.

    for v in unroll(8): tile[v] = f(X[i, tx * 8 + v + 64])       X from tx * 8 + 64, eight lanes

An index is a vector's if it grows by one per element and starts at a multiple of the number of
lanes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import sym, tirx

from tvm_hopper import ir
from tvm_hopper.facts.dtypes import DTYPES
from tvm_hopper.facts.programming_model import THREAD_ACCESS_BYTES


@dataclass(frozen=True)
class LaneVector:
    """Loads that are one vector: the tensor, its first element, the lanes loaded at once.

    The last of the indices counts the elements of all dimensions from there on: a vector may go
    over the end of a row.
    """

    loads: tuple[ir.TensorLoad, ...]
    first: tuple[Any, ...]
    lanes: int
    exists: tuple[Any, ...]  # conditions under which it is loaded

    @property
    def tensor(self) -> ir.Var:
        """Return the tensor that it is loaded from."""
        return self.loads[0].source


def group_choices(vectors: tuple[LaneVector, ...]) -> list[list[LaneVector]]:
    """Return vectors together of which a thread loads one: they share its registers."""
    groups: list[list[LaneVector]] = []
    for one in vectors:
        group = next((x for x in groups if all(_exclude(one, y) for y in x)), None)
        groups.append([one]) if group is None else group.append(one)
    return groups


def _exclude(one: LaneVector, other: LaneVector) -> bool:
    """Tell two vectors of one kind that are loaded on different sides of a choice."""
    if ir.dtype_of(one.tensor) != ir.dtype_of(other.tensor) or one.lanes != other.lanes:
        return False
    for a, b in zip(one.exists, other.exists, strict=False):
        if not tvm_ffi.structural_equal(a, b):
            return is_denied(a, b) or is_denied(b, a)
    return False


def is_denied(condition: Any, other: Any) -> bool:
    """Tell the negation of a condition."""
    return isinstance(other, tirx.Not) and bool(tvm_ffi.structural_equal(condition, other.a))


def find_vectors(loop: ir.For, value: Any) -> tuple[Any, tuple[LaneVector, ...]]:
    """Return the vectors that a value of a loop over elements is computed from.

    The value comes first: its quotients, remainders and choices on which all elements agree are
    written without the element, so that a thread computes them once.

    - `loop`: runs over the elements of a thread's vector.
    - `value` (Expr): what each of them is.
    """
    elements = _Elements(loop)
    value = elements.choose_once(ir.without_carry(value, elements.lane, elements.extent))
    return value, tuple(elements.vectors(value))


class _Elements:
    """The elements that one loop loads."""

    def __init__(self, loop: ir.For) -> None:
        self.lane = loop.loop_var
        self.extent = int(loop.extent)
        self.analyzer = sym.Analyzer()
        self.analyzer.bind(self.lane, tvm.ir.Range(0, loop.extent))

    def vectors(self, value: Any) -> list[LaneVector]:
        """Return the vectors in a value, loads of the same elements together."""
        merged: list[LaneVector] = []
        for one in self._vectors(value, ()):
            same = next((i for i, x in enumerate(merged) if _is_same(x, one)), None)
            if same is None:
                merged.append(one)
            else:
                old = merged[same]
                merged[same] = LaneVector(
                    (*old.loads, *one.loads), old.first, old.lanes, old.exists
                )
        return merged

    def _vectors(self, value: Any, exists: tuple[Any, ...]) -> Iterator[LaneVector]:
        for node, side in _choices(value):
            if isinstance(node, ir.TensorLoad):
                if (place := self._place(node)) is not None:
                    yield LaneVector((node,), place[0], place[1], exists)
                continue
            condition = node.args[0]
            yield from self._vectors(condition, exists)
            if ir.depends_on(condition, [self.lane]):
                continue
            yes = list(self._vectors(side[0], (*exists, condition)))
            no = list(self._vectors(side[1], (*exists, tirx.Not(condition))))
            yield from _one_side_each(condition, exists, yes, no)

    def choose_once(self, value: Any) -> Any:
        """Leave the lane out of conditions of choices on which all elements agree."""

        def call(node: ir.Call, mutator: Any) -> Any:
            node = mutator.default_mutate(node)
            if not ir.is_choice(node) or not ir.depends_on(node.args[0], [self.lane]):
                return node
            condition = self._of_whole_vector(self.analyzer.simplify(node.args[0]))
            if ir.depends_on(condition, [self.lane]):
                return node
            return tirx.if_then_else(condition, *node.args[1:])

        return ir.mutate(value, [(ir.Call, call)])

    def _of_whole_vector(self, condition: Any) -> Any:
        """Leave the lane out of comparisons in which all elements of a vector agree.

        3072 <= i * 8 + v   ->   3072 <= i * 8           v < 8, as where two tensors meet
        """

        def compare(node: Any, _mutator: Any) -> Any:
            is_low = isinstance(node, tirx.LT | tirx.GE)  # the vector is on the left
            value, bound = (node.a, node.b) if is_low else (node.b, node.a)
            first = ir.first_lane(value, self.lane, self.extent, self.analyzer)
            if first is None or not all(self._is_multiple(x, self.extent) for x in (first, bound)):
                return node
            return type(node)(first, bound) if is_low else type(node)(bound, first)

        kinds = (tirx.LT, tirx.GE, tirx.LE, tirx.GT)
        return ir.mutate(condition, [(kind, compare) for kind in kinds])

    def _place(self, load: ir.TensorLoad) -> tuple[tuple[Any, ...], int] | None:
        """Return the first element and the lanes that are loaded at once; None for no vector."""
        tensor, dtype = load.source, ir.dtype_of(load.source)
        if str(tensor.scope()) not in ("", "global") or list(tensor.strides) or dtype == "bool":
            return None
        if dtype not in DTYPES or not load.indices:  # of no dimensions
            return None
        known = [ir.without_carry(x, self.lane, self.extent) for x in load.indices]
        if ir.find_all(known, ir.TensorLoad, self._is_each):
            return None
        place = ir.first_element(load.indices, tensor.shape, self.lane, self.extent)
        if place is None:
            return None
        lanes = min(self.extent & -self.extent, THREAD_ACCESS_BYTES // DTYPES[dtype].num_bytes)
        starts = [place[-1], *([prod(tensor.shape[len(place) - 1 :])] if len(place) > 1 else [])]
        while lanes > 1 and not all(self._is_multiple(x, lanes) for x in starts):
            lanes //= 2
        return (tuple(place), lanes) if lanes > 1 else None

    def _is_each(self, load: ir.TensorLoad) -> bool:
        return ir.depends_on(load, [self.lane])

    def _is_multiple(self, value: Any, lanes: int) -> bool:
        if isinstance(value, int):
            return value % lanes == 0
        known = self.analyzer.modular_set(value)
        if int(known.coeff) % lanes == 0 and int(known.base) % lanes == 0:
            return True
        return ir.is_const(self.analyzer.simplify(value % lanes), 0)


def _choices(value: Any) -> list[tuple[Any, tuple[Any, ...]]]:
    """Return the outermost loads and choices of a value, with the two sides of each choice.

    Later operands of `and` and `or` are left out: they may not be there to load.
    """
    found: list[tuple[Any, tuple[Any, ...]]] = []

    def load(node: ir.TensorLoad, _mutator: Any) -> Any:
        found.append((node, ()))
        return node

    def call(node: ir.Call, mutator: Any) -> Any:
        if not ir.is_choice(node):
            return mutator.default_mutate(node)
        found.append((node, (node.args[1], node.args[2])))
        return node

    def short(node: Any, mutator: Any) -> Any:
        mutator.mutate(node.a)
        return node

    callbacks: list[tuple[type, Any]] = [(ir.TensorLoad, load), (ir.Call, call)]
    callbacks += [(tirx.And, short), (tirx.Or, short)]
    ir.mutate(value, callbacks)
    return found


def _one_side_each(
    condition: Any, exists: tuple[Any, ...], yes: list[LaneVector], no: list[LaneVector]
) -> Iterator[LaneVector]:
    """Make one vector of those that the two sides of a choice load of a tensor."""
    rest = list(no)
    for one in yes:
        here = len(one.exists) == len(exists) + 1  # under no further condition
        other = next((x for x in rest if here and _may_share(one, x, len(exists) + 1)), None)
        if other is None:
            yield one
            continue
        rest = [x for x in rest if x is not other]
        first = tuple(
            a if ir.is_const(ir.simplify(a - b), 0) else tirx.Select(condition, a, b)
            for a, b in zip(one.first, other.first, strict=True)
        )
        yield LaneVector((*one.loads, *other.loads), first, one.lanes, exists)
    yield from rest


def _may_share(one: LaneVector, other: LaneVector, depth: int) -> bool:
    same = one.tensor.same_as(other.tensor) and one.lanes == other.lanes
    same = same and len(one.first) == len(other.first)
    loads = ir.find_all([*one.first, *other.first], ir.TensorLoad)  # a choice would make both
    return same and len(other.exists) == depth and not loads


def _is_same(one: LaneVector, other: LaneVector) -> bool:
    equal = tvm_ffi.structural_equal
    return one.tensor.same_as(other.tensor) and all(
        len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
        for a, b in ((one.first, other.first), (one.exists, other.exists))
    )
