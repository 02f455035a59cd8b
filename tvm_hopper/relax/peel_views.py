"""Take views out of the ends of fused functions, before they become kernels.

    fused(x, w): y = call_tir(matmul, (x, w)); return call_tir(reshape, (y,))        (b, s, h, d)
    r = fused(x, w)
  ->
    fused(x, w): return call_tir(matmul, (x, w))                                     (rows, n)
    r = reshape(fused(x, w), (b, s, h, d))

FuseOps takes a reshape for an elementwise step.  In a kernel it would be an output of another rank,
which no tile of a product is stored to as a whole; outside of it costs nothing.  Views of
a parameter, or of another result, are copies where the model returns them.

Needs: primitive functions (FuseOps).  Leaves: reshapes of their results, if these are floats.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_hopper.dlight.reshapes import is_reshape

from .flatten_batch import CALL_TIR
from .mutator_passes import is_own, leaves, readers_of
from .simplify_operands import RESHAPE


@tvm.transform.module_pass(opt_level=0, name="tvm_hopper.PeelViews")
class PeelViews:
    """See the module's docstring for the rewrite."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite primitive functions, then the calls of them."""
        functions = [(gv, f) for gv, f in mod.functions_items() if isinstance(f, relax.Function)]
        primitive = {gv: f for gv, f in functions if "Primitive" in (f.attrs or {})}
        peeled = {gv: _without_views(mod, f) for gv, f in primitive.items()}
        peeled = {gv: x for gv, x in peeled.items() if x is not None}
        kept = {gv: f for gv, f in mod.functions_items() if isinstance(peeled.get(gv, 0), int)}
        rewriter = _PeeledCalls(tvm.IRModule(kept, attrs=mod.attrs), peeled)
        for gv, func in functions:
            if gv not in primitive:
                rewriter.readers = readers_of(func)
                rewriter.builder_.update_func(gv, rewriter.visit_expr(func))
        return rewriter.builder_.get()


def _without_views(mod: tvm.IRModule, func: relax.Function) -> relax.Function | int | None:
    """Return a function that ends before its last views; None where there is no such end.

    Of a function that is nothing but views, it is the place of the parameter.
    """
    if "float" not in str(getattr(func.ret_ty, "dtype", "")):
        return None  # what reads indices takes them along
    (block,) = func.body.blocks
    made = {x.var: x.value for x in block.bindings}
    last, views = func.body.body, set()
    while last in made and _is_view(mod, made[last]):
        views.add(last)
        last = made[last].args[1].fields[0]
    if not views or last in func.params:
        return list(func.params).index(last) if views else None
    kept = [x for x in block.bindings if x.var not in views and not x.var.same_as(last)]
    if any(last in relax.analysis.free_vars(x.value) for x in kept):
        return None
    result = relax.Var(last.name, last.ty)
    body = relax.DataflowBlock([*kept, relax.VarBinding(result, made[last])])
    return relax.Function(
        func.params, relax.SeqExpr([body], result), result.ty, func.is_pure, func.attrs
    )


def _is_view(mod: tvm.IRModule, value: Any) -> bool:
    """Tell a call of a function that gives its one tensor another shape."""
    if not isinstance(value, relax.Call) or value.op != CALL_TIR or len(value.args) != 2:
        return False
    func = mod[value.args[0]]
    return len(value.args[1].fields) == 1 and isinstance(func, tirx.PrimFunc) and is_reshape(func)


@mutator
class _PeeledCalls(PyExprMutator):  # type: ignore[misc]
    """Views what the functions return now."""

    def __init__(self, mod: tvm.IRModule, peeled: dict[Any, relax.Function | int]) -> None:
        super().__init__(mod)
        self.mod, self.peeled, self.added = mod, peeled, dict[Any, Any]()
        self.var, self.readers = None, dict[Any, list[Any]]()

    def visit_var_binding_(self, binding: Any) -> None:
        """Note which variable a call computes."""
        self.var = binding.var
        super().visit_var_binding_(binding)

    def _is_view(self, call: Any) -> bool:
        named = isinstance(self.peeled.get(call.op), int) or call.op == RESHAPE
        return named or _is_view(self.mod, call)

    def visit_call_(self, call: Any) -> Any:
        """Call a function without its views."""
        call = super().visit_call_(call)
        if call.op not in self.peeled:
            return call
        without = self.peeled[call.op]
        if isinstance(without, int):
            x, leaving = call.args[without], leaves(self.var, self.readers, self._is_view)
            if leaving and not is_own(self, x, self._is_view):
                return call
            return relax.op.reshape(x, list(call.ty.shape.values))
        if call.op not in self.added:  # its type is another one
            self.added[call.op] = self.builder_.add_func(without, call.op.name_hint)
        made = self.builder_.emit(relax.Call(self.added[call.op], call.args))
        return relax.op.reshape(made, list(call.ty.shape.values))
