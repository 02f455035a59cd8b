"""Do elementwise steps before transposes, and leave out transposes that cancel.

    a = permute_dims(x, (0, 3, 1, 2)); b = permute_dims(y, (0, 3, 1, 2))
    c = add(multiply(s, a), b); d = permute_dims(c, (0, 2, 3, 1))            s: (channels, 1, 1)
  ->
    d = add(multiply(reshape(s, (1, 1, 1, channels)), x), y)

Residuals of images with their channels last are added as they lie, however the model says it.
"""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_hopper import ir

from .elements_first import OF_ELEMENTS, is_float, is_number
from .mutator_passes import mutator_pass
from .simplify_operands import CAST, PERMUTE


@mutator
class _Transposes(PyExprMutator):  # type: ignore[misc]
    changed = False

    def visit_call_(self, call: Any) -> Any:
        """Rewrite one step, or a transpose of a transpose."""
        call = super().visit_call_(call)
        if not self.builder_.current_block_is_dataflow():
            return call
        if call.op == PERMUTE:
            return self._joined(call)
        if call.op not in (CAST, *OF_ELEMENTS) or not is_float(call):
            return call
        made = [self._transpose(x) for x in call.args]
        axes = next((_axes(x) for x in made if x is not None), None)
        if axes is None or len(axes) != int(call.ty.ndim):
            return call
        args = [self._before(x, y, axes) for x, y in zip(call.args, made, strict=True)]
        if any(x is None for x in args):
            return call
        self.changed = True
        step = self.builder_.emit(relax.Call(call.op, args, call.attrs))
        return relax.op.permute_dims(step, axes)

    def _joined(self, call: Any) -> Any:
        inner = self._transpose(call.args[0])
        if inner is None:
            return call
        self.changed = True
        first = _axes(inner)
        axes = [first[i] for i in _axes(call)]
        x = inner.args[0]
        return x if axes == [*range(len(axes))] else relax.op.permute_dims(x, axes)

    def _transpose(self, x: Any) -> Any:
        made = self.lookup_binding(x) if isinstance(x, relax.Var) else None
        return made if isinstance(made, relax.Call) and made.op == PERMUTE else None

    def _before(self, x: Any, made: Any, axes: list[int]) -> Any:
        """Return what an operand is before a transpose; None if that would be a copy."""
        if is_number(x):
            return x
        if made is not None:
            return made.args[0] if _axes(made) == axes else None
        shape = getattr(x.ty, "shape", None)
        if not isinstance(shape, relax.ShapeExpr) or len(shape.values) > len(axes):
            return None
        sizes = [1] * (len(axes) - len(shape.values)) + list(shape.values)
        wide = [i for i, n in enumerate(sizes) if not ir.is_const(n, 1)]
        if len(wide) != 1:  # one number for each channel lies in memory either way
            return None
        before = [1] * len(axes)
        before[axes[wide[0]]] = sizes[wide[0]]
        return self.builder_.emit(relax.op.reshape(x, before))


TransposesLast = mutator_pass("TransposesLast", _Transposes)


def _axes(transpose: Any) -> list[int]:
    rank = int(transpose.args[0].ty.ndim)
    given = transpose.attrs.axes
    return [int(x) % rank for x in given] if given is not None else [*range(rank)][::-1]
