"""Index each row that a call reads by pointer by its first element.

    tile = alloc((128, 64), "float16", "shared.dyn")
    ldmatrix(..., &fragment, ..., tvm_access_ptr(tile, i * 1024 + k * 16),
             lane % 16 * 64 + lane // 16 * 8)
  ->
    ldmatrix(..., &fragment, ..., &tile[i * 16 + lane % 16, k * 16 + lane // 16 * 8], 0)

TVM's intrinsics count elements from a pointer, in the layout that a tile is declared with.  By its
indices a row follows the tile into panels, slots and swizzles as any other access does.

Before: tiles are compact buffers.  After: what `ldmatrix` reads of tiles that are copied
asynchronously has indices, where every row provably starts at a multiple of 16 bytes.
Not here: pointers after which a call finds more than a row (mma_store); such a tile stays as it
is declared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import sym, tirx

from tvm_hopper import ir
from tvm_hopper.analysis.effects import POINTERS, function_of
from tvm_hopper.analysis.row_pointers import RowPointer, find_row_pointers, is_whole_row
from tvm_hopper.requests.keys import ASYNC_COPY
from tvm_hopper.transforms.kernel_pass import kernel_pass


@dataclass(frozen=True)
class RowPointerIndex:
    """A pointer to a row, and the indices of the element there."""

    pointer: RowPointer
    indices: tuple[Any, ...]


def plan_rows(kernel: ir.For) -> tuple[RowPointerIndex, ...]:
    """Return the rows without indices of tiles that are copied asynchronously."""
    copies = ir.find_blocks(kernel, ASYNC_COPY)
    pointers = [
        x
        for x in find_row_pointers(kernel)
        if not x.is_indexed and any(ir.uses(copy, x.buffer) for copy in copies)
    ]
    if not pointers:
        return ()
    analyzer = sym.Analyzer()
    for var, loop in {loop.loop_var: loop for loop in ir.find_all(kernel, ir.For)}.items():
        analyzer.bind(var, ir.range_of(loop))
    return tuple(
        RowPointerIndex(pointer, tuple(_unflatten(pointer, analyzer)))
        for pointer in pointers
        if _is_compact(pointer.buffer) and is_whole_row(pointer, analyzer)
    )


def _is_compact(buffer: ir.Var) -> bool:
    return not buffer.strides and all(ir.static_int(x) is not None for x in buffer.shape)


def _unflatten(pointer: RowPointer, analyzer: sym.Analyzer) -> list[Any]:
    indices: list[Any] = []
    rest = pointer.place
    for extent in reversed(pointer.buffer.shape[1:]):
        indices.insert(0, ir.simplify(rest % extent, analyzer))
        rest = ir.simplify(rest // extent, analyzer)
    return [rest, *indices]


def rewrite_rows(kernel: ir.For, plan: tuple[RowPointerIndex, ...]) -> ir.For:
    """Put addresses of elements in place of pointers and offsets."""
    calls: dict[Any, Any] = {}
    for one in plan:
        call, position = one.pointer.call, one.pointer.position
        offset = POINTERS[function_of(call)][position].offset
        assert offset is not None, "a pointer to rows has an offset"
        args = list(calls.get(call, call).args)
        args[position] = tirx.address_of(tirx.BufferLoad(one.pointer.buffer, list(one.indices)))
        args[offset] = tirx.IntImm(ir.dtype_of(args[offset]), 0)
        calls[call] = ir.Call(call.op, args, ret_ty=call.ty)
    return ir.replace_nodes(kernel, ir.Call, calls)


IndexRowPointers = kernel_pass("IndexRowPointers", plan_rows, rewrite_rows)
