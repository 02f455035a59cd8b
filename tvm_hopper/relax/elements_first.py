"""Do elementwise steps before views, and casts to fewer bits before transposes.

    r = reshape(y, (b, s, n)); g = nn.gelu(r); f = reshape(g, (b * s, n)); c = astype(f, "float16")
  ->
    g = nn.gelu(y); c = astype(g, "float16"); r = reshape(c, (b, s, n)); f = reshape(r, (b * s, n))

Importers put views between a product, its activation and the cast for the next product.  Behind
these steps a view is no part of a kernel (`peel_views.py`), whose tiles then are stored as they are,
and a transpose moves half the bytes.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.ir.expr import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from .mutator_passes import mutator_pass
from .simplify_operands import CAST, PERMUTE, RESHAPE

VIEWS = [RESHAPE, *(tvm.ir.Op.get(f"relax.{x}") for x in ("expand_dims", "squeeze", "flatten"))]
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
        moved = self._moved(call)
        if moved is None:
            return call
        i, view = moved
        self.changed = True
        args = [view.args[0] if j == i else x for j, x in enumerate(call.args)]
        step = relax.Call(call.op, args, call.attrs, call.ty_args)
        made = self.builder_.emit(self.visit_call_(self.builder_.normalize(step)))
        return relax.Call(view.op, [made, *view.args[1:]], view.attrs, view.ty_args)

    def _moved(self, call: Any) -> tuple[int, Any] | None:
        """Return the place of a step's one tensor, and the view that it is."""
        if not str(getattr(call.ty, "dtype", "")).endswith(("float16", "float32")):
            return None
        narrows = call.op == CAST and _bits(call) < _bits(call.args[0])
        if not narrows and call.op not in OF_ELEMENTS:
            return None
        tensors = [i for i, x in enumerate(call.args) if not _is_number(x)]
        if len(tensors) != 1 or not isinstance(call.args[tensors[0]], relax.Var):
            return None
        view = self.lookup_binding(call.args[tensors[0]])
        is_view = isinstance(view, relax.Call) and view.op in [*VIEWS, *[PERMUTE] * narrows]
        return (tensors[0], view) if is_view else None


ElementsFirst = mutator_pass("ElementsFirst", _Elements)


def _bits(x: Any) -> int:
    return tvm.DataType(str(x.ty.dtype)).bits if isinstance(x.ty, relax.TensorType) else 0


def _is_number(x: Any) -> bool:
    return isinstance(x, GenericConst) and x.ty.ndim == 0
