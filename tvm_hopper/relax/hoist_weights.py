"""Make once what a model makes of its weights alone at each call.

    v = R.permute_dims(w, (0, 2, 3, 1)); y = R.nn.conv2d(t, v)            channels last
  ->
    def transform_params(w, ...): v = R.permute_dims(w, (0, 2, 3, 1))     run once, by the user
    y = R.nn.conv2d(t, v)

The pipeline's own passes say what that is; a product's transposed weight stays as it lies.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.target import Target

from tvm_hopper.errors import cannot_configure

from .join_products import JOINED, NUM_INPUT
from .lowering import operand_passes
from .options import ModelOptions

WHERE = "relax.hoist_weights"


def hoist_weights(mod: tvm.IRModule, target: Any) -> tvm.IRModule:
    """Move what weights alone determine into a function that is run once.

    Parameters
    ----------
    mod : IRModule
        A Relax model, not lowered, with the attribute `num_input`, as importers set it: parameters
        from there on are weights.
    target : Target, str or dict
        For which it will be built.

    Returns
    -------
    hoisted : IRModule
        The model, whose functions take the results of a function `transform_params` in place of
        weights; that takes a tuple of them. The same module if nothing is made of weights alone.

    Raises
    ------
    OptionError
        It is no module, or no function says which of its parameters are weights.
    """
    if not isinstance(mod, tvm.IRModule):
        raise cannot_configure(WHERE, type(mod).__name__, "an IRModule of Relax functions")
    functions = [f for f in mod.functions.values() if isinstance(f, relax.Function)]
    if not any(NUM_INPUT in (f.attrs or {}) for f in functions):
        fix = f'say it: func.with_attr("{NUM_INPUT}", number of inputs before the weights)'
        raise cannot_configure(WHERE, f"no attribute {NUM_INPUT}", "to know the weights", fix)
    passes = [*operand_passes(ModelOptions()), relax.transform.DeadCodeElimination()]
    with Target(target):
        ready = tvm.transform.Sequential(passes)(mod)
    lifted = relax.transform.LiftTransformParams(shared_transform=True)(ready)
    made = lifted[JOINED]
    if not any(isinstance(x.value, relax.Call) for b in made.body.blocks for x in b.bindings):
        return mod
    lifted.update_func(lifted.get_global_var(JOINED), made.without_attr(NUM_INPUT))
    return lifted
