"""`widen_sums`: compute 16-bit reductions in float32.

    S[i] = S[i] + E[i, k]                              S, E float16, temporaries
    Y[i, j] = E[i, j] / S[i]                           Y float16, an output
  ->
    S[i] = S[i] + E[i, k]                              S, E float32
    Y[i, j] = float16(E[i, j] / S[i])

Relax sums in the type of a layer's input.  What was a temporary of 16 bits is one of 32: a kernel
of row reductions keeps it in registers anyway.  A cast that the program writes rounds as before.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule

from .widen_integers import widen_integers

HALVES = ("float16", "bfloat16")
WIDE = "float32"
_BINARY = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min),
    *(tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE),
)
_FUNCTIONS = {  # what the float32 form of is the same function
    *("prim.if_then_else", "tirx.if_then_else"),
    *(f"tirx.{x}" for x in ("exp", "exp2", "exp10", "log", "log2", "log10", "log1p", "sqrt")),
    *(f"tirx.{x}" for x in ("rsqrt", "pow", "fabs", "tanh", "sigmoid", "erf", "sin", "cos")),
    *(f"tirx.{x}" for x in ("floor", "ceil", "round", "trunc", "nearbyint", "fmod", "isnan")),
    *(f"tirx.{x}" for x in ("tan", "atan", "atan2", "asin", "acos", "sinh", "cosh", "asinh")),
    *(f"tirx.{x}" for x in ("acosh", "atanh", "hypot", "copysign")),
}
_ADDRESSES = ("tirx.address_of", "tirx.buffer_data", "tirx.tvm_access_ptr")


def widen_sums(mod: tvm.IRModule | tirx.PrimFunc) -> Any:
    """Compute reductions of float16 and bfloat16 in float32, of short integers in int32.

    In each function with such a reduction, temporaries of these types become float32, and results
    are rounded once, when they are stored. A function stays as it is if it takes the address of a
    temporary, has threads, or writes a sum's tensor in several blocks.

    Parameters
    ----------
    mod : IRModule or PrimFunc
        Plain loops; it is left as it is.

    Returns
    -------
    mod : IRModule or PrimFunc
        The same object where there is nothing to widen.

    Raises
    ------
    ScheduleError
        `mod` is no module.
    """
    if isinstance(mod, tirx.PrimFunc):
        return _widen(mod)
    if not isinstance(mod, tvm.IRModule):
        raise cannot_schedule("widen_sums", type(mod).__name__, "an IRModule or a PrimFunc")
    changed = {
        gv: new
        for gv, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc) and not (new := _widen(func)).same_as(func)
    }
    if not changed:
        return mod
    result = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
    for gv, func in changed.items():
        result.update_func(gv, func)
    return result


def half_sums(func: tirx.PrimFunc, added: bool = False) -> list[str]:
    """Return the types of 16 bits in which a function reduces, each once.

    - `func`: plain loops.
    - `added`: true: sums alone. A maximum is the same in any type.
    """
    found = [
        ir.dtype_of(region.source)
        for block in ir.find_all(func.body, ir.SBlock, lambda x: x.init is not None)
        for region in block.writes
        if not added or any(isinstance(x.value, tirx.Add) for x in _stores(block))
    ]
    return list(dict.fromkeys(x for x in found if x in HALVES))


def _stores(block: ir.SBlock) -> list[Any]:
    return ir.find_all(block.body, ir.BufferStore)


def _widen(func: tirx.PrimFunc) -> tirx.PrimFunc:
    if _is_left(func):
        return func
    try:
        func = widen_integers(func)
        if not half_sums(func):
            return func
        func = _sums_in_temporaries(func)
    except s_tir.ScheduleError:  # two blocks of a name, or that write one tensor
        return func
    blocks = ir.find_all(func.body, ir.SBlock)
    wide = {
        buffer: ir.new_buffer(buffer.name, tuple(buffer.shape), WIDE, str(buffer.scope()))
        for block in blocks
        for buffer in block.alloc_buffers
        if ir.dtype_of(buffer) in HALVES
    }
    return func.with_body(_Widener(wide).rewrite(func.body))


def _is_left(func: tirx.PrimFunc) -> bool:
    """Tell a function with threads, or whose temporaries have users that know their type."""
    if ir.find_all(func.body, tirx.Let):
        return True
    if ir.find_all(func.body, ir.For, lambda x: x.kind == ir.ForKind.THREAD_BINDING):
        return True
    blocks = ir.find_all(func.body, ir.SBlock)
    inner = [b for x in blocks for b in x.alloc_buffers if ir.dtype_of(b) in HALVES]
    taken = ir.find_all(func.body, ir.Call, lambda x: getattr(x.op, "name", "") in _ADDRESSES)
    return any(x.match_buffers for x in blocks) or any(ir.depends_on(x, inner) for x in taken)


def _sums_in_temporaries(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Give each reduction into a tensor of 16 bits in memory a temporary of its own in front."""
    inner = {x for block in ir.find_all(func.body, ir.SBlock) for x in block.alloc_buffers}
    sch = s_tir.Schedule(func)
    for block in ir.find_all(func.body, ir.SBlock, lambda x: x.init is not None):
        for i, region in enumerate(block.writes):
            if region.source not in inner and ir.dtype_of(region.source) in HALVES:
                sch.cache_write(sch.get_sblock(block.name_hint), i, "global")
    return sch.mod["main"].with_attrs(dict(func.attrs)) if func.attrs else sch.mod["main"]


class _Widener:
    """Rewrites a body so that no value of 16 bits is left between a load and a store."""

    def __init__(self, wide: dict[Any, Any]) -> None:
        self.wide = wide
        self.named: dict[Any, Any] = {}  # values of 16 bits that a reduction names, as argmax does

    def rewrite(self, body: Any) -> Any:
        """Return the body with temporaries and arithmetic in float32."""
        return ir.mutate(
            body,
            [
                *((kind, self._binary) for kind in _BINARY),
                (tirx.Bind, self._bind),
                (tirx.Var, lambda node, _mutator: self.named.get(node, node)),
                (tirx.Select, self._select),
                (tirx.Cast, self._cast),
                (tirx.FloatImm, self._constant),
                (ir.Call, self._call),
                (ir.TensorLoad, self._load),
                (ir.BufferStore, self._store),
                (ir.TensorRegion, self._region),
                (ir.SBlock, self._block),
            ],
        )

    def _binary(self, node: Any, mutator: Any) -> Any:
        return type(node)(mutator.mutate(node.a), mutator.mutate(node.b))

    def _bind(self, node: Any, mutator: Any) -> Any:
        value = mutator.mutate(node.value)
        if ir.dtype_of(node.var) in HALVES:
            self.named[node.var] = tirx.Var(node.var.name, WIDE)
        return tirx.Bind(self.named.get(node.var, node.var), value)

    def _select(self, node: Any, mutator: Any) -> Any:
        return tirx.Select(
            *map(mutator.mutate, (node.condition, node.true_value, node.false_value))
        )

    def _cast(self, node: Any, mutator: Any) -> Any:
        value, dtype = mutator.mutate(node.value), ir.dtype_of(node)
        if dtype in HALVES:
            return tirx.Cast(WIDE, tirx.Cast(dtype, value))
        return value if ir.dtype_of(value) == dtype else tirx.Cast(dtype, value)

    def _constant(self, node: Any, _mutator: Any) -> Any:
        return tirx.FloatImm(WIDE, node.value) if ir.dtype_of(node) in HALVES else node

    def _call(self, node: Any, mutator: Any) -> Any:
        name = getattr(node.op, "name", "")
        if name in _ADDRESSES:
            return node
        dtype = ir.dtype_of(node)
        if name in _FUNCTIONS:
            kind = WIDE if dtype in HALVES else dtype
            return ir.call_op(name, kind, *map(mutator.mutate, node.args))
        args = [_as_it_was(x, mutator.mutate(x)) for x in node.args]
        if not all(x.same_as(y) for x, y in zip(args, node.args, strict=True)):
            node = ir.Call(node.op, args, ret_ty=node.ty, attrs=node.attrs)
        return tirx.Cast(WIDE, node) if dtype in HALVES else node

    def _load(self, node: Any, mutator: Any) -> Any:
        new = self.wide.get(node.source)
        indices = [mutator.mutate(x) for x in node.indices]
        load = tirx.BufferLoad(node.source if new is None else new, indices)
        return tirx.Cast(WIDE, load) if ir.dtype_of(load) in HALVES else load

    def _store(self, node: Any, mutator: Any) -> Any:
        new, value = self.wide.get(node.buffer, node.buffer), mutator.mutate(node.value)
        dtype = ir.dtype_of(new)
        if isinstance(value, tirx.Cast) and ir.dtype_of(value.value) == dtype:
            value = value.value  # a value that is rounded to this type already
        value = value if ir.dtype_of(value) == dtype else tirx.Cast(dtype, value)
        return ir.BufferStore(new, value, [mutator.mutate(x) for x in node.indices])

    def _region(self, node: Any, mutator: Any) -> Any:
        return tirx.BufferRegion(self.wide.get(node.source, node.source), list(node.region))

    def _block(self, node: Any, mutator: Any) -> Any:
        block = mutator.default_mutate(node)
        buffers = [self.wide.get(x, x) for x in node.alloc_buffers]
        init = _widen_identity(node.init, block.init)
        return ir.with_block(block, alloc_buffers=buffers, init=init)


def _as_it_was(old: Any, new: Any) -> Any:
    """Give what a call takes the type that it had: the call knows no other one."""
    if new.same_as(old) or ir.dtype_of(new) == (dtype := ir.dtype_of(old)):
        return new
    if isinstance(new, tirx.Cast) and ir.dtype_of(new.value) == dtype:
        return new.value
    return tirx.Cast(dtype, new)


def _widen_identity(old: Any, new: Any) -> Any:
    """Let a maximum start from the least value of its new type, by which TVM knows it for one."""
    if isinstance(old, ir.SeqStmt):
        return ir.seq(*map(_widen_identity, old.seq, new.seq))
    if not isinstance(old, ir.BufferStore) or not isinstance(old.value, tirx.FloatImm):
        return new
    dtype, start = ir.dtype_of(old.value), float(old.value.value)
    if dtype not in HALVES:
        return new
    for extreme in (tirx.min_value, tirx.max_value):
        if start == float(extreme(dtype).value):
            return ir.BufferStore(new.buffer, extreme(WIDE), list(new.indices))
    return new
