"""Let a model of float32, or one with products in float32, multiply in 16 bits.

    w: R.Tensor((n, k), "float32")
    y = R.matmul(x, R.permute_dims(w))                          float32, no tensor cores
  ->
    w: R.Tensor((n, k), "float16")                              half the bytes, cast once
    y = R.matmul(R.astype(x, "float16"), R.permute_dims(w))     sums in float32

Operands of products and convolutions are cast, and weights that nothing else reads have 16 bits
from the start. What they lead to is stored in 16 bits between kernels (`narrow_activations.py`).
Everything else stays as the model has it: TVM's ToMixedPrecision, which goes from products back to
what their operands are made of, computes the angles of a rotary embedding in float16, and knows no
bfloat16. Products whose sums are shorter than an instruction of the tensor cores stay, too: the
angles themselves are such a product, of frequencies and positions, and a position of 2047 has no
bfloat16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_hopper import ir
from tvm_hopper.errors import cannot_configure
from tvm_hopper.facts.wgmma import instruction_k

from .join_products import NUM_INPUT, check_operators
from .mutator_passes import rewrite_functions
from .narrow_activations import ACTIVATIONS
from .simplify_operands import CAST, MATMUL

WHERE, CAST_WHERE = "relax.to_half", "relax.cast_weights"
TYPES = ("float16", "bfloat16")
WIDE = "float32"
TAKE = tvm.ir.Op.get("relax.take")
CONVOLUTIONS = {
    tvm.ir.Op.get(f"relax.nn.conv{x}d"): getattr(relax.op.nn, f"conv{x}d") for x in (1, 2, 3)
}
ATTENTION = [tvm.ir.Op.get(f"relax.nn.attention{x}") for x in ("", "_bias")]
OF_CONVOLUTION = [
    "strides",
    "padding",
    "dilation",
    "groups",
    "data_layout",
    "kernel_layout",
    "out_layout",
]
_VIEWS = [
    tvm.ir.Op.get(f"relax.{x}")
    for x in ("permute_dims", "reshape", "expand_dims", "squeeze", "broadcast_to", "strided_slice")
]


def to_half(
    mod: tvm.IRModule, dtype: str | None = None, *, activations: bool = True
) -> tvm.IRModule:
    """Let products and convolutions have operands of 16 bits, and weights that only they read.

    Parameters
    ----------
    mod : IRModule
        A Relax model, not lowered: operators, as an importer gives them.
    dtype : str, optional
        "float16", or "bfloat16", which has the range of float32. Default: that of the parameters
        which have 16 bits, or float16.
    activations : bool
        Whether what products lead to is stored in 16 bits between kernels, as after PyTorch's
        `half()`; kernels compute in float32. An input of float32 that a product or a norm reads
        counts as an activation, too, and what it is added to has 16 bits; what may exceed their
        range, as masks, squares and products of activations, stays. False: all is stored as the
        model has it, mostly in float32, and twice the bytes are moved.

    Returns
    -------
    mod : IRModule
        The model. A weight of float32 that only casts read, or casts and lookups, has `dtype`:
        `cast_weights` casts what is passed for it. Weights are the parameters from a function's
        attribute `num_input` on, as importers set it; without it all parameters stay, and are cast
        at each call.

    Raises
    ------
    OptionError
        It is no module, `hoist_weights` returned it, the type is none of the two, or `activations`
        is no bool.
    """
    check_operators(WHERE, mod)
    if dtype is None:
        params = [
            x for f in mod.functions.values() if isinstance(f, relax.Function) for x in f.params
        ]
        types = {str(x.ty.dtype) for x in params if isinstance(x.ty, relax.TensorType)}
        dtype = TYPES[1] if TYPES[1] in types else TYPES[0]
    if dtype not in TYPES:
        raise cannot_configure(WHERE, f"dtype={dtype!r}", " or ".join(TYPES))
    if not isinstance(activations, bool):
        raise cannot_configure(WHERE, f"activations={activations!r}", "True or False")
    mod = rewrite_functions(mod, _HalfOperands(mod, dtype))
    mod = rewrite_functions(mod, _Lookups(mod, dtype)).clone()
    for gv, func in mod.functions_items():
        if isinstance(func, relax.Function):
            func = _narrowed(func, dtype)
            mod.update_func(gv, func.with_attr(ACTIVATIONS, dtype) if activations else func)
    return relax.transform.CanonicalizeBindings()(rewrite_functions(mod, _Casts(mod)))


def cast_weights(mod: tvm.IRModule, weights: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Cast weights to the types that a model takes.

    Parameters
    ----------
    mod : IRModule
        A model, as `to_half` returns it.
    weights : mapping
        The weights of each function, in the order of its last parameters: the second result of
        `relax.frontend.detach_params`. They are TVM's tensors, or have a method `numpy()`.

    Returns
    -------
    weights : dict
        For each function TVM's tensors on the CPU; those that have their type already as they are.

    Raises
    ------
    OptionError
        The module lacks a function, or that has fewer parameters.
    """
    found = {}
    for name, given in weights.items():
        func = mod[name] if name in [x.name_hint for x in mod.get_global_vars()] else None
        if func is None or len(given) > len(func.params):
            has = "no such function" if func is None else f"{len(func.params)} parameters"
            need = "the functions of the model, and at most as many weights as parameters"
            raise cannot_configure(CAST_WHERE, f"{name}: {len(given)} weights, {has}", need)
        params = func.params[len(func.params) - len(given) :]
        found[name] = [_cast(x, str(p.ty.dtype)) for x, p in zip(given, params, strict=True)]
    return found


def _cast(weight: Any, dtype: str) -> Any:
    if str(weight.dtype) == dtype:
        return weight
    narrow = tvm.runtime.empty(weight.shape, dtype)
    if dtype != "bfloat16":
        return narrow.copyfrom(weight.numpy().astype(dtype))
    bits = weight.numpy().astype(WIDE).view("uint32").astype("uint64")
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16  # to nearest, to even
    return narrow.copyfrom(rounded.astype("uint16").view(np.dtype("bfloat16")))


def _narrowed(func: relax.Function, dtype: str) -> relax.Function:
    """Give weights the type to which all their readers cast them."""
    if NUM_INPUT not in (func.attrs or {}):
        return func
    readers = readers_of(func)
    narrow = {
        x: relax.Var(x.name, relax.TensorType(x.ty.shape, dtype))
        for x in func.params[int(func.attrs[NUM_INPUT]) :]
        if isinstance(x.ty, relax.TensorType) and str(x.ty.dtype) == WIDE
        and _is_only_cast(x, dtype, readers)
    }  # fmt: skip
    if not narrow:
        return func
    params = [narrow.get(x, x) for x in func.params]
    body = func.bind_params(narrow).body
    return relax.Function(params, body, func.ret_ty, func.is_pure, func.attrs)


def _is_only_cast(var: Any, dtype: str, readers: dict[Any, list[Any]]) -> bool:
    """Tell a tensor that only casts read, and views that only casts read."""
    found = readers.get(var, [])
    return bool(found) and all(
        isinstance(made, relax.Call)
        and (
            (made.op == CAST and str(made.attrs.dtype) == dtype)
            or (made.op in _VIEWS and name is not None and _is_only_cast(name, dtype, readers))
        )
        for name, made in found
    )


@mutator
class _HalfOperands(PyExprMutator):  # type: ignore[misc]
    """Casts operands of products, convolutions and attention; results stay float32."""

    changed = False

    def __init__(self, mod: tvm.IRModule, dtype: str) -> None:
        super().__init__(mod)
        self.dtype = dtype

    def visit_call_(self, call: Any) -> Any:
        """Rewrite one product."""
        call = super().visit_call_(call)
        is_product = call.op == MATMUL or call.op in CONVOLUTIONS or call.op in ATTENTION
        types = [str(x.ty.dtype) for x in call.args] if is_product else []
        if WIDE not in types or {*types} - {WIDE, self.dtype} or _is_short(call):
            return call
        self.changed = True
        halves = [
            x if t == self.dtype else self.builder_.emit(relax.op.astype(x, self.dtype))
            for x, t in zip(call.args, types, strict=True)
        ]
        if call.op in ATTENTION:
            whole = self.builder_.emit(relax.Call(call.op, halves, call.attrs, call.ty_args))
            return relax.op.astype(whole, WIDE)
        if call.op == MATMUL:
            return relax.op.matmul(*halves, out_dtype=WIDE)
        given = {name: getattr(call.attrs, name) for name in OF_CONVOLUTION}
        return CONVOLUTIONS[call.op](*halves, **given, out_dtype=WIDE)


def _is_short(call: Any) -> bool:
    """Tell a product whose sums have fewer terms than one instruction adds."""
    shape = call.args[0].ty.shape
    if call.op != MATMUL or shape is None:
        return False
    terms = ir.static_int(shape[-1])
    return terms is not None and terms < instruction_k("float16")


@mutator
class _Lookups(PyExprMutator):  # type: ignore[misc]
    """Looks up rows in 16 bits where a product reads the table, too: a tied embedding."""

    changed = False

    def __init__(self, mod: tvm.IRModule, dtype: str) -> None:
        super().__init__(mod)
        self.dtype = dtype
        self.tables: set[Any] = set()

    def visit_function_(self, func: relax.Function) -> Any:
        """Find the tables of one function: weights that only casts and lookups read."""
        readers, self.tables = readers_of(func), set()
        for x in func.params[int((func.attrs or {}).get(NUM_INPUT, len(func.params))) :]:
            others = [y for y in readers.get(x, []) if not _is_lookup(y[1], x)]
            is_table = 0 < len(others) < len(readers.get(x, [])) and str(x.ty.dtype) == WIDE
            if is_table and _is_only_cast(x, self.dtype, {**readers, x: others}):
                self.tables.add(x)
        return super().visit_function_(func)

    def visit_call_(self, call: Any) -> Any:
        """Rewrite one lookup."""
        table = next((x for x in self.tables if _is_lookup(call, x)), None)
        call = super().visit_call_(call)
        if table is None:
            return call
        self.changed = True
        narrow = self.builder_.emit(relax.op.astype(table, self.dtype))
        rows = relax.op.take(narrow, call.args[1], call.attrs.axis, call.attrs.mode)
        return relax.op.astype(self.builder_.emit(rows), WIDE)


def _is_lookup(value: Any, table: Any) -> bool:
    is_take = isinstance(value, relax.Call) and value.op == TAKE
    return is_take and value.args[0].same_as(table) and not value.args[1].same_as(table)


@mutator
class _Casts(PyExprMutator):  # type: ignore[misc]
    """Leaves out casts of what has the type, or had it before float32 held it without rounding."""

    changed = False

    def visit_call_(self, call: Any) -> Any:
        """Replace one cast."""
        call = super().visit_call_(call)
        if call.op != CAST:
            return call
        (x,) = call.args
        made = self.lookup_binding(x) if isinstance(x, relax.Var) else None
        widened = isinstance(made, relax.Call) and made.op == CAST and str(x.ty.dtype) == WIDE
        for source in (x, *(made.args if made is not None and widened else ())):
            is_held = source is x or str(source.ty.dtype) in TYPES
            if is_held and str(source.ty.dtype) == str(call.attrs.dtype):
                self.changed = True
                return source
        return call


def readers_of(func: relax.Function) -> dict[Any, list[Any]]:
    """Return what reads each variable of a function, and the variable that has the result."""
    found: dict[Any, list[Any]] = {}

    def note(name: Any, value: Any) -> None:
        for var in relax.analysis.free_vars(value):
            found.setdefault(var, []).append((name, value))

    for block in func.body.blocks:
        for binding in block.bindings:
            note(binding.var, binding.value)
    note(None, func.body.body)
    return found
