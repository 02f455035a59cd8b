"""Compute the regions of buffers and ranges of loops that output boxes need.

The answer holds for numbers, not for symbols, and is found by going round until nothing grows:

    wanted boxes of the outputs
    a store into a wanted box: the loops are narrowed to the iterations that can reach the box,
    and what these iterations read is wanted, too

Why that is enough, in whatever order statements are and however often a buffer is used again:
let N be the boxes at the end. Every iteration that writes into N runs, in the program's order,
and reads inside N alone. So, step by step, N holds what it holds in the whole program. Iterations
that run besides are kept from storing outside N.

A box is the hull of what is needed, and a range that is unknown is the whole one: more may be
computed than is needed, never less.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, tirx

from .plain import (
    PlainLoop,
    PlainProgram,
    PlainProgramError,
    PlainStore,
    StorePlace,
    nodes_in,
    op_name,
)

Interval = tuple[int, int]  # both ends belong to it
Box = tuple[Interval, ...]
Ranges = dict[Any, Interval]
ROUNDS_EXACT = 8  # after which a box that still grows is taken as whole along its growing axes


@dataclass(frozen=True)
class Needs:
    """The regions to compute.

    - `boxes` (dict): of each buffer, the elements that are needed; buffers that are not have none.
    - `ranges` (dict): of each loop, the iterations that run; loops that do not run have none.
    - `work`: stores that are executed, at most.
    """

    boxes: dict[Any, Box]
    ranges: dict[Any, Interval]
    work: int


def infer(
    program: PlainProgram,
    sizes: Mapping[Any, int],
    wanted: Mapping[Any, Box],
    given: Mapping[Any, np.ndarray] | None = None,
) -> Needs:
    """Find what boxes of the outputs need.

    - `sizes` (dict): value of each variable of the function that is no tensor.
    - `wanted` (dict): boxes of buffers, both ends of each interval included.
    - `given` (dict): what tensors of integers hold that the program does not store to: extents and
      indices.
    """
    search = _Search(program, sizes, wanted, given or {})
    rounds = itertools.count()
    while search.grow(whole=next(rounds) >= ROUNDS_EXACT):
        pass  # an axis that grew since then is whole, and grows no more
    loops: dict[Any, Interval] = {}
    work = 0
    for place, ranges in search.reached.items():
        for loop in place.loops:
            loops[loop] = _hull(loops.get(loop), ranges[loop.var])
    for place in search.reached:
        work += math.prod(loops[loop][1] - loops[loop][0] + 1 for loop in place.loops)
    return Needs(search.boxes, loops, work)


class _Search:
    """The boxes as they grow."""

    def __init__(
        self,
        program: PlainProgram,
        sizes: Mapping[Any, int],
        wanted: Mapping[Any, Box],
        given: Mapping[Any, np.ndarray],
    ) -> None:
        self.program, self.given = program, given
        self.sizes: Ranges = {var: (size, size) for var, size in sizes.items()}
        self.boxes = dict(wanted)
        self.reached: dict[StorePlace, Ranges] = {}
        self.shapes = {
            buffer: tuple(self._size(extent, buffer) for extent in buffer.shape)
            for buffer in program.buffers
        }
        self.loads = {id(place): _loads(place) for place in program.places}

    def _size(self, extent: Any, buffer: Any) -> int:
        known = interval(extent, self.sizes)
        if known is None or known[0] != known[1]:
            raise PlainProgramError(
                f"against: function {self.program.name}, buffer {buffer.name}: found an extent "
                f"{extent}; need one that follows from the arguments"
            )
        return known[0]

    def grow(self, whole: bool) -> bool:
        """Go over all stores once; tell whether a box has grown."""
        grown = False
        for place in self.program.places:
            ranges = self._reach(place)
            if ranges is None:
                self.reached.pop(place, None)
                continue
            self.reached[place] = ranges
            for load in self.loads[id(place)]:
                lets = {let.var: let.value for let in place.lets}
                grown |= self._want(load, ranges, lets, whole)
        return grown

    def _reach(self, place: StorePlace) -> Ranges | None:
        """Narrow the loops around a store to what can reach its box; None: nothing can."""
        box = self.boxes.get(place.store.buffer)
        if box is None:
            return None
        ranges = dict(self.sizes)
        for loop in place.loops:
            if not self._enter(loop, ranges):
                return None
        lets = {let.var: let.value for let in place.lets}
        for _ in range(2):  # what one index says of a loop may narrow the next one
            for index, sides in zip(place.store.indices, box, strict=True):
                if not narrow(index, sides, ranges, lets):
                    return None
        return ranges

    def _enter(self, loop: PlainLoop, ranges: Ranges) -> bool:
        known = _with_elements([loop.low, loop.extent], ranges, self.given)
        low, extent = interval(loop.low, known), interval(loop.extent, known)
        if low is None or extent is None:
            raise PlainProgramError(
                f"against: loop {loop.var.name}: found an extent {loop.extent}, which follows from "
                "data that the program computes; need one that follows from the arguments"
            )
        ranges[loop.var] = (low[0], low[1] + extent[1] - 1)
        return extent[1] > 0

    def _want(self, load: Any, ranges: Ranges, lets: Mapping[Any, Any], whole: bool) -> bool:
        buffer = load.source
        shape = self.shapes[buffer]
        old = self.boxes.get(buffer)
        sides = []
        known = _with_elements(list(load.indices), ranges, self.given)
        for axis, (index, size) in enumerate(zip(load.indices, shape, strict=True)):
            found = interval(index, known, lets) or (0, size - 1)
            # what a condition keeps inside of the buffer may reach outside here
            found = (min(max(found[0], 0), size - 1), max(min(found[1], size - 1), 0))
            if old is not None:
                found = _hull(old[axis], found)
                if whole and found != old[axis]:
                    found = (0, size - 1)
            sides.append(found)
        box = tuple(sides)
        if box == old:
            return False
        self.boxes[buffer] = box
        return True


def _with_elements(exprs: list[Any], ranges: Ranges, given: Mapping[Any, np.ndarray]) -> Ranges:
    """Add bounds of each element of a given tensor that expressions load, innermost loads first."""
    known = dict(ranges)
    for load in nodes_in(ir.TensorLoad, *exprs, order="post"):
        array = given.get(load.source)
        sides = [side for index in load.indices if (side := interval(index, known)) is not None]
        if array is None or len(sides) < len(load.indices):
            continue
        # what a condition keeps inside of the tensor may reach outside here
        inside = tuple(slice(max(low, 0), max(high + 1, 0)) for low, high in sides)
        part = np.asarray(array)[inside]
        if part.size:
            known[load] = int(part.min()), int(part.max())
    return known


def _loads(place: StorePlace) -> list[Any]:
    """Return the loads that one execution of a store may make, with names written out."""
    roots = [place.store.value, *place.store.indices]
    roots += [condition for condition, _ in place.conditions]
    roots += [let.value for let in place.lets]
    for loop in place.loops:
        roots += [loop.low, loop.extent]
    return nodes_in(ir.TensorLoad, *roots)


def deciding_buffers(place: StorePlace, indices: bool = True) -> set[Any]:
    """Return the buffers that a store reads for an index, an extent, a condition or a choice.

    Without `indices`, those that a load takes as an index as they are do not count.
    """
    found: set[Any] = set()
    decide = [*place.store.indices, *(condition for condition, _ in place.conditions)]
    for loop in place.loops:
        decide += [loop.low, loop.extent]
    for load in _loads(place):
        every = range(len(load.indices))
        decide += [load.indices[i] for i in every if indices or index_of(load, i) is None]
    for value in [place.store.value, *(let.value for let in place.lets)]:
        for kind, test in ((tirx.Select, lambda x: x.condition), (ir.Call, lambda x: x.args[0])):
            nodes = nodes_in(kind, value)
            decide += [test(x) for x in nodes if kind is tirx.Select or _two(x) is not None]
    for expr in decide:
        found |= set(loaded(expr))
    return found


def index_of(load: Any, axis: int) -> Any:
    """Return the buffer of which an index is an element, converted or not; None: it is more."""
    index = load.indices[axis]
    while isinstance(index, tirx.Cast):
        index = index.value
    return index.source if isinstance(index, ir.TensorLoad) else None


def loaded(expr: Any) -> list[Any]:
    """Return the buffers that an expression loads from."""
    return [load.source for load in nodes_in(ir.TensorLoad, expr)]


def _hull(one: Interval | None, other: Interval) -> Interval:
    return other if one is None else (min(one[0], other[0]), max(one[1], other[1]))


# -- intervals ------------------------------------------------------------------------------------


def interval(expr: Any, ranges: Ranges, lets: Mapping[Any, Any] | None = None) -> Interval | None:
    """Return bounds of an integer expression, from those of variables; None: it has none."""
    if isinstance(expr, (int, tirx.IntImm)):
        return int(expr), int(expr)
    if isinstance(expr, ir.TensorLoad):
        return ranges.get(expr)
    if isinstance(expr, ir.Var):
        if expr in ranges:
            return ranges[expr]
        return interval(lets[expr], ranges, lets) if lets and expr in lets else None
    if isinstance(expr, tirx.Cast):
        return interval(expr.value, ranges, lets)
    two = _two(expr)
    if two is None:
        return None
    a, b = (interval(x, ranges, lets) for x in two)
    return _of_two(expr, a, b)


def _of_two(expr: Any, a: Interval | None, b: Interval | None) -> Interval | None:
    """Return the bounds of an expression from those of the two values that it is made of."""
    rule = _RULES.get(type(expr))
    if rule is not None and a is not None and b is not None:
        return rule(a, b)
    if isinstance(expr, (tirx.FloorMod, tirx.Mod)) and b is not None and b[0] == b[1] > 0:
        return (0, b[0] - 1) if a is None or a[0] >= 0 or isinstance(expr, tirx.FloorMod) else None
    if isinstance(expr, (tirx.Select, ir.Call)) and a is not None and b is not None:
        return _hull(a, b)
    return None


def _two(expr: Any) -> tuple[Any, Any] | None:
    """Return the two values that an expression is made of, or chooses from."""
    if isinstance(expr, tirx.Select):
        return expr.true_value, expr.false_value
    if isinstance(expr, ir.Call):
        chooses = op_name(expr) == "if_then_else"
        return (expr.args[1], expr.args[2]) if chooses else None
    return (expr.a, expr.b) if hasattr(expr, "a") and hasattr(expr, "b") else None


def _times(a: Interval, b: Interval) -> Interval:
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


def _floordiv(a: Interval, b: Interval) -> Interval | None:
    if b[0] <= 0:
        return None
    corners = [x // y for x in a for y in b]
    return min(corners), max(corners)


def _div(a: Interval, b: Interval) -> Interval | None:
    return _floordiv(a, b) if a[0] >= 0 else None


def _floormod(a: Interval, b: Interval) -> Interval | None:
    if b[0] != b[1] or b[0] <= 0:
        return None
    if a[0] // b[0] == a[1] // b[0]:
        return a[0] % b[0], a[1] % b[0]
    return 0, b[0] - 1


_RULES: dict[type, Callable[[Interval, Interval], Interval | None]] = {
    tirx.Add: lambda a, b: (a[0] + b[0], a[1] + b[1]),
    tirx.Sub: lambda a, b: (a[0] - b[1], a[1] - b[0]),
    tirx.Mul: _times,
    tirx.FloorDiv: _floordiv,
    tirx.Div: _div,
    tirx.FloorMod: _floormod,
    tirx.Min: lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    tirx.Max: lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
}


def narrow(expr: Any, sides: Interval, ranges: Ranges, lets: Mapping[Any, Any]) -> bool:
    """Narrow the ranges of variables to where an expression may lie inside; False: nowhere."""
    now = interval(expr, ranges, lets)
    if now is not None:
        sides = max(sides[0], now[0]), min(sides[1], now[1])
        if sides[0] > sides[1]:
            return False
    if isinstance(expr, ir.Var):
        if expr in ranges:
            ranges[expr] = sides
            return True
        return narrow(lets[expr], sides, ranges, lets) if expr in lets else True
    if isinstance(expr, tirx.Cast):
        return narrow(expr.value, sides, ranges, lets)
    if not isinstance(expr, (tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv)):
        return True
    a, b = interval(expr.a, ranges, lets), interval(expr.b, ranges, lets)
    low, high = sides
    if isinstance(expr, tirx.Add):
        return (b is None or narrow(expr.a, (low - b[1], high - b[0]), ranges, lets)) and (
            a is None or narrow(expr.b, (low - a[1], high - a[0]), ranges, lets)
        )
    if isinstance(expr, tirx.Sub):
        return (b is None or narrow(expr.a, (low + b[0], high + b[1]), ranges, lets)) and (
            a is None or narrow(expr.b, (a[0] - high, a[1] - low), ranges, lets)
        )
    if b is None or b[0] != b[1] or b[0] <= 0:
        return True
    step = b[0]
    if isinstance(expr, tirx.Mul):
        return narrow(expr.a, (-(-low // step), high // step), ranges, lets)
    return narrow(expr.a, (low * step, high * step + step - 1), ranges, lets)


def is_exact(place: StorePlace, others: list[StorePlace]) -> bool:
    """Tell whether narrowed loops reach the box of a store and nothing else.

    So they do where every index is a number, or a number and one loop's variable, each another one,
    around stores that all write this buffer at these indices.
    """
    loops = {loop.var: loop for loop in place.loops}
    found = [_variable(index, loops) for index in place.store.indices]
    variables = [var for var in found if var is not None and not isinstance(var, int)]
    if None in found or len(set(variables)) != len(variables):
        return False
    return all(
        _same_element(place.store, other.store)
        for other in others
        if any(loops[var] in other.loops for var in variables)
    )


def _variable(index: Any, loops: Mapping[Any, PlainLoop]) -> Any:
    """Return the loop variable that an index is, but for a number; 0 for a number alone."""
    if isinstance(index, (tirx.Add, tirx.Sub)) and isinstance(index.b, tirx.IntImm):
        index = index.a
    if isinstance(index, tirx.IntImm):
        return 0
    return index if isinstance(index, ir.Var) and index in loops else None


def _same_element(one: PlainStore, other: PlainStore) -> bool:
    return one.buffer.same_as(other.buffer) and all(
        tvm_ffi.structural_equal(a, b) for a, b in zip(one.indices, other.indices, strict=True)
    )
