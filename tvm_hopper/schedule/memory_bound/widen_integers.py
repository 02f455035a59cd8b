"""Reduce integers of 8 and 16 bits in registers of 32: every result is the same.

    M[i] = max(M[i], X[i, k])                          M, X int8, M an output
  ->
    W[i] = max(W[i], int32(X[i, k]))                   W int32, a temporary
    M[i] = int8(W[i])

Sums and products wrap around once, when they are stored, where they would have at each step.
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx

from tvm_hopper import ir

from .reducers import is_plain_reduction

NARROW = ("int8", "uint8", "int16", "uint16")
WIDE = "int32"
_START = {
    tirx.Add: lambda: tirx.const(0, WIDE),
    tirx.Mul: lambda: tirx.const(1, WIDE),
    tirx.Max: lambda: tirx.min_value(WIDE),
    tirx.Min: lambda: tirx.max_value(WIDE),
}


def narrow_reductions(func: tirx.PrimFunc) -> dict[str, str]:
    """Return the type of each block that reduces integers of 8 or 16 bits, by its name."""
    found = {}
    for block in ir.find_all(func.body, ir.SBlock, lambda x: x.init is not None):
        dtype = ir.dtype_of(block.writes[0].source)
        if dtype in NARROW and is_plain_reduction(block.body):
            found[block.name_hint] = dtype
    return found


def widen_integers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let reductions of 8 and 16 bits have 32; the same function where there are none."""
    names = narrow_reductions(func)
    if not names:
        return func
    sch = s_tir.Schedule(func)
    for name in names:
        sch.cache_write(sch.get_sblock(name), 0, "global")
    new = sch.mod["main"]
    blocks = ir.find_all(new.body, ir.SBlock, lambda x: x.name_hint in names)
    old = [x.writes[0].source for x in blocks]
    wide = {x: ir.new_buffer(x.name, tuple(x.shape), WIDE, str(x.scope())) for x in old}
    new = new.with_body(_rewritten(new.body, wide))
    return new.with_attrs(dict(func.attrs)) if func.attrs else new


def _rewritten(body: Any, wide: dict[Any, Any]) -> Any:
    def load(node: Any, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        if node.source not in wide:
            return node
        return tirx.Cast(
            ir.dtype_of(node.source), tirx.BufferLoad(wide[node.source], list(node.indices))
        )

    def store(node: Any, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        if node.buffer not in wide:
            return node
        value = type(node.value)(_in_32_bits(node.value.a), _in_32_bits(node.value.b))
        return ir.BufferStore(wide[node.buffer], value, list(node.indices))

    def region(node: Any, _mutator: Any) -> Any:
        return tirx.BufferRegion(wide.get(node.source, node.source), list(node.region))

    def block(node: Any, mutator: Any) -> Any:
        init = node.init
        if init is not None and init.buffer in wide:
            start = _START[type(node.body.value)]()
            init = ir.BufferStore(wide[init.buffer], start, list(init.indices))
            node = ir.with_block(node, init=None)
        new = mutator.default_mutate(node)
        buffers = [wide.get(x, x) for x in new.alloc_buffers]
        return ir.with_block(new, alloc_buffers=buffers, init=init)

    rules = [(ir.TensorLoad, load), (ir.BufferStore, store)]
    return ir.mutate(body, [*rules, (ir.TensorRegion, region), (ir.SBlock, block)])


def _in_32_bits(value: Any) -> Any:
    if isinstance(value, tirx.Cast) and ir.dtype_of(value.value) == WIDE:
        return value.value
    return tirx.Cast(WIDE, value)
