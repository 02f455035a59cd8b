"""Simplify min and max in indices by the ranges of loops and the conditions of the host.

    for bx in thread_binding(2, "blockIdx.x"):
        for ty in thread_binding(2, "threadIdx.y"):
            C_local[i, bx * 64 + ty * 32 + j - min(bx * 64 + ty * 32,
                                                   bx * 64 + ty * 32 + max(8 - bx * 64, 0))] = ...
  ->
            C_local[i, j] = ...

Stock CompactBufferAllocation starts a buffer at the least index that is accessed. Under a predicate
that bounds the index from below (a store of columns 8 and on) that is such an expression, which
TVM's simplifier leaves although its prover decides it.

Register arrays of memory-bound kernels have such indices too, if a symbolic extent divides the
number of a thread block: `min(bx % n, 0)` is 0. Sums and products of extents of the function's
tensors that divide are positive, or the kernel does not run.

Before: buffers are compact.  After: an index is as plain as without the predicate.
Not here: min and max of values, those that depend on the data, other kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import ir as tvm_ir, sym, tirx

from tvm_hopper import ir
from tvm_hopper.analysis.launches import HostCondition, conditions_around, known_at
from tvm_hopper.requests.bodies import is_memory_bound
from tvm_hopper.requests.keys import INT32_MAX
from tvm_hopper.transforms.common.multiply_add import product_blocks

BOUNDS = (tirx.Min, tirx.Max)
DIVISIONS = (tirx.FloorDiv, tirx.FloorMod)


def plan_bounds(
    kernel: ir.For,
    conditions: Sequence[HostCondition] = (),
    scope: str | None = None,
    extents: Sequence[ir.Var] = (),
) -> dict[Any, Any]:
    """Map each min and max in an index of the kernel that can be decided to the side it takes.

    `conditions` are those under which the host launches the kernel, `scope` the memory of the
    arrays whose indices count; None: any. `extents` are variables of shapes.
    """
    found = [
        bound
        for access in _accesses(kernel, scope)
        for index in access
        for kind in BOUNDS
        for bound in ir.find_all(index, kind)
        if not ir.find_all(bound, ir.TensorLoad) and not _is_of_shape(bound, index)
    ]
    if not found:
        return {}
    with known_at(conditions) as analyzer:
        for loop in ir.find_all(kernel, ir.For):
            analyzer.bind(loop.loop_var, ir.range_of(loop))
        sizes = _positive_divisors(found, extents)
        for size in sizes.values():
            analyzer.bind(size, tvm_ir.Range(1, ir.cast_like(INT32_MAX, size)))
        decided = {bound: _side(analyzer, bound, sizes) for bound in found}
    return {bound: side for bound, side in decided.items() if side is not None}


def _is_of_shape(bound: Any, index: Any) -> bool:
    """Tell a bound in the shape of a tensor that an index reads: a table of symbolic length."""
    shapes = [list(x.source.shape) for x in ir.find_all(index, ir.TensorLoad)]
    return any(x.same_as(bound) for x in ir.find_all(shapes, type(bound)))


def rewrite_bounds(kernel: ir.For, plan: dict[Any, Any]) -> ir.For:
    """Put the sides in place, and simplify the indices that held them."""

    def plain(index: Any) -> Any:
        new = index
        for kind in BOUNDS:
            new = ir.replace(new, kind, lambda node: plan.get(node, node))
        return index if new.same_as(index) else ir.simplify(new)

    def load(node: ir.TensorLoad, mutator: Any) -> ir.TensorLoad:
        node = mutator.default_mutate(node)
        indices = [plain(x) for x in node.indices]
        return node if _same(indices, node.indices) else tirx.BufferLoad(node.source, indices)

    def store(node: ir.BufferStore, mutator: Any) -> ir.BufferStore:
        node = mutator.default_mutate(node)
        indices = [plain(x) for x in node.indices]
        same = _same(indices, node.indices)
        return node if same else ir.BufferStore(node.buffer, node.value, indices)

    def touch(node: ir.TensorRegion, mutator: Any) -> ir.TensorRegion:
        node = mutator.default_mutate(node)
        ranges = [(plain(x.min), plain(x.extent)) for x in node.region]
        if all(a.same_as(x.min) and b.same_as(x.extent) for (a, b), x in _pairs(ranges, node)):
            return node
        region = [tvm_ir.Range.from_min_extent(a, b) for a, b in ranges]
        return tirx.BufferRegion(node.source, region)

    return ir.mutate(
        kernel, [(ir.TensorLoad, load), (ir.BufferStore, store), (ir.TensorRegion, touch)]
    )


def _accesses(kernel: ir.For, scope: str | None) -> list[list[Any]]:
    accesses = [(x.source, list(x.indices)) for x in ir.find_all(kernel, ir.TensorLoad)]
    accesses += [(x.buffer, list(x.indices)) for x in ir.find_all(kernel, ir.BufferStore)]
    accesses += [
        (x.source, [y for r in x.region for y in (r.min, r.extent)])
        for x in ir.find_all(kernel, ir.TensorRegion)
    ]
    return [x for buffer, x in accesses if scope is None or str(buffer.scope()) == scope]


def _positive_divisors(found: Sequence[Any], extents: Sequence[ir.Var]) -> dict[Any, ir.Var]:
    """Map each sum or product of extents that divides to a variable for it."""
    divided = [x for bound in found for kind in DIVISIONS for x in ir.find_all(bound, kind)]
    sizes: dict[Any, ir.Var] = {}
    for divisor in (x.b for x in divided):
        known = any(tvm_ffi.structural_equal(divisor, x) for x in sizes)
        if not known and ir.static_int(divisor) is None and _is_size(divisor, extents):
            sizes[divisor] = ir.Var("size", ir.dtype_of(divisor))
    return sizes


def _is_size(expr: Any, extents: Sequence[ir.Var]) -> bool:
    """Tell sums and products of extents and positive numbers."""
    if isinstance(expr, (tirx.Add, tirx.Mul)):
        return _is_size(expr.a, extents) and _is_size(expr.b, extents)
    number = ir.static_int(expr)
    return any(expr.same_as(x) for x in extents) if number is None else number > 0


def _side(analyzer: sym.Analyzer, bound: Any, sizes: dict[Any, ir.Var]) -> Any:
    """Return the smaller (larger) operand if it is known to be that, else None."""
    a, b = (_with_sizes(x, sizes) for x in (bound.a, bound.b))
    smaller, larger = (a, b) if isinstance(bound, tirx.Min) else (b, a)
    if analyzer.can_prove(smaller <= larger):
        return bound.a
    return bound.b if analyzer.can_prove(larger <= smaller) else None


def _with_sizes(expr: Any, sizes: dict[Any, ir.Var]) -> Any:
    def size(node: Any) -> Any:
        return next((v for x, v in sizes.items() if tvm_ffi.structural_equal(x, node)), node)

    for kind in {type(x) for x in sizes}:
        expr = ir.replace(expr, kind, size)
    return expr


def _same(new: list[Any], old: Any) -> bool:
    return all(a.same_as(b) for a, b in zip(new, old, strict=True))


def _pairs(ranges: list[tuple[Any, Any]], node: ir.TensorRegion) -> Any:
    return zip(ranges, node.region, strict=True)


def simplify_index_bounds(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Resolve the bounds in one function's kernels."""
    shapes = [extent for x in func.params if tirx.is_buffer_var(x) for extent in x.shape]
    extents = [x for extent in shapes for x in ir.find_all(extent, ir.Var)]

    def resolve(kernel: ir.For) -> ir.For:
        scope = None if product_blocks(kernel) else "local"
        if scope and not is_memory_bound(kernel):
            return kernel
        conditions = conditions_around(func.body, kernel)
        if not (plan := plan_bounds(kernel, conditions, scope, extents)):
            return kernel
        after = rewrite_bounds(kernel, plan)
        assert not plan_bounds(after, conditions, scope, extents), (
            "simplify_index_bounds left a bound behind"
        )
        return after

    return ir.map_kernels(func, resolve)
