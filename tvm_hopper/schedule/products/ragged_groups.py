"""Recognise grouped products: how many rows a group has is read from a tensor.

    for e in range(8):
        for i in range(P[e + 1] - P[e]):
            C[P[e] + i, j] += A[P[e] + i, k] * B[e, j, k]
  ->
    RaggedGroups(group e, row i, count P[e + 1] - P[e])

`for i in range(256): where i < L[e]` is the same with groups of at most 256 rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.tirx import IterVar

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule

from .fuse import with_prologue
from .recognize import require_contraction


@dataclass(frozen=True)
class GroupNest:
    """Plain loops of several iterations around one store, which is in terms of their variables."""

    stmt: Any
    node: Any
    loops: tuple[Any, ...]
    store: Any
    conditions: tuple[Any, ...]

    def at(self, expr: Any) -> Any:
        """Return what an expression of the block means in terms of the loops."""
        loops, realize = ir.loop_nest(self.stmt)
        values = zip(self.node.iter_vars, realize.iter_values, strict=True)
        found = ir.substitute(expr, {x.var: y for x, y in values})
        units = [x.loop_var for x in loops if ir.is_const(x.extent, 1)]
        return ir.substitute(found, {x: ir.cast_like(0, x) for x in units})


@dataclass(frozen=True)
class Rows:
    """A loop whose number of iterations a tensor says.

    - `group`: the loop over groups around it.
    - `row`: the loop.
    - `count`: how many rows a group has, in terms of the variable of `group`.
    """

    group: Any
    row: Any
    count: Any


@dataclass(frozen=True)
class RaggedGroups:
    """A grouped product, and the nests after it that take its elements, the last one to store.

    - `product`: its nest.
    - `rows`: of the product.
    - `load`: the operand that has a row for each of the output, in terms of the loops.
    - `readers`: nests that compute an element each from one of what is in front, in order.
    """

    product: GroupNest
    rows: Rows
    load: Any
    readers: tuple[GroupNest, ...]


def find_groups(func: tirx.PrimFunc, block: str) -> tuple[tirx.PrimFunc, RaggedGroups] | None:
    """Recognise a grouped product; None for other products.

    - returns `func`: the function, with casts of operands inlined.
    - returns `groups`: the product, as it is there.
    - raises ScheduleError: lengths that no table of tiles describes: the message names the loop or
      the tensor.
    """
    nest = None if not isinstance(func.body, ir.SBlockRealize) else _nest_of(func, block)
    if nest is None or _rows_of(nest) is None:
        return None
    sch = with_prologue(func, block)
    if sch is None:
        return None  # `hs.matmul` says why
    func = sch.mod["main"]
    nest = _nest_of(func, block)
    assert nest is not None, "casts are inlined into it"
    rows = _rows_of(nest)
    assert rows is not None, "loops stay as they are"
    where = f"block {block}"
    products = require_contraction(where, nest.node).products[0].loads
    loads = [nest.at(x) for x in products]
    moved = [x for x in loads if ir.depends_on(list(x.indices), [rows.row.loop_var])]
    if len(moved) != 1:
        found = f"{len(moved)} operands that loop {rows.row.loop_var.name} moves"
        raise cannot_schedule(where, found, "one, whose rows are those of the output")
    readers = _readers(func, nest)
    _check_from_zero([nest, *readers])
    return func, RaggedGroups(nest, rows, moved[0], readers)


def _check_from_zero(nests: list[GroupNest]) -> None:
    """Refuse loops that begin elsewhere: a table counts groups and rows from 0."""
    for nest in nests:
        for loop in nest.loops:
            if not ir.is_const(loop.min, 0):
                raise cannot_schedule(
                    f"block {nest.node.name_hint}, loop {loop.loop_var.name}",
                    f"a loop from {loop.min}",
                    "loops from 0 around groups of rows",
                    "add the first row to the index: for i in range(P[e + 1] - P[e]): C[P[e] + i]",
                )


def _nest_of(func: tirx.PrimFunc, block: str) -> GroupNest | None:
    for stmt in ir.statements(func.body.block.body):
        _, realize = ir.loop_nest(stmt)
        if isinstance(realize, ir.SBlockRealize) and str(realize.block.name_hint) == block:
            return _as_nest(stmt)
    return None


def _as_nest(stmt: Any) -> GroupNest | None:
    loops, realize = ir.loop_nest(stmt)
    if not loops or not isinstance(realize, ir.SBlockRealize):
        return None
    node = realize.block
    if not isinstance(node.body, ir.BufferStore):
        return None
    moving = tuple(x for x in loops if not ir.is_const(x.extent, 1))
    nest = GroupNest(stmt, node, moving, node.body, tuple(ir.conjuncts(realize.predicate)))
    return replace(nest, store=nest.at(node.body))


def _rows_of(nest: GroupNest) -> Rows | None:
    """Find the loop whose length a tensor says; None where all lengths are known."""
    every = [(loop, _counts(nest, loop)) for loop in nest.loops]
    found = [(loop, counts) for loop, counts in every if counts]
    if not found:
        return None
    where = f"block {nest.node.name_hint}"
    (row, counts) = found[0]
    around = [x for x in nest.loops if ir.depends_on(counts, [x.loop_var])]
    others = [x for x in nest.conditions if not any(_limits(x, y) for y, _ in found)]
    if len(found) > 1 or len(around) != 1 or others:
        lengths = [f"{x.loop_var.name}<{min(y, key=str)}" for x, y in found]
        raise cannot_schedule(
            where,
            f"loops {lengths} of which tensors say the lengths"
            + (f", and the condition {others[0]}" if others else ""),
            "one such loop, of the rows of a group, inside of one loop over groups",
        )
    if ir.static_int(around[0].extent) is None:
        found_groups = f"{around[0].extent} groups of rows"
        raise cannot_schedule(where, found_groups, "a number of groups that is known")
    count = counts[0]
    for x in counts[1:]:
        count = tirx.min(count, ir.cast_like(x, count))
    return Rows(around[0], row, count)


def _counts(nest: GroupNest, loop: Any) -> list[Any]:
    """Return what bounds a loop, if a tensor says some of it."""
    counts = [loop.extent, *(x.b for x in nest.conditions if _limits(x, loop))]
    return counts if ir.find_all(counts, ir.TensorLoad) else []


def _limits(term: Any, loop: Any) -> bool:
    """Tell whether a condition bounds a loop by what a tensor says."""
    is_bound = isinstance(term, tirx.LT) and loop.loop_var.same_as(term.a)
    return is_bound and bool(ir.find_all(term.b, ir.TensorLoad))


def _readers(func: tirx.PrimFunc, product: GroupNest) -> tuple[GroupNest, ...]:
    """Return the elementwise nests behind a product, of which the last one writes an output."""
    own = list(func.body.block.alloc_buffers)
    found: list[GroupNest] = []
    last = product
    while any(last.store.buffer.same_as(x) for x in own):
        readers = [
            stmt
            for stmt in ir.statements(func.body.block.body)
            if not stmt.same_as(last.stmt) and _reads(stmt, last.store.buffer)
        ]
        nest = _as_nest(readers[0]) if len(readers) == 1 else None
        if nest is None or any(x.iter_type == IterVar.CommReduce for x in nest.node.iter_vars):
            names = [str(x.name_hint) for s in readers for x in ir.find_all(s, ir.SBlock)]
            raise cannot_schedule(
                f"block {product.node.name_hint}",
                f"{last.store.buffer.name}, which blocks {names} read",
                "one elementwise block behind another, the last of which stores the output",
                "keep the rest in a separate function",
            )
        last = nest
        found.append(nest)
    return tuple(found)


def _reads(stmt: Any, buffer: Any) -> bool:
    return bool(ir.find_all(stmt, ir.TensorLoad, lambda x: x.source.same_as(buffer)))


def match_reader(reader: GroupNest, before: Any, rows: Rows) -> dict[Any, Any]:
    """Return what the loops of an elementwise nest are, in terms of those of a product.

    - `reader`: it reads one element of the tensor that `before` writes, at one place.
    - `before` (BufferStore): in terms of the loops of the product.
    - `rows`: of the product.
    - raises ScheduleError: its loops are not those of the elements that it reads.
    """
    loads = ir.find_all(
        reader.store.value, ir.TensorLoad, lambda x: x.source.same_as(before.buffer)
    )
    known: dict[Any, Any] = {}
    own = _rows_of(reader)
    if own is not None:
        known = {own.group.loop_var: rows.group.loop_var, own.row.loop_var: rows.row.loop_var}
    loops = [x.loop_var for x in reader.loops]
    for place, index in zip(loads[0].indices, before.indices, strict=True):
        if place in loops and place not in known:
            known[place] = ir.cast_like(index, place)
    same = all(
        _is_same(ir.substitute(x, known), y)
        for load in loads
        for x, y in zip(load.indices, before.indices, strict=True)
    )
    takes_all = _runs_over_all(reader, loads[0], own, known, rows)
    if not same or len(known) < len(loops) or not takes_all:
        raise cannot_schedule(
            f"block {reader.node.name_hint}",
            f"a read of {before.buffer.name}{list(loads[0].indices)} in loops "
            f"{[str(x.name) for x in loops]}",
            f"loops over the elements of {before.buffer.name}{list(before.indices)}",
            "keep it in a separate function",
        )
    return known


def _is_same(one: Any, other: Any) -> bool:
    difference = ir.simplify(ir.cast_like(one, other) - other)
    return bool(tvm_ffi.structural_equal(difference, ir.cast_like(0, other)))


def _runs_over_all(
    reader: GroupNest, load: Any, own: Rows | None, known: dict[Any, Any], rows: Rows
) -> bool:
    """Tell whether a reader takes each element of what it reads, and no others, once."""
    if own is None and reader.conditions:
        return False
    if own is not None and not _is_same(ir.substitute(own.count, known), rows.count):
        return False
    counted = None if own is None else own.row
    extents = {x.loop_var: x.extent for x in reader.loops if x is not counted}
    sizes = zip(load.indices, load.source.shape, strict=True)
    return all(_is_same(extents[x], n) for x, n in sizes if x in extents)
