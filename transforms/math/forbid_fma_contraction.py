"""Keep the rounding of a product that the compiler would fuse into a multiply-add.

    M[0] = max(M[0], X[0] * s)
    E[0] = exp(X[0] * s - M[0])
  ->
    E[0] = exp(sub_rn_float32(X[0] * s, M[0]))

The compiler makes one multiply-add of X[0] * s - M[0], while M[0] was found among rounded products.
Of a row of one number the difference is then that product's rounding error, not 0: with numbers
like -3.4e38 it is 1e31, and the exponential is infinite. x * x - y * y is below zero where x is y,
and its root NaN.

A fused sum is right where its addend does not go back to a rounded product. That is so for

    acc[0] = acc[0] + a * b    a running sum
    a * b + 1,  1 - a * b      constants
    a * b + X[i]               tensors that the kernel loads and does not store
    a * 0.5 - b                products with a power of two, which are exact

and the compiler may fuse these. What a program writes as `fma(a, b, c)` is one instruction. Every
other sum of a product, and every difference with a tensor
(which may be the row's maximum), is a separate instruction.

Before: kernels as they are printed.  After: the same values, in the simulator too.
Left alone: what a function of CUDA's header multiplies and adds inside.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.value_origins import COMPUTED, LOADED, PRODUCT, OriginWalk
from tvm_hopper.codegen_patches.rounded_sums import fused_sum, rounded_sum
from tvm_hopper.requests.targets import find_processor
from tvm_hopper.transforms.kernel_pass import function_pass


def plan_rounded_sums(func: tirx.PrimFunc) -> list[Any]:
    """Find the sums that the compiler may not fuse with a product in them."""
    found: dict[Any, None] = {}
    if not ir.has_any(func.body, tirx.Mul, lambda x: "float" in ir.dtype_of(x)):
        return []
    walk = OriginWalk(func)

    def visit(node: Any, a: int, b: int, store: Any) -> None:
        is_sum = isinstance(node, tirx.Add)
        if is_sum and _is_unsigned(node.a) and _is_unsigned(node.b):
            return
        forbidden = COMPUTED if is_sum else COMPUTED | LOADED
        for product, origin, addend in ((a, b, node.b), (b, a, node.a)):
            if not product & PRODUCT or not origin & forbidden:
                continue
            if not (is_sum and not origin & PRODUCT and _is_own(addend, store, walk)):
                found[node] = None

    walk.run(visit)
    return list(found)


def is_fused(call: ir.Call) -> bool:
    """Tell a multiply-add that the program asks for."""
    return str(getattr(call.op, "name", "")) == "tirx.fma"


def _is_unsigned(node: Any) -> bool:
    """Tell a product that is written as one, none of whose factors is written with a minus."""
    return isinstance(node, tirx.Mul) and not any(map(_has_minus, (node.a, node.b)))


def _has_minus(factor: Any) -> bool:
    if isinstance(factor, tirx.Broadcast | tirx.Cast):
        return _has_minus(factor.value)
    if isinstance(factor, tirx.FloatImm):
        return float(factor.value) < 0
    if isinstance(factor, tirx.Mul):
        return not _is_unsigned(factor)
    return isinstance(factor, tirx.Sub) and ir.is_zero(factor.a)


def _is_own(addend: Any, store: Any, walk: OriginWalk) -> bool:
    """Tell whether an addend is the element that the sum is stored to."""
    while isinstance(addend, tirx.Cast):
        addend = addend.value
    return (
        store is not None
        and isinstance(addend, ir.TensorLoad)
        and walk.root(addend.source).same_as(walk.root(store.buffer))
        and bool(tvm_ffi.structural_equal(list(addend.indices), list(store.indices)))
    )


def rewrite_rounded_sums(func: tirx.PrimFunc, plan: list[Any]) -> tirx.PrimFunc:
    """Let instructions of their own compute sums."""
    planned = set(plan)

    def fuse(node: ir.Call, mutator: Any) -> Any:
        after = mutator.default_mutate(node)
        return fused_sum(*after.args) if is_fused(after) else after

    def visit(node: Any, mutator: Any) -> Any:
        after = mutator.default_mutate(node)
        if node not in planned:
            return after
        return rounded_sum("add" if isinstance(node, tirx.Add) else "sub", after.a, after.b)

    callbacks: list[Any] = [(tirx.Add, visit), (tirx.Sub, visit), (ir.Call, fuse)]
    return func.with_body(ir.mutate(func.body, callbacks))


def _forbid_contraction(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Keep the roundings of one kernel's products."""
    is_host = "target" in func.attrs and find_processor(func.attrs["target"]) is None
    if is_host:
        return func
    plan = plan_rounded_sums(func)
    if not plan and not ir.has_any(func.body, ir.Call, is_fused):
        return func
    return rewrite_rounded_sums(func, plan)


ForbidFmaContraction = function_pass("ForbidFmaContraction", _forbid_contraction)
