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

Before: buffers are compact.  After: an index is as plain as without the predicate.
Not here: min and max of values, those that depend on the data, kernels that multiply no tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir as tvm_ir
from tvm import sym, tirx

from tvm_hopper import ir
from tvm_hopper.analysis.launches import HostCondition, conditions_around, known_at
from tvm_hopper.transforms.common.multiply_add import product_blocks

BOUNDS = (tirx.Min, tirx.Max)


def plan_bounds(kernel: ir.For, conditions: Sequence[HostCondition] = ()) -> dict[Any, Any]:
    """Map each min and max in an index of the kernel that can be decided to the side it takes.

    `conditions` are those under which the host launches the kernel.
    """
    found = [
        bound
        for access in _accesses(kernel)
        for index in access
        for kind in BOUNDS
        for bound in ir.find_all(index, kind)
        if not ir.find_all(bound, ir.TensorLoad)
    ]
    if not found:
        return {}
    with known_at(conditions) as analyzer:
        for loop in ir.find_all(kernel, ir.For):
            analyzer.bind(loop.loop_var, ir.range_of(loop))
        decided = {bound: _side(analyzer, bound) for bound in found}
    return {bound: side for bound, side in decided.items() if side is not None}


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


def _accesses(kernel: ir.For) -> list[list[Any]]:
    kinds = (ir.TensorLoad, ir.BufferStore)
    accesses = [list(x.indices) for kind in kinds for x in ir.find_all(kernel, kind)]
    regions = ir.find_all(kernel, ir.TensorRegion)
    return accesses + [[y for r in x.region for y in (r.min, r.extent)] for x in regions]


def _side(analyzer: sym.Analyzer, bound: Any) -> Any:
    """Return the smaller (larger) operand if it is known to be that, else None."""
    smaller, larger = (bound.a, bound.b) if isinstance(bound, tirx.Min) else (bound.b, bound.a)
    if analyzer.can_prove(smaller <= larger):
        return bound.a
    return bound.b if analyzer.can_prove(larger <= smaller) else None


def _same(new: list[Any], old: Any) -> bool:
    return all(a.same_as(b) for a, b in zip(new, old, strict=True))


def _pairs(ranges: list[tuple[Any, Any]], node: ir.TensorRegion) -> Any:
    return zip(ranges, node.region, strict=True)


def simplify_index_bounds(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Resolve the bounds in one function's kernels."""

    def resolve(kernel: ir.For) -> ir.For:
        if not product_blocks(kernel):
            return kernel
        conditions = conditions_around(func.body, kernel)
        if not (plan := plan_bounds(kernel, conditions)):
            return kernel
        after = rewrite_bounds(kernel, plan)
        assert not plan_bounds(after, conditions), "simplify_index_bounds left a bound behind"
        return after

    return ir.map_kernels(func, resolve)
