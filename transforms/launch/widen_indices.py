"""Index global tensors by 64 bits where 32 may not reach.

    D = buffer((65536, 65536), "float16")
    D[tile_y * 128 + i, tile_x * 256 + j] = ...                   int32
  ->
    D[int64(tile_y * 128 + i), int64(tile_x * 256 + j)] = ...

Flattening multiplies a row's index by the length of a row, in the type of the indices. Tensors of
symbolic size count as large, unless the launch condition on the host bounds them (`if m <= 64`).

Offsets of pointers are flat already: their arithmetic is made again.

Before: accesses are final.  After: no access of a large tensor is indexed by 32 bits.
Not here: copies by TMA, which address by coordinates.
"""

from __future__ import annotations

from typing import Any

from tvm import sym, tirx

from tvm_hopper import ir
from tvm_hopper.analysis.launches import conditions_around, known_at, most
from tvm_hopper.requests.bodies import is_memory_bound
from tvm_hopper.transforms.kernel_pass import function_pass

MOST_ELEMENTS = (1 << 31) - 1


def is_large(buffer: ir.Var, analyzer: sym.Analyzer | None = None) -> bool:
    """Tell whether the last element of a global buffer may be out of reach of an int32.

    The analyzer knows under which conditions the kernel is launched.
    """
    analyzer = analyzer or sym.Analyzer()
    if buffer.scope() not in ("", "global"):
        return False
    if not ir.is_const(buffer.ty.elem_offset, 0):
        return True
    if buffer.ty.strides:
        last = 0
        for extent, stride in zip(buffer.shape, buffer.ty.strides, strict=True):
            size, step = most(extent, analyzer), most(stride, analyzer)
            if size is None or step is None:
                return True
            last += (size - 1) * step
        return last >= MOST_ELEMENTS
    count = 1
    for extent in buffer.shape:
        size = most(extent, analyzer)
        if size is None:
            return True
        count *= size
    return count > MOST_ELEMENTS


def rewrite_indices(kernel: ir.For, analyzer: sym.Analyzer | None = None) -> ir.For:
    """Cast the indices of every access of a large tensor."""
    known: dict[ir.Var, bool] = {}

    def is_far(buffer: ir.Var) -> bool:
        if buffer not in known:
            known[buffer] = is_large(buffer, analyzer)
        return known[buffer]

    def load(node: ir.TensorLoad, mutator: Any) -> ir.TensorLoad:
        node = mutator.default_mutate(node)
        if not is_far(node.source):
            return node
        return tirx.BufferLoad(node.source, [_widen(x) for x in node.indices])

    def store(node: ir.BufferStore, mutator: Any) -> ir.BufferStore:
        node = mutator.default_mutate(node)
        if not is_far(node.buffer):
            return node
        return ir.BufferStore(node.buffer, node.value, [_widen(x) for x in node.indices])

    def point(node: ir.Call, mutator: Any) -> Any:
        buffer = ir.pointer_of(node.args[1]) if node.op.name == ir.ACCESS_PTR else None
        if buffer is None or not is_far(buffer):
            return mutator.default_mutate(node)
        kind, data, start, extent, mask = node.args
        return ir.Call(node.op, [kind, data, _widen_within(start), extent, mask], ret_ty=node.ty)

    return ir.mutate(kernel, [(ir.TensorLoad, load), (ir.BufferStore, store), (ir.Call, point)])


_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max)


def _widen_within(offset: Any) -> Any:
    """Compute an offset that is flat already by 64 bits."""
    if ir.dtype_of(offset) != "int32":
        return offset
    if isinstance(offset, _ARITHMETIC):
        return type(offset)(_widen_within(offset.a), _widen_within(offset.b))
    number = ir.static_int(offset)
    return tirx.Cast("int64", offset) if number is None else tirx.IntImm("int64", number)


def _widen(index: Any) -> Any:
    return tirx.Cast("int64", index) if ir.dtype_of(index) == "int32" else index


def _widen_ours(func: Any, kernel: ir.For) -> ir.For:
    if not (ir.is_ours(kernel) or is_memory_bound(kernel)):
        return kernel
    with known_at(conditions_around(func.body, kernel)) as analyzer:
        return rewrite_indices(kernel, analyzer)


def _widen_indices(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Widen the indices of one function's kernels with roles."""
    return ir.map_kernels(func, lambda kernel: _widen_ours(func, kernel))


WidenIndices = function_pass("WidenIndices", _widen_indices)
