"""Rebuild statements with other bodies."""

from __future__ import annotations

from tvm import tirx

from tvm_hopper import ir


def with_block_body(realize: ir.SBlockRealize, body: ir.Stmt) -> ir.Stmt:
    """Put another body into a block that is looked through."""
    return ir.SBlockRealize([], True, ir.with_block(realize.block, body=body))


def with_attr_body(attr: tirx.AttrStmt, body: ir.Stmt) -> ir.Stmt:
    """Put another body under an attribute."""
    return tirx.AttrStmt(attr.node, attr.attr_key, attr.value, body)


def with_arms(stmt: ir.IfThenElse, parts: list[ir.Stmt]) -> ir.Stmt:
    """Put other arms into a branch; an empty one that was not there stays away."""
    then, other = parts
    is_empty = isinstance(other, ir.Evaluate) and ir.is_const(other.value, 0)
    none = stmt.else_case is None and is_empty
    return ir.IfThenElse(stmt.condition, then, None if none else other)
