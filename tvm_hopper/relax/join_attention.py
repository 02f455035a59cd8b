"""Join written-out attention into one function in plain loops.

    s = R.matmul(R.multiply(q, 0.125), R.permute_dims(R.broadcast_to(k, ...)))
    p = R.nn.softmax(R.add(s, R.where(R.less_equal(columns, rows), 0, -inf)))
    o = R.matmul(R.astype(p, "float16"), R.broadcast_to(v, ...))
  ->
    o = R.call_tir(attention, (q, k, v))

So do importers write scaled_dot_product_attention. Each softmax is followed to the product with the
values, and back to its scores and their product. Steps that only move, scale or repeat operands are
part of the function, and so are masks made of comparisons of indices: keys are not repeated in
memory, and no mask is stored. `dlight.Attention` has to take the function, else calls stay as they
are, and the report says why. Operators `nn.attention` become such functions, too.

Needs: operators as importers leave them, before TVM legalizes them.
Leaves: functions for `dlight.Attention`, opaque to FuseOps; the attribute `LEFT` of a module with
other attentions: the extents of each one's weights, and why.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, s_tir, te, tirx, topi
from tvm.ir.expr import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_hopper.dlight.attention import AttentionRule
from tvm_hopper.errors import HopperError
from tvm_hopper.schedule.reasons import TVM_ERRORS, in_words

from .attention_operators import attention_loops
from .attention_region import OPERATORS, OutlinedAttention, find_attentions
from .call_groups import CallGroup, fuse_group, is_plain_call
from .mutator_passes import rewrite_functions
from .options import ModelOptions
from .work import extent_text

NAME = "attention"
LEFT = "relax.attentions_left"
OPAQUE = 8  # TVM's OpPatternKind: FuseOps adds nothing to such a function


@tvm.transform.module_pass(opt_level=0, name="tvm_hopper.JoinAttention")
class JoinAttention:
    """See the module's docstring for the rewrite.

    - `options`: without `accumulate` weights are not rounded where the model does not say so.
    """

    def __init__(self, options: ModelOptions | None = None) -> None:
        self.round_weights = options is None or options.accumulate is not None

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite the attentions of a module."""
        rewriter = _Attentions(mod, self.round_weights)
        after = rewrite_functions(mod, rewriter)
        return after.with_attr(LEFT, json.dumps(rewriter.left)) if rewriter.left else after


@dataclass(frozen=True)
class _Joined:
    """A function of attention, and the places of its arguments among an attention's inputs."""

    function: Any
    places: list[int]


@mutator
class _Attentions(PyExprMutator):  # type: ignore[misc]
    """Replaces the result of each attention."""

    changed = False

    def __init__(self, mod: tvm.IRModule, round_weights: bool) -> None:
        super().__init__(mod)
        self.round_weights = round_weights
        self.found: dict[Any, tuple[OutlinedAttention, _Joined]] = {}
        self.known: list[tuple[Any, _Joined | str]] = []
        self.left: list[tuple[list[str], str]] = []  # attentions that stay as they are

    def visit_function_(self, func: relax.Function) -> Any:
        """Look for attention in a function before its bindings are visited."""
        for var, forms, why in find_attentions(func):
            for form in forms:
                joined = self._function(form.mod)
                if isinstance(joined, _Joined):
                    self.found[form.result] = form, joined
                    break
                why = joined
            else:
                shape = getattr(var.ty.shape, "values", [])
                self.left.append(([extent_text(x) for x in shape], why))
        return super().visit_function_(func)

    def visit_var_binding_(self, binding: Any) -> None:
        """Call the function of an attention for its result."""
        if binding.var not in self.found:
            super().visit_var_binding_(binding)
            return
        self.changed = True
        is_inner = isinstance(binding.var, relax.DataflowVar)
        emit = self.builder_.emit if is_inner else self.builder_.emit_output
        self.set_var_remap(binding.var, emit(self._call(*self.found[binding.var])))

    def _call(self, outlined: OutlinedAttention, made: _Joined) -> Any:
        """Return a call of the outlined function."""
        args = []
        for _, x, dtype in (outlined.inputs[i] for i in made.places):
            given = self.visit_expr(x)
            narrow = str(given.ty.dtype) != dtype
            args.append(self.builder_.emit(relax.op.astype(given, dtype)) if narrow else given)
        return relax.call_tir(made.function, args, outlined.result.ty)

    def _function(self, mod: tvm.IRModule) -> _Joined | str:
        """Add a function to the model, the same one for equal ones; a reason if there is none."""
        for known, found in self.known:
            if tvm_ffi.structural_equal(known, mod["main"]):
                return found
        joined: _Joined | str = "an operator that TVM has no loops for, or a constant tensor"
        try:
            made = _fused(mod)
            if made is not None:
                AttentionRule(round_weights=self.round_weights).schedule(
                    s_tir.Schedule(tvm.IRModule({"main": made[0]}))
                )
                func = made[0].with_attr("op_pattern", OPAQUE)
                joined = _Joined(self.builder_.add_func(func, NAME), made[1])
        except HopperError as error:
            joined = str(error)
        except TVM_ERRORS as error:
            joined = f"loops that TVM does not take{in_words(error)}"
        self.known.append((mod["main"], joined))
        return joined


def _fused(mod: tvm.IRModule) -> tuple[tirx.PrimFunc, list[int]] | None:
    """Return "main" as one function in plain loops, and which parameters that has."""
    legal = relax.transform.LegalizeOps(LEGALIZERS)(mod)
    legal = relax.transform.CanonicalizeBindings()(legal)
    calls = list(legal["main"].body.blocks[0].bindings)
    if not all(is_plain_call(legal, x) for x in calls):
        return None
    group = CallGroup(tuple(calls), (calls[-1].var,))
    params = list(legal["main"].params)
    if any(x not in params for x in group.inputs):
        return None  # a constant tensor
    return fuse_group(legal, group), [params.index(x) for x in group.inputs]


def _arange(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Compute a range of integers from indices: TVM's legalizer stores a constant."""
    start, _, step = call.args
    dtype = str(call.ty.dtype)

    def number(i: Any) -> Any:
        return (start + i * step).astype(dtype)

    return builder.call_te(lambda: te.compute(list(call.ty.shape.values), number, "arange"))


def _where(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Choose between constants, too: TVM's legalizer takes tensors alone."""
    constants = [
        float(x.value.numpy()) if isinstance(x, GenericConst) and x.ty.ndim == 0 else None
        for x in call.args
    ]
    types = [str(x.ty.dtype) for x in call.args]
    tensors = [x for x, value in zip(call.args, constants, strict=True) if value is None]

    def choose(*given: Any) -> Any:
        left = iter(given)
        parts = [
            next(left) if value is None else _filled(value, dtype)
            for value, dtype in zip(constants, types, strict=True)
        ]
        return topi.where(*parts)

    return builder.call_te(choose, *tensors)


def _full(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Fill a tensor: TVM's legalizer refuses infinity."""
    shape, value = call.args
    if not isinstance(shape, relax.ShapeExpr) or not isinstance(value, GenericConst):
        return call
    made = tirx.const(value.value.numpy().item(), str(call.ty.dtype))
    return builder.call_te(lambda: te.compute(list(shape.values), lambda *_: made, "full"))


def _filled(value: float, dtype: str) -> Any:
    return te.compute((), lambda: tirx.const(value, dtype), "constant")


def _attention(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    return builder.call_te(lambda *x: attention_loops(call.attrs, *x), *call.args)


LEGALIZERS = {
    "relax.arange": _arange,
    "relax.where": _where,
    "relax.full": _full,
    **{f"relax.nn.{x}": _attention for x in OPERATORS},
}
