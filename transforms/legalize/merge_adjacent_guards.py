"""Merge adjacent statements with the same guard, where they fill registers.

    if bx * 2 + tx // 512 < n: X[0] = f(X[0])
    if bx * 2 + tx // 512 < n: X[1] = f(X[1])
  ->
    if bx * 2 + tx // 512 < n:
        X[0] = f(X[0])
        X[1] = f(X[1])

Where the last thread block has elements left over, TVM writes the condition of a loop before
every element.  Two halves of a register that are stored one after the other are packed by one
instruction (UnpackHalfPairs); with a condition between them each waits for the one before.

Before: loops are unrolled, registers have numbers.  After: the same values in the same order.
Left alone: conditions that read memory, and statements that do more than fill registers.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.transforms.kernel_pass import planned_pass

PURE = ("shift_left", "shift_right", "bitwise_and", "bitwise_or", "bitwise_xor", "likely")


def plan_joins(func: tirx.PrimFunc) -> dict[ir.SeqStmt, tuple[tuple[ir.Stmt, ...], ...]]:
    """Return the blocks of statements that have such neighbours, cut into runs of them."""
    found = {}
    for block in ir.find_all(func.body, ir.SeqStmt):
        runs: list[list[ir.Stmt]] = []
        for part in ir.statements(block):
            if runs and _is_next(runs[-1][-1], part):
                runs[-1].append(part)
            else:
                runs.append([part])
        if any(len(x) > 1 for x in runs):
            found[block] = tuple(tuple(x) for x in runs)
    return found


def _is_next(first: ir.Stmt, second: ir.Stmt) -> bool:
    if not (_fills_registers(first) and _fills_registers(second)):
        return False
    return bool(tvm_ffi.structural_equal(first.condition, second.condition))


def _fills_registers(part: ir.Stmt) -> bool:
    """Tell a condition, of variables alone, on nothing but names and stores to registers."""
    if not isinstance(part, ir.IfThenElse) or part.else_case is not None:
        return False
    calls = ir.find_all(part.condition, ir.Call)
    names = [str(getattr(x.op, "name", "")).removeprefix("tirx.") for x in calls]
    if ir.find_all(part.condition, ir.TensorLoad) or any(x not in PURE for x in names):
        return False
    return all(
        isinstance(x, tirx.Bind)
        or (isinstance(x, ir.BufferStore) and str(x.buffer.scope()) == "local")
        for x in ir.statements(part.then_case)
    )


def rewrite_joins(
    func: tirx.PrimFunc, plan: dict[ir.SeqStmt, tuple[tuple[ir.Stmt, ...], ...]]
) -> tirx.PrimFunc:
    """Put the statements of each run behind one condition."""

    def block(node: ir.SeqStmt, mutator: Any) -> Any:
        runs = plan.get(node)
        if runs is None:
            return mutator.default_mutate(node)
        parts = []
        for run in runs:
            inner = [mutator.mutate(x) for x in run]
            one = inner[0]
            if len(inner) > 1:
                one = ir.IfThenElse(one.condition, ir.seq(*(x.then_case for x in inner)), None)
            parts.append(one)
        return ir.seq(*parts)

    return func.with_body(ir.mutate(func.body, [(ir.SeqStmt, block)]))


MergeAdjacentGuards = planned_pass("MergeAdjacentGuards", plan_joins, rewrite_joins)
