"""Do elementwise steps before views, and casts to fewer bits before transposes.

    r = reshape(y, (b, s, n)); g = nn.gelu(r); f = reshape(g, (b * s, n)); c = astype(f, "float16")
  ->
    g = nn.gelu(y); c = astype(g, "float16"); r = reshape(c, (b, s, n)); f = reshape(r, (b * s, n))

Importers put views between a product, its activation and the cast for the next product.  Behind
these steps a view is no part of a kernel (`peel_views.py`), and a transpose moves half the bytes.
One place of a tensor is a slice, and a norm of rows reads the slice, not all rows.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.ir.expr import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_hopper import ir

from .mutator_passes import mutator_pass
from .simplify_operands import CAST, PERMUTE, RESHAPE

VIEWS = [RESHAPE, *(tvm.ir.Op.get(f"relax.{x}") for x in ("expand_dims", "squeeze", "flatten"))]
TAKE, SLICE, *NORMS = (
    tvm.ir.Op.get(f"relax.{x}") for x in ("take", "strided_slice", "nn.layer_norm", "nn.rms_norm")
)
OF_ELEMENTS = [
    tvm.ir.Op.get(f"relax.{x}")
    for x in (
        *("nn.relu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "sigmoid", "tanh", "erf", "negative"),
        *("add", "subtract", "multiply", "divide"),
    )
]


@mutator
class _Elements(PyExprMutator):  # type: ignore[misc]
    changed = False

    def visit_call_(self, call: Any) -> Any:
        """Let one step read what a view is of."""
        call = super().visit_call_(call)
        if not self.builder_.current_block_is_dataflow():
            return call
        if call.op == TAKE and is_number(call.args[1]):
            return self._sliced(call)
        if call.op == SLICE:
            return self._normed(call)
        moved = self._moved(call)
        if moved is None:
            return call
        i, view = moved
        self.changed = True
        args = [view.args[0] if j == i else x for j, x in enumerate(call.args)]
        step = relax.Call(call.op, args, call.attrs, call.ty_args)
        made = self.builder_.emit(self.visit_call_(self.builder_.normalize(step)))
        return relax.Call(view.op, [made, *view.args[1:]], view.attrs, view.ty_args)

    def _sliced(self, call: Any) -> Any:
        """Return the one part that is taken, by its place, as a slice."""
        x, place = call.args
        if call.attrs.axis is None or not isinstance(x.ty.shape, relax.ShapeExpr):
            return call
        axis, at = int(call.attrs.axis) % int(x.ty.ndim), int(place.value.numpy())
        if not 0 <= at < (ir.static_int(x.ty.shape.values[axis]) or 0):
            return call
        self.changed = True
        part = relax.op.strided_slice(x, [axis], [at], [at + 1])
        part = self.builder_.emit(self._normed(self.builder_.normalize(part)))
        return relax.op.reshape(part, list(call.ty.shape.values))

    def _normed(self, call: Any) -> Any:
        """Slice what a norm of rows reads, where rows are chosen of its result."""
        norm = self.lookup_binding(call.args[0]) if isinstance(call.args[0], relax.Var) else None
        if not isinstance(norm, relax.Call) or norm.op not in NORMS:
            return call
        rank, axes = int(norm.args[0].ty.ndim), call.args[1]
        if rank < 1 or not isinstance(axes, relax.Tuple):
            return call
        if {int(x) % rank for x in axes.fields} & {int(x) % rank for x in norm.attrs.axes}:
            return call
        self.changed = True
        part = relax.Call(SLICE, [norm.args[0], *call.args[1:]], call.attrs)
        return relax.Call(norm.op, [self.builder_.emit(part), *norm.args[1:]], norm.attrs)

    def _moved(self, call: Any) -> tuple[int, Any] | None:
        """Return the place of a step's one tensor, and the view that it is."""
        if not is_float(call):
            return None
        narrows = call.op == CAST and _bits(call) < _bits(call.args[0])
        if not narrows and call.op not in OF_ELEMENTS:
            return None
        tensors = [i for i, x in enumerate(call.args) if not is_number(x)]
        if len(tensors) != 1 or not isinstance(call.args[tensors[0]], relax.Var):
            return None
        view = self.lookup_binding(call.args[tensors[0]])
        is_view = isinstance(view, relax.Call) and view.op in [*VIEWS, *[PERMUTE] * narrows]
        return (tensors[0], view) if is_view else None


ElementsFirst = mutator_pass("ElementsFirst", _Elements)


def _bits(x: Any) -> int:
    return tvm.DataType(str(x.ty.dtype)).bits if isinstance(x.ty, relax.TensorType) else 0


def is_float(x: Any) -> bool:
    """Tell a tensor of floats."""
    return str(getattr(x.ty, "dtype", "")).endswith(("float16", "float32"))


def is_number(x: Any) -> bool:
    """Tell a constant without dimensions."""
    return isinstance(x, GenericConst) and x.ty.ndim == 0
