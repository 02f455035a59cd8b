"""Fuse a residual's sum into the norm that reads it.

    s = R.call_tir(add, (x, y), R.Tensor((rows, N)))
    n = R.call_tir(rms_norm, (s, w), R.Tensor((rows, N)))            s is read elsewhere, too
  ->
    t = R.call_tir(fused_add_rms_norm, (x, y, w), [R.Tensor((rows, N)), R.Tensor((rows, N))])
    s, n = t[0], t[1]

TVM's FuseOps joins what has one reader, and nothing before a reduction.  Where the sum is
after a product it is part of that already, and no kernel of its own.

Needs: fused functions in rows (FlattenBatch), so that the rest by itself is known.
Leaves: functions of two outputs, each of which `hs.row_reduction` takes; others stay two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax, s_tir, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.target import Target

from tvm_hopper import dlight, ir
from tvm_hopper.dlight.product import products
from tvm_hopper.schedule.reasons import TVM_ERRORS

from .check_builds import find_fault
from .flatten_batch import SUFFIX
from .row_pairs import Pair, find_pairs, is_elementwise, reduces


@tvm.transform.module_pass(opt_level=0, name="tvm_hopper.FuseRows")
class FuseRows:
    """The pass; see the module."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Fuse pairs of calls, where the function of both is one that a rule of ours takes."""
        target = Target.current(allow_none=False)
        return fuse_pairs(mod, is_elementwise, reduces, lambda x: fused_function(mod, x, target))


def fuse_pairs(
    mod: tvm.IRModule,
    is_first: Callable[[tirx.PrimFunc], bool],
    is_second: Callable[[tirx.PrimFunc], bool],
    make: Callable[[Pair], tirx.PrimFunc | None],
    same_shape: bool = True,
) -> tvm.IRModule:
    """Call one function for each pair of calls of which `make` returns one.

    Parameters
    ----------
    mod : IRModule
        The model.
    is_first, is_second, same_shape
        Which calls are pairs, see `find_pairs`.
    make : callable
        Returns one function of both; None: they stay two.
    """
    made: dict[Any, Any] = {}
    fused: dict[Any, list[tuple[Pair, Any]]] = {}
    for gv, func in mod.functions.items():
        for block in func.body.blocks if isinstance(func, relax.Function) else ():
            for pair in find_pairs(mod, func, block, is_first, is_second, same_shape):
                if pair.key not in made:
                    made[pair.key] = make(pair)
                if made[pair.key] is not None:
                    fused.setdefault(gv, []).append((pair, made[pair.key]))
    rewriter = _Pairs(mod)
    for gv, chosen in fused.items():
        rewriter.enter(gv, mod[gv], chosen)
    return rewriter.builder_.get() if fused else mod


def fused_function(mod: tvm.IRModule, pair: Pair, target: Target) -> tirx.PrimFunc | None:
    """Return one function of two, None where it is not one that `hs.row_reduction` takes."""
    if products(s_tir.Schedule(mod[pair.second.value.args[0]])):
        return None  # what a product reads is read by many blocks
    try:
        func = fuse(mod, pair)
    except TVM_ERRORS:  # what TVM cannot fuse stays two functions
        return None
    sch = dlight.RowReduction(accumulate=None).apply(func, target, False)  # as the program sums
    if sch is None or find_fault(sch.mod["main"], target) is not None:
        return None
    return func


def fuse(mod: tvm.IRModule, pair: Pair) -> tirx.PrimFunc:
    """Let TVM fuse two functions: parameters are the first one's, then the second one's others."""
    names = [x.value.args[0] for x in (pair.first, pair.second)]
    first_func, second_func = (mod[x] for x in names)
    place = pair.place
    made = _type(first_func.params[-1])
    same = dict(zip(second_func.params[place].ty.shape, made.shape.values, strict=True))
    same = {x: y for x, y in same.items() if isinstance(x, tirx.Var)}
    types = [_type(x, same) for x in second_func.params]
    params = [relax.Var(f"p{i}", _type(x)) for i, x in enumerate(first_func.params[:-1])]
    others = [relax.Var(f"q{i}", x) for i, x in enumerate(types[:-1]) if i != place]
    builder = relax.BlockBuilder()
    first, second = (builder.add_func(mod[x], x.name_hint) for x in names)
    name = pair_name(pair)
    attrs = {"Primitive": True}
    with builder.function(name, [*params, *others], attrs=attrs, private=True):
        with builder.dataflow():
            elements = builder.emit(relax.call_tir(first, params, made))
            given = [*others[:place], elements, *others[place:]]
            rows = builder.emit(relax.call_tir(second, given, types[-1]))
            out = builder.emit_output(relax.Tuple([elements, rows]) if pair.both else rows)
        builder.emit_func_output(out)
    gv = builder.get().get_global_var(name)
    given = [relax.Var(f"x{i}", x.ty) for i, x in enumerate([*params, *others])]
    with builder.function("main", given):
        with builder.dataflow():
            out = builder.emit_output(builder.emit(relax.Call(gv, given)))
        builder.emit_func_output(out)
    return relax.transform.FuseTIR()(builder.finalize())[name]


def pair_name(pair: Pair) -> str:
    """Return the function's name, as TVM would: fused_add_rms_norm, in rows."""
    plain = [x.removeprefix("fused_").removesuffix(SUFFIX) for x in pair.names]
    return "_".join(["fused", *plain]) + (SUFFIX if pair.names[1].endswith(SUFFIX) else "")


def _type(param: Any, same: Any = None) -> relax.TensorType:
    """Return the type of a function's parameter, by other names of its symbols."""
    shape = [ir.substitute(x, same) if same else x for x in param.ty.shape]
    return relax.TensorType(shape, ir.dtype_of(param))


@mutator
class _Pairs(PyExprMutator):  # type: ignore[misc]
    """Calls one function for both of a pair, in place of the first."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.added: dict[Any, Any] = {}
        self.firsts: dict[Any, tuple[Pair, Any]] = {}
        self.seconds: set[Any] = set()

    def enter(self, gv: Any, func: relax.Function, pairs: list[tuple[Pair, Any]]) -> None:
        """Rewrite one function."""
        self.firsts = {x.first.var: (x, made) for x, made in pairs}
        self.seconds = {x.second.var for x, _ in pairs}
        self.builder_.update_func(gv, self.visit_expr(func))

    def visit_var_binding_(self, binding: Any) -> None:
        """Emit the call of both where the first was called, and nothing for the second."""
        if binding.var in self.seconds:
            return
        if binding.var not in self.firsts:
            super().visit_var_binding_(binding)
            return
        pair, made = self.firsts[binding.var]
        key = pair.key
        if key not in self.added:
            self.added[key] = self.builder_.add_func(made, pair_name(pair))
        place = pair.place
        second = [x for i, x in enumerate(pair.second.value.args[1].fields) if i != place]
        args = [
            self._viewed(self.visit_expr(x), list(param.ty.shape))
            for x, param in zip(
                [*pair.first.value.args[1].fields, *second], made.params, strict=False
            )
        ]
        results = [pair.first, pair.second] if pair.both else [pair.second]
        types = [x.value.ty_args[0] for x in results]
        call = relax.call_tir(self.added[key], args, types if pair.both else types[0])
        whole = self.builder_.emit(call) if pair.both else None
        for i, x in enumerate(results):
            value = relax.TupleGetItem(whole, i) if pair.both else call
            is_inner = isinstance(x.var, relax.DataflowVar)
            emit = self.builder_.emit if is_inner else self.builder_.emit_output
            self.set_var_remap(x.var, emit(value))

    def _viewed(self, x: Any, shape: list[Any]) -> Any:
        """Return a tensor as the function of both takes it: some view a weight."""
        if len(shape) == len(x.ty.shape.values):
            return x
        return self.builder_.emit(relax.op.reshape(x, shape))
