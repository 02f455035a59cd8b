"""Load the column vectors of an epilogue before the sum, two elements at a time.

    for i in range(128): acc[i] = 0
    for k in ...: mma(acc, ...)
    for g, h, e: D[row(h), n + col(g, e)] = acc[4 g + 2 h + e] + bias[n + col(g, e)]
  ->
    for i in range(128): acc[i] = 0
    for g: ahead[2 g + 0:2] = bias[n + col(g, 0) + 0:2]
    for k in ...: mma(acc, ...)
    for g, h, e: D[row(h), n + col(g, e)] = acc[4 g + 2 h + e] + ahead[2 g + e]

Used by LowerWgmma. After the sum the tensor cores would wait for memory; before it nothing waits,
and two elements of 16 bits share a register. Loads stay where they are if the accumulator leaves
too few registers, or if one of two neighbours may be out of bounds. So do loads that the program
itself makes a choice (`if_then_else(j < 100, bias[j], 0)`), and loads of rows, of which a thread
has few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.vector_runs import is_run_in_bounds, shared_condition
from tvm_hopper.codegen_patches.hold import hold_all
from tvm_hopper.facts import registers
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.programming_model import WARP_GROUP_THREADS

from . import fragment_layout
from .fragment_loops_plan import FragmentNest
from .lower_wgmma_plan import MmaPlan

PAIR_BYTES = 4
RESERVED_REGISTERS = 40  # registers of a thread next to the accumulator and what is loaded ahead


@dataclass(frozen=True)
class PrefetchedVector:
    """A load by columns, and the registers that have its elements instead."""

    load: ir.TensorLoad
    buffer: ir.Var


def plan_loads(
    nest: FragmentNest, plans: tuple[MmaPlan, ...], axis: ir.Var
) -> tuple[PrefetchedVector, ...]:
    """Choose what a nest over the accumulator has loaded ahead."""
    plan, column, row = plans[0], nest.column.loop_var, nest.row.loop_var
    moving = [loop.loop_var for loop in nest.parts]
    if nest.reads or moving or nest.column_start or nest.columns != plan.n:
        return ()
    own = [column, row, *(loop.loop_var for loop in nest.units)]
    chosen: list[PrefetchedVector] = []
    value = nest.realize.block.body.value
    for load in ir.find_all(value, ir.TensorLoad):
        source = load.source
        if ir.is_by_choice(value, load):
            continue
        if any(tvm_ffi.structural_equal(load, x.load) for x in chosen):
            continue
        plain = (
            str(source.scope()) == "global" and dtype_bytes(ir.dtype_of(source)) * 2 == PAIR_BYTES
        )
        if not plain or not ir.depends_on(list(load.indices), [column]):
            continue
        if ir.depends_on(list(load.indices), own[1:]) or ir.find_all(
            list(load.indices), ir.TensorLoad
        ):
            continue
        name = f"{source.name}_ahead"
        one = PrefetchedVector(
            load, ir.new_buffer(name, (plan.n // 4,), ir.dtype_of(source), "local")
        )
        if _pairs(one, nest, axis) is not None:
            chosen.append(one)
    held = sum(sum(x.held) for x in plans)
    needed = held + len(chosen) * plan.n // 8 + RESERVED_REGISTERS
    return tuple(chosen) if needed <= _available(plan) else ()


def _available(plan: MmaPlan) -> int:
    """Return how many registers a thread has that multiplies, next to a producer."""
    consumers = plan.warp_groups * plan.turns
    split = registers.DEFAULT_SPLIT.get(consumers)
    return 0 if split is None else split[1]


def take_ahead(
    kernel: ir.For, plans: tuple[MmaPlan, ...], fragments: Sequence[Any], axis: ir.Var
) -> None:
    """Let the one of a kernel's stores that reads such vectors have them before the sum."""
    first, *later = fragments
    if not first.is_fill or ir.uses(first.store.value, first.tile.buffer):
        return
    if first.held or first.in_parts:  # no loop is in between, or blocks share it out
        return
    stores = [x for x in later if not x.is_fill]
    found = [(one, loads) for one in stores if (loads := plan_loads(one.nest, plans, axis))]
    if len(found) != 1:
        return
    ((last, loads),) = found
    if _runs_with(kernel, first.nest.nest, last.nest.nest) and not _writes(kernel, loads):
        last.ahead, last.store = loads, read_ahead(last.store, loads)


def _writes(kernel: ir.For, loads: tuple[PrefetchedVector, ...]) -> bool:
    """Tell whether a kernel writes what it would load earlier."""
    written = [region.source for block in ir.find_all(kernel, ir.SBlock) for region in block.writes]
    return any(x.load.source.same_as(y) for x in loads for y in written)


def _runs_with(kernel: ir.For, first: ir.Stmt, nest: ir.Stmt) -> bool:
    """Tell whether two statements run equally often: loops and conditions have both inside."""
    around = ir.find_all(kernel, ir.For) + ir.find_all(kernel, ir.IfThenElse)
    sides = [[ir.uses_node(x, y) and not x.same_as(y) for y in (first, nest)] for x in around]
    return all(a == b for a, b in sides)


def element_ahead(loads: tuple[PrefetchedVector, ...], load: ir.TensorLoad, g: Any, e: Any) -> Any:
    """Return a thread's element e of eight columns g, if a load is of what is loaded ahead."""
    if not any(load.source.same_as(x.buffer) for x in loads):
        return None
    return tirx.BufferLoad(load.source, [ir.simplify(g) * 2 + e])


def read_ahead(store: ir.BufferStore, loads: tuple[PrefetchedVector, ...]) -> ir.BufferStore:
    """Let a store of one element read what is loaded ahead, by a column yet to be numbered."""

    def load(node: ir.TensorLoad, mutator: Any) -> Any:
        for one in loads:
            if tvm_ffi.structural_equal(node, one.load):
                return tirx.BufferLoad(one.buffer, [tirx.IntImm("int32", 0)])
        return mutator.default_mutate(node)

    return ir.mutate(store, [(ir.TensorLoad, load)])


def hold_pairs(loads: tuple[PrefetchedVector, ...]) -> list[Any]:
    """Keep pairs in one register until here: the CUDA compiler would take them apart, and wait."""
    held: list[Any] = []
    for one in loads:
        shape = (int(one.buffer.shape[0]) // 2,)
        words = ir.new_buffer(f"{one.buffer.name}_words", shape, "uint32", "local")
        held += [tirx.DeclBuffer(words, data=one.buffer.data), hold_all(words)]
    return held


def put_ahead(planned: dict[Any, Any], fragments: tuple[Any, ...], axis: ir.Var) -> list[ir.Var]:
    """Put loads after what fills the accumulator first, and return the buffers that they set."""
    for one in (x for x in fragments if x.ahead):
        first = next(x.nest.nest for x in fragments if x.is_fill)
        planned[first] = ir.seq(planned[first], _emit_loads(one.ahead, one.nest, axis))
    return [x.buffer for one in fragments for x in one.ahead]


def _emit_loads(
    loads: tuple[PrefetchedVector, ...], nest: FragmentNest, axis: ir.Var
) -> list[ir.SBlockRealize]:
    return [
        ir.opaque_block(
            one.buffer.name,
            _pairs(one, nest, axis),
            reads=[ir.full_region(one.load.source)],
            writes=[ir.full_region(one.buffer)],
        )
        for one in loads
    ]


def _pairs(one: PrefetchedVector, nest: FragmentNest, axis: ir.Var) -> Any | None:
    """Build a loop over a thread's pairs of columns; None where two may be in bounds apart."""
    lane, e = axis % WARP_GROUP_THREADS, ir.Var("e", "int32")
    units: dict[Any, Any] = {loop.loop_var: 0 for loop in nest.units}
    needed = ir.terms_about(nest.predicate, one.load.indices)
    if ir.depends_on(needed, [nest.row.loop_var]):
        return None

    def pair(g: Any) -> Any | None:
        values = {nest.column.loop_var: fragment_layout.column(g * 4, lane) + e, **units}
        indices = [ir.simplify(ir.substitute(x, values)) for x in one.load.indices]
        condition = ir.substitute(needed, values)
        if not is_run_in_bounds(one.load.source, indices, condition, e, 2):
            return None
        inside = shared_condition(condition, e, 2)
        first = [ir.substitute(x, {e: 0}) for x in indices]
        places = first
        if not ir.is_const(inside, 1):  # an element that is there is in for one that is not
            places = [tirx.Select(inside, x, ir.cast_like(0, x)) for x in first]
        places = [*places[:-1], places[-1] + e]
        value = tirx.BufferLoad(one.load.source, places)
        store = ir.BufferStore(one.buffer, value, [g * 2 + e])
        return ir.For(e, 0, 2, ir.ForKind.VECTORIZED, store)

    if pair(ir.Var("g", "int32")) is None:
        return None
    return ir.make_loop("g", int(nest.columns) // 8, pair, unroll=True)
