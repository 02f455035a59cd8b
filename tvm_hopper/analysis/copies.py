"""Copy nests: the loops that fill one shared tile from a global tensor, and what they read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower
from tvm_hopper.requests.keys import ASYNC_COPY


@dataclass(frozen=True)
class CopyNest:
    """`for ...: with sblock: shared[...] = global[...]`, perfectly nested, annotated `async_copy`.

    `condition` is the predicate of an `if_then_else(condition, global[...], fill)`, else None.  A
    predicate on the store is part of it: what it leaves out is `partial`, and may be filled where
    nobody reads the elements that the store left alone.
    """

    nest: ir.Stmt
    loops: tuple[ir.For, ...]
    block: ir.SBlock
    store: ir.BufferStore
    source: ir.Var
    source_indices: tuple[Any, ...]
    condition: Any
    fill: Any
    partial: bool = False

    @property
    def tile(self) -> ir.Var:
        """The shared buffer that is filled."""
        return self.store.buffer

    @property
    def where(self) -> str:
        """Name the copy in an error message."""
        return f"copy of {self.source.name} into {self.tile.name}"


def find_copies(root: Any) -> tuple[CopyNest, ...]:
    """Return the annotated copies below `root`, in order; refuse any other annotated block."""
    copies: list[CopyNest] = []
    inside: set[Any] = set()

    def visit(stmt: ir.Stmt) -> None:
        loops, body = ir.loop_nest(stmt)
        if not isinstance(body, ir.SBlockRealize) or ASYNC_COPY not in body.block.annotations:
            return
        if body.block in inside:
            return
        inside.add(body.block)
        copies.append(_copy_nest(stmt, tuple(loops), body))

    for loop in ir.find_all(root, ir.For, lambda x: x.kind != ir.ForKind.THREAD_BINDING):
        visit(loop)
    for block in ir.find_blocks(root, ASYNC_COPY):
        if block not in inside:
            raise cannot_lower(
                f"block {block.name_hint}", "a copy without loops", "loops over a tile's rows"
            )
    return tuple(copies)


def _copy_nest(nest: ir.Stmt, loops: tuple[ir.For, ...], realize: ir.SBlockRealize) -> CopyNest:
    block = realize.block
    where = f"block {block.name_hint}, {ASYNC_COPY}"
    store = block.body
    if not isinstance(store, ir.BufferStore):
        raise cannot_lower(where, type(store).__name__, "one store into shared memory")
    if store.buffer.scope() != "shared.dyn":
        raise cannot_lower(
            where,
            f"a store into {store.buffer.name} in scope {store.buffer.scope()!r}",
            "a store into shared.dyn, the one shared memory of a kernel",
            'make the block with cache_read(..., "shared.dyn")',
        )
    value, condition, fill = store.value, None, None
    if isinstance(value, ir.Call) and value.op.name.endswith("if_then_else"):
        condition, value, fill = value.args
    if not isinstance(value, ir.TensorLoad):
        raise cannot_lower(
            where,
            f"{store.value}",
            "a plain load: the hardware copies bytes as they are",
            "compute on the tile after it has arrived",
        )
    if value.source.scope() not in ("", "global"):
        raise cannot_lower(
            where,
            f"a load from {value.source.name} in scope {value.source.scope()!r}",
            "a load from global memory",
        )
    indices, partial = tuple(value.indices), not ir.is_const(realize.predicate, 1)
    if partial:
        has_both = condition is not None
        condition = tirx.And(realize.predicate, condition) if has_both else realize.predicate
        fill = fill if has_both else tirx.const(0, ir.dtype_of(store.buffer))
    return CopyNest(
        nest, loops, block, store, value.source, indices, condition, fill, partial=partial
    )
