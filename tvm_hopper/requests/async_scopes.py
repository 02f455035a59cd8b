"""Mark the copies of TVM's asynchronous stages in functions without our keys.

Either a pipeline has them in an asynchronous stage (`software_pipeline_async_stages`), or they are
written into an asynchronous scope and waited for by hand:

    launch_thread("threadIdx.x", 32)                     for tx in thread_binding(32):
        attr("async_scope", 1)                               for i in range(16):
            for i in range(16):                                  for j in vectorized(8):
                for j in vectorized(8):           ->                 with sblock("a", async_copy):
                    a[tx, 8 i + j] = A[...]                              a[tx, 8 i + j] = A[...]
                    b[tx, 8 i + j] = B[...]                              ... b likewise, in loops
        cp.async.commit_group                                            of its own
        cp.async.wait_group 0                                C[...] = a[...] + b[...]
        C[...] = a[...] + b[...]

The groups and waits that are there order these copies alone, and the lowering orders what it
copies by itself: they are taken away with the scope, and threads are loops from then on.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.facts.op_names import CP_ASYNC, RAW_CP_ASYNC
from tvm_hopper.requests import keys, options

from .async_stores import ask_for_stores

SCOPE = "async_scope"
ORDERS = {f"{CP_ASYNC}{name}" for name in ("commit_group", "wait_group", "wait_all")}


def is_asynchronous(func: tirx.PrimFunc) -> bool:
    """Tell whether a function has asynchronous stages or scopes, whatever is in them."""
    return bool(_pipelines(func) or _scopes(func))


def ask_for_copies(func: tirx.PrimFunc, mechanism: str) -> tirx.PrimFunc | None:
    """Let the plain copies into shared memory that are asynchronous request a mechanism.

    - `func`: a function without keys of ours.
    - `mechanism`: a value of `tvm_hopper.async_copy`.
    - returns: None if there is no such copy: the function stays TVM's own.
    """
    found = _ask_in_scopes(func, mechanism)
    asking = _ask_in_stages(func if found is None else found, mechanism)
    asking = found if asking is None else asking
    return asking if asking is None or mechanism != keys.AUTO else ask_for_stores(asking)


def without_empty_stages(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make the asynchronous stages of pipelines without a copy synchronous.

    TVM would commit and wait for groups of nothing, and refuses a second such stage.
    """
    empty = [x for x in _pipelines(func) if not ir.find_all(x, ir.BufferStore, _is_plain_copy)]
    if not empty:
        return func

    def visit(loop: ir.For, mutator: Any) -> ir.For:
        new = mutator.default_mutate(loop)
        if not any(loop.same_as(x) for x in empty):
            return new
        notes = {k: v for k, v in new.annotations.items() if k != keys.ASYNC_STAGES}
        return ir.with_body(new, new.body, annotations=notes)

    return func.with_body(ir.mutate(func.body, [(ir.For, visit)]))


def without_padding(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Take the padding of rows off tiles whose copies ask, and leave a note that it was there.

    `Schedule.storage_align` keeps threads that read columns in different banks. Boxes
    have no gaps between rows, and the lowering chooses where a tile's elements lie by itself.
    """

    def visit(block: ir.SBlock, mutator: Any) -> ir.SBlock:
        new = mutator.default_mutate(block)
        if keys.ASYNC_COPY not in new.annotations or keys.DIM_ALIGN not in new.annotations:
            return new
        notes = {k: v for k, v in new.annotations.items() if k != keys.DIM_ALIGN}
        return ir.with_block(new, annotations={**notes, keys.UNPADDED: 1})

    return func.with_body(ir.mutate(func.body, [(ir.SBlock, visit)]))


def _pipelines(func: tirx.PrimFunc) -> list[ir.For]:
    return ir.find_all(func.body, ir.For, lambda x: keys.ASYNC_STAGES in x.annotations)


def _scopes(func: tirx.PrimFunc) -> list[tirx.AttrStmt]:
    return ir.find_all(func.body, tirx.AttrStmt, lambda x: str(x.attr_key) == SCOPE)


# -- stages


def _ask_in_stages(func: tirx.PrimFunc, mechanism: str) -> tirx.PrimFunc | None:
    asking: list[ir.SBlock] = []
    for loop in _pipelines(func):
        stages = options.plain(loop.annotations.get(keys.STAGE, []))
        chosen = options.plain(loop.annotations[keys.ASYNC_STAGES])
        parts = _counted(ir.statements(ir.peel_blocks(loop.body)))
        if (
            not isinstance(stages, list)
            or not isinstance(chosen, list)
            or len(stages) != len(parts)
        ):
            continue
        for part in (x for x, stage in zip(parts, stages, strict=True) if stage in chosen):
            asking += ir.find_all(part, ir.SBlock, lambda x: _is_plain_copy(x.body))
    if not asking:
        return None

    def ask(block: ir.SBlock) -> ir.SBlock:
        notes = {**block.annotations, keys.ASYNC_COPY: mechanism, keys.BY_OPTION: 1}
        return ir.with_block(block, annotations=notes)

    return func.with_body(ir.replace_nodes(func.body, ir.SBlock, {x: ask(x) for x in asking}))


def _counted(parts: list[ir.Stmt]) -> list[ir.Stmt]:
    """Name each statement as often as TVM counts it: an inner pipeline becomes three."""
    return [
        x
        for part in parts
        for x in [part] * (3 if isinstance(part, ir.For) and keys.STAGE in part.annotations else 1)
    ]


def _is_plain_copy(store: Any) -> bool:
    """Tell a store to shared memory of what it loads from global memory, or of a fill."""
    if not isinstance(store, ir.BufferStore) or not ir.is_shared(store.buffer):
        return False
    value = store.value
    if isinstance(value, ir.Call) and value.op.name.endswith("if_then_else"):
        value = value.args[1]
    return isinstance(value, ir.TensorLoad) and str(value.source.scope()) in ("", "global")


# -- scopes


def _ask_in_scopes(func: tirx.PrimFunc, mechanism: str) -> tirx.PrimFunc | None:
    scopes = _scopes(func)
    copies = [x for scope in scopes for x in ir.find_all(scope, ir.BufferStore, _is_plain_copy)]
    if not copies or _has_copies_by_hand(func):
        return None
    written = [x.buffer for x in ir.find_all(func.body, ir.BufferStore)]
    if any(load.source.same_as(x) for copy in copies for load in _loads(copy) for x in written):
        return None  # what is copied when would be no longer as it is there

    def visit_scope(attr: tirx.AttrStmt, mutator: Any) -> ir.Stmt:
        if str(attr.attr_key) == "thread_extent":
            return _as_loop(attr, mutator.mutate(attr.body))
        if str(attr.attr_key) != SCOPE:
            return mutator.default_mutate(attr)
        body = mutator.mutate(attr.body)
        return ir.mutate(body, [(ir.For, _split_stages), (ir.BufferStore, _in_block(mechanism))])

    def drop(stmt: ir.Evaluate, mutator: Any) -> ir.Stmt:
        call = stmt.value
        is_order = isinstance(call, ir.Call) and getattr(call.op, "name", "") in ORDERS
        return ir.seq() if is_order else stmt

    body = ir.mutate(func.body, [(tirx.AttrStmt, visit_scope), (ir.Evaluate, drop)])
    return func.with_body(ir.drop_empty(body))


def _loads(copy: ir.BufferStore) -> list[ir.TensorLoad]:
    return ir.find_all(copy.value, ir.TensorLoad)


def _has_copies_by_hand(func: tirx.PrimFunc) -> bool:
    """Tell whether a function may have hand-written asynchronous copies in its groups."""
    names = [str(getattr(x.op, "name", "")) for x in ir.find_all(func.body, ir.Call)]
    return any(x == RAW_CP_ASYNC or (x.startswith(CP_ASYNC) and x not in ORDERS) for x in names)


def _as_loop(attr: tirx.AttrStmt, body: ir.Stmt) -> ir.For:
    """Make a loop of the attribute that binds a variable to a thread axis."""
    axis = attr.node
    unnamed = ir.Var("", ir.dtype_of(axis.var))
    bound = tirx.IterVar(None, unnamed, tirx.IterVar.ThreadIndex, axis.thread_tag)
    zero = ir.cast_like(0, axis.var)
    extent = ir.cast_like(attr.value, axis.var)
    return ir.For(axis.var, zero, extent, ir.ForKind.THREAD_BINDING, body, thread_binding=bound)


def _split_stages(loop: ir.For, mutator: Any) -> ir.Stmt:
    """Give each of several copies loops of its own: they share a nest and nothing else."""
    loops, body = ir.loop_nest(loop)
    parts = ir.statements(body)
    tiles = [x.buffer for x in parts if _is_plain_copy(x)]
    if len(parts) < 2 or len(tiles) != len(parts) or len(ir.once(tiles)) != len(parts):
        return mutator.default_mutate(loop)
    nests = []
    for part in parts:
        nest = part
        for inner in reversed(loops):
            nest = ir.with_body(inner, nest)
        nests.append(mutator.default_mutate(ir.fresh_variables(nest)))
    return ir.seq(nests)


def _in_block(mechanism: str) -> Any:
    def visit(store: ir.BufferStore, mutator: Any) -> ir.Stmt:
        if not _is_plain_copy(store):
            return store

        asking = {keys.ASYNC_COPY: mechanism, keys.BY_OPTION: 1}
        return ir.block_of_store(store, _loads(store), asking)

    return visit
