"""Transfers: the copies between global and shared memory, and the mechanism of each.

    for i, j in grid(8, 64):
        with sblock("copy", annotations={"tvm_hopper.async_copy": "tma"}):
            tile[i, j] = if_then_else(m + i < M, A[m + i, j], 0)
  ->
    Transfer(src=A[m + i, j], dst=tile[i, j], condition=m + i < M, fill=0, op=tma_load)

A copy out of a tile may also be a reduction to memory:

    for i, j in grid(8, 64):
        with sblock("copy", async_copy="tma", reduce="add"):
            C[m + i, j] = C[m + i, j] + tile[i, j]
  ->
    Transfer(src=tile[i, j], dst=C[m + i, j], reduce="add", op=tma_reduce)

Which instruction serves a mechanism follows from the memories at both ends: the table of
asynchronous operations has a row for those that there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.access import AffineAccess
from tvm_hopper.analysis.updates import find_update
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts import reductions
from tvm_hopper.facts.async_ops import HINTED, ON_CHIP, AsyncOp, find_copy_op, find_mechanisms
from tvm_hopper.requests.keys import (
    ASYNC_COPY,
    ASYNC_OP,
    CACHE_HINT,
    REDUCE,
    SPARE_ROWS,
    STORE_SLOTS,
    WITH_HINT,
)

SHARED = "shared.dyn"  # a kernel has one shared memory, whose extent is given at its launch
_SPACES = {"": "global", "global": "global", SHARED: "shared", ir.VTCM: "vtcm"}


@dataclass(frozen=True)
class Transfer:
    """One store of a load in perfectly nested loops, in one block that requests a mechanism.

    - `nest`: the outermost of the loops.
    - `block`: the block with the annotation, inside of all loops.
    - `src`, `dst`: the accesses at both ends; one is in global memory, the other one in shared
      memory or VTCM.
    - `condition`: the predicate of an `if_then_else(condition, load, fill)`, else None. A predicate
      on the store is part of it.
    - `fill`: what is stored where the condition does not hold.
    - `must_fill`: what the condition leaves out is stored as `fill`, as the program says.
    - `is_partial`: there is a predicate on the store: what it leaves out of a tile may be filled
      where nobody reads the elements that the store left alone; what it leaves out of a tensor may
      not.
    - `op`: the row of the table of asynchronous operations that serves the mechanism.
    - `reduce`: the operation that combines what is moved with what is there; empty: it replaces
      that.
    """

    nest: ir.Stmt
    block: ir.SBlock
    src: AffineAccess
    dst: AffineAccess
    condition: Any
    fill: Any
    is_partial: bool
    must_fill: bool
    op: AsyncOp
    reduce: str = ""

    @property
    def loops(self) -> tuple[ir.For, ...]:
        """The loops of the nest, outermost first."""
        return self.src.loops

    @property
    def fills_shared(self) -> bool:
        """Tell whether the tile is the destination."""
        return self.op.is_load

    @property
    def tile(self) -> AffineAccess:
        """The end on chip."""
        return self.dst if self.fills_shared else self.src

    @property
    def tensor(self) -> AffineAccess:
        """The end in global memory."""
        return self.src if self.fills_shared else self.dst

    @property
    def num_bytes(self) -> int | None:
        """Bytes that are moved where the condition holds everywhere; None: not known statically."""
        extents = [ir.static_int(loop.extent) for loop in self.loops]
        known = [extent for extent in extents if extent is not None]
        return prod(known) * self.src.element_bytes if len(known) == len(extents) else None

    @property
    def where(self) -> str:
        """Name the transfer in an error message."""
        return f"copy of {self.src.buffer.name} into {self.dst.buffer.name}"


def find_transfers(root: Any) -> tuple[Transfer, ...]:
    """Return the annotated copies below `root`, in order; refuse any other annotated block."""
    found: list[Transfer] = []
    inside: set[Any] = set()

    def visit(stmt: ir.Stmt) -> None:
        loops, body = ir.loop_nest(stmt)
        if not isinstance(body, ir.SBlockRealize) or ASYNC_COPY not in body.block.annotations:
            return
        if body.block in inside:
            return
        inside.add(body.block)
        found.append(_transfer(stmt, tuple(loops), body))

    for loop in ir.find_all(root, ir.For, lambda x: x.kind != ir.ForKind.THREAD_BINDING):
        visit(loop)
    for block in ir.find_blocks(root, ASYNC_COPY):
        if block not in inside:
            raise cannot_lower(
                f"block {block.name_hint}", "a copy without loops", "loops over a tile's rows"
            )
    return tuple(found)


def _transfer(nest: ir.Stmt, loops: tuple[ir.For, ...], realize: ir.SBlockRealize) -> Transfer:
    block = realize.block
    where = f"block {block.name_hint}, {ASYNC_COPY}"
    store = block.body
    if not isinstance(store, ir.BufferStore):
        raise cannot_lower(where, type(store).__name__, "one store into shared memory")
    reduce = _reduction(where, block, store)
    value, condition, fill = store.value, None, None
    update = find_update(store) if reduce else None
    if update is not None:
        value = update.value
    value = _without_round_trip(value)
    if isinstance(value, ir.Call) and value.op.name.endswith("if_then_else"):
        condition, value, fill = value.args
    if not isinstance(value, ir.TensorLoad):
        raise cannot_lower(
            where,
            f"{store.value}",
            "a plain load: the hardware copies bytes as they are",
            "compute on the tile after it has arrived",
        )
    op = _op(where, str(block.annotations[ASYNC_COPY]), value.source, store.buffer, bool(reduce))
    if reduce:
        _check_type(where, op, reduce, ir.dtype_of(store.buffer))
    if condition is not None and not op.is_load:
        raise cannot_lower(
            where,
            f"{store.value}",
            "a store of the tile's own elements",
            "bound the block (T.where), which omits elements outside",
        )
    if STORE_SLOTS in block.annotations and op.writes == "shared":
        raise cannot_lower(
            f"block {block.name_hint}, {STORE_SLOTS}",
            "slots of a store on a load",
            "them on the block that copies the tile to global memory",
            "a ring of loads has as many slots as the pipeline has stages",
        )
    if CACHE_HINT in block.annotations and not op.takes_hint:
        raise cannot_lower(
            f"block {block.name_hint}, {CACHE_HINT}",
            f"{block.annotations[CACHE_HINT]!r} on {op.name}",
            f"a load by {' or '.join(map(repr, HINTED))}, which takes L2 hints",
            "leave it out",
        )
    if SPARE_ROWS in block.annotations and not op.is_load:
        raise cannot_lower(
            f"block {block.name_hint}, {SPARE_ROWS}",
            f"spare rows on {op.name}",
            "them on the load of a tile: stores omit these rows anyway",
            "leave it out",
        )
    is_partial = not ir.is_const(realize.predicate, 1)
    if is_partial:
        has_both = condition is not None
        condition = tirx.And(realize.predicate, condition) if has_both else realize.predicate
        fill = fill if has_both else tirx.const(0, ir.dtype_of(store.buffer))
    return Transfer(
        nest,
        block,
        AffineAccess(value.source, tuple(value.indices), loops),
        AffineAccess(store.buffer, tuple(store.indices), loops),
        condition,
        fill,
        is_partial,
        isinstance(store.value, ir.Call) and not reduce,
        op,
        reduce,
    )


def _without_round_trip(value: Any) -> Any:
    """Take back what TVM makes of a choice between float8 elements: it makes it in float32.

    float8(if_then_else(c, float32(a), float32(b))) is if_then_else(c, a, b).
    """
    if not isinstance(value, tirx.Cast) or not isinstance(value.value, ir.Call):
        return value
    call, dtype = value.value, ir.dtype_of(value)
    if not call.op.name.endswith("if_then_else"):
        return value
    condition, *chosen = call.args
    if not all(isinstance(x, tirx.Cast) and ir.dtype_of(x.value) == dtype for x in chosen):
        return value
    return tirx.if_then_else(condition, *(x.value for x in chosen))


def load_call(transfer: Transfer, name: str) -> str:
    """Return the name of a call that loads, with what L2 is to do with the bytes where it is."""
    hint = transfer.block.annotations.get(CACHE_HINT)
    return name if hint is None else f"{name}{WITH_HINT}{hint}"


def operation_notes(transfer: Transfer) -> dict[str, Any]:
    """Return the annotations of the block of operations that stands for a transfer."""
    old = transfer.block.annotations
    kept = {key: old[key] for key in (STORE_SLOTS, REDUCE) if key in old}
    return {ASYNC_OP: transfer.op.name, **kept}


def _reduction(where: str, block: ir.SBlock, store: ir.BufferStore) -> str:
    """Return the operation that a block requests, which has to be what its statement computes."""
    asked = str(block.annotations.get(REDUCE, ""))
    update = find_update(store)
    computed = "" if update is None else update.operation
    if asked == computed:
        return asked
    name = store.buffer.name
    found = f"an update of {name} by {computed!r}" if computed else f"no update of {name} in place"
    if asked:
        raise cannot_lower(
            f"{where}, {REDUCE} = {asked!r}",
            found,
            f"{name}[...] = {name}[...] {asked} tile[...]",
            f"request {computed!r}" if computed else f"remove {REDUCE}",
        )
    raise cannot_lower(
        where,
        found,
        f"{REDUCE} = {computed!r} next to it, which lets each element be combined in any order",
        f'request it: hs.async_store(..., reduce="{computed}")',
    )


def _check_type(where: str, op: AsyncOp, reduce: str, dtype: str) -> None:
    """Refuse a reduction that the hardware does not have for elements of a type."""
    mechanism = str(op.mechanism)
    if reductions.is_legal(mechanism, reduce, dtype):
        return
    legal = reductions.LEGAL[mechanism][reduce]
    fix = "let threads combine them"
    for other in (x for x in reductions.LEGAL if reductions.is_legal(x, reduce, dtype)):
        fix = f"take {other!r}, which has it"
    raise cannot_lower(
        f"{where}, {REDUCE} = {reduce!r}", f"elements of {dtype}", f"one of {', '.join(legal)}", fix
    )


def _op(where: str, mechanism: str, src: ir.Var, dst: ir.Var, combines: bool) -> AsyncOp:
    """Find the operation that serves a mechanism between two memories."""
    reads, writes = (_SPACES.get(str(x.scope()), "") for x in (src, dst))
    op = find_copy_op(mechanism, reads, writes, combines)
    if op is not None:
        return op
    if combines:
        raise cannot_lower(
            f"{where}, {REDUCE}",
            f"{mechanism!r} from {reads or src.scope()} memory to {writes or dst.scope()}",
            "a reduction from shared memory to global memory, by 'bulk' or 'tma'",
        )
    able = find_mechanisms(reads, writes)
    if (reads, writes) == ("shared", "global"):
        raise cannot_lower(
            where,
            f"a store by {mechanism!r}",
            f"a mechanism that stores: {' or '.join(map(repr, able))}",
            "request one of these, or let threads store the tile",
        )
    if able:
        raise cannot_lower(
            where,
            f"{mechanism!r} from {reads} memory to {writes}",
            f"a mechanism that copies between them: {' or '.join(map(repr, able))}",
        )
    if writes not in ON_CHIP and reads in ON_CHIP:
        raise cannot_lower(
            where,
            f"a store by {mechanism!r} from scope {src.scope()!r}",
            "a load: nothing stores from there asynchronously",
            "leave the store a loop",
        )
    if writes not in ON_CHIP:
        raise cannot_lower(
            where,
            f"a store into {dst.name} in scope {dst.scope()!r}",
            f"a store into {SHARED}, the one shared memory of a kernel",
            f'make the block with cache_read(..., "{SHARED}")',
        )
    raise cannot_lower(
        where,
        f"a load from {src.name} in scope {src.scope()!r}",
        "a load from global memory",
    )
