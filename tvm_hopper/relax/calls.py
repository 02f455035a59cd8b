"""Find the calls of a model: who calls which function, with which shapes, and on weights alone.

  lv = R.call_tir(cls.cast, (w,), R.Tensor((4096, 4096), "float16"))      w: a weight
->
  cast: CallRecord("main", (("4096", "4096"), ("4096", "4096")), 1, of_weights=True)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import tvm
from tvm import relax
from tvm.ir.expr import GenericConst

from .records import CallRecord
from .work import element_bytes, extent_text

CALL_TIR = ("relax.call_tir", "relax.call_tir_inplace")
CALL_LIBRARY = ("relax.call_dps_packed", "relax.call_pure_packed")
VIEWS = ("relax.reshape", "relax.memory.view")
RUNTIME = ("vm.builtin.", "runtime.")  # functions of the virtual machine compute nothing
PAGED_ATTENTION = "vm.builtin.attention_kv_cache_attention_with_fused_qkv"  # except this one
CONTEXT = "context"  # the symbol for the tokens that a sequence has in a paged cache


def find_calls(mod: tvm.IRModule) -> tuple[dict[str, list[CallRecord]], list[str]]:
    """Count the calls of functions, and find external functions among them.

    - returns `calls`: of each function, by its name in the module.
    - returns `libraries`: external functions that compute something, in the order of their first
      calls.
    """
    counts: Counter[tuple[str, CallRecord]] = Counter()
    libraries: dict[str, None] = {}
    for gv, func in mod.functions.items():
        if not isinstance(func, relax.Function):
            continue
        weights = _Weights(func)

        def visit(node: Any, caller: str = str(gv.name_hint), weights: Any = weights) -> None:
            if not isinstance(node, relax.Call):
                return
            if _is_op(node, CALL_TIR):
                types = _types(node.args[1], node)
                call = CallRecord(caller, tuple(map(_shape, types)), 1, weights.has(node))
                counts[str(node.args[0].name_hint), call] += 1
            is_operator = _is_op(node, CALL_LIBRARY)
            called, given = (node.args[0], node.args[1:]) if is_operator else (node.op, node.args)
            if isinstance(called, relax.ExternFunc):
                name = str(called.global_symbol)
                if name == PAGED_ATTENTION or not name.startswith(RUNTIME):
                    libraries[name] = None
                    counts[name, _library_call(caller, name, _types(given, node))] += 1

        relax.analysis.post_order_visit(func, visit)
    found: dict[str, list[CallRecord]] = {}
    for (callee, call), count in counts.items():
        found.setdefault(callee, []).append(replace(call, count=count))
    return found, list(libraries)


class _Weights:
    """Tells which values of a function are made of weights alone: of constants, too.

    Weights are parameters from the attribute `num_input` on, as TVM's importers leave it.
    """

    def __init__(self, func: relax.Function) -> None:
        first = int((func.attrs or {}).get("num_input", len(func.params)))
        self.known = set(func.params[first:])
        for block in func.body.blocks:
            for binding in block.bindings:
                if self.has(binding.value):
                    self.known.add(binding.var)

    def has(self, value: Any) -> bool:
        """Tell whether a value is made of weights alone."""
        if isinstance(value, GenericConst):
            return True
        if isinstance(value, relax.Var):
            return value in self.known
        if isinstance(value, relax.TupleGetItem):
            return self.has(value.tuple_value)
        if isinstance(value, relax.Tuple):
            return self._all(value.fields)
        if _is_op(value, CALL_TIR):
            return self._all(value.args[1].fields)
        return _is_op(value, VIEWS) and self.has(value.args[0])

    def _all(self, values: Iterable[Any]) -> bool:
        tensors = [x for x in values if isinstance(x.ty, (relax.TensorType, relax.TupleType))]
        return bool(tensors) and all(map(self.has, tensors))


def _is_op(value: Any, names: Sequence[str]) -> bool:
    is_op = isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op)
    return is_op and value.op.name in names


def _types(given: Any, call: relax.Call) -> list[Any]:
    """Return the types of tensors, arguments and outputs of a call; tuples are taken apart."""
    values = [x for one in getattr(given, "fields", given) for x in getattr(one, "fields", [one])]
    outs = [x for out in call.ty_args for x in getattr(out, "fields", [out])]
    return [x for x in (*(y.ty for y in values), *outs) if isinstance(x, relax.TensorType)]


def _shape(ty: Any) -> tuple[str, ...]:
    values = getattr(ty.shape, "values", None)
    return tuple(extent_text(x) for x in values) if values is not None else ()


def _library_call(caller: str, name: str, types: Sequence[Any]) -> CallRecord:
    """Record a call of an external function: it moves its tensors; its FLOPs are not known."""
    shapes = tuple(map(_shape, types))
    sizes = [
        " * ".join([*(f"({x})" for x in shape), str(element_bytes(ty.dtype))])
        for shape, ty in zip(shapes, types, strict=True)
    ]
    flops, moved = "", " + ".join(sizes)
    if name == PAGED_ATTENTION and [len(x) for x in shapes] == [3, 3]:
        (tokens, both, _), (_, heads, width) = shapes
        sequences = tokens.split(" * ")[0]  # batch * length
        sequences = sequences if sequences.isidentifier() else "1"
        cached = f"({both} - {heads}) * {width} * {element_bytes(types[0].dtype)}"
        flops = f"2 * ({tokens}) * {CONTEXT} * {heads} * {width}"  # a query sees half, or more
        moved += f" + {sequences} * {CONTEXT} * {cached}"
    return CallRecord(caller, shapes, 1, False, flops, moved)
