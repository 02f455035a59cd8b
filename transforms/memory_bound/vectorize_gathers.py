"""Load neighbouring elements as vectors, wherever their index starts.

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
(`schedule/memory_bound/arrays.py`). Otherwise gathered elements (the other half of a rotated pair,
a table's row by index, a column of a head) are loaded one by one. Where the elements of a thread's
vector lie side by side there, too, they are a vector. The two sides of a choice that all its
elements agree on are one load, at the place chosen.

Before: a thread's registers are its own, conditions are on blocks.  After: no register of a
kernel bound by memory is computed from elements that lie side by side and are loaded one by one.
Not here: elements at places that only their own number tells to be neighbours, as those whose
first is no multiple of two; loads under a condition on each element.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.requests.bodies import is_memory_bound
from tvm_hopper.requests.keys import LOAD_HINT
from tvm_hopper.transforms.kernel_pass import kernel_step

from .vectorize_gathers_plan import LaneVector, find_vectors, group_choices

MOST_LANES = 16


@dataclass(frozen=True)
class GatherPlan:
    """A loop over the elements of a thread's vector, and what is loaded before it."""

    loop: ir.For
    value: Any  # of an element, computed from the loads of the vectors
    vectors: tuple[LaneVector, ...]


def plan_gathers(kernel: ir.For) -> tuple[GatherPlan, ...]:
    """Find the loops that load neighbouring elements one by one."""
    found = []
    for loop in ir.find_all(kernel, ir.For, is_over_elements):
        old = loop.body.block.body.value
        value, vectors = find_vectors(loop, old)
        if vectors or not tvm_ffi.structural_equal(value, old):
            found.append(GatherPlan(loop, value, vectors))
    return tuple(found)


def is_over_elements(loop: ir.For) -> bool:
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


def rewrite_gathers(kernel: ir.For, plan: tuple[GatherPlan, ...]) -> ir.For:
    """Load the vectors before each loop."""
    names = ir.Names(x.name for x in ir.find_all(kernel, ir.Var))
    registers: list[ir.Var] = []
    planned = {one.loop: _rewrite(one, names, registers) for one in plan}
    return ir.allocate_in(ir.replace_nodes(kernel, ir.For, planned), registers)


def _rewrite(plan: GatherPlan, names: ir.Names, registers: list[ir.Var]) -> ir.Stmt:
    realize = plan.loop.body
    block, lane = realize.block, plan.loop.loop_var
    hint = {k: v for k, v in block.annotations.items() if k == LOAD_HINT}
    values: dict[Any, Any] = {}
    fronts = []
    groups = group_choices(plan.vectors)
    for group in groups:
        tensor = group[0].tensor
        name, dtype = names.take(f"{tensor.name}_lanes"), ir.dtype_of(tensor)
        kept = ir.new_buffer(name, (int(plan.loop.extent),), dtype, "local", 64)
        registers.append(kept)
        values |= {x: tirx.BufferLoad(kept, [lane]) for one in group for x in one.loads}
        always = tuple(ir.conjuncts(realize.predicate))
        loads = [replace(x, exists=(*always, *x.exists)) for x in group]
        fronts.append(_load_one(loads, kept, hint))
    value = _without_choices(ir.replace_nodes(plan.value, ir.TensorLoad, values))
    store = ir.BufferStore(block.body.buffer, value, block.body.indices)
    notes = {k: v for k, v in block.annotations.items() if not groups or k != LOAD_HINT}
    reads = [ir.full_region(x) for x in registers[len(registers) - len(groups) :]]
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


def _without_choices(value: Any) -> Any:
    """Take one side of choices whose two sides are the same registers."""

    def call(node: ir.Call, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        same = ir.is_choice(node) and tvm_ffi.structural_equal(node.args[1], node.args[2])
        return node.args[1] if same else node

    return ir.mutate(value, [(ir.Call, call)])


def _load_one(vectors: list[LaneVector], kept: ir.Var, notes: dict[str, Any]) -> ir.Stmt:
    """Load that of several vectors whose conditions hold, which is one at most."""
    if len(vectors) == 1:
        return _load(vectors[0], kept, notes)
    condition = vectors[0].exists[0]
    sides: tuple[list[LaneVector], list[LaneVector]] = ([], [])
    for one in vectors:
        is_no = not tvm_ffi.structural_equal(condition, one.exists[0])
        sides[is_no].append(replace(one, exists=one.exists[1:]))
    yes, no = (_load_one(x, kept, notes) if x else None for x in sides)
    return ir.IfThenElse(condition, yes, no)


def _load(one: LaneVector, kept: ir.Var, notes: dict[str, Any]) -> ir.Stmt:
    """Load the registers of a thread by vectors of as many lanes as may be loaded at once."""
    exists = ir.conjunction(one.exists)

    def vector(part: Any) -> ir.Stmt:
        def element(lane: Any) -> ir.Stmt:
            place = part * one.lanes + lane
            index = ir.indices_from(one.first, place, one.tensor.shape)
            load = tirx.BufferLoad(one.tensor, index)
            store = ir.BufferStore(kept, load, [place])
            return ir.block_of_store(store, [load], notes)

        return ir.make_loop("lane", one.lanes, element, ir.ForKind.VECTORIZED)

    body = ir.make_loop("part", kept.shape[0] // one.lanes, vector, ir.ForKind.UNROLLED)
    return body if ir.is_const(exists, 1) else ir.IfThenElse(exists, body, None)


vectorize_gathers = kernel_step(plan_gathers, rewrite_gathers, when=is_memory_bound)
