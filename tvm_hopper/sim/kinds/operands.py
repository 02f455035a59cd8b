"""Classify operands of instructions: synchronisation, data or coordinates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvm import ir
from tvm.backend.cuda.ptx.table import TABLE

from tvm_hopper.sim.tir import PtxCall, dtype_of, nodes_in, short_name
from tvm_hopper.sim.walk import walk_nodes

# Families of PTX that compute registers from registers.
_NAMES = """
    abs add and bfe bfi bfind bmsk brev clmad clz cnot copysign cos cvt cvt_pack div dp2a dp4a ex2
    fma fns lg2 lop3 mad mad24 max min mov mul mul24 neg not or popc prmt rcp rem rsqrt sad selp
    set setp shf shl shr sin slct spcompress spdecompress sqrt sub szext tanh testp xor
"""
_ARITHMETIC = frozenset(_NAMES.split())
# Operands that are values, by family; "" for every family.
_VALUES: dict[str, frozenset[str]] = {
    "": frozenset({"coords", "tmap", "cache_policy"}),
    "atom": frozenset({"value", "compare", "d"}),
    "bar": frozenset({"c"}),
    "barrier": frozenset({"c"}),
    "match": frozenset({"a"}),
    "mma": frozenset({"a", "b", "c", "e", "f"}),
    "movmatrix": frozenset({"a"}),
    "multimem_red": frozenset({"b"}),
    "multimem_st": frozenset({"b"}),
    "red": frozenset({"value"}),
    "red_async": frozenset({"value"}),
    "redux_sync": frozenset({"a"}),
    "shfl_sync": frozenset({"a"}),
    "st": frozenset({"value"}),
    "st_async": frozenset({"b"}),
    "st_bulk": frozenset({"initval"}),
    "stmatrix": frozenset({"r"}),
    "vote_sync": frozenset({"a"}),
    "wgmma": frozenset({"a", "d"}),
}
# TVM's own calls that compute, and those that exchange values by their second argument.
_COMPUTES = (
    "address_of",
    "buffer_data",
    "if_then_else",
    "likely",
    "reinterpret",
    "handle_add_byte_offset",
    "cuda.cvta_generic_to_shared",
    "tvm_access_ptr",
    *("cuda.make_float2", "cuda.float2_", "cuda.float22", "cuda.bfloat1622", "cuda.fp8x4"),
    *("cuda.fmul2", "cuda.fadd2", "cuda.hmin2", "cuda.hmax2", "cuda.ffs", "cuda.fdividef"),
    *("cuda.ldg", "cuda.nano_sleep"),
)
_EXCHANGES = (
    *("tvm_warp_shuffle", "cuda.__shfl", "cuda.any_sync", "cuda.all_sync", "cuda.ballot"),
    "cuda.reduce_",
)
_OF_VALUES = ("cuda.cta_reduce", "cuda.warp_reduce", "cuda.syncthreads_")
_MEETS = ("ptx.", "cuda.", "tvm_warp", "tvm_storage_sync", "tvm_thread", "call_extern")


def scope_of(buffer: Any) -> str:
    """Return "global", "shared" or "local"."""
    scope = str(buffer.scope()) if hasattr(buffer, "scope") else "global"
    return scope.partition(".")[0] or "local"


def steering_operands(ptx: PtxCall) -> list[Any]:
    """Return the operands on which it depends how an instruction of PTX synchronises."""
    family = TABLE[ptx.name].family
    if family in _ARITHMETIC:
        return []
    values = _VALUES[""] | _VALUES.get(family, frozenset()) | set(ptx.writes)
    return [v for n, v in operands(ptx) if n not in values and not global_address(v)]


def steering_arguments(call: ir.Call) -> list[Any] | None:
    """Return the arguments on which it depends how another call synchronises; None: it does not."""
    name = short_name(call)
    if name.startswith(_COMPUTES) or not name.startswith(_MEETS):
        return None
    arguments = list(call.args)
    if name.startswith(_EXCHANGES):
        del arguments[1]
    elif name.startswith(_OF_VALUES):
        del arguments[0]
    elif name.startswith("cuda.atomic"):
        del arguments[1:]
    return [a for a in arguments if not global_address(a) and not _is_float(a)]


def _is_float(expr: Any) -> bool:
    return isinstance(expr, ir.Expr) and dtype_of(expr).startswith(("float", "bfloat"))


def operands(ptx: PtxCall) -> Iterator[tuple[str, Any]]:
    """Yield each operand with its name; the predicate is "pred"."""
    for name, values in ptx.operands.items():
        for value in values:
            if value is not None:
                yield name, value
    if ptx.pred is not None:
        yield "pred", ptx.pred


def written(ptx: PtxCall) -> list[Any]:
    """Return the buffers that an instruction writes to: results, and targets of pointers."""
    found = [x.source for x in ptx.results]
    return found + [b for n, v in operands(ptx) if n not in ptx.writes for b in registers(v)]


def registers(expr: Any) -> list[Any]:
    """Return the register buffers that an expression hands out a pointer to."""
    found: list[Any] = []

    def call(node: ir.Call) -> None:
        name = short_name(node)
        if name == "buffer_data" and scope_of(node.args[0]) == "local":
            found.append(node.args[0])
        elif name == "address_of" and scope_of(getattr(node.args[0], "source", None)) == "local":
            found.append(node.args[0].source)

    walk_nodes(expr, (ir.Call, call))
    return found


def global_address(expr: Any) -> bool:
    """Return whether an expression is the address of global memory."""
    if isinstance(expr, ir.Var):
        return isinstance(expr.ty, ir.PointerType) and scope_of(expr) == "global"
    if isinstance(expr, ir.Call):
        name = short_name(expr)
        if name == "address_of":
            target = expr.args[0]
            return isinstance(target, ir.TensorLoad) and scope_of(target.source) == "global"
        if name in ("buffer_data",):
            return scope_of(expr.args[0]) == "global"
        if name in ("reinterpret", "handle_add_byte_offset", "tvm_access_ptr"):
            return any(global_address(a) for a in expr.args)
    return False


def touches_shared(expr: Any) -> bool:
    """Return whether an expression loads from shared memory."""
    return any(scope_of(load.source) == "shared" for load in nodes_in(expr, ir.TensorLoad))


def shared_places(expr: Any) -> list[Any]:
    """Return the buffers of shared memory whose address an expression takes."""
    found: list[Any] = []

    def call(node: ir.Call) -> None:
        source = node.args[0].source if is_place(node) else None
        if short_name(node) == "buffer_data":
            source = node.args[0]
        if source is not None and scope_of(source) == "shared":
            found.append(source)

    walk_nodes(expr, (ir.Call, call))
    return found


def is_place(call: ir.Call) -> bool:
    """Return whether a call takes the address of an element of a buffer."""
    return short_name(call) == "address_of" and isinstance(call.args[0], ir.TensorLoad)
