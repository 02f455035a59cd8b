"""Divide by what a whole row shares once, and multiply each element.

    for c, v in unroll: Y_local[c, v] = T.Cast("bfloat16", E_local[c, v] / S_local[0])
  ->
    for c, v in unroll: Y_local[c, v] = T.Cast("bfloat16", E_local[c, v] * (1 / S_local[0]))

A division is a dozen instructions with a branch; as many as all else that a softmax does to an
element. The reciprocal is the same for all of a thread's elements, so that it is computed once.

The product has two roundings in float32, so up to 1.5 units in the last place where the division
has 0.5. It is done where the result goes to a type of 16 bits straight away, whose own unit is 256
times as large or more; nowhere else. A divisor below 2^-126, whose reciprocal may be infinite, is
the sum of no softmax, whose greatest term is 1.

Before: elements are dealt out to threads.  After: no such quotient, in kernels bound by memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.requests.bodies import is_memory_bound

NARROW = ("bfloat16", "float16")


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
    ]
    found = []
    for store in ir.find_all(kernel, ir.BufferStore):
        value = store.value
        if not isinstance(value, tirx.Cast) or ir.dtype_of(value) not in NARROW:
            continue
        if not ir.depends_on(list(store.indices), elements):
            continue
        for division in ir.find_all(value.value, tirx.Div):
            if ir.dtype_of(division) == "float32" and _is_of_row(division, elements):
                found.append(Quotient(division, store))
    return tuple(found)


def _is_of_row(division: tirx.Div, elements: list[ir.Var]) -> bool:
    loads = ir.find_all(division.b, ir.TensorLoad)
    return bool(loads) and not ir.depends_on(division.b, elements) and not _is_one(division.a)


def _is_one(value: Any) -> bool:
    return isinstance(value, tirx.FloatImm) and float(value.value) == 1


def rewrite_quotients(kernel: ir.For, plan: tuple[Quotient, ...]) -> Any:
    """Multiply by reciprocals."""
    planned = [x.division for x in plan]

    def visit(node: tirx.Div, mutator: Any) -> Any:
        after = mutator.default_mutate(node)
        if not any(node.same_as(x) for x in planned):
            return after
        return after.a * (tirx.const(1.0, "float32") / after.b)

    return ir.mutate(kernel, [(tirx.Div, visit)])


@prim_func_pass(opt_level=0, name="tvm_hopper.DivideByRows")
class DivideByRows:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Rewrite the quotients of one function's memory-bound kernels."""

        def divide(kernel: ir.For) -> Any:
            if not is_memory_bound(kernel) or not (plan := plan_quotients(kernel)):
                return kernel
            after = rewrite_quotients(kernel, plan)
            assert not plan_quotients(after), "DivideByRows left a division"
            return after

        return ir.map_kernels(func, divide)
