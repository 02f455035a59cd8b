"""Make once what a model makes of its weights alone at each call.

    v = R.permute_dims(w, (0, 2, 3, 1)); y = R.nn.conv2d(t, v)            channels last
  ->
    def transform_params(w, ...): v = R.permute_dims(w, (0, 2, 3, 1))     run once, by the user
    y = R.nn.conv2d(t, v)

The pipeline's own passes say what that is; a product's transposed weight stays as it lies.  So do
weights of a few bits, which kernels decode as they read them, and what is repeated.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.target import Target

from tvm_hopper.errors import cannot_configure

from .join_products import HOISTED, JOINED, NUM_INPUT, PACKED, is_packed, unpacked
from .lowering import operand_passes
from .options import ModelOptions

WHERE = "relax.hoist_weights"
TAKE, CONCAT, STOP = (
    tvm.ir.Op.get(f"relax.{x}") for x in ("take", "concat", "builtin.stop_lift_params")
)
REPEATS = tuple(tvm.ir.Op.get(f"relax.{x}") for x in ("broadcast_to", "repeat", "tile"))
WHOLE = ("float16", "bfloat16", "float32", "float64")  # others are decoded


def hoist_weights(
    mod: tvm.IRModule, target: Any, *, accumulate: str | None = "float32"
) -> tvm.IRModule:
    """Move what weights alone determine into a function that is run once.

    Parameters
    ----------
    mod : IRModule
        A Relax model, not lowered, with the attribute `num_input`, as importers set it: parameters
        from there on are weights.
    target : Target, str or dict
        For which it will be built.
    accumulate : str, optional
        As the pipeline's option, with which it will be built.

    Returns
    -------
    hoisted : IRModule
        The model, whose functions take the results of a function `transform_params` in place of
        weights, as one tuple where they did; that takes a tuple of them. Other requests, as
        `to_half` and `join_products`, come before. The same module if nothing is made of weights
        alone.

    Raises
    ------
    OptionError
        It is no module, no target, no function says which of its parameters are weights, or
        functions have unequal numbers of them.
    """
    if not isinstance(mod, tvm.IRModule):
        raise cannot_configure(WHERE, type(mod).__name__, "an IRModule of Relax functions")
    functions = [f for f in mod.functions.values() if isinstance(f, relax.Function)]
    if not any(NUM_INPUT in (f.attrs or {}) for f in functions):
        fix = f'say it: func.with_attr("{NUM_INPUT}", number of inputs before the weights)'
        raise cannot_configure(WHERE, f"no attribute {NUM_INPUT}", "to know the weights", fix)
    ready = mod.clone()
    packed = False
    for gv, func in mod.functions_items():
        if isinstance(func, relax.Function) and NUM_INPUT in (func.attrs or {}) and is_packed(func):
            ready.update_func(gv, unpacked(func))
            packed = True
    _check_numbers(ready)
    passes = [
        relax.transform.CanonicalizeBindings(),
        *operand_passes(ModelOptions(accumulate)),
        relax.transform.DeadCodeElimination(),
    ]
    with _target(target):
        ready = tvm.transform.Sequential(passes)(ready)
    for gv, func in ready.functions_items():
        if isinstance(func, relax.Function) and NUM_INPUT in (func.attrs or {}):
            ready.update_func(gv, _Stops(ready).visit_expr(func).with_attr(HOISTED, 1))
    lifted = relax.transform.LiftTransformParams(shared_transform=True)(ready)
    made = lifted[JOINED]
    if not any(isinstance(x.value, relax.Call) for b in made.body.blocks for x in b.bindings):
        return mod
    lifted.update_func(lifted.get_global_var(JOINED), made.without_attr(NUM_INPUT))
    return relax.transform.BundleModelParams(PACKED)(lifted) if packed else lifted


def _target(target: Any) -> Target:
    try:
        return Target(target)
    except (ValueError, TypeError) as error:
        raise cannot_configure(WHERE, f"target={target!r}", "a target of TVM") from error


def _check_numbers(mod: tvm.IRModule) -> None:
    """Refuse functions that do not share their weights: one `transform_params` makes all."""
    numbers = {
        gv.name_hint: len(f.params) - int(f.attrs[NUM_INPUT])
        for gv, f in mod.functions_items()
        if isinstance(f, relax.Function) and NUM_INPUT in (f.attrs or {})
    }
    if len(set(numbers.values())) > 1:
        found = ", ".join(f"{name} has {n} weights" for name, n in sorted(numbers.items()))
        fix = "give each all weights, or hoist a module for each function"
        raise cannot_configure(WHERE, found, "the same weights in all functions", fix)


@mutator
class _Stops(PyExprMutator):  # type: ignore[misc]
    """Marks what is read at each call: weights of a few bits but for indices, what is repeated."""

    def visit_function_(self, func: relax.Function) -> Any:
        """Find the weights of one function."""
        self.weights = set(func.params[int(func.attrs[NUM_INPUT]) :])
        return super().visit_function_(func)

    def visit_call_(self, call: Any) -> Any:
        """Rewrite the operands of one call."""
        if call.op == STOP or call.op == CONCAT:
            return call
        args = [x if i == 1 and call.op == TAKE else self._read(x) for i, x in enumerate(call.args)]
        if call.op in REPEATS and args[0].same_as(call.args[0]):
            args[0] = relax.op.builtin.stop_lift_params(args[0])
        return super().visit_call_(relax.Call(call.op, args, call.attrs, call.ty_args, call.span))

    def _read(self, x: Any) -> Any:
        if isinstance(x, relax.Tuple):
            return relax.Tuple([self._read(y) for y in x.fields])
        is_coded = x in self.weights and _is_coded(x)
        return relax.op.builtin.stop_lift_params(x) if is_coded else x


def _is_coded(x: Any) -> bool:
    return isinstance(x.ty, relax.TensorType) and str(x.ty.dtype) not in (*WHOLE, "bool")
