"""Walks, rewrites and small builders over TIR: where the lowering calls `tvm_ffi.structural_*`.

A TVM upgrade that moves classes or traversal functions is answered here (and in `pipeline.py`).
The simulator and the checks walk by themselves: they judge what is made with these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import tvm_ffi
from tvm import ir, sym, tirx
from tvm.ir import Call, StringImm, TensorLoad, TensorRegion
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.tirx import BufferStore, Evaluate, For, ForKind, IfThenElse, SeqStmt, Stmt, Var

__all__ = [
    "BufferStore",
    "Call",
    "Evaluate",
    "For",
    "ForKind",
    "IfThenElse",
    "SBlock",
    "SBlockRealize",
    "SeqStmt",
    "Stmt",
    "TensorLoad",
    "TensorRegion",
    "Var",
]

PLAN_ATTR = "tvm_hopper.plan"
_PACKED = 1  # CallingConv::kCPackedFunc
_DEVICE_ID = 9  # TVMStructFieldKind::kDLTensorDeviceId of `tvm_struct_get`
KERNEL_BLOCK = "kernel"  # name of the block that holds a kernel's roles; its mark is keys.KERNEL
ROLES = "tvm_hopper"  # node of the attribute around a kernel's roles


# -- questions ------------------------------------------------------------------------------------


def find_all(root: Any, kind: type, where: Callable[[Any], bool] = lambda _: True) -> list[Any]:
    """Return every node of one type below `root`, outermost first."""
    found: list[Any] = []

    def visit(node: Any) -> None:
        if where(node):
            found.append(node)

    tvm_ffi.structural_walk(root, [(kind, visit)], order="pre")
    return found


def find_blocks(root: Any, key: str) -> list[SBlock]:
    """Return the blocks that carry an annotation, outermost first."""
    return find_all(root, SBlock, lambda block: key in block.annotations)


def uses(root: Any, var: Var) -> bool:
    """Tell whether a variable or a buffer occurs below `root`."""
    return bool(find_all(root, Var, lambda v: v.same_as(var)))


def accesses(root: Any, buffer: Var) -> list[Any]:
    """Return the loads and stores of a buffer below `root`, and the calls that take its pointer."""
    return [
        *find_all(root, TensorLoad, lambda x: x.source.same_as(buffer)),
        *find_all(root, BufferStore, lambda x: x.buffer.same_as(buffer)),
        *find_all(root, Call, lambda x: buffer.same_as(pointer_of(x))),
    ]


def uses_node(root: Any, node: Any) -> bool:
    """Tell whether a node stands, by identity, at or below `root`."""
    return bool(find_all(root, type(node), node.same_as))


def depends_on(expr: Any, variables: list[Var]) -> bool:
    """Tell whether an expression mentions one of the variables."""
    return any(uses(expr, var) for var in variables)


def loop_nest(stmt: Stmt) -> tuple[list[For], Stmt]:
    """Peel perfectly nested loops; return them, outermost first, and what stands inside."""
    loops: list[For] = []
    while isinstance(stmt, For):
        loops.append(stmt)
        stmt = stmt.body
    return loops, stmt


def statements(stmt: Stmt) -> list[Stmt]:
    """Return a sequence as a flat list; any other statement as a list of one."""
    if isinstance(stmt, SeqStmt):
        return [inner for outer in stmt.seq for inner in statements(outer)]
    return [stmt]


def conjuncts(cond: Any) -> Iterator[Any]:
    """Yield the terms of nested `and`s; nothing for a constant true."""
    if isinstance(cond, tirx.And):
        yield from conjuncts(cond.a)
        yield from conjuncts(cond.b)
    elif not is_const(cond, 1):
        yield cond


def is_const(expr: Any, value: int) -> bool:
    """Tell whether an expression is a given integer constant."""
    return isinstance(expr, (int, bool, tirx.IntImm)) and int(expr) == value


def is_zero(expr: Any) -> bool:
    """Tell whether an expression is the constant 0 of any type."""
    if isinstance(expr, tirx.Cast):
        return is_zero(expr.value)
    return (
        isinstance(expr, (int, tirx.IntImm, tirx.FloatImm))
        and float(getattr(expr, "value", expr)) == 0
    )


def range_of(loop: For) -> ir.Range:
    """Return the values that a loop's variable takes."""
    return ir.Range.from_min_extent(loop.min, loop.extent)


def static_int(expr: Any) -> int | None:
    """Return the value of an integer constant, None for anything else."""
    return int(expr) if isinstance(expr, (int, tirx.IntImm)) else None


def dtype_of(expr: Any) -> str:
    """Return the scalar type of an expression, or of a buffer's element, as text."""
    inner = expr.ty.dtype
    return str(inner.dtype if hasattr(inner, "dtype") else inner)


def is_shared(buffer: Var) -> bool:
    """Tell whether a buffer lies in (dynamic or static) shared memory."""
    return buffer.scope() in ("shared", "shared.dyn")


def kernels(func: tirx.PrimFunc) -> list[For]:
    """Return the outermost thread-binding loops: each is one device kernel."""
    found: list[For] = []

    def visit(loop: For) -> Any:
        if loop.kind != ForKind.THREAD_BINDING:
            return None
        found.append(loop)
        return tvm_ffi.WalkResult.SKIP

    tvm_ffi.structural_walk(func.body, [(For, visit)], order="pre")
    return found


def is_ours(kernel: Any) -> bool:
    """Tell whether we synchronise a kernel, so that TVM's own passes must leave it alone."""
    return bool(
        find_all(kernel, tirx.AttrStmt, lambda x: isinstance(x.node, str) and x.node == ROLES)
    )


def thread_axes(root: Any) -> dict[str, For]:
    """Return the thread-binding loops by tag, e.g. `threadIdx.y`; of each tag the outermost."""
    axes: dict[str, For] = {}
    for loop in find_all(root, For, lambda x: x.kind == ForKind.THREAD_BINDING):
        axes.setdefault(str(loop.thread_binding.thread_tag), loop)
    return axes


# -- rewrites -------------------------------------------------------------------------------------


def substitute(node: Any, values: Mapping[Var, Any]) -> Any:
    """Replace uses of variables and buffers; an integer value takes its variable's type."""
    typed = {var: cast_like(value, var) for var, value in values.items()}
    if not typed:
        return node
    return tvm_ffi.structural_map(node, [(Var, lambda v: typed.get(v, v))])


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


def replace(root: Any, kind: type, new: Callable[[Any], Any]) -> Any:
    """Offer every node of one type, outermost first, to `new`, which returns it or a replacement.

    What a replacement holds is offered too, so `new` must leave its own result alone.
    """
    return tvm_ffi.structural_map(root, [(kind, new)], order="pre")


def replace_nodes(root: Any, kind: type, planned: Mapping[Any, Any]) -> Any:
    """Replace planned nodes, found by identity, without looking into the replacements."""

    def visit(node: Any, mutator: Any) -> Any:
        new = planned.get(node)
        return mutator.default_mutate(node) if new is None else new

    return tvm_ffi.structural_mutate(root, [(kind, visit)])


def drop_empty(root: Any) -> Any:
    """Take statements that do nothing, as `seq()` makes them, out of their sequences."""

    def drop(body: SeqStmt) -> Stmt:
        return seq(*(x for x in statements(body) if not _is_empty(x)))

    return tvm_ffi.structural_map(root, [(SeqStmt, drop)], order="post")


def _is_empty(stmt: Stmt) -> bool:
    return isinstance(stmt, Evaluate) and is_const(stmt.value, 0)


def mark_ours(body: Stmt) -> Stmt:
    """Keep stock ThreadSync out: it would put __syncthreads into a role's branch."""
    return tirx.AttrStmt(ROLES, "hand_threaded", tirx.IntImm("int32", 1), body)


def fresh_variables(stmt: Any) -> Any:
    """Copy statements that stand twice in a function: each defines loop variables of its own."""
    defined = [loop.loop_var for loop in find_all(stmt, For)]
    defined += [bind.var for bind in find_all(stmt, tirx.Bind)]
    return substitute(stmt, {var: Var(var.name, dtype_of(var)) for var in defined})


def outermost_thread_extents(root: Any) -> list[Any]:
    """Return the outermost `thread_extent` attributes, each one device kernel."""
    found: list[Any] = []

    def visit(attr: tirx.AttrStmt) -> Any:
        if attr.attr_key != "thread_extent":
            return None
        found.append(attr)
        return tvm_ffi.WalkResult.SKIP

    tvm_ffi.structural_walk(root, [(tirx.AttrStmt, visit)], order="pre")
    return found


def pointer_of(expr: Any) -> Var | None:
    """Return the buffer whose bare data pointer (`buffer.data`) an expression is, else None."""
    if isinstance(expr, Call) and getattr(expr.op, "name", "") == "tirx.buffer_data":
        return expr.args[0]
    return None


def addressed(root: Any) -> list[Var]:
    """Return the buffers whose addresses are taken below `root`: of an element, or as a whole."""
    found = []
    for call in find_all(root, Call):
        takes_address = getattr(call.op, "name", "") == "tirx.address_of"
        if takes_address and isinstance(call.args[0], TensorLoad):
            found.append(call.args[0].source)
        elif (buffer := pointer_of(call)) is not None:
            found.append(buffer)
    return found


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

    def enter(node: SBlock, mutator: Any) -> SBlock:
        return node if node in kept else mutator.default_mutate(node)

    callbacks = [(TensorLoad, load), (BufferStore, store), (TensorRegion, touch)]
    return tvm_ffi.structural_mutate(root, [*callbacks, (SBlock, enter)])


def move_regions(root: Any, buffers: Mapping[Var, Var]) -> Any:
    """Let the read and write regions of blocks name other buffers, each as a whole."""

    def touch(node: TensorRegion) -> TensorRegion:
        new = buffers.get(node.source)
        return node if new is None else full_region(new)

    return tvm_ffi.structural_map(root, [(TensorRegion, touch)], order="pre")


def mutate(root: Any, callbacks: list[tuple[type, Callable[[Any, Any], Any]]]) -> Any:
    """Rewrite with callbacks that own the descent: `(node, mutator) -> node`."""
    return tvm_ffi.structural_mutate(root, callbacks)


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


# -- builders -------------------------------------------------------------------------------------


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
) -> Stmt:
    """Build a loop; `unroll` leaves the unrolling to the CUDA compiler (`#pragma unroll`)."""
    if is_const(extent, 1) and kind != ForKind.THREAD_BINDING:
        return seq(body(tirx.IntImm("int32", 0)))
    dtype = "int32" if isinstance(extent, int) else dtype_of(extent)
    var = Var(name, dtype)
    notes = {"pragma_unroll": int(extent)} if unroll else None
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


def is_packed(func: tirx.PrimFunc) -> bool:
    """Tell a host function that takes its arguments packed, as MakePackedAPI leaves it."""
    return int(func.attrs.get("calling_conv", 0)) == _PACKED


def is_device_id(value: Any) -> bool:
    """Tell whether a host expression reads the device number of a tensor argument."""
    is_field = isinstance(value, Call) and str(value.op.name).endswith("tvm_struct_get")
    return is_field and is_const(value.args[2], _DEVICE_ID)


def replace_schedule(sch: Any, by: Any) -> None:
    """Let a schedule's Python object stand for another schedule: TVM has no primitive for it."""
    sch.__move_handle_from__(by)


def number_of(func: tirx.PrimFunc, kernel: For) -> int:
    """Return which of a function's kernels one is, by which it is noted from pass to pass.

    Passes replace kernels one by one, so that a number holds until the last of them.
    """
    return next(i for i, other in enumerate(kernels(func)) if other.same_as(kernel))
