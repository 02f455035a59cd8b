"""Query TIR: find statements, loops, buffers and uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from .types import (
    ROLES,
    BufferStore,
    Call,
    For,
    ForKind,
    SBlock,
    SBlockRealize,
    SeqStmt,
    Stmt,
    TensorLoad,
    Var,
)

ACCESS_PTR = "tirx.tvm_access_ptr"  # of an element type, a buffer's data, offset, extent, mask

VTCM = "global.vtcm"  # scope of Hexagon's memory on chip, which tiles are in there
_PACKED = 1  # CallingConv::kCPackedFunc
PRE_ORDER = int(tvm_ffi.WalkOrder.PREORDER)
_DEVICE_ID = 9  # TVMStructFieldKind::kDLTensorDeviceId of `tvm_struct_get`


# `tvm_ffi.structural_walk` finds out again what its callbacks' types are, which takes five times as
# long as a walk of an expression; a build walks some 20000 times.
_walk = tvm_ffi.get_global_func("ffi.StructuralWalk")
_STOP = tvm_ffi.VisitInterrupt(None)


@lru_cache(maxsize=256)
def type_index(kind: type) -> int:
    """Return the number by which TVM's walks know a type of nodes."""
    return int(tvm_ffi.core.TypeSchema.from_annotation(kind).origin_type_index)


def visit(root: Any, callbacks: Iterable[tuple[type, Callable[[Any], Any]]]) -> Any:
    """Call what is given for a type with each node of it, outermost first.

    As `tvm_ffi.structural_walk`: a callback may return what skips the node's children, or what ends
    the walk, which is returned then; else None.
    """
    return _walk(root, [(type_index(kind), call) for kind, call in callbacks], [], PRE_ORDER)


def find_all(root: Any, kind: type, where: Callable[[Any], bool] | None = None) -> list[Any]:
    """Return every node of one type below `root`, outermost first."""
    # Nothing of this is kept: a Schedule changes statements below one that somebody holds.
    found: list[Any] = []
    visit(root, [(kind, found.append)])
    return found if where is None else [node for node in found if where(node)]


def has_any(root: Any, kind: type, where: Callable[[Any], bool]) -> bool:
    """Tell whether there is a node of one type below `root`, and look no further."""
    return visit(root, [(kind, lambda node: _STOP if where(node) else None)]) is not None


def find_blocks(root: Any, key: str) -> list[SBlock]:
    """Return the blocks that carry an annotation, outermost first."""
    return find_all(root, SBlock, lambda block: key in block.annotations)


def uses(root: Any, var: Var) -> bool:
    """Tell whether a variable or a buffer occurs below `root`."""
    return has_any(root, Var, var.same_as)


def accesses(root: Any, buffer: Var) -> list[Any]:
    """Return the loads and stores of a buffer below `root`, and the calls that take its pointer."""
    loads: list[Any] = []
    stores: list[Any] = []
    calls: list[Any] = []
    visit(root, [(TensorLoad, loads.append), (BufferStore, stores.append), (Call, calls.append)])
    return [
        *(x for x in loads if x.source.same_as(buffer)),
        *(x for x in stores if x.buffer.same_as(buffer)),
        *(x for x in calls if buffer.same_as(pointer_of(x))),
    ]


def count_accesses(root: Any) -> Counter[Any]:
    """Return how many of `accesses` each buffer has below `root`."""
    found: Counter[Any] = Counter()
    visit(
        root,
        [
            (TensorLoad, lambda x: found.update((x.source,))),
            (BufferStore, lambda x: found.update((x.buffer,))),
            (Call, lambda x: found.update((pointer_of(x),))),
        ],
    )
    return found


def once(variables: list[Var]) -> list[Var]:
    """Return variables without repetitions, in order."""
    found: list[Var] = []
    for var in variables:
        if not any(var.same_as(x) for x in found):
            found.append(var)
    return found


def uses_node(root: Any, node: Any) -> bool:
    """Tell whether a node is, by identity, at or below `root`."""
    return has_any(root, type(node), node.same_as)


def depends_on(expr: Any, variables: list[Var]) -> bool:
    """Tell whether an expression mentions one of the variables."""
    return any(uses(expr, var) for var in variables)


def loop_nest(stmt: Stmt) -> tuple[list[For], Stmt]:
    """Peel perfectly nested loops; return them, outermost first, and the innermost body."""
    loops: list[For] = []
    while isinstance(stmt, For):
        loops.append(stmt)
        stmt = stmt.body
    return loops, stmt


def peel_blocks(stmt: Stmt) -> Stmt:
    """Return the body of nested blocks that have no siblings."""
    while isinstance(stmt, SBlockRealize):
        stmt = stmt.block.body
    return stmt


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


def conjunction(terms: Iterable[Any]) -> Any:
    """Return the `and` of some terms, a constant true for none."""
    result: Any = None
    for term in terms:
        result = term if result is None else tirx.And(result, term)
    return tirx.const(True, "bool") if result is None else result


def terms_about(condition: Any, exprs: Iterable[Any]) -> Any:
    """Return the terms of a condition that share variables with expressions, or with such terms."""
    known = find_all(list(exprs), ir.Var)
    terms = list(conjuncts(condition))
    while more := [x for x in terms if depends_on(x, known)]:
        terms = [x for x in terms if not any(x.same_as(y) for y in more)]
        known += find_all(more, ir.Var)
    kept = [x for x in conjuncts(condition) if not any(x.same_as(y) for y in terms)]
    return conjunction(kept)


def is_const(expr: Any, value: int) -> bool:
    """Tell whether an expression is a given integer constant."""
    return isinstance(expr, (int, bool, tirx.IntImm)) and int(expr) == value


def is_choice(node: Any) -> bool:
    """Tell a call that evaluates one of two values: `if_then_else`, not `Select`."""
    return isinstance(node, Call) and str(getattr(node.op, "name", "")).endswith("if_then_else")


def is_by_choice(value: Any, load: Any) -> bool:
    """Tell whether a load is behind a condition of the program, which may keep it in bounds.

    So it is in a `Select`, too: TVM makes a branch of one that loads (RewriteUnsafeSelect).
    """
    sides = [side for x in find_all(value, Call, is_choice) for side in x.args[1:]]
    sides += [y for x in find_all(value, tirx.Select) for y in (x.true_value, x.false_value)]
    sides += [x.b for kind in (tirx.And, tirx.Or) for x in find_all(value, kind)]
    return any(uses_node(side, load) for side in sides)


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
    """Tell whether a buffer is in shared memory (dynamic or static), or its counterpart."""
    return buffer.scope() in ("shared", "shared.dyn", VTCM)


def kernels(func: tirx.PrimFunc) -> list[For]:
    """Return the outermost thread-binding loops: each is one device kernel."""
    found: list[For] = []

    def enter(loop: For) -> Any:
        if loop.kind != ForKind.THREAD_BINDING:
            return None
        found.append(loop)
        return tvm_ffi.WalkResult.SKIP

    visit(func.body, [(For, enter)])
    return found


def is_ours(kernel: Any) -> bool:
    """Tell whether we synchronise a kernel, so that TVM's own passes must leave it alone."""
    return has_any(kernel, tirx.AttrStmt, lambda x: isinstance(x.node, str) and x.node == ROLES)


def thread_axes(root: Any) -> dict[str, For]:
    """Return the thread-binding loops by tag, e.g. `threadIdx.y`; of each tag the outermost."""
    axes: dict[str, For] = {}
    for loop in find_all(root, For, lambda x: x.kind == ForKind.THREAD_BINDING):
        axes.setdefault(str(loop.thread_binding.thread_tag), loop)
    return axes


def outermost_thread_extents(root: Any) -> list[Any]:
    """Return the outermost `thread_extent` attributes, each one device kernel."""
    found: list[Any] = []

    def enter(attr: tirx.AttrStmt) -> Any:
        if attr.attr_key != "thread_extent":
            return None
        found.append(attr)
        return tvm_ffi.WalkResult.SKIP

    visit(root, [(tirx.AttrStmt, enter)])
    return found


def number_of(func: tirx.PrimFunc, kernel: Stmt) -> int:
    """Return which of a function's kernels one is, by which it is noted from pass to pass.

    Passes replace kernels one by one, so that a number holds until the last of them.
    """
    if kernel.same_as(func.body):
        return 0
    return next(i for i, other in enumerate(kernels(func)) if other.same_as(kernel))


def pointer_of(expr: Any) -> Var | None:
    """Return the buffer whose bare data pointer (`buffer.data`) an expression is, else None."""
    if isinstance(expr, Call) and getattr(expr.op, "name", "") == "tirx.buffer_data":
        return expr.args[0]
    return None


def is_packed(func: tirx.PrimFunc) -> bool:
    """Tell a host function that takes its arguments packed, as MakePackedAPI leaves it."""
    return int(func.attrs.get("calling_conv", 0)) == _PACKED


def is_device_id(value: Any) -> bool:
    """Tell whether a host expression reads the device number of a tensor argument."""
    is_field = isinstance(value, Call) and str(value.op.name).endswith("tvm_struct_get")
    return is_field and is_const(value.args[2], _DEVICE_ID)
