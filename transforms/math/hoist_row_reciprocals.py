"""Replace divisions by a row's value with multiplications by its reciprocal.

    for c, v in unroll: Y_local[c, v] = T.Cast("bfloat16", E_local[c, v] / S[0])
  ->
    for c, v in unroll: Y_local[c, v] = T.Cast("bfloat16", E_local[c, v] * k * (1 / (S[0] * k)))

    k = 2^64 where |S[0]| < 2^-64, 2^-64 where |S[0]| > 2^64, else 1

A division is a dozen instructions with a branch; as many as all else that a softmax does to an
element. The reciprocal is the same for all of a thread's elements, so that it is computed once. The
power of two keeps it a normal number whatever the divisor is, and rounds nothing.

The product has two roundings in float32, so up to 1.5 units in the last place where the division
has 0.5. It is done where the quotient, or a product with it, goes to a type of 16 bits straight
away, whose own unit is 8192 times as large or more. Sums may cancel: a quotient in one is no plain
product, but for those of exponentials, which approximate_functions.py leaves 2^-16 of their value
off. It is noted for `explain`, and `tvm_hopper.functions` = "library" keeps the division.

All other quotients, as those that become int8, get two multiply-adds next to the product:

    q = x * r, q + r * (x - q * S)                                    r = 1 / S, both scaled by k

They are rounded as divisions are, with 0.5 units and less than 2^-20 of one next to that.

Before: elements are distributed to threads.  After: no such quotient, in kernels bound by memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.approximations import divide
from tvm_hopper.requests import options
from tvm_hopper.requests.bodies import is_memory_bound
from tvm_hopper.requests.keys import FUNCTIONS
from tvm_hopper.transforms.common.explain_notes import Note, RemarkNote
from tvm_hopper.transforms.kernel_pass import map_noted

from .approximate_functions_plan import HALVES

SAFE_EXPONENT = (
    64  # a power of two: a divisor beyond it, or below its inverse, is scaled by as much
)
NOTE = (
    f'quotients by a row become products, to 1.5 units in float32; {FUNCTIONS} = "library" divides'
)
ROUNDED_NOTE = "quotients by a row: by its reciprocal and the remainder, rounded as divisions are"


@dataclass(frozen=True)
class Quotient:
    """A division by a value that does not depend on the element."""

    division: tirx.Div
    is_rounded: bool  # its own rounding is seen


def plan_quotients(kernel: ir.For) -> tuple[Quotient, ...]:
    """Find the divisions by a row's value of what each element has."""
    loops = ir.find_all(kernel, ir.For, lambda x: x.kind != ir.ForKind.THREAD_BINDING)
    found = []
    powers = _exponentials(kernel)
    vectors = [x for x in loops if x.kind == ir.ForKind.VECTORIZED]
    kept = {store for loop in vectors for store in ir.find_all(loop, ir.BufferStore)}
    for store in ir.find_all(kernel, ir.BufferStore):
        value, indices = store.value, list(store.indices)
        variables = [x.loop_var for x in loops if ir.depends_on([value, *indices], [x.loop_var])]
        is_half = isinstance(value, tirx.Cast) and ir.dtype_of(value) in HALVES
        products = _factors(value.value, powers) if is_half else []
        for division in ir.find_all(value, tirx.Div):
            is_rounded = division not in products
            if _is_of_row(division, variables) and not (is_rounded and store in kept):
                found.append(Quotient(division, is_rounded))
    return tuple(found)


def _factors(value: Any, powers: list[Any], in_sum: bool = False) -> list[tirx.Div]:
    """Return the quotients that a value is the product of: what rounds them rounds it as much.

    Quotients inside sums are returned, too, if they divide exponentials.
    """
    if isinstance(value, tirx.Mul | tirx.Add | tirx.Sub):
        in_sum = in_sum or not isinstance(value, tirx.Mul)
        return [*_factors(value.a, powers, in_sum), *_factors(value.b, powers, in_sum)]
    if not isinstance(value, tirx.Div):
        return []
    return [value] if not in_sum or _is_exponential(value.a, powers) else []


def _is_exponential(value: Any, powers: list[Any]) -> bool:
    if isinstance(value, ir.TensorLoad):
        return any(value.source.same_as(x) for x in powers)
    return isinstance(value, ir.Call) and value.op.name == "tirx.exp"


def _exponentials(kernel: ir.For) -> list[Any]:
    """Return the registers that hold exponentials."""
    stores = ir.find_all(kernel, ir.BufferStore, lambda x: str(x.buffer.scope()) == "local")
    return [x.buffer for x in stores if _is_exponential(x.value, [])]


def _is_of_row(division: tirx.Div, variables: list[ir.Var]) -> bool:
    """Tell a quotient of several elements by one value; a thread may have several rows."""
    loads = ir.find_all(division.b, ir.TensorLoad)
    own = [x for x in variables if ir.depends_on(division.a, [x])]
    is_shared = any(not ir.depends_on(division.b, [x]) for x in own)
    return bool(loads) and is_shared and ir.dtype_of(division) == "float32"


def rewrite_quotients(kernel: ir.For, plan: tuple[Quotient, ...]) -> Any:
    """Multiply by reciprocals."""
    planned = {x.division: x.is_rounded for x in plan}

    def visit(node: tirx.Div, mutator: Any) -> Any:
        after = mutator.default_mutate(node)
        if node not in planned:
            return after
        scale = _scale(after.b)
        inverse = _float32(1) / (after.b * scale)
        if planned[node]:
            return divide(after.a * scale, after.b * scale, inverse)
        return after.a * scale * inverse

    return ir.mutate(kernel, [(tirx.Div, visit)])


def _scale(divisor: Any) -> Any:
    """Return the power of two by which a divisor is neither subnormal nor has such a reciprocal."""
    small = tirx.abs(divisor) < _float32(2.0**-SAFE_EXPONENT)
    large = tirx.abs(divisor) > _float32(2.0**SAFE_EXPONENT)
    to_small = tirx.Select(large, _float32(2.0**-SAFE_EXPONENT), _float32(1))
    return tirx.Select(small, _float32(2.0**SAFE_EXPONENT), to_small)


def _float32(number: float) -> Any:
    return tirx.const(number, "float32")


def hoist_row_reciprocals(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Rewrite the quotients of one function's memory-bound kernels."""
    if options.read(FUNCTIONS, func) == "library":
        return func

    def rewrite(kernel: ir.For, notes: list[Note]) -> Any:
        if not is_memory_bound(kernel) or not (plan := plan_quotients(kernel)):
            return kernel
        after = rewrite_quotients(kernel, plan)
        assert not plan_quotients(after), "hoist_row_reciprocals left a division"
        rounded = [x.is_rounded for x in plan]
        notes += [] if all(rounded) else [RemarkNote(NOTE)]
        notes += [RemarkNote(ROUNDED_NOTE)] if any(rounded) else []
        return after

    return map_noted(func, rewrite)
