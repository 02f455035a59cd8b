"""Registers that a statement writes or counts up."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvm_hopper.sim.coverage.expressions import Expressions, integer_type
from tvm_hopper.sim.coverage.nodes import INNER, Node
from tvm_hopper.sim.tir import CUDA, PTX, decode_ptx, dtype_of, op_name, short_name
from tvm_hopper.sim.walk import walk_nodes

_ACCUMULATING = PTX + "wgmma_mma_async"


def written_registers(root: Any) -> set[Any]:
    """Return the register buffers that a statement may write."""
    found: set[Any] = set()

    def store(node: tirx.BufferStore) -> None:
        if _is_local(node.buffer):
            found.add(node.buffer)

    def call(node: ir.Call) -> None:
        name = op_name(node)
        if name.startswith(_ACCUMULATING):
            found.add(node.args[0].source)
            return
        if (ptx := decode_ptx(node)) is not None:
            found.update(x.source for x in ptx.results if _is_local(x.source))
            return
        for arg in node.args:  # a pointer to registers, or a register by name
            if isinstance(arg, ir.TensorLoad) and name.startswith(CUDA):
                target = arg
            elif isinstance(arg, ir.Call) and short_name(arg) in ("address_of", "buffer_data"):
                target = arg.args[0]
            else:
                continue
            buffer = getattr(target, "source", target)
            if hasattr(buffer, "scope") and _is_local(buffer):
                found.add(buffer)

    walk_nodes(root, [(tirx.BufferStore, store), (ir.Call, call)])
    return found


def _is_local(buffer: Any) -> bool:
    try:
        scope = buffer.scope()
    except (AttributeError, TypeError, ValueError):
        return False
    return scope == "" or scope.startswith("local")


def counted(body: Any, expressions: Expressions) -> dict[tuple[Any, int], Node]:
    """Return registers that each iteration of a loop increases once, by the same amount everywhere.

    The increase is in the body's outermost sequence, and nothing else writes the buffer.
    """
    stores: dict[Any, list[Any]] = {}
    others: set[Any] = set()

    def store(node: tirx.BufferStore) -> None:
        if _is_local(node.buffer):
            stores.setdefault(node.buffer, []).append(node)

    walk_nodes(body, [(tirx.BufferStore, store)])
    walk_nodes(body, [(tirx.Evaluate, lambda node: others.update(written_registers(node)))])
    found: dict[tuple[Any, int], Node] = {}
    for node in _outermost(body):
        if not isinstance(node, tirx.BufferStore) or node.buffer in others:
            continue
        if len(stores.get(node.buffer, [])) != 1 or len(node.indices) != 1:
            continue
        index, value = expressions.node(node.indices[0]).constant, node.value
        if index is None or not isinstance(value, tirx.Add):
            continue
        if integer_type(dtype_of(value)) is None:
            continue
        for operand, by in ((value.a, value.b), (value.b, value.a)):
            same = (
                isinstance(operand, ir.TensorLoad)
                and operand.source.same_as(node.buffer)
                and expressions.node(operand.indices[0]).constant == index
            )
            step = expressions.node(by) if same else None
            if step is not None and not step.unknown and not step.has(INNER):
                found[node.buffer, index] = step
    return found


def _outermost(body: Any) -> list[Any]:
    if isinstance(body, tirx.SeqStmt):
        return [node for inner in body.seq for node in _outermost(inner)]
    if isinstance(body, tirx.AttrStmt):
        return _outermost(body.body)
    return [body]
