"""Join products of the same input into one, with weights concatenated once.

    q = R.matmul(x, R.permute_dims(wq)); k = R.matmul(x, R.permute_dims(wk))
  ->
    qk = R.matmul(x, R.permute_dims(w)); q, k = R.split(qk, ...)
    def transform_params(wq, wk, ...): w = R.concat((wq, wk))           run once, by the user

TVM's CombineParallelMatmul finds the products and LiftTransformParams makes the function that
joins.  Between the two, weights are put back as they lay: TVM joins transposed copies, whose rows
no dot product could read.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_hopper.errors import cannot_configure

from .fuse_transposes import FuseTransposes

WHERE = "relax.join_products"
JOINED = "transform_params"
NUM_INPUT = "num_input"
PACKED = "packed_params"
HOISTED = "hoisted"  # attribute of functions whose products are no operators any more
_CONCAT, _PERMUTE, _MATMUL, *_OF_TWO = (
    tvm.ir.Op.get(f"relax.{x}") for x in ("concat", "permute_dims", "matmul", "multiply", "add")
)


def join_products(mod: tvm.IRModule, *, gates: bool = True) -> tvm.IRModule:
    """Make one product of linear layers that read the same input, as q, k and v, or gate and up.

    Parameters
    ----------
    mod : IRModule
        A Relax model, not lowered. Its functions have the attribute `num_input`, as those of
        `nn.Module.export_tvm` do: parameters from there on are weights.

    gates : bool
        False: products that one elementwise operator combines, as gate and up, stay separate; the
        operator is then part of one product's kernel, as FuseOps has it.

    Returns
    -------
    joined : IRModule
        The model, whose functions take joined weights in place of their own, and a function
        `transform_params`, which makes them of a tuple of all parameters from `num_input` on.
        The same module where there is nothing to join.

    Raises
    ------
    OptionError
        It is no module; `hoist_weights` returned it; or products could be joined in a function
        whose weights is unknown from its inputs.
    """
    check_operators(WHERE, mod)
    kept = set() if gates else find_gates(mod)
    combined = relax.transform.CombineParallelMatmul(
        lambda _x, weights, _biases, _bindings: not any(w in kept for w in weights)
    )(mod)
    changed = [
        gv.name_hint
        for gv, func in mod.functions.items()
        if isinstance(func, relax.Function) and not func.same_as(combined[gv.name_hint])
    ]
    if not changed:
        return mod
    for name in changed:
        if NUM_INPUT not in (mod[name].attrs or {}):
            raise cannot_configure(
                f"{WHERE}, function {name}",
                f"products of one input, and no attribute {NUM_INPUT}",
                "to know which parameters are weights: joined at every call they would cost more "
                "than they gain",
                f'say it: func.with_attr("{NUM_INPUT}", number of inputs before the weights)',
            )
    packed = [name for name in changed if is_packed(mod[name])]
    for name in packed:
        combined.update_func(combined.get_global_var(name), unpacked(combined[name]))
    passes = [
        relax.transform.CanonicalizeBindings(),
        _JoinAsTheyLie(),
        FuseTransposes(),  # a transposed weight is no other weight
        relax.transform.DeadCodeElimination(),
        relax.transform.LiftTransformParams(shared_transform=True),
    ]
    joined = tvm.transform.Sequential(passes)(combined)
    joined.update_func(joined.get_global_var(JOINED), joined[JOINED].without_attr(NUM_INPUT))
    return relax.transform.BundleModelParams(PACKED)(joined) if packed else joined


def check_operators(where: str, mod: Any) -> None:
    """Refuse what is no module, or one whose products `hoist_weights` has made calls of loops.

    - `where`: what asks, for the error.
    - `mod`: what it was given.
    - raises OptionError.
    """
    if not isinstance(mod, tvm.IRModule):
        raise cannot_configure(where, type(mod).__name__, "an IRModule of Relax functions")
    for gv, func in mod.functions_items():
        if HOISTED in (func.attrs or {}):
            found = f"function {gv.name_hint} as hoist_weights returned it"
            fix = "call hoist_weights last"
            raise cannot_configure(where, found, "operators, as an importer gives them", fix)


def find_gates(mod: tvm.IRModule) -> set[Any]:
    """Return the right operands of products that are combined by a binary elementwise operator."""
    weights: set[Any] = set()
    for func in mod.functions.values():
        if not isinstance(func, relax.Function):
            continue
        weight: dict[Any, Any] = {}  # of the product that a value is an elementwise function of
        for block in func.body.blocks:
            for binding in block.bindings:
                call = binding.value
                if not isinstance(call, relax.Call):
                    continue
                if call.op == _MATMUL:
                    weight[binding.var] = call.args[1]
                    continue
                from_products = [weight[x] for x in call.args if x in weight]
                if call.op in _OF_TWO and len(from_products) == 2:
                    weights |= set(from_products)
                elif len(call.args) == 1 and from_products:
                    (weight[binding.var],) = from_products
    return weights


def is_packed(func: relax.Function) -> bool:
    """Tell whether a function takes its weights as one tuple."""
    weights = func.params[int(func.attrs[NUM_INPUT]) :]
    return len(weights) == 1 and isinstance(weights[0].ty, relax.TupleType)


def unpacked(func: relax.Function) -> relax.Function:
    """Let a function take its weights as parameters: TVM cannot fuse around tuples in tuples."""
    *inputs, packed = func.params
    weights = [relax.Var(f"weight_{i}", ty) for i, ty in enumerate(packed.ty.fields)]
    first = relax.BindingBlock([relax.VarBinding(packed, relax.Tuple(weights))])
    body = relax.SeqExpr([first, *func.body.blocks], func.body.body)
    return relax.Function([*inputs, *weights], body, func.ret_ty, func.is_pure, func.attrs)


@tvm.transform.module_pass(opt_level=0, name="tvm_hopper.JoinAsTheyLie")
class _JoinAsTheyLie:
    """Turn `concat(transposed weights)` into a transposed `concat(weights)`."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite each function."""
        rewriter = _Rewriter(mod)
        for gv, func in mod.functions.items():
            if isinstance(func, relax.Function):
                rewriter.builder_.update_func(gv, rewriter.visit_expr(func))
        return relax.transform.DeadCodeElimination()(rewriter.builder_.get())


@mutator
class _Rewriter(PyExprMutator):  # type: ignore[misc]
    """Looks for weights that TVM has joined as columns."""

    def visit_call_(self, call: relax.Call) -> Any:
        """Join rows where columns were rows before they were transposed."""
        call = super().visit_call_(call)
        if call.op != _CONCAT or not isinstance(call.args[0], relax.Tuple):
            return call
        weights = [self._transposed(x) for x in call.args[0].fields]
        if call.attrs.axis is None or int(call.attrs.axis) != 1 or None in weights:
            return call
        rows = self.builder_.emit(relax.op.concat(weights, axis=0))
        return relax.op.permute_dims(rows)

    def _transposed(self, x: Any) -> Any:
        """Return the matrix that this one is the transposed of, else None."""
        made = self.lookup_binding(x) if isinstance(x, relax.Var) else x
        if not isinstance(made, relax.Call) or made.op != _PERMUTE:
            return None
        axes = made.attrs.axes
        matrix = len(made.args[0].ty.shape.values) == 2
        turned = axes is None or [int(i) for i in axes] == [1, 0]
        return made.args[0] if matrix and turned else None
