"""Build small pieces of TIR."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import ir, sym, tirx
from tvm.ir import StringImm
from tvm_ffi.serialization import from_json_graph_str

from .types import (
    ROLES,
    Call,
    Evaluate,
    For,
    ForKind,
    SBlock,
    SBlockRealize,
    SeqStmt,
    Stmt,
    TensorRegion,
    Var,
)
from .walk import dtype_of, is_const, statements


def cast_like(value: Any, var: Any) -> Any:
    """Cast an integer expression to the type of another one; leave buffers and equals alone."""
    if isinstance(value, int):
        return tirx.IntImm(dtype_of(var), value)
    if (
        tirx.is_buffer_var(value)
        or not hasattr(var.ty, "dtype")
        or dtype_of(value) == dtype_of(var)
    ):
        return value
    return tirx.Cast(dtype_of(var), value)


def as_int32(value: Any) -> Any:
    """Cast an integer expression to int32, unless it is one."""
    return value if dtype_of(value) == "int32" else tirx.Cast("int32", value)


def seq(*parts: Any) -> Stmt:
    """Join statements, expressions (as `Evaluate`) and lists of them; `None` is left out."""
    flat: list[Stmt] = []
    for part in parts:
        if part is None:
            continue
        if isinstance(part, (list, tuple)):
            flat.extend(statements(seq(*part)) if part else [])
        elif isinstance(part, Stmt):
            flat.extend(statements(part))
        else:
            flat.append(Evaluate(part))
    if not flat:
        return Evaluate(tirx.IntImm("int32", 0))
    return flat[0] if len(flat) == 1 else SeqStmt(flat)


def make_loop(
    name: str,
    extent: Any,
    body: Callable[[Var], Any],
    kind: ForKind = ForKind.SERIAL,
    unroll: bool = False,
    rolled: bool = False,
) -> Stmt:
    """Build a loop; `unroll` leaves the unrolling to the CUDA compiler (`#pragma unroll`).

    `rolled` forbids it.
    """
    if is_const(extent, 1) and kind != ForKind.THREAD_BINDING:
        return seq(body(tirx.IntImm("int32", 0)))
    dtype = "int32" if isinstance(extent, int) else dtype_of(extent)
    var = Var(name, dtype)
    notes: dict[str, Any] | None = {"disable_unroll": True} if rolled else None
    notes = {"pragma_unroll": int(extent)} if unroll else notes
    zero = tirx.IntImm(dtype, 0)
    extent = tirx.IntImm(dtype, extent) if isinstance(extent, int) else extent
    return For(var, zero, extent, kind, seq(body(var)), annotations=notes)


def call_op(name: str, dtype: str, *args: Any) -> Call:
    """Build a call of a registered operator that Python has no constructor for."""
    return Call(ir.Op.get(name), [tirx.convert(arg) for arg in args], ret_ty=dtype)


def make_assert(condition: Any, message: str) -> Stmt:
    """Build a host-side check that raises ValueError with a message."""
    # The wheel's Python constructor hands its first two arguments over in the wrong order.
    return tirx.AssertStmt(condition, StringImm("ValueError"), [StringImm(message)])


def with_body(loop: For, body: Stmt, **changes: Any) -> For:
    """Copy a loop with another body (and other `extent`, `annotations`, `loop_var`)."""
    return For(
        changes.get("loop_var", loop.loop_var),
        loop.min,
        changes.get("extent", loop.extent),
        loop.kind,
        body,
        thread_binding=changes.get("thread_binding", loop.thread_binding),
        annotations=changes.get("annotations", loop.annotations),
    )


def with_block(block: SBlock, **changes: Any) -> SBlock:
    """Copy a block with some of its fields changed."""
    fields = {
        name: changes.get(name, getattr(block, name))
        for name in (
            "iter_vars",
            "reads",
            "writes",
            "name_hint",
            "body",
            "init",
            "alloc_buffers",
            "match_buffers",
            "annotations",
        )
    }
    return SBlock(**fields)


def opaque_block(name: str, body: Stmt, **fields: Any) -> SBlockRealize:
    """Build a realized block without iteration variables."""
    fields = {"reads": [], "writes": [], **fields}
    return SBlockRealize([], True, SBlock([], name_hint=name, body=body, **fields))


def block_of_store(store: Any, loads: Sequence[Any], annotations: Mapping[str, Any]) -> Any:
    """Put a store that has no block of its own into one, with the elements that it touches."""

    def element(buffer: Var, indices: Any) -> Any:
        return tirx.BufferRegion(buffer, [ir.Range.from_min_extent(x, 1) for x in indices])

    return opaque_block(
        store.buffer.name,
        store,
        reads=[element(x.source, x.indices) for x in loads],
        writes=[element(store.buffer, store.indices)],
        annotations=annotations,
    )


def full_region(buffer: Var) -> TensorRegion:
    """Return the region that covers a whole buffer."""
    zero = [tirx.IntImm(dtype_of(extent), 0) for extent in buffer.shape]
    return tirx.BufferRegion(
        buffer, [ir.Range.from_min_extent(z, e) for z, e in zip(zero, buffer.shape, strict=True)]
    )


def new_buffer(
    name: str, shape: tuple[int, ...], dtype: str, scope: str, alignment: int = -1
) -> Var:
    """Declare a compact buffer as S-TIR does (without a layout, which would break equality)."""
    return tirx.decl_buffer(
        shape, dtype, name=name, scope=scope, data_alignment=alignment, layout=None
    )


def simplify(expr: Any, analyzer: sym.Analyzer | None = None) -> Any:
    """Simplify an expression, with what the analyzer knows about its variables."""
    return (analyzer or sym.Analyzer()).simplify(expr)


def ranges(extents: Mapping[Any, int]) -> sym.Analyzer:
    """Return an analyzer that knows the ranges, from 0, of those values that are variables."""
    analyzer = sym.Analyzer()
    for var, extent in ((x, n) for x, n in extents.items() if isinstance(x, Var)):
        analyzer.bind(var, ir.Range(0, extent))
    return analyzer


def mark_ours(body: Stmt) -> Stmt:
    """Keep stock ThreadSync out: it would put __syncthreads into a role's branch."""
    return tirx.AttrStmt(ROLES, "hand_threaded", tirx.IntImm("int32", 1), body)


def load_saved(text: str) -> Any:
    """Load what `tvm.ir.save_json` of this very version made.

    `tvm.ir.load_json` looks through the text for what older versions wrote: that takes Python 20 ms
    for a scheduled product, several times for each trial.
    """
    return from_json_graph_str(text)


# tvm/ffi/extra/c_env_api.h; PyTorch's, where a call has tensors of PyTorch's
ALLOCATOR = "TVMFFIEnvGetDLPackManagedTensorAllocator"


def has_allocator() -> Any:
    """Build the condition of a host function that its caller has an allocator."""
    return tirx.Not(tirx.isnullptr(tirx.call_extern("handle", ALLOCATOR)))


def answers_for_allocator(expr: Any) -> bool | None:
    """Tell what a condition's truth says of the caller's allocator; None: it asks another thing."""
    if isinstance(expr, tirx.Not):
        other = answers_for_allocator(expr.a)
        return None if other is None else not other
    if not isinstance(expr, Call) or not str(getattr(expr.op, "name", "")).endswith("isnullptr"):
        return None
    (pointer,) = expr.args
    is_call = isinstance(pointer, Call) and str(pointer.op.name).endswith("call_extern")
    return False if is_call and getattr(pointer.args[0], "value", None) == ALLOCATOR else None
