"""Copy operands of products whose rows tensor copies or tensor cores do not take as they lie.

    y = matmul(p, v)                                p (384, 197, 197), v (384, 197, 64), float16
  ->
    p1 = pad(p, (0, 0, 3)); v1 = pad(v, (0, 3, 0)); y = matmul(p1, v1)

    y = matmul(x, w)                                w (64, 77), float16; or of int8, any columns
  ->
    t = permute_dims(w); y = matmul(x, permute_dims(t))            the second one is fused: NT

TMA loads rows at multiples of 16 bytes only, so that a product of 197 tokens' attention would be
left to TVM's own kernels, and 8-bit operands have rows along the sum alone. Zeros add nothing to a
sum, and a copy of both operands takes as long as memory takes to move them.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_hopper import ir
from tvm_hopper.facts.dtypes import DTYPES, OPERAND_DTYPES, dtype_bytes
from tvm_hopper.facts.tensor_map import STRIDE_ALIGNMENT

from .mutator_passes import mutator_pass
from .simplify_operands import MATMUL, PERMUTE, maker_of, swapped, swaps_last_two

# With fewer rows of the left operand, copying the right one takes longer than a product without
# tensor cores. Not measured.
MIN_ROWS_FOR_COPY = 16


@mutator
class _OperandPadder(PyExprMutator):  # type: ignore[misc]
    changed = False

    def visit_call_(self, call: Any) -> Any:
        """Rewrite one product."""
        call = super().visit_call_(call)
        if call.op != MATMUL or not self.builder_.current_block_is_dataflow():
            return call
        left, right = call.args
        if "int" in str(left.ty.dtype) and str(call.ty.dtype) != "int32":
            return call  # tensor cores sum integers in that type
        missing = _missing(left, right)
        turned = [self._turned(x) for x in (left, right)]
        by_columns = turned[1] is None  # rows of the right operand run along the columns
        if by_columns and _must_turn(left, right):
            turned[1] = self.builder_.emit(swapped(right))
        # Rows run along the sum unless the left operand alone is stored transposed.
        elif not missing or (by_columns and (turned[0] is not None or not _are_loadable(right))):
            return call
        self.changed = True
        padded = [
            self._padded(x, source, axis, missing)
            for x, source, axis in zip((left, right), turned, (-1, -2), strict=True)
        ]
        return relax.op.matmul(*padded, out_dtype=call.attrs.out_dtype)

    def _turned(self, x: Any) -> Any:
        """Return what an operand is the transpose of, if it is one."""
        made = maker_of(self, x, PERMUTE)
        return made.args[0] if made is not None and swaps_last_two(made, x.ty.ndim) else None

    def _padded(self, x: Any, source: Any, axis: int, missing: int) -> Any:
        """Add zeros behind an axis of an operand, before it is transposed."""
        rank = x.ty.ndim
        last = axis if source is None else -3 - axis
        padded = x if source is None else source
        if missing:
            widths = [0] * (2 * rank)
            widths[2 * (rank + last) + 1] = missing
            padded = self.builder_.emit(relax.op.nn.pad(padded, widths))
        return padded if source is None else self.builder_.emit(swapped(padded))


PadOperands = mutator_pass("PadOperands", _OperandPadder)


def _are_loadable(x: Any) -> bool:
    """Tell whether the rows of a tensor are whole multiples of 16 bytes."""
    columns = ir.static_int(x.ty.shape.values[-1])
    unit = STRIDE_ALIGNMENT // dtype_bytes(str(x.ty.dtype))
    return columns is not None and columns % unit == 0


def _depth_of_units(left: Any, right: Any) -> int:
    """Return the terms of a sum of types that go by 16 bytes; 0 where they are not known, or no."""
    if not all(isinstance(getattr(x.ty, "shape", None), relax.ShapeExpr) for x in (left, right)):
        return 0
    dtype = str(left.ty.dtype)
    if min(left.ty.ndim, right.ty.ndim) < 2 or dtype not in OPERAND_DTYPES or dtype == "float32":
        return 0
    return ir.static_int(left.ty.shape.values[-1]) or 0


def _must_turn(left: Any, right: Any) -> bool:
    """Tell a right operand, rows along the columns, of which only a transpose can be multiplied.

    A single column has neighbours along the sum anyway.
    """
    if not _depth_of_units(left, right) or ir.is_const(right.ty.shape.values[-1], 1):
        return False
    rows = left.ty.shape.values[:-1]
    if right.ty.ndim > 2:
        rows = rows[-1:]  # those that one matrix of a batch is multiplied by
    if math.prod(ir.static_int(x) or MIN_ROWS_FOR_COPY for x in rows) < MIN_ROWS_FOR_COPY:
        return False
    return not (DTYPES[str(right.ty.dtype)].mn_major and _are_loadable(right))


def _missing(left: Any, right: Any) -> int:
    """Return how many terms of a sum are missing to whole 16 bytes; 0 where that is no matter."""
    depth = _depth_of_units(left, right)
    return -depth % (STRIDE_ALIGNMENT // dtype_bytes(str(left.ty.dtype))) if depth else 0
