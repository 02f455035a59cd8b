"""Replace divisions by a row's value with multiplications by its reciprocal.

    for c, v in unroll: Y_local[c, v] = T.Cast("bfloat16", E_local[c, v] / S[0])
  ->
    for c, v in unroll: Y_local[c, v] = T.Cast("bfloat16", E_local[c, v] * k * (1 / (S[0] * k)))

    k = 2^64 where |S[0]| < 2^-64, 2^-64 where |S[0]| > 2^64, else 1

A division is a dozen instructions with a branch; as many as all else that a softmax does to an
element. The reciprocal is the same for all of a thread's elements, or for those of a column: it is
computed once. The power of two keeps it a normal number whatever the divisor is, and rounds
nothing.

The product has two roundings in float32, so up to 1.5 units in the last place where the division
has 0.5. It is done where the quotient, or a product with it, goes to a type of 16 bits straight
away, whose own unit is 8192 times as large or more. Sums may cancel: a quotient in one stays, but
for those of exponentials, which approximate_functions.py leaves 2^-16 of their value off. It is
noted for `explain`, and `tvm_hopper.functions` = "library" keeps the division.

Before: elements are distributed to threads.  After: no such quotient, in kernels bound by memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
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


@dataclass(frozen=True)
class Quotient:
    """A division by a value that does not depend on the element."""

    division: tirx.Div
    store: ir.BufferStore


def plan_quotients(kernel: ir.For) -> tuple[Quotient, ...]:
    """Find the divisions by a row's value whose results are rounded to 16 bits."""
    elements = [
        loop.loop_var
        for loop in ir.find_all(kernel, ir.For, lambda x: x.kind != ir.ForKind.THREAD_BINDING)
        if not ir.is_const(loop.extent, 1)
    ]
    found = []
    powers = _exponentials(kernel)
    for store in ir.find_all(kernel, ir.BufferStore):
        value = store.value
        if not isinstance(value, tirx.Cast) or ir.dtype_of(value) not in HALVES:
            continue
        if not ir.depends_on(list(store.indices), elements):
            continue
        for division in _factors(value.value, powers):
            if ir.dtype_of(division) == "float32" and _is_shared(division, store, elements):
                found.append(Quotient(division, store))
    return tuple(found)


def _factors(value: Any, powers: list[Any], in_sum: bool = False) -> list[tirx.Div]:
    """Return the quotients that a value is the product of: what rounds them rounds it as much.

    Of sums in it those of exponentials are returned, too.
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


def _is_shared(division: tirx.Div, store: ir.BufferStore, elements: list[ir.Var]) -> bool:
    """Tell a divisor that several elements have: those of a row, or of a column."""
    loads = ir.find_all(division.b, ir.TensorLoad)
    own = [x for x in elements if ir.depends_on(list(store.indices), [x])]
    shared = any(not ir.depends_on(division.b, [x]) for x in own)
    return bool(loads) and shared and not _is_one(division.a)


def _is_one(value: Any) -> bool:
    return isinstance(value, tirx.FloatImm) and float(value.value) == 1


def rewrite_quotients(kernel: ir.For, plan: tuple[Quotient, ...]) -> Any:
    """Multiply by reciprocals."""
    planned = [x.division for x in plan]

    def visit(node: tirx.Div, mutator: Any) -> Any:
        after = mutator.default_mutate(node)
        if not any(node.same_as(x) for x in planned):
            return after
        scale = _scale(after.b)
        return after.a * scale * (_float32(1) / (after.b * scale))

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

    def divide(kernel: ir.For, notes: list[Note]) -> Any:
        if not is_memory_bound(kernel) or not (plan := plan_quotients(kernel)):
            return kernel
        after = rewrite_quotients(kernel, plan)
        assert not plan_quotients(after), "hoist_row_reciprocals left a division"
        notes += [RemarkNote(NOTE)]
        return after

    return map_noted(func, divide)
