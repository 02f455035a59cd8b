"""Rewrite TIR: every change of a tree uses one of these functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tvm_ffi
from tvm import tirx

from .build import cast_like, full_region, new_buffer, seq, simplify, with_block, with_body
from .types import (
    BufferStore,
    Call,
    Evaluate,
    For,
    SBlock,
    SeqStmt,
    Stmt,
    TensorLoad,
    TensorRegion,
    Var,
)
from .walk import (
    ACCESS_PTR,
    dtype_of,
    find_all,
    is_const,
    kernels,
    pointer_of,
    statements,
    type_index,
)

# Without the signatures of callbacks, which `tvm_ffi.structural_mutate` requests at each call.
_mutate = tvm_ffi.get_global_func("ffi.StructuralMutate")


def substitute(node: Any, values: Mapping[Var, Any]) -> Any:
    """Replace uses of variables and buffers; an integer value takes its variable's type."""
    if not values:
        return node
    typed: dict[Var, Any] = {}  # of what occurs: most of what is requested does not

    def new(var: Var) -> Any:
        if var not in typed:
            typed[var] = cast_like(values[var], var) if var in values else var
        return typed[var]

    return tvm_ffi.structural_map(node, [(Var, new)])


def replace(root: Any, kind: type, new: Callable[[Any], Any]) -> Any:
    """Offer every node of one type, outermost first, to `new`, which returns it or a replacement.

    Nodes inside a replacement are offered too, so `new` must leave its own result alone.
    """
    return tvm_ffi.structural_map(root, [(kind, new)], order="pre")


def without_annotations(root: Any, *keys: str) -> Any:
    """Return a tree whose loops lack the annotations `keys`; loops that have none are kept."""

    def plain(loop: For) -> For:
        rest = {k: v for k, v in loop.annotations.items() if k not in keys}
        kept = len(rest) == len(loop.annotations)
        return loop if kept else with_body(loop, loop.body, annotations=rest)

    return replace(root, For, plain)


def replace_nodes(root: Any, kind: type, planned: Mapping[Any, Any]) -> Any:
    """Replace planned nodes, found by identity, without looking into the replacements."""

    def visit(node: Any, mutator: Any) -> Any:
        new = planned.get(node)
        return mutator.default_mutate(node) if new is None else new

    return mutate(root, [(kind, visit)])


def drop_empty(root: Any) -> Any:
    """Take statements that do nothing, as `seq()` makes them, out of their sequences.

    Not by a map in post order: tvm_ffi corrupts memory where a callback of one raises.
    """

    def drop(body: SeqStmt, mutator: Any) -> Stmt:
        kept = mutator.default_mutate(body)
        return seq(*(x for x in statements(kept) if not _is_empty(x)))

    return mutate(root, [(SeqStmt, drop)])


def _is_empty(stmt: Stmt) -> bool:
    return isinstance(stmt, Evaluate) and is_const(stmt.value, 0)


def fresh_variables(stmt: Any) -> Any:
    """Copy statements that are twice in a function: each defines variables and buffers again."""
    blocks = find_all(stmt, SBlock)
    defined = [loop.loop_var for loop in find_all(stmt, For)]
    defined += [bind.var for bind in find_all(stmt, tirx.Bind)]
    defined += [axis.var for block in blocks for axis in block.iter_vars]
    new = {var: Var(var.name, dtype_of(var)) for var in defined}
    for buffer in (x for block in blocks for x in block.alloc_buffers):
        alignment = int(buffer.ty.data_alignment)
        new[buffer] = new_buffer(
            buffer.name, tuple(buffer.shape), dtype_of(buffer), str(buffer.scope()), alignment
        )
    return substitute(stmt, new)


def map_kernels(func: tirx.PrimFunc, change: Callable[[For], Stmt]) -> tirx.PrimFunc:
    """Offer each kernel of a function to `change`, which returns it or its replacement."""
    planned = {kernel: change(kernel) for kernel in kernels(func)}
    planned = {old: new for old, new in planned.items() if not old.same_as(new)}
    return func.with_body(replace_nodes(func.body, For, planned)) if planned else func


def reindex(
    root: Any,
    buffer: Var,
    new_buffer: Var,
    index: Callable[[list[Any]], list[Any]],
    region: Callable[[list[Any]], list[Any]],
    but: Iterable[SBlock] = (),
) -> Any:
    """Move every access of a buffer, except those in the blocks `but`, to another one.

    `index` maps the indices of a load or store, `region` the `Range`s of a block's read or write.
    A pointer goes where its first element goes: elements after it must keep their order.
    """
    kept = set(but)

    def load(node: TensorLoad, mutator: Any) -> TensorLoad:
        node = mutator.default_mutate(node)
        if not node.source.same_as(buffer):
            return node
        return tirx.BufferLoad(new_buffer, index(list(node.indices)))

    def store(node: BufferStore, mutator: Any) -> BufferStore:
        node = mutator.default_mutate(node)
        if not node.buffer.same_as(buffer):
            return node
        return BufferStore(new_buffer, node.value, index(list(node.indices)))

    def touch(node: TensorRegion, mutator: Any) -> TensorRegion:
        if not node.source.same_as(buffer):
            return mutator.default_mutate(node)
        return tirx.BufferRegion(new_buffer, region(list(node.region)))

    def point(node: Call, mutator: Any) -> Any:
        if buffer.same_as(pointer_of(node)):
            first = index([tirx.IntImm(dtype_of(x), 0) for x in buffer.shape])
            if all(is_const(x, 0) for x in first):
                return new_buffer.data
            return tirx.address_of(tirx.BufferLoad(new_buffer, first))
        if node.op.name != ACCESS_PTR or not buffer.same_as(pointer_of(node.args[1])):
            return mutator.default_mutate(node)
        kind, _, start, extent, mask = node.args
        first = index([tirx.IntImm(dtype_of(x), 0) for x in buffer.shape])
        start = simplify(mutator.mutate(start) + flat_index(new_buffer, first))
        return Call(node.op, [kind, new_buffer.data, start, extent, mask], ret_ty=node.ty)

    def enter(node: SBlock, mutator: Any) -> SBlock:
        return node if node in kept else mutator.default_mutate(node)

    callbacks = [(TensorLoad, load), (BufferStore, store), (TensorRegion, touch), (Call, point)]
    return mutate(root, [*callbacks, (SBlock, enter)])


def flat_index(buffer: Var, indices: list[Any]) -> Any:
    """Return the number of an element of a compact buffer."""
    flat: Any = 0
    for extent, index in zip(buffer.shape, indices, strict=True):
        flat = flat * extent + index
    return flat


def move_regions(root: Any, buffers: Mapping[Var, Var]) -> Any:
    """Let the read and write regions of blocks name other buffers, each as a whole."""

    def touch(node: TensorRegion) -> TensorRegion:
        new = buffers.get(node.source)
        return node if new is None else full_region(new)

    return tvm_ffi.structural_map(root, [(TensorRegion, touch)], order="pre")


def mutate(root: Any, callbacks: list[tuple[type, Callable[[Any, Any], Any]]]) -> Any:
    """Rewrite with callbacks that own the descent: `(node, mutator) -> node`."""
    return _mutate(root, [(type_index(kind), call, False) for kind, call in callbacks])


def replace_schedule(sch: Any, by: Any) -> None:
    """Let a schedule's Python object stand for another schedule: TVM has no primitive for it."""
    sch.__move_handle_from__(by)


class Names:
    """Names that are used once: two tensors of a program may have the same."""

    def __init__(self, used: Iterable[str] = ()) -> None:
        self._used = set(used)

    def take(self, name: str) -> str:
        """Return the name, numbered if it is taken already."""
        free, number = name, 0
        while free in self._used:
            number += 1
            free = f"{name}_{number}"
        self._used.add(free)
        return free


def allocate_in(kernel: Any, buffers: Iterable[Var]) -> Any:
    """Allocate more arrays in the outermost block of a kernel."""
    outer = find_all(kernel, SBlock)[0]
    more = with_block(outer, alloc_buffers=[*outer.alloc_buffers, *buffers])
    return replace_nodes(kernel, SBlock, {outer: more})


def reallocate(body: Any, old: Var, new: Var) -> Any:
    """Allocate one array in place of another; accesses stay as they are."""

    def allocate(block: SBlock) -> SBlock:
        if not any(x.same_as(old) for x in block.alloc_buffers):
            return block
        buffers = [new if x.same_as(old) else x for x in block.alloc_buffers]
        return with_block(block, alloc_buffers=buffers)

    return replace(body, SBlock, allocate)
