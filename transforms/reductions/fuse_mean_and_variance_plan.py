"""Find the sums of rows and of their squared deviations, as TVM writes them.

own_S = 0
for c, v in unroll: own_S = own_S + X_local[c, v]
reduce across threads: own_S
S = own_S
mean = S / 8192
own_V = 0
for c, v in unroll: own_V = own_V + (X_local[c, v] - mean) * (X_local[c, v] - mean)
reduce across threads: own_V
V = own_V

Where a row waits in shared memory each loop loads a part of it into registers, then adds that up:
what is added is looked at as if it were read from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.facts.programming_model import THREADS_PER_WARP

_ROW_PARTS, _RANKS = "blockIdx.z", "clusterCtaIdx.z"  # axes of a row that a cluster shares
_FLOAT = "float32"


@dataclass(frozen=True)
class RowSum:
    """A sum over a row: what a thread adds up, and what all of a row do."""

    realize: ir.SBlockRealize
    front: tuple[Any, ...]  # the initial value
    nest: ir.For
    update: ir.BufferStore
    across: ir.SBlockRealize
    call: ir.Call
    result: ir.BufferStore

    fills: tuple[ir.BufferStore, ...] = ()  # of registers, by what waits in shared memory

    @property
    def element(self) -> Any:
        """The summand of one element."""
        return ir.replace(self.update.value.b, ir.TensorLoad, self._waits)

    @property
    def loops(self) -> list[ir.For]:
        """The loops over a thread's elements."""
        return ir.find_all(self.nest, ir.For, lambda x: ir.uses_node(x, self.update))

    def _waits(self, read: ir.TensorLoad) -> Any:
        """Return what a register was filled by; the register itself if that is not certain."""
        fills = [x for x in self.fills if x.buffer.same_as(read.source)]
        if len(fills) != 1:
            return read
        place = {}
        for index, at in zip(fills[0].indices, read.indices, strict=True):
            if isinstance(index, ir.Var):
                place[index] = at
            elif not same(index, at):
                return read
        return ir.substitute(fills[0].value, place)


@dataclass(frozen=True)
class Moments:
    """A row's sum, and that of the squares around its mean."""

    sum: RowSum
    squares: RowSum
    mean: Any  # as the squares read it
    of_thread: int
    of_row: int


def plan_moments(kernel: ir.For) -> tuple[Moments, ...]:
    """Find pairs of sums that all thread blocks of a cluster make."""
    axes = ir.thread_axes(kernel)
    if _ROW_PARTS not in axes or _RANKS not in axes or "threadIdx.x" not in axes:
        return ()
    threads = int(axes["threadIdx.x"].extent) * int(axes[_ROW_PARTS].extent)
    if threads & (threads - 1) or int(axes["threadIdx.x"].extent) % THREADS_PER_WARP:
        return ()
    found = []
    for block in ir.find_all(kernel, ir.SBlock):
        stmts = ir.statements(block.body)
        sums = [(i, x) for i, x in enumerate(map(_row_sum, stmts)) if x is not None]
        for (i, one), (j, other) in pairwise(sums):
            pair = _pair(one, other, stmts[i + 1 : j], threads)
            if pair is not None:
                found.append(pair)
    return tuple(found)


def _row_sum(stmt: Any) -> RowSum | None:
    if not isinstance(stmt, ir.SBlockRealize) or not ir.is_const(stmt.predicate, 1):
        return None
    stmts = ir.statements(stmt.block.body)
    nests = [i for i, x in enumerate(stmts) if isinstance(x, ir.For)]
    scopes = ir.find_all(stmt, tirx.AttrStmt, lambda x: x.attr_key == "reduce_scope")
    if len(nests) != 1 or len(scopes) != 1 or len(stmts) != nests[0] + 3:
        return None
    nest, across, back = stmts[nests[0] :]
    stores, results = (ir.find_all(x, ir.BufferStore) for x in (nest, back))
    (scope,) = scopes
    fills = [x for x in stores if _is_fill(x)]
    updates = [x for x in stores if not any(x.same_as(y) for y in fills)]
    if len(updates) != 1 or len(results) != 1 or not ir.uses_node(across, scope):
        return None
    (update,), call = updates, scope.body.value
    if not _is_sum(update, scope, call) or not same(results[0].value, call.args[3]):
        return None
    front = tuple(stmts[: nests[0]])
    return RowSum(stmt, front, nest, update, across, call, results[0], tuple(fills))


def _is_fill(store: ir.BufferStore) -> bool:
    """Tell a load from shared memory into registers.

    Not of float16: nvcc keeps those of the first loop in registers for the second, and spills.
    """
    if ir.dtype_of(store.buffer) == "float16":
        return False
    scopes = [str(store.buffer.scope()), str(getattr(store.value, "source", store.buffer).scope())]
    return scopes[0] == "local" and scopes[1].startswith("shared")


def _is_sum(update: ir.BufferStore, scope: tirx.AttrStmt, call: ir.Call) -> bool:
    """Tell whether a thread adds up its elements in float32, and all threads their sums."""
    own = tirx.BufferLoad(update.buffer, list(update.indices))
    if not isinstance(update.value, tirx.Add) or not same(update.value.a, own):
        return False
    if ir.dtype_of(own) != _FLOAT or int(call.args[0]) != 1 or not same(call.args[1], own):
        return False
    (value,) = scope.node.result
    return isinstance(value, tirx.Add)


def _pair(one: RowSum, other: RowSum, between: list[Any], threads: int) -> Moments | None:
    loops = list(zip(one.loops, other.loops, strict=False))
    alike = len(one.loops) == len(other.loops) and all(
        ir.is_const(x.extent - y.extent, 0) for x, y in loops
    )
    extents = [ir.static_int(x.extent) for x in one.loops]
    if not alike or None in extents:
        return None
    of_thread = prod(x or 0 for x in extents)
    names = {y.loop_var: x.loop_var for x, y in loops}
    inside = [x.loop_var for x in one.loops]
    conditions = [
        [x.predicate for x in ir.find_all(ir.substitute(y.nest, names), ir.SBlockRealize)]
        for y in (one, other)
    ]
    if not all(map(same, *conditions)) or ir.depends_on(conditions[0], inside):
        return None
    subtracted = _subtracted(one, ir.substitute(other.element, names), between)
    if subtracted is None or not _is_mean(one, _resolve(subtracted, between), of_thread * threads):
        return None
    return Moments(one, other, subtracted, of_thread, of_thread * threads)


def _subtracted(one: RowSum, square: Any, between: list[Any]) -> Any:
    """Return what is subtracted from a sum's element in front of a square; None for all else."""
    if not isinstance(square, tirx.Mul) or not same(square.a, square.b):
        return None
    away = square.a
    if not isinstance(away, tirx.Sub) or not same(away.a, one.element):
        return None
    read = [x.source for x in ir.find_all(away.a, ir.TensorLoad)]
    changed = [x.buffer for y in between for x in ir.find_all(y, ir.BufferStore)]
    return None if any(x.same_as(y) for x in read for y in changed) else away.b


def _is_mean(one: RowSum, value: Any, count: int) -> bool:
    """Tell whether a value is a row's sum, divided by the number of its elements."""
    row = tirx.BufferLoad(one.result.buffer, list(one.result.indices))
    if not isinstance(value, (tirx.Div, tirx.Mul)) or not same(value.a, row):
        return False
    divisor = getattr(value.b, "value", None)
    return bool(divisor == (count if isinstance(value, tirx.Div) else 1 / count))


def _resolve(value: Any, between: list[Any]) -> Any:
    """Return what a register holds that a statement in between has filled."""
    for store in (x for y in between for x in ir.find_all(y, ir.BufferStore)):
        if same(value, tirx.BufferLoad(store.buffer, list(store.indices))):
            return store.value
    return value


def same(one: Any, other: Any) -> bool:
    """Tell whether two expressions are alike."""
    return bool(tvm_ffi.structural_equal(one, other))
