"""Do elementwise steps before views, and casts to fewer bits before transposes.

    r = reshape(y, (b, s, n)); g = nn.gelu(r); f = reshape(g, (b * s, n)); c = astype(f, "float16")
  ->
    g = nn.gelu(y); c = astype(g, "float16"); r = reshape(c, (b, s, n)); f = reshape(r, (b * s, n))

Importers put views between a product, its activation and the cast for the next product.  Behind
these steps a view is no part of a kernel (`peel_views.py`), and a transpose moves half the bytes.
One place of a product is a slice, and a norm of which nothing else is read reads a slice of rows.

    a = permute_dims(x, (0, 3, 1, 2)); b = permute_dims(y, (0, 3, 1, 2))
    c = add(multiply(s, a), b); d = permute_dims(c, (0, 2, 3, 1))            s: (channels, 1, 1)
  ->
    d = add(multiply(reshape(s, (1, 1, 1, channels)), x), y)

Residuals of images with their channels last are added as they lie (TransposesLast).
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.ir.expr import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_hopper import ir

from .mutator_passes import is_own, leaves, mutator_pass
from .simplify_operands import CAST, MATMUL, PERMUTE, RESHAPE, axes_of, maker_of
from .to_half import CONVOLUTIONS

VIEWS = [RESHAPE, *(tvm.ir.Op.get(f"relax.{x}") for x in ("expand_dims", "squeeze", "flatten"))]
TAKE, SLICE, *NORMS = (
    tvm.ir.Op.get(f"relax.{x}") for x in ("take", "strided_slice", "nn.layer_norm", "nn.rms_norm")
)
PRODUCTS = [MATMUL, tvm.ir.Op.get("relax.call_tir"), *CONVOLUTIONS]  # a kernel in loops: attention
OF_ELEMENTS = [
    tvm.ir.Op.get(f"relax.{x}")
    for x in (
        *("nn.relu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "sigmoid", "tanh", "erf", "negative"),
        *("add", "subtract", "multiply", "divide"),
    )
]


@mutator
class _StepMover(PyExprMutator):  # type: ignore[misc]
    changed = False

    def visit_call_(self, call: Any) -> Any:
        """Let one step read what a view is of."""
        call = super().visit_call_(call)
        if not self.builder_.current_block_is_dataflow():
            return call
        if call.op == TAKE and _is_number(call.args[1]):
            return self._sliced(call)
        if call.op == SLICE:
            return self._normed(call) or call
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
        """Return the one part that is taken of a product or a norm, by its place, as a slice."""
        x, place = call.args
        if call.attrs.axis is None or not isinstance(x.ty.shape, relax.ShapeExpr):
            return call
        axis, at = int(call.attrs.axis) % int(x.ty.ndim), int(place.value.numpy())
        if not 0 <= at < (ir.static_int(x.ty.shape.values[axis]) or 0):
            return call
        part = self.builder_.normalize(relax.op.strided_slice(x, [axis], [at], [at + 1]))
        normed = self._normed(part)
        if normed is None and not self._is_of_product(x):
            return call  # of stacked weights, products read one where it lies
        self.changed, part = True, part if normed is None else normed
        return relax.op.reshape(self.builder_.emit(part), list(call.ty.shape.values))

    def _normed(self, call: Any) -> Any:
        """Slice what a norm of rows reads, where nothing else reads its result; None elsewhere."""
        norm, axes = maker_of(self, call.args[0], *NORMS), call.args[1]
        rank = -1 if norm is None else int(norm.args[0].ty.ndim)
        if rank < 1 or not isinstance(axes, relax.Tuple) or len(self.readers[call.args[0]]) != 1:
            return None
        if {int(x) % rank for x in axes.fields} & {int(x) % rank for x in norm.attrs.axes}:
            return None
        self.changed = True
        part = relax.Call(SLICE, [norm.args[0], *call.args[1:]], call.attrs)
        return relax.Call(norm.op, [self.builder_.emit(part), *norm.args[1:]], norm.attrs)

    def _moved(self, call: Any) -> tuple[int, Any] | None:
        """Return the place of a step's one tensor, and the view that it is."""
        narrows = call.op == CAST and _bits(call) < _bits(call.args[0])
        if not _is_float(call) or (not narrows and call.op not in OF_ELEMENTS):
            return None
        tensors = [i for i, x in enumerate(call.args) if not _is_number(x)]
        if len(tensors) != 1:
            return None
        view = maker_of(self, call.args[tensors[0]], *VIEWS, *[PERMUTE] * narrows)
        if view is None or not (narrows or self._is_of_product(view.args[0])):
            return None
        return tensors[0], view

    def _is_of_product(self, x: Any) -> bool:
        """Tell what a product leads to, through steps and views alone."""
        found = [x]
        for x in found:
            made = maker_of(self, x, *PRODUCTS, CAST, PERMUTE, *VIEWS, *OF_ELEMENTS)
            if made is not None and made.op in PRODUCTS:
                return True
            args = () if made is None else made.args
            found += [y for y in args if isinstance(y, relax.Var) and y not in found]
        return False


@mutator
class _Transposes(PyExprMutator):  # type: ignore[misc]
    changed, var = False, None

    def visit_var_binding_(self, binding: Any) -> None:
        """Note which variable a step computes."""
        self.var = binding.var
        super().visit_var_binding_(binding)

    def visit_call_(self, call: Any) -> Any:
        """Rewrite one step, or a transpose of a transpose."""
        call = super().visit_call_(call)
        if not self.builder_.current_block_is_dataflow():
            return call
        if call.op == PERMUTE:
            return self._joined(call)
        if call.op not in (CAST, *OF_ELEMENTS) or not _is_float(call):
            return call
        made = [maker_of(self, x, PERMUTE) if self._is_for_steps(x) else None for x in call.args]
        axes = next((axes_of(x) for x in made if x is not None), None)
        if axes is None or len(axes) != int(call.ty.ndim):
            return call
        args = [self._before(x, y, axes) for x, y in zip(call.args, made, strict=True)]
        if any(x is None for x in args):
            return call
        self.changed = True
        step = self.builder_.emit(relax.Call(call.op, args, call.attrs))
        return relax.op.permute_dims(step, axes)

    def _is_for_steps(self, x: Any) -> bool:
        """Tell what steps and transposes alone read: no transpose is left once these have moved."""
        values = [y.value for y in self.readers[x]] if isinstance(x, relax.Var) else []
        return all(getattr(y, "op", None) in (PERMUTE, CAST, *OF_ELEMENTS) for y in values)

    def _joined(self, call: Any) -> Any:
        inner = maker_of(self, call.args[0], PERMUTE)
        if inner is None:
            return call
        first = axes_of(inner)
        axes = [first[i] for i in axes_of(call)]
        x = inner.args[0]
        is_one = axes == [*range(len(axes))]
        leaving = is_one and leaves(self.var, self.readers, _is_view)
        if leaving and not is_own(self, call.args[0], _is_view):  # a result is a copy
            return call
        self.changed = True
        return x if is_one else relax.op.permute_dims(x, axes)

    def _before(self, x: Any, made: Any, axes: list[int]) -> Any:
        """Return what an operand is before a transpose; None if that would be a copy."""
        if _is_number(x):
            return x
        if made is not None:
            return made.args[0] if axes_of(made) == axes else None
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


ElementsFirst = mutator_pass("ElementsFirst", _StepMover)
TransposesLast = mutator_pass("TransposesLast", _Transposes)


def _bits(x: Any) -> int:
    return tvm.DataType(str(x.ty.dtype)).bits if isinstance(x.ty, relax.TensorType) else 0


def _is_view(call: Any) -> bool:
    return call.op in (PERMUTE, *VIEWS)


def _is_float(x: Any) -> bool:
    """Tell a tensor of floats."""
    return str(getattr(x.ty, "dtype", "")).endswith(("float16", "float32"))


def _is_number(x: Any) -> bool:
    """Tell a constant without dimensions."""
    return isinstance(x, GenericConst) and x.ty.ndim == 0
