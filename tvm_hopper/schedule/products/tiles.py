"""Recognise the tile loops around a multiply-add.

    for i0, j0: for k0: for i1, j1, k1: C[i0 * 64 + i1, ...] += A[...] * B[...]
  ->
    rows i1, columns j1, depth k1, inside of k0, the one loop over k around them

Nothing is scheduled here.
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir
from tvm.tirx import IterVar

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule

from .recognize import loops_around

TILE = "rows, columns and depth of a tile in the three innermost loops"


def find_operands(where: str, node: Any) -> list[Any]:
    """Return the shared operands of a multiply-add; one of two may be computed into registers."""
    made = node.writes[0].source
    read = [x.source for x in node.reads if not x.source.same_as(made)]
    shared = [x for x in read if ir.is_shared(x)]
    local = [x for x in read if str(x.scope()) == "local"]
    if (len(shared), len(local)) not in ((2, 0), (1, 1)):
        need = 'two operands in shared memory, by cache_read(block, i, "shared.dyn")'
        fix = 'or compute one of them in the loop over k, in scope "local"'
        raise cannot_schedule(where, f"{len(shared)} shared operands", need, fix)
    return shared


def find_tile(sch: s_tir.Schedule, block: Any) -> tuple[int | None, int | None, int | None]:
    """Return rows, columns and depth of the tile in the three innermost loops; None if symbolic.

    - raises ScheduleError: the loops are no tile: `decompose_reduction` and `blockize` would fail
      on them.
    """
    node = sch.get(block)
    where = f"block {node.name_hint}"
    if not isinstance(node.body, ir.BufferStore):
        raise cannot_schedule(where, type(node.body).__name__, "one multiply-add")
    loops = loops_around(sch, block)
    realize = _alone(where, node, loops)
    if not ir.is_const(realize.predicate, 1):
        raise cannot_schedule(
            where,
            f"the predicate {realize.predicate}, since the tile does not divide the shape",
            "whole tiles",
            "pad the matmul first: hs.pad(sch, block, tile)",
        )
    driven = {
        loop: [
            var.var
            for var, value in zip(node.iter_vars, realize.iter_values, strict=True)
            if ir.depends_on(value, [loop.loop_var])
        ]
        for loop in loops
    }
    reduced = {var.var for var in node.iter_vars if var.iter_type == IterVar.CommReduce}
    over_k = [loop for loop in loops if any(var in reduced for var in driven[loop])]
    if node.init is not None:
        _check_loops_over_k(where, loops, over_k)
    depth = [loop for loop in loops[-3:] if loop in over_k]
    sides = [
        next((loop for loop in loops[-3:] if any(ir.uses(index, v) for v in driven[loop])), None)
        for index in node.body.indices
    ]
    rows_and_columns = [loop for loop in sides if loop is not None]
    if len(depth) != 1 or len(rows_and_columns) != 2:
        names = ", ".join(str(loop.loop_var.name) for loop in loops[-3:])
        need = "a loop over rows, one over columns and one over k"
        raise cannot_schedule(where, f"{names} as the three innermost loops", need, "sch.reorder")
    rows, columns, inner = (ir.static_int(x.extent) for x in (*rows_and_columns, *depth))
    return rows, columns, inner


def _alone(where: str, node: Any, loops: list[Any]) -> Any:
    """Return the realize of the block; refuse others inside of the tile's loops."""
    nest, realize = ir.loop_nest(loops[-3])
    if len(nest) == 3 and isinstance(realize, ir.SBlockRealize) and realize.block.same_as(node):
        return realize
    blocks = ir.find_all(loops[-3], ir.SBlock, lambda x: not x.same_as(node))
    names = ", ".join(str(block.name_hint) for block in blocks)
    raise cannot_schedule(
        where,
        f"{names} next to it, inside of loop {loops[-3].loop_var.name}",
        "the multiply-add alone in the three innermost loops",
        f"move it: sch.compute_at(..., the loop over k) in place of {loops[-3].loop_var.name}",
    )


def _check_loops_over_k(where: str, loops: list[Any], over_k: list[Any]) -> None:
    """Refuse loops between those over k, before which the initial value could not be set."""
    outer = [loop for loop in loops[:-3] if loop in over_k]
    names = [str(loop.loop_var.name) for loop in outer]
    need = f"one loop over k, and directly in it {TILE}"
    if len(outer) > 1:
        found = f"{len(outer)} loops over k ({', '.join(names)}) around the tile"
        raise cannot_schedule(where, found, need, "fuse them, or leave the split away")
    if outer and not outer[0].same_as(loops[-4]):
        found = f"loop {loops[-4].loop_var.name} between the loop over k ({names[0]}) and the tile"
        raise cannot_schedule(where, found, need, f"reorder {names[0]} after it")
