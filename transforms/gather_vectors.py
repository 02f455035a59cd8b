"""Load what neighbouring elements are computed from as vectors, at the places that they name.

    for v in unroll(8):                              X[.., 0:64] and X[.., 64:128] make pairs
        with sblock("Y"):
            tile[v] = f(T.if_then_else(tx % 16 < 8, -X[i, tx * 8 + v + 64], X[i, tx * 8 + v - 64]))
  ->
    for v in vectorized(8):
        with sblock("X_lanes"):
            X_lanes[v] = X[i, T.Select(tx % 16 < 8, tx * 8 + 64, tx * 8 - 64) + v]
    for v in unroll(8):
        with sblock("Y"):
            tile[v] = f(T.if_then_else(tx % 16 < 8, -X_lanes[v], X_lanes[v]))

Tensors that are read at the elements that a block computes are loaded by vectors from the start
(`schedule/memory_bound/arrays.py`).  What is read elsewhere, as the other half of a rotated pair,
the row of a table that an index names, or a column's place in a head, would be loaded one element
after another.  Where the elements of a thread's vector lie side by side there, too, they are a
vector.  The two sides of a choice that all its elements agree on are one load, at the place chosen.

Before: a thread's registers are its own, conditions stand on blocks.  After: no register of a
kernel bound by memory is computed from elements that lie side by side and are loaded one by one.
Not here: elements at places that only their own number tells to be neighbours, as those whose
first is no multiple of two; loads under a condition on each element.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import sym, tirx
from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.facts.dtypes import DTYPES
from tvm_hopper.facts.programming_model import THREAD_ACCESS_BYTES
from tvm_hopper.requests.bodies import is_memory_bound
from tvm_hopper.requests.keys import LOAD_HINT

MOST_LANES = 16


@dataclass(frozen=True)
class LaneVector:
    """Loads that are one vector: the tensor, its first element, the lanes loaded at once."""

    loads: tuple[ir.TensorLoad, ...]
    first: tuple[Any, ...]
    lanes: int
    exists: tuple[Any, ...]  # conditions under which it is loaded

    @property
    def tensor(self) -> ir.Var:
        """Return the tensor that it is loaded from."""
        return self.loads[0].source


@dataclass(frozen=True)
class GatherPlan:
    """A loop over the elements of a thread's vector, and what is loaded in front of it."""

    loop: ir.For
    vectors: tuple[LaneVector, ...]


def plan_gathers(kernel: ir.For) -> tuple[GatherPlan, ...]:
    """Find the loops that load neighbouring elements one by one."""
    found = []
    for loop in ir.find_all(kernel, ir.For, _is_over_elements):
        store = loop.body.block.body
        if vectors := _Elements(loop).vectors(store.value):
            found.append(GatherPlan(loop, tuple(vectors)))
    return tuple(found)


def _is_over_elements(loop: ir.For) -> bool:
    """Tell a loop that computes a few registers, each by one statement."""
    extent, realize = ir.static_int(loop.extent), loop.body
    if loop.kind != ir.ForKind.UNROLLED or extent is None or not 1 < extent <= MOST_LANES:
        return False
    if not isinstance(realize, ir.SBlockRealize) or realize.iter_values:
        return False
    store = realize.block.body
    return (
        isinstance(store, ir.BufferStore)
        and str(store.buffer.scope()) == "local"
        and not ir.depends_on(realize.predicate, [loop.loop_var])
    )


class _Elements:
    """What the elements of one loop load."""

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
            condition = self.analyzer.simplify(node.args[0])
            yield from self._vectors(node.args[0], exists)
            if ir.depends_on(condition, [self.lane]):
                continue
            yes = list(self._vectors(side[0], (*exists, condition)))
            no = list(self._vectors(side[1], (*exists, tirx.Not(condition))))
            yield from _one_side_each(condition, exists, yes, no)

    def _place(self, load: ir.TensorLoad) -> tuple[tuple[Any, ...], int] | None:
        """Return the first element and the lanes that are loaded at once; None for no vector."""
        tensor, dtype = load.source, ir.dtype_of(load.source)
        if str(tensor.scope()) not in ("", "global") or list(tensor.strides) or dtype == "bool":
            return None
        if dtype not in DTYPES or ir.find_all(list(load.indices), ir.TensorLoad, self._is_each):
            return None
        *rows, last = load.indices
        first = self.analyzer.simplify(ir.substitute(last, {self.lane: 0}))
        step = self.analyzer.simplify(last - first - ir.cast_like(self.lane, last))
        if not ir.is_const(step, 0) or ir.depends_on(rows, [self.lane]):
            return None
        lanes = min(self.extent & -self.extent, THREAD_ACCESS_BYTES // DTYPES[dtype].num_bytes)
        starts = [first, tensor.shape[-1]] if len(rows) else [first]
        while lanes > 1 and not all(self._is_multiple(x, lanes) for x in starts):
            lanes //= 2
        return ((*rows, first), lanes) if lanes > 1 else None

    def _is_each(self, load: ir.TensorLoad) -> bool:
        return ir.depends_on(load, [self.lane])

    def _is_multiple(self, value: Any, lanes: int) -> bool:
        return ir.is_const(self.analyzer.simplify(value % lanes), 0)


def _choices(value: Any) -> list[tuple[Any, tuple[Any, ...]]]:
    """Return the outermost loads and choices of a value, with the two sides of each choice.

    What stands behind the first operand of `and` and `or` may not be there to load.
    """
    found: list[tuple[Any, tuple[Any, ...]]] = []

    def load(node: ir.TensorLoad, _mutator: Any) -> Any:
        found.append((node, ()))
        return node

    def call(node: ir.Call, mutator: Any) -> Any:
        if not node.op.name.endswith("if_then_else"):
            return mutator.default_mutate(node)
        found.append((node, (node.args[1], node.args[2])))
        return node

    def short(node: Any, mutator: Any) -> Any:
        mutator.mutate(node.a)
        return node

    callbacks = [(ir.TensorLoad, load), (ir.Call, call), (tirx.And, short), (tirx.Or, short)]
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
    loads = ir.find_all([*one.first, *other.first], ir.TensorLoad)  # a choice would make both
    return same and len(other.exists) == depth and not loads


def _is_same(one: LaneVector, other: LaneVector) -> bool:
    equal = tvm_ffi.structural_equal
    return one.tensor.same_as(other.tensor) and all(
        len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
        for a, b in ((one.first, other.first), (one.exists, other.exists))
    )


def rewrite_gathers(kernel: ir.For, plan: tuple[GatherPlan, ...]) -> ir.For:
    """Load the vectors in front of each loop."""
    names = ir.Names(x.name for x in ir.find_all(kernel, ir.Var))
    registers: list[ir.Var] = []
    planned = {one.loop: _rewrite(one, names, registers) for one in plan}
    kernel = ir.replace_nodes(kernel, ir.For, planned)
    outer = ir.find_all(kernel, ir.SBlock)[0]
    more = ir.with_block(outer, alloc_buffers=[*outer.alloc_buffers, *registers])
    return ir.replace_nodes(kernel, ir.SBlock, {outer: more})


def _rewrite(plan: GatherPlan, names: ir.Names, registers: list[ir.Var]) -> ir.Stmt:
    realize = plan.loop.body
    block, lane = realize.block, plan.loop.loop_var
    hint = {k: v for k, v in block.annotations.items() if k == LOAD_HINT}
    values: dict[Any, Any] = {}
    fronts = []
    for one in plan.vectors:
        name, dtype = names.take(f"{one.tensor.name}_lanes"), ir.dtype_of(one.tensor)
        kept = ir.new_buffer(name, (int(plan.loop.extent),), dtype, "local", 64)
        registers.append(kept)
        values |= {x: tirx.BufferLoad(kept, [lane]) for x in one.loads}
        fronts.append(_load(plan, one, kept, realize.predicate, hint))
    store = ir.replace_nodes(block.body, ir.TensorLoad, values)
    notes = {k: v for k, v in block.annotations.items() if k != LOAD_HINT}
    reads = [ir.full_region(x) for x in registers[-len(plan.vectors) :]]
    moved = [x.source for x in values]
    kept_reads = [
        x
        for x in block.reads
        if not any(x.source.same_as(b) for b in moved)
        or any(load.source.same_as(x.source) for load in ir.find_all(store, ir.TensorLoad))
    ]
    own = ir.with_block(block, body=store, reads=[*kept_reads, *reads], annotations=notes)
    inner = ir.SBlockRealize(realize.iter_values, realize.predicate, own)
    return ir.seq(*fronts, ir.with_body(plan.loop, inner))


def _load(
    plan: GatherPlan, one: LaneVector, kept: ir.Var, predicate: Any, notes: dict[str, Any]
) -> ir.Stmt:
    """Load the registers of a thread by vectors of as many lanes as may be loaded at once."""
    exists = ir.conjunction([*ir.conjuncts(predicate), *one.exists])

    def vector(part: Any) -> ir.Stmt:
        def element(lane: Any) -> ir.Stmt:
            place = part * one.lanes + lane
            *rows, first = one.first
            index = first + ir.cast_like(place, first)
            load = tirx.BufferLoad(one.tensor, [*rows, index])
            store = ir.BufferStore(kept, load, [place])
            return ir.block_of_store(store, [load], notes)

        return ir.make_loop("lane", one.lanes, element, ir.ForKind.VECTORIZED)

    body = ir.make_loop("part", kept.shape[0] // one.lanes, vector, ir.ForKind.UNROLLED)
    return body if ir.is_const(exists, 1) else ir.IfThenElse(exists, body, None)


@prim_func_pass(opt_level=0, name="tvm_hopper.GatherVectors")
class GatherVectors:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Load vectors in one function's memory-bound kernels."""

        def gather(kernel: ir.For) -> ir.For:
            if not is_memory_bound(kernel) or not (plan := plan_gathers(kernel)):
                return kernel
            after = rewrite_gathers(kernel, plan)
            assert not plan_gathers(after), "GatherVectors left a vector"
            return after

        return ir.map_kernels(func, gather)
