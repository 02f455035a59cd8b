"""Load the next row's scalars while the current row is computed.

    for r in serial(63, annotations={"tvm_hopper.prefetch_rows": 1}):
        ...
        with sblock("sum"):
            where(r * 16 + bx < 1000)
            total[v] = total[v] + tile[v] * R[r * 16 + bx]
  ->
    if bx < 1000: R_next[0] = R[bx]
    for r in serial(63, annotations={"tvm_hopper.prefetch_rows": 1}):
        R_now[0] = R_next[0]
        if r + 1 < 63 and (r + 1) * 16 + bx < 1000: R_next[0] = R[(r + 1) * 16 + bx]
        ...
            total[v] = total[v] + tile[v] * R_now[0]

Rows are on their way to the chip before their iteration, by request. Otherwise each iteration would
wait for values such as a mean that the forward pass has kept.

Before: accesses are plain loads.  After: loops that request rows ahead load no such value of
their own iteration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.requests.bodies import is_memory_bound
from tvm_hopper.requests.keys import PREFETCH_ROWS, STAGE_ROWS
from tvm_hopper.transforms.kernel_pass import kernel_step


@dataclass(frozen=True)
class RowScalar:
    """A loop, a value that it loads for its row, and when that row exists."""

    loop: ir.For
    load: ir.TensorLoad
    exists: Any


def plan_row_scalars(kernel: ir.For) -> tuple[RowScalar, ...]:
    """Find the scalars of rows that loops load in the same iteration."""
    found: list[RowScalar] = []
    axes = ir.thread_axes(kernel)
    threads = [x.loop_var for tag, x in axes.items() if tag == "threadIdx.x"]
    for loop in ir.find_all(kernel, ir.For, _is_asked):
        inside = [*threads, *(x.loop_var for x in ir.find_all(loop.body, ir.For))]
        written = [x.buffer for x in ir.find_all(kernel, ir.BufferStore)]
        for realize in ir.find_all(loop.body, ir.SBlockRealize):
            if isinstance(realize.block.body, ir.For) or ir.find_all(
                realize.block.body, ir.SBlockRealize
            ):
                continue  # blocks around others
            for load in ir.find_all(realize.block.body, ir.TensorLoad):
                place = list(load.indices)
                if (
                    str(load.source.scope()) in ("", "global")
                    and ir.depends_on(place, [loop.loop_var])
                    and not ir.depends_on(place, inside)
                    and not ir.find_all(load.indices[0], ir.TensorLoad)
                    and not any(load.source.same_as(x) for x in written)
                    and not any(_same(x, loop, load) for x in found)
                ):
                    exists = _of_row(realize.predicate, [*inside])
                    found.append(RowScalar(loop, load, exists))
    return tuple(found)


def _is_asked(loop: ir.For) -> bool:
    return PREFETCH_ROWS in loop.annotations or STAGE_ROWS in loop.annotations


def _same(one: RowScalar, loop: ir.For, load: ir.TensorLoad) -> bool:
    return one.loop.same_as(loop) and bool(tvm_ffi.structural_equal(one.load, load))


def _of_row(predicate: Any, inside: list[Any]) -> Any:
    """Return the terms of a condition that do not depend on elements of the row."""
    return ir.conjunction(x for x in ir.conjuncts(predicate) if not ir.depends_on(x, inside))


def rewrite_row_scalars(kernel: ir.For, plan: tuple[RowScalar, ...]) -> Any:
    """Load the planned values an iteration earlier."""
    names = ir.Names(x.name for x in ir.find_all(kernel, ir.Var))
    buffers, planned = [], {}
    for loop in {x.loop: None for x in plan}:
        values = [x for x in plan if x.loop.same_as(loop)]
        start, body, more = _ahead(loop, values, names)
        planned[loop] = ir.seq(*start, ir.with_body(loop, body))
        buffers += more
    return ir.allocate_in(ir.replace_nodes(kernel, ir.For, planned), buffers)


def _ahead(
    loop: ir.For, values: list[RowScalar], names: ir.Names
) -> tuple[list[ir.Stmt], ir.Stmt, list[ir.Var]]:
    """Return what is before a loop, its body, and the registers of both."""
    start, front, buffers, inner = [], [], [], loop.body
    for one in values:
        name, dtype = one.load.source.name, ir.dtype_of(one.load)
        now, later = (
            ir.new_buffer(names.take(f"{name}_{x}"), (1,), dtype, "local") for x in ("now", "next")
        )
        start.append(ir.BufferStore(later, tirx.const(0, dtype), [0]))
        start.append(_load(one, later, tirx.IntImm(ir.dtype_of(loop.loop_var), 0)))
        front.append(ir.BufferStore(now, tirx.BufferLoad(later, [0]), [0]))
        front.append(_load(one, later, loop.loop_var + 1))
        inner = _with(inner, one, now)
        buffers += [now, later]
    return start, ir.seq(*front, inner), buffers


def _load(one: RowScalar, to: ir.Var, turn: Any) -> ir.Stmt:
    """Load the value of an iteration, if the loop has it and its row exists."""
    place = {one.loop.loop_var: turn}
    index = [ir.simplify(ir.substitute(x, place)) for x in one.load.indices]
    terms = [ir.simplify(turn < one.loop.extent)]
    terms += ir.conjuncts(ir.simplify(ir.substitute(one.exists, place)))
    store = ir.BufferStore(to, tirx.BufferLoad(one.load.source, index), [0])
    terms = [x for x in terms if not ir.is_const(x, 1)]
    return ir.IfThenElse(ir.conjunction(terms), store, None) if terms else store


def _with(body: ir.Stmt, one: RowScalar, now: ir.Var) -> Any:
    def load(node: ir.TensorLoad) -> Any:
        return tirx.BufferLoad(now, [0]) if tvm_ffi.structural_equal(node, one.load) else node

    return ir.replace(body, ir.TensorLoad, load)


prefetch_row_scalars = kernel_step(plan_row_scalars, rewrite_row_scalars, when=is_memory_bound)
