"""Pointers to rows of 16 bytes, as ldmatrix reads them.

    ldmatrix(..., &fragment, ..., tvm_access_ptr(tile, k * 16), lane * 64)
      -> tile, k * 16 + lane * 64
    ldmatrix(..., &fragment, ..., &tile[i, j], 0)
      -> tile[i, j]

Nothing else is read after such an address (PTX ISA 9.1, 9.7.14.5.15), so that a layout that leaves
16 bytes together may move rows as it moves single elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_hopper import ir
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.op_names import LEGACY_LDMATRIX

from .effects import POINTERS, PointerEffect, function_of

ROW_BYTES = 16


@dataclass(frozen=True)
class RowPointer:
    """A pointer to a row among the arguments of a call.

    - `call`: what reads the row.
    - `position`: the pointer's, among the call's arguments.
    - `buffer`: what it points into.
    - `place`: the element that the row starts with: a load, or the number of it in the buffer.
    """

    call: ir.Call
    position: int
    buffer: ir.Var
    place: Any

    @property
    def is_indexed(self) -> bool:
        """Tell an address of an element from a number of elements after a buffer's start."""
        return isinstance(self.place, ir.TensorLoad)


def find_row_pointers(root: Any) -> tuple[RowPointer, ...]:
    """Return the pointers to rows below `root`."""
    pointers = []
    for call in ir.find_all(root, ir.Call, lambda x: function_of(x) in POINTERS):
        for position, effect in POINTERS[function_of(call)].items():
            if (pointer := _row_pointer(call, position, effect)) is not None:
                pointers.append(pointer)
    return tuple(pointers)


def reads_rows(root: Any, buffer: ir.Var) -> bool:
    """Tell whether rows of a buffer are read below `root` by address, each by its indices."""
    return any(x.is_indexed and x.buffer.same_as(buffer) for x in find_row_pointers(root))


def is_whole_row(pointer: RowPointer, analyzer: Any) -> bool:
    """Prove that a row starts at a multiple of its size, of the buffer's rows too."""
    columns = ir.static_int(pointer.buffer.shape[-1])
    width = ROW_BYTES // dtype_bytes(ir.dtype_of(pointer.buffer))
    place = pointer.place.indices[-1] if pointer.is_indexed else pointer.place
    at: Any = ir.simplify(place % width, analyzer)
    return columns is not None and columns % width == 0 and ir.is_const(at, 0)


def _row_pointer(call: ir.Call, position: int, effect: PointerEffect) -> RowPointer | None:
    if not effect.by_rows or effect.offset is None or _is_by_elements(call):
        return None
    pointer, offset = call.args[position], call.args[effect.offset]
    if not isinstance(pointer, ir.Call):
        return None
    if pointer.op.name == "tirx.address_of" and isinstance(pointer.args[0], ir.TensorLoad):
        load = pointer.args[0]
        return RowPointer(call, position, load.source, load) if ir.is_const(offset, 0) else None
    if pointer.op.name != ir.ACCESS_PTR or (buffer := ir.pointer_of(pointer.args[1])) is None:
        return None
    return RowPointer(call, position, buffer, pointer.args[2] + offset)


def _is_by_elements(call: ir.Call) -> bool:
    """Tell the one form of TVM's ldmatrix that is printed as plain loads: bytes, transposed."""
    return function_of(call) == LEGACY_LDMATRIX and (
        not ir.is_const(call.args[0], 0) and dtype_bytes(ir.dtype_of(call)) == 1
    )
