"""Take views out of the ends of fused functions, before they become kernels.

    fused(x, w): y = call_tir(matmul, (x, w)); return call_tir(reshape, (y,))        (b, s, h, d)
    r = fused(x, w)
  ->
    fused(x, w): return call_tir(matmul, (x, w))                                     (rows, n)
    v = fused(x, w); r = reshape(v, (b, s, h, d))

FuseOps takes a reshape for an elementwise step.  In a kernel it would be an output of another rank,
which no tile of a product is stored to as a whole; outside of it costs nothing.

Needs: primitive functions (FuseOps).  Leaves: reshapes of their results.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_hopper.dlight.reshapes import is_reshape

from .flatten_batch import CALL_TIR


@tvm.transform.module_pass(opt_level=0, name="tvm_hopper.PeelViews")
class PeelViews:
    """See the module's docstring for the rewrite."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite primitive functions, then the calls of them."""
        peeled: dict[Any, relax.Function | int] = {}
        for gv, func in mod.functions_items():
            if isinstance(func, relax.Function) and func.attrs and "Primitive" in func.attrs:
                without = _without_views(mod, func)
                if without is not None:
                    peeled[gv] = without
        if not peeled:
            return mod
        kept = {gv: func for gv, func in mod.functions_items() if gv not in peeled}
        rewriter = _Calls(tvm.IRModule(kept, attrs=mod.attrs), peeled)
        for gv, func in kept.items():
            if isinstance(func, relax.Function) and "Primitive" not in (func.attrs or {}):
                rewriter.builder_.update_func(gv, rewriter.visit_expr(func))
        return rewriter.builder_.get()


def _without_views(mod: tvm.IRModule, func: relax.Function) -> relax.Function | int | None:
    """Return a function that ends before its last views; None where there is no such end.

    Of a function that is nothing but views, it is the place of the parameter.
    """
    if len(func.body.blocks) != 1:
        return None
    bindings = list(func.body.blocks[0].bindings)
    made = {x.var: x.value for x in bindings}
    last = func.body.body
    while last in made and _is_view(mod, made[last]):
        last = made[last].args[1].fields[0]
    if last in func.params:
        return list(func.params).index(last)
    if last is func.body.body or last not in made or not isinstance(last.ty, relax.TensorType):
        return None
    readers = [x.var for x in bindings if any(last.same_as(y) for y in _read_by(x.value))]
    if len(readers) != 1:
        return None
    result = relax.Var(last.name, last.ty)
    kept = [x for x in bindings if not x.var.same_as(last)]
    kept = kept[: next(i for i, x in enumerate(kept) if x.var.same_as(readers[0]))]
    block = relax.DataflowBlock([*kept, relax.VarBinding(result, made[last])])
    return relax.Function(
        func.params, relax.SeqExpr([block], result), result.ty, func.is_pure, func.attrs
    )


def _is_view(mod: tvm.IRModule, value: Any) -> bool:
    """Tell a call of a function that gives its one tensor another shape."""
    if not isinstance(value, relax.Call) or value.op != CALL_TIR or len(value.args) != 2:
        return False
    func = mod[value.args[0]]
    return len(value.args[1].fields) == 1 and isinstance(func, tirx.PrimFunc) and is_reshape(func)


def _read_by(value: Any) -> list[Any]:
    return list(relax.analysis.free_vars(value))


@mutator
class _Calls(PyExprMutator):  # type: ignore[misc]
    """Views what the functions return now."""

    def __init__(self, mod: tvm.IRModule, peeled: dict[Any, relax.Function | int]) -> None:
        super().__init__(mod)
        self.peeled = peeled
        self.added: dict[Any, Any] = {}

    def visit_call_(self, call: Any) -> Any:
        """Call a function without its views."""
        call = super().visit_call_(call)
        if call.op not in self.peeled:
            return call
        without = self.peeled[call.op]
        if isinstance(without, int):
            made = call.args[without]
        else:
            if call.op not in self.added:  # its type is another one
                self.added[call.op] = self.builder_.add_func(without, call.op.name_hint)
            made = self.builder_.emit(relax.Call(self.added[call.op], call.args))
        return relax.op.reshape(made, list(call.ty.shape.values))
