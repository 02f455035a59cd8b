"""Recognise reductions over rows that are loaded in parts, as TVM writes them.

own = 0
for part in range(8):
    load X_local
    for c, v in unroll: own = own + X_local[c, v]
reduce across threads: own
S = own
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir


@dataclass(frozen=True)
class RowPass:
    """A reduction of a row that is loaded in parts: its loop, and what is around it."""

    realize: ir.SBlockRealize
    front: tuple[Any, ...]
    loop: ir.For
    part: ir.SBlock  # the body of the loop
    back: tuple[Any, ...]
    update: ir.BufferStore  # of a thread's own value
    result: ir.BufferStore  # of the row's

    @property
    def own(self) -> Any:
        """A thread's own value."""
        return tirx.BufferLoad(self.update.buffer, list(self.update.indices))


def find_row_pass(stmt: Any) -> RowPass | None:
    """Return what a statement is if it reduces a row in parts, each loaded in its iteration."""
    if not isinstance(stmt, ir.SBlockRealize) or not ir.is_const(stmt.predicate, 1):
        return None
    stmts = ir.statements(stmt.block.body)
    loops = [x for x in stmts if isinstance(x, ir.For) and x.kind == ir.ForKind.SERIAL]
    if len(loops) != 1 or not isinstance(loops[0].body, ir.SBlockRealize):
        return None
    place = next(i for i, x in enumerate(stmts) if x.same_as(loops[0]))
    part, back = loops[0].body.block, tuple(stmts[place + 1 :])
    updates = [x for x in ir.find_all(part, ir.BufferStore) if _reads_itself(x)]
    results = [x for y in back for x in ir.find_all(y, ir.BufferStore)]
    across = [x for y in back for x in ir.find_all(y, tirx.AttrStmt)]
    plain = ir.is_const(loops[0].body.predicate, 1)
    if len(updates) != 1 or not results or len(across) != 1 or not plain:
        return None
    return RowPass(stmt, tuple(stmts[:place]), loops[0], part, back, updates[0], results[-1])


def _reads_itself(store: ir.BufferStore) -> bool:
    loads = ir.find_all(store.value, ir.TensorLoad)
    return any(x.source.same_as(store.buffer) for x in loads)
