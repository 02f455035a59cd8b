"""Divide once where a thread loads the elements of a vector one by one.

    for v in unroll(2):                                         X: (8, 64, 64)
        tile[v] = T.if_then_else(1 <= n % 66 + v, X[n // 4356, n // 66 % 66, n % 66 + v - 1], 0)
  ->
    number[0] = n % 66
    first[0] = n // 4356 * 4096 + n // 66 % 66 * 64 + n % 66 - 1
    for v in unroll(2):
        tile[v] = T.if_then_else(1 <= number[0] + v, X[.. of element first[0] + v], 0)

TVM simplifies each use of a quotient or a remainder by itself, in forms that share nothing. The
compiler then divides for each element, and branches around that instead of loading under a
condition: a thread waits for one element before it asks for the next.

Before: quotients and remainders have no element in them, where a vector allows it.  After: in
kernels bound by memory, loops that load single elements have such numbers in registers.
Not here: loops in which no such load is computed by a division; numbers that are loaded; tensors
whose elements 32 bits do not number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.requests.bodies import is_memory_bound
from tvm_hopper.transforms.kernel_pass import kernel_step

from .vectorize_gathers import is_over_elements

MOST_ELEMENTS = 2**31 - 1  # of a tensor: their numbers are kept in registers of 32 bits


@dataclass(frozen=True)
class ElementLoad:
    """A load of single elements: the number of the first, and how far apart they are."""

    load: ir.TensorLoad
    first: Any
    step: Any


@dataclass(frozen=True)
class IndexNumbers:
    """A loop over elements, what it loads one by one, and quotients that its elements share."""

    loop: ir.For
    loads: tuple[ElementLoad, ...]
    numbers: tuple[Any, ...]


def plan_numbers(kernel: ir.For) -> tuple[IndexNumbers, ...]:
    """Find the loops that load single elements at places computed by division."""
    found = []
    for loop in ir.find_all(kernel, ir.For, is_over_elements):
        value = loop.body.block.body.value
        loads = [_element(x, loop.loop_var) for x in ir.find_all(value, ir.TensorLoad)]
        known = tuple(x for x in loads if x is not None and _quotients(x.first, loop.loop_var))
        if known:
            numbers = _quotients(value, loop.loop_var, [x.load for x in known])
            found.append(IndexNumbers(loop, known, tuple(numbers)))
    return tuple(found)


def _element(load: ir.TensorLoad, lane: Any) -> ElementLoad | None:
    """Return a load at places that are as far apart from element to element; None for others."""
    tensor, indices = load.source, list(load.indices)
    sizes = [ir.static_int(x) for x in tensor.shape]
    if str(tensor.scope()) not in ("", "global") or list(tensor.strides) or None in sizes:
        return None
    if not ir.depends_on(indices, [lane]) or ir.find_all(indices, ir.TensorLoad):
        return None
    if prod(x or 0 for x in sizes) > MOST_ELEMENTS:
        return None
    number = indices[0]
    for index, size in zip(indices[1:], sizes[1:], strict=True):
        number = number * ir.cast_like(size, number) + index
    first, second = (ir.simplify(ir.substitute(number, {lane: x})) for x in (0, 1))
    step = ir.simplify(second - first)
    is_even = ir.is_const(ir.simplify(number - first - step * ir.cast_like(lane, number)), 0)
    is_even = is_even and ir.static_int(step) is not None
    return ElementLoad(load, first, step) if is_even else None


def _quotients(value: Any, lane: Any, without: Sequence[Any] = ()) -> list[Any]:
    """Return the outermost quotients and remainders without the element, each once.

    Quotients in the loads of `without` do not count: the number of their first element has them.
    """
    found: list[Any] = []

    def visit(node: Any, mutator: Any) -> Any:
        if ir.depends_on(node, [lane]) or ir.find_all(node, ir.TensorLoad):
            return mutator.default_mutate(node)
        if not any(tvm_ffi.structural_equal(node, x) for x in found):
            found.append(node)
        return node

    def load(node: ir.TensorLoad, mutator: Any) -> Any:
        is_known = any(node.same_as(x) for x in without)
        return node if is_known else mutator.default_mutate(node)

    ir.mutate(value, [(tirx.FloorDiv, visit), (tirx.FloorMod, visit), (ir.TensorLoad, load)])
    return found


def rewrite_numbers(kernel: ir.For, plan: tuple[IndexNumbers, ...]) -> ir.For:
    """Compute the numbers before each loop."""
    names = ir.Names(x.name for x in ir.find_all(kernel, ir.Var))
    registers: list[ir.Var] = []
    planned = {one.loop: _rewrite(one, names, registers) for one in plan}
    return ir.allocate_in(ir.replace_nodes(kernel, ir.For, planned), registers)


def _rewrite(plan: IndexNumbers, names: ir.Names, registers: list[ir.Var]) -> ir.Stmt:
    fronts: list[ir.Stmt] = []
    kept: list[tuple[Any, Any]] = []

    def keep(name: str, number: Any) -> Any:
        same = next((x for y, x in kept if tvm_ffi.structural_equal(y, number)), None)
        if same is not None:
            return same
        register = ir.new_buffer(names.take(name), (1,), "int32", "local")
        registers.append(register)
        store = ir.BufferStore(register, number.astype("int32"), [0])
        fronts.append(ir.block_of_store(store, [], {}))
        kept.append((number, ir.cast_like(tirx.BufferLoad(register, [0]), number)))
        return kept[-1][1]

    def element(node: ir.TensorLoad, mutator: Any) -> Any:
        one = next((x for x in plan.loads if x.load.same_as(node)), None)
        if one is None:
            return mutator.default_mutate(node)
        offset = plan.loop.loop_var * ir.cast_like(one.step, plan.loop.loop_var)
        first = keep("first", one.first)
        return tirx.BufferLoad(node.source, ir.indices_from([first], offset, node.source.shape))

    def quotient(node: Any, mutator: Any) -> Any:
        is_known = any(tvm_ffi.structural_equal(node, x) for x in plan.numbers)
        return keep("number", node) if is_known else mutator.default_mutate(node)

    realize = plan.loop.body
    store = realize.block.body
    visits: list[tuple[type, Any]] = [
        (ir.TensorLoad, element),
        (tirx.FloorDiv, quotient),
        (tirx.FloorMod, quotient),
    ]
    value = ir.mutate(store.value, visits)
    store = ir.BufferStore(store.buffer, value, store.indices)
    own = [ir.full_region(x) for x in registers[len(registers) - len(kept) :]]
    block = ir.with_block(realize.block, body=store, reads=[*realize.block.reads, *own])
    inner = ir.SBlockRealize(realize.iter_values, realize.predicate, block)
    return ir.seq(*fronts, ir.with_body(plan.loop, inner))


hoist_index_numbers = kernel_step(plan_numbers, rewrite_numbers, when=is_memory_bound)
