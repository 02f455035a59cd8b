"""Flatten the tokens of linear layers into rows: functions and their calls.

    y = R.call_tir(linear, (x, w), R.Tensor((b, s, N)))             x: (b, s, K)
  ->
    x1 = R.reshape(x, (b * s, K))
    y1 = R.call_tir(linear_rows, (x1, w), R.Tensor((b * s, N)))
    y = R.reshape(y1, (b, s, N))

Needs: fused functions (FuseTIR), so that epilogues are part of them.
Leaves: reshapes, which become views in the executable; where one would undo the other none is made.
Functions that prefill and decode have in common become one.  The rest over is for
DeadCodeElimination.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from .flat_functions import FlatFunction, count_rows, flatten_function, has_product
from .simplify_operands import RESHAPE, maker_of

SUFFIX = "_rows"
CALL_TIR = tvm.ir.Op.get("relax.call_tir")


@tvm.transform.module_pass(opt_level=0, name="tvm_hopper.FlattenBatch")
class FlattenBatch:
    """The pass; see the module."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Flatten the functions of a module and their calls."""
        flat = {}
        for gv, func in mod.functions.items():
            if isinstance(func, tirx.PrimFunc) and is_plain(func):
                flat_function = flatten_function(func)
                if flat_function is not None:
                    flat[gv] = flat_function
        if not flat:
            return mod
        mod = _rewritten(mod, flat)
        more, chosen = _after_products(mod)
        return _rewritten(mod, more, chosen) if more else mod


def _rewritten(
    mod: tvm.IRModule, flat: dict[Any, FlatFunction], chosen: set[Any] | None = None
) -> tvm.IRModule:
    calls = _Calls(mod, flat, chosen)
    for gv, func in mod.functions.items():
        if isinstance(func, relax.Function):
            calls.enter(gv, func)
    return calls.builder_.get()


def _after_products(mod: tvm.IRModule) -> tuple[dict[Any, FlatFunction], set[Any]]:
    """Flatten functions of static batches that read rows of a product, which became rows.

    Not where they read images of a convolution, too: its tiles are boxes of pixels.

    - returns: the functions, and the calls that are to have rows.
    """
    functions: dict[Any, FlatFunction] = {}
    chosen: set[Any] = set()
    for func in mod.functions.values():
        if not isinstance(func, relax.Function):
            continue
        values = {x.var: x.value for block in func.body.blocks for x in block.bindings}
        for call in values.values():
            if not _is_call(call) or not is_plain(mod[call.args[0]]):
                continue
            gv, given = call.args[0], call.args[1].fields
            if not any(_is_view_of_rows(mod, values, x) for x in given) or any(
                _is_call(values.get(x)) and has_product(mod[values[x].args[0]]) for x in given
            ):
                continue
            if gv not in functions:
                flat = flatten_function(mod[gv], lead=len(mod[gv].params[-1].ty.shape) - 1)
                if flat is None:
                    continue
                functions[gv] = flat
            chosen.add(call)
    return functions, chosen


def _is_call(call: Any) -> bool:
    is_call = isinstance(call, relax.Call) and call.op == CALL_TIR
    return is_call and isinstance(call.ty_args[0], relax.TensorType)


def _is_view_of_rows(mod: tvm.IRModule, values: dict[Any, Any], x: Any) -> bool:
    """Tell a view of a product's rows, which keeps their columns."""
    view = values.get(x)
    if not isinstance(view, relax.Call) or view.op != RESHAPE:
        return False
    made = values.get(view.args[0])
    if made is None or not _is_call(made) or not str(made.args[0].name_hint).endswith(SUFFIX):
        return False
    shape, source_shape = (list(y.ty.shape.values) for y in (x, view.args[0]))
    same = len(source_shape) == 2 and len(shape) > 2 and _same(shape[-1:], source_shape[-1:])
    return same and has_product(mod[made.args[0]])


def is_plain(func: tirx.PrimFunc) -> bool:
    """Tell whether a function is in plain loops and not scheduled yet."""
    attrs = func.attrs or {}
    return bool(attrs.get("s_tir", False)) and not attrs.get("tirx.is_scheduled", False)


@mutator
class _Calls(PyExprMutator):  # type: ignore[misc]
    """Rewrites the calls of flattened functions."""

    def __init__(
        self, mod: tvm.IRModule, flat: dict[Any, FlatFunction], chosen: set[Any] | None
    ) -> None:
        super().__init__(mod)
        self.flat, self.chosen = flat, chosen
        self.added: dict[Any, Any] = {}

    def enter(self, gv: Any, func: relax.Function) -> None:
        """Rewrite one function."""
        self.builder_.update_func(gv, self.visit_expr(func))

    def visit_call_(self, call: relax.Call) -> Any:
        """Call the flat function between two views; look at what a view was made of."""
        is_chosen = self.chosen is None or call in self.chosen
        call = super().visit_call_(call)
        if call.op == RESHAPE:
            return self._view(call.args[0], list(call.ty.shape.values), call)
        is_plain_call = call.op == CALL_TIR and len(call.args) == 2
        return self._flat(call) if is_chosen and is_plain_call else call

    def _flat(self, call: relax.Call) -> Any:
        """Call the flat function, if there is one."""
        if call.args[0] not in self.flat:
            return call
        gv, (out,) = call.args[0], call.ty_args
        outs = list(out.fields) if isinstance(out, relax.TupleType) else [out]
        given = [x for x in call.args[1].fields if isinstance(x.ty, relax.TensorType)]
        flat_function = self.flat[gv]
        if len(flat_function.flattened) != len(given) + len(outs):
            return call
        if gv not in self.added:
            self.added[gv] = self.builder_.add_func(flat_function.func, gv.name_hint + SUFFIX)
        flags = iter(flat_function.flattened)
        args = [self._as_rows(x, flat_function.lead) if next(flags) else x for x in given]
        is_flat = list(flags)
        types = [
            relax.TensorType(flat_shape(x.shape.values, flat_function.lead), x.dtype) if flat else x
            for x, flat in zip(outs, is_flat, strict=True)
        ]
        made = self.builder_.emit(
            relax.call_tir(self.added[gv], args, types[0] if len(types) == 1 else types)
        )
        if len(outs) == 1:
            return relax.op.reshape(made, list(out.shape.values)) if is_flat[0] else made
        parts = []
        for i, (x, flat) in enumerate(zip(outs, is_flat, strict=True)):
            part = self.builder_.emit(relax.TupleGetItem(made, i))
            view = (
                self.builder_.emit(relax.op.reshape(part, list(x.shape.values))) if flat else part
            )
            parts.append(view)
        return relax.Tuple(parts)

    def _as_rows(self, x: Any, lead: int) -> Any:
        view = self._view(x, flat_shape(x.ty.shape.values, lead))
        return view if isinstance(view, relax.Var) else self.builder_.emit(view)

    def _view(self, x: Any, shape: list[Any], made: Any = None) -> Any:
        """View a tensor, or what it is a view of; `made` is a view of it that there is already."""
        source = maker_of(self, x, RESHAPE)
        if source is not None:
            x, made = source.args[0], None
        if _same(list(x.ty.shape.values), shape):
            return x
        return relax.op.reshape(x, shape) if made is None else made


def flat_shape(shape: Sequence[Any], lead: int) -> list[Any]:
    """Return a shape with its first dimensions made one."""
    dims = list(shape)
    return [count_rows(dims[:lead]), *dims[lead:]]


def _same(shape: list[Any], wanted: list[Any]) -> bool:
    return len(shape) == len(wanted) and all(
        tvm_ffi.structural_equal(a, b) for a, b in zip(shape, wanted, strict=True)
    )
