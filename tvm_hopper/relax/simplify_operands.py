"""Take a product's operands as they lie in memory: without repeats, casts before transposes.

    t = permute_dims(w); r = broadcast_to(t, (b, k, n)); c = astype(r, "float16"); y = matmul(x, c)
  ->
    c = astype(w, "float16"); t = permute_dims(c); y = matmul(x, t)

Importers repeat a weight for every element of a batch, which `matmul` does by itself, and cast what
they have transposed: then a kernel would write the repeated weight at each call.  What is left is a
plain product of more rows (FlattenBatch), of a tensor whose transpose FuseTransposes takes along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_hopper import ir

from .mutator_passes import mutator_pass

MATMUL, PERMUTE, REPEAT, CAST, RESHAPE = (
    tvm.ir.Op.get(f"relax.{x}")
    for x in ("matmul", "permute_dims", "broadcast_to", "astype", "reshape")
)


@dataclass(frozen=True)
class StoredOperand:
    """An operand of a product, as its source and what is done to that.

    - `source`: a tensor.
    - `lead`: whether the operand has dimensions in front of its last two that the source lacks.
    - `is_turned`: whether its last two dimensions are the source's, swapped.
    - `dtype`: its type.
    - `steps`: how many operations lie in between.
    """

    source: Any
    dtype: str
    lead: bool = False
    is_turned: bool = False
    steps: int = 0


@mutator
class _Products(PyExprMutator):  # type: ignore[misc]
    changed = False

    def visit_call_(self, call: Any) -> Any:
        """Rewrite one product."""
        call = super().visit_call_(call)
        if call.op != MATMUL or not self.builder_.current_block_is_dataflow():
            return call
        found = [self._operand(x) for x in call.args]
        if all(x.lead for x in found):  # else nothing would say how often
            found[0] = StoredOperand(call.args[0], found[0].dtype)
        if not any(_gains(x) for x in found):
            return call
        new = relax.op.matmul(*map(self._made, found), out_dtype=call.attrs.out_dtype)
        if not _same(self.builder_.normalize(new).ty.shape.values, call.ty.shape.values):
            return call
        self.changed = True
        return new

    def _operand(self, x: Any) -> StoredOperand:
        """Look behind what a product needs not have done to an operand."""
        here = StoredOperand(x, str(x.ty.dtype))
        made = maker_of(self, x, PERMUTE, REPEAT, CAST, RESHAPE)
        shape = getattr(x.ty, "shape", None)
        if made is None or not isinstance(shape, relax.ShapeExpr):
            return here
        inner = self._operand(made.args[0])
        inner = replace(inner, steps=inner.steps + 1)
        before = getattr(made.args[0].ty, "shape", None)
        if not isinstance(before, relax.ShapeExpr):
            return here
        old, new = list(before.values), list(shape.values)
        if made.op == CAST:
            return replace(inner, dtype=here.dtype) if _may_cast_first(inner, here) else here
        if made.op == PERMUTE:
            turned = replace(inner, is_turned=not inner.is_turned)
            return turned if swaps_last_two(made, len(old)) else here
        if _same(old, new):
            return inner
        ends = len(old) >= 2 and _same(old[-2:], new[-2:])
        ones = all(ir.is_const(n, 1) for n in old[:-2])
        if made.op == REPEAT:
            return replace(inner, lead=True) if ends and ones else here
        return inner if ends and (ones or inner.lead) else here  # a view of the same matrices

    def _made(self, x: StoredOperand) -> Any:
        """Build an operand again, its cast first."""
        made = x.source
        if x.lead or x.steps:
            size = list(made.ty.shape.values)
            if len(size) > 2 and all(ir.is_const(n, 1) for n in size[:-2]):
                made = self.builder_.emit(relax.op.reshape(made, size[-2:]))
        if str(made.ty.dtype) != x.dtype:
            made = self.builder_.emit(relax.op.astype(made, x.dtype))
        return self.builder_.emit(swapped(made)) if x.is_turned else made


SimplifyOperands = mutator_pass("SimplifyOperands", _Products)


def _gains(x: StoredOperand) -> bool:
    """Tell whether an operand is a repeat, or a cast of a transposed tensor."""
    return x.lead or (x.is_turned and str(x.source.ty.dtype) != x.dtype)


def _may_cast_first(inner: StoredOperand, here: StoredOperand) -> bool:
    """Tell a cast next to which there is no other one: two round twice."""
    return str(inner.source.ty.dtype) in (inner.dtype, here.dtype)


def swapped(x: Any) -> Any:
    """Return the transpose of a tensor's last two dimensions."""
    rank = x.ty.ndim
    return relax.op.permute_dims(x, [*range(rank - 2), rank - 1, rank - 2])


def maker_of(rewriter: Any, x: Any, *ops: Any) -> Any:
    """Return the call of one of some operators that computes a variable; None for another value.

    What only another dataflow block may read is not in reach of this one.
    """
    made = rewriter.lookup_binding(x) if isinstance(x, relax.Var) else None
    if not isinstance(made, relax.Call) or made.op not in ops:
        return None
    is_inner = any(isinstance(y, relax.DataflowVar) for y in made.args)
    return made if isinstance(x, relax.DataflowVar) or not is_inner else None


def axes_of(transpose: Any) -> list[int]:
    """Return the order of dimensions that a transpose gives a tensor."""
    rank, axes = int(transpose.args[0].ty.ndim), transpose.attrs.axes
    return [int(x) % rank for x in axes] if axes is not None else list(range(rank))[::-1]


def swaps_last_two(made: Any, rank: int) -> bool:
    """Tell a transpose of the last two dimensions."""
    return rank >= 2 and axes_of(made) == [*range(rank - 2), rank - 1, rank - 2]


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(map(tvm_ffi.structural_equal, one, other))
