"""Store what a model's products lead to in 16 bits; kernels go on computing in float32.

    y = call_tir(matmul_add, (x, w, b))            float32, of operands of 16 bits
    n = call_tir(layer_norm, (y, g)); z = call_tir(add, (y, u))
  ->
    y = call_tir(matmul_add_cast, (x, w, b))       float16, rounded once as it is stored
    n = call_tir(cast_layer_norm, (y, g)); z = call_tir(cast_add, (y, u))

`to_half` asks for it by an attribute of the function.  What a product of 16 bits has made has no
more digits than that; what no product has made, as the angles of a rotary embedding, stays float32,
and so do results of the model, statistics of rows, and what may exceed the range of 16 bits where
float32 does not (`value_ranges.py`): masks, squares and products of activations, exponentials.

Needs: fused functions (FuseTIR), in plain loops.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_hopper import ir

from .call_groups import CallGraph, fuse_group, is_plain_call, is_view, reduces, rewrite_groups
from .flatten_batch import CALL_TIR, is_plain
from .join_attention import OPAQUE
from .join_products import NUM_INPUT
from .value_ranges import (
    ACTIVATION,
    HALVES,
    TABLE,
    UNKNOWN,
    VECTOR,
    Range,
    constant,
    output_ranges,
)

ACTIVATIONS = "activations"  # attribute of a function: the type that they are stored in
WIDE = "float32"
MIN_SHARE = 8  # a tensor with fewer elements than the largest that it is made of, over this, stays
ROOTS = tuple(tvm.ir.Op.get(f"tirx.{x}") for x in ("sqrt", "rsqrt"))


@tvm.transform.module_pass(opt_level=0, name="tvm_hopper.NarrowActivations")
class NarrowActivations:
    """See the module's docstring for the rewrite."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Cast between calls, then make casts parts of the calls."""
        narrower = _ActivationCaster(mod)
        for gv, func in mod.functions_items():
            if isinstance(func, relax.Function) and ACTIVATIONS in (func.attrs or {}):
                narrower.enter(gv, func)
        mod, functions = narrower.builder_.get(), {}

        def grow(graph: CallGraph) -> None:
            place = {x.var: i for i, x in enumerate(graph.bindings)}
            for i, binding in enumerate(graph.bindings):
                if binding.var in narrower.widened:
                    (other,) = graph.readers[i]
                elif binding.var in narrower.narrowed:
                    other = place[binding.value.args[1].fields[0]]
                else:
                    continue
                graph.join(graph.members[i] | graph.members[other])
            for group in graph.groups():
                if group.key not in functions:
                    functions[group.key] = fuse_group(mod, group)

        return rewrite_groups(mod, grow, functions) if narrower.narrowed else mod


class _NarrowPlan:
    """Which results of a function are stored in fewer bits.

    - `narrow` (set of Var): those, and views of them.
    """

    def __init__(self, mod: tvm.IRModule, func: relax.Function, dtype: str) -> None:
        self.mod = mod
        blocks = [x for x in func.body.blocks if isinstance(x, relax.DataflowBlock)]
        bindings = [x for block in blocks for x in block.bindings]
        self.readers: dict[Any, list[Any]] = {}
        self.ranges: dict[Any, list[Range]] = {}  # one for each output
        self.made = self._made(func, bindings, dtype)
        self.narrow: set[Any] = set()
        for binding in bindings:
            self.ranges[binding.var] = self._ranges(binding)
            if not self._is_stored(binding):
                continue
            views = self._views(binding.var)
            read = [y for x in views for y in self.readers.get(x, [])]
            is_inner = all(isinstance(x, relax.DataflowVar) for x in views)
            if is_inner and all(is_view(x) or self._is_call(x) for x in read):
                self.narrow |= views
                (found,) = self.ranges[binding.var]
                self.ranges[binding.var] = [found._replace(has_table=False)]

    def _made(self, func: relax.Function, bindings: list[Any], dtype: str) -> set[Any]:
        """Return floats that have 16 bits and are no weight, and what is made of them."""
        first = int(func.attrs.get(NUM_INPUT, len(func.params)))
        weights = set(func.params[first:])  # and what they alone make
        made = {x for x in func.params[:first] if _dtype(x) == dtype}
        for binding in bindings:
            read = relax.analysis.free_vars(binding.value)
            for x in read:
                self.readers.setdefault(x, []).append(binding)
            if weights.issuperset(read):
                weights.add(binding.var)
            elif _is_float(binding.var) and (
                _dtype(binding.var) == dtype or not made.isdisjoint(read)
            ):
                made.add(binding.var)
        for x in func.params:
            is_table = (
                sum(
                    ir.static_int(n) != 1
                    for n in getattr(getattr(x.ty, "shape", None), "values", [])
                )
                > 1
            )
            weight = TABLE if is_table else VECTOR
            is_narrow = _dtype(x) in HALVES or self._is_cast(x, dtype) or self._is_normalised(x)
            other = ACTIVATION if is_narrow else UNKNOWN
            self.ranges[x] = [weight if x in weights else other]
        return made

    def _is_cast(self, var: Any, dtype: str) -> bool:
        """Tell what a product reads in 16 bits anyway, so that it must be in their range."""
        for x in self.readers.get(var, []):
            if is_view(x) and self._is_cast(x.var, dtype):
                return True
            if self._is_call(x):
                func = self.mod[x.value.args[0]]
                param = func.params[list(x.value.args[1].fields).index(var)]
                casts = ir.find_all(func.body, tirx.Cast, lambda y: ir.dtype_of(y) == dtype)
                if any(getattr(y.value, "source", None) == param for y in casts):
                    return True
        return False

    def _ranges(self, binding: Any) -> list[Range]:
        """Return how large the results of one binding can be."""
        value, var = binding.value, binding.var
        if isinstance(value, relax.Var) or is_view(binding):
            return self._given(value if isinstance(value, relax.Var) else value.args[0])
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self.ranges:
            found = self.ranges[value.tuple_value]
            return [found[value.index]] if value.index < len(found) else [UNKNOWN]
        if isinstance(value, tvm.ir.GenericConst):
            return self._given(value)
        if isinstance(value, relax.Call) and value.op == CALL_TIR and len(value.args) == 2:
            func = self.mod[value.args[0]]
            is_loops = isinstance(func, tirx.PrimFunc) and is_plain(func)
            if is_loops and all(map(tirx.is_buffer_var, func.params)):
                given = [self._given(x)[0] for x in value.args[1].fields]
                return output_ranges(func, given)
        return [ACTIVATION if _dtype(var) in HALVES else UNKNOWN]

    def _given(self, x: Any) -> list[Range]:
        if isinstance(x, tvm.ir.GenericConst):
            data = x.value.numpy()
            is_float = _is_float(x) and _dtype(x) == WIDE and data.size
            if not is_float:
                return [UNKNOWN]
            return [constant(float(abs(data).max()))._replace(is_positive=bool((data > 0).all()))]
        return self.ranges.get(x, [UNKNOWN])

    def _is_stored(self, binding: Any) -> bool:
        """Tell a call whose result gains by fewer bits, and has digits and a range for them."""
        var = binding.var
        if var not in self.made or _dtype(var) != WIDE or not self._is_call(binding):
            return False
        sizes = [_size(x) for x in binding.value.args[1].fields if x in self.made]
        if any(_size(var) * MIN_SHARE < size for size in sizes):
            return False
        (found,) = self.ranges[var]
        return found.is_held and (not found.has_table or self._is_normalised(var))

    def _is_normalised(self, var: Any) -> bool:
        """Tell what a norm reads: places were added and no mask, and PyTorch's half() casts it."""
        return any(
            self._is_call(y)
            and reduces(self.mod[y.value.args[0]])
            and ir.has_any(self.mod[y.value.args[0]].body, ir.Call, lambda z: z.op in ROOTS)
            for x in self._views(var)
            for y in self.readers.get(x, [])
        )

    def _is_call(self, binding: Any) -> bool:
        if not is_plain_call(self.mod, binding):
            return False
        return int(self.mod[binding.value.args[0]].attrs.get("op_pattern", 0)) != OPAQUE

    def _views(self, var: Any) -> set[Any]:
        views = (x.var for x in self.readers.get(var, []) if is_view(x))
        return {var}.union(*map(self._views, views))


def _dtype(x: Any) -> str:
    return str(x.ty.dtype) if isinstance(x.ty, relax.TensorType) else ""


def _is_float(x: Any) -> bool:
    """Tell floats, or a tuple, whose parts are bound next."""
    return "float" in _dtype(x) or not isinstance(x.ty, relax.TensorType)


def _size(x: Any) -> int:
    """Count elements, a symbolic extent as one."""
    return math.prod(ir.static_int(n) or 1 for n in getattr(x.ty.shape, "values", []))


@mutator
class _ActivationCaster(PyExprMutator):  # type: ignore[misc]
    """Casts results that are stored in fewer bits, and casts them back for each reader."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.mod, self.dtype = mod, ""
        self.plan: _NarrowPlan
        self.stored: dict[Any, Any] = {}  # of what had 32 bits: the variable that has 16
        self.narrowed: set[Any] = set()  # results of casts to 16 bits
        self.widened: set[Any] = set()

    def enter(self, gv: Any, func: relax.Function) -> None:
        """Rewrite one function."""
        self.dtype = str(func.attrs[ACTIVATIONS])
        self.plan = _NarrowPlan(self.mod, func, self.dtype)
        new = self.visit_expr(func.without_attr(ACTIVATIONS))
        self.builder_.update_func(gv, relax.analysis.remove_all_unused(new))

    def visit_var_binding_(self, binding: Any) -> None:
        """Emit a binding with what it reads in fewer bits."""
        call, var = binding.value, binding.var
        if is_view(binding) and call.args[0] in self.stored:
            view = relax.op.reshape(self.stored[call.args[0]], call.args[1])
            self.stored[var] = self.builder_.emit(view)
            return
        if not is_plain_call(self.mod, binding):
            super().visit_var_binding_(binding)
            return
        given = list(call.args[1].fields)
        if len(given) == 1 and given[0] in self.stored and self._is_cast(call):
            self.set_var_remap(var, self.stored[given[0]])
            return
        args = [self._cast(x) if x in self.stored else self.visit_expr(x) for x in given]
        new = relax.call_tir(call.args[0], args, call.ty_args[0])
        if var in self.plan.narrow:
            made = self.builder_.emit(new)
            self.stored[var] = self.builder_.emit_te(topi.cast, made, self.dtype)
            self.narrowed.add(self.stored[var])
            return
        is_inner = isinstance(var, relax.DataflowVar)
        emit = self.builder_.emit if is_inner else self.builder_.emit_output
        self.set_var_remap(var, emit(new))

    def _cast(self, x: Any) -> Any:
        """Return a tensor in 32 bits again, for one reader."""
        var = self.builder_.emit_te(topi.cast, self.stored[x], WIDE)
        self.widened.add(var)
        return var

    def _is_cast(self, call: Any) -> bool:
        """Tell a call that only casts its tensor to 16 bits."""
        stores = ir.find_all(self.mod[call.args[0]].body, ir.BufferStore)
        (given,), made = call.args[1].fields, call.ty_args[0]
        if str(made.dtype) != self.dtype or len(stores) != 1:
            return False
        if not tvm_ffi.structural_equal(given.ty.shape, made.shape):
            return False
        load = getattr(stores[0].value, "value", None)
        return isinstance(load, ir.TensorLoad) and tvm_ffi.structural_equal(
            list(load.indices), list(stores[0].indices)
        )
