"""Divide sums term by term, where the ranges of loops allow it.

    C[(by * 128 + w * 64 + r) % 6272 // 896, ..]         by blocks, w < 2, r < 64
  ->
    C[by % 49 // 7, ..]

TVM divides a sum of two terms, and rows of a tile are one of three or more: of a thread block, a
warp group and a register. An axis that several were merged into is taken apart by its digits
(`schedule/products/axes.py`), which then depend on the thread block alone, or on the tile alone.

Digits of one axis that lie one after another in memory stay as they are: together they are one
dimension of a tensor (`analysis/digits.py`).

Before: indices are those of loops.  After: no quotient or remainder keeps a term that it can do
without.
"""

from __future__ import annotations

from math import gcd
from typing import Any

import tvm_ffi
from tvm import sym, tirx

from tvm_hopper import ir
from tvm_hopper.analysis.access import AffineAccess
from tvm_hopper.analysis.digits import find_runs, is_digit
from tvm_hopper.transforms.common.multiply_add import product_blocks
from tvm_hopper.transforms.kernel_pass import kernel_step

_DIVISIONS = (tirx.FloorDiv, tirx.FloorMod)
Terms = list[tuple[int, Any]]  # a factor, and what it multiplies


def plan_digits(kernel: ir.For) -> dict[Any, Any]:
    """Map each division of a sum, none of which is inside of another one, to the plain one."""
    analyzer = sym.Analyzer()
    for loop in ir.find_all(kernel, ir.For):
        analyzer.bind(loop.loop_var, ir.range_of(loop))
    kept = _digits_of_runs(kernel)
    found: dict[Any, Any] = {}

    def visit(node: Any, mutator: Any) -> Any:
        if any(tvm_ffi.structural_equal(node, x) for x in kept):
            return node
        plain = _divided(mutator.default_mutate(node), analyzer)
        if not plain.same_as(node):
            found[node] = plain
        return plain

    ir.mutate(kernel, [(kind, visit) for kind in _DIVISIONS])
    return found


def _digits_of_runs(kernel: ir.For) -> list[Any]:
    """Return the divisions by which a tensor is walked through as along fewer dimensions."""
    accesses = [
        *((x.source, x.indices) for x in ir.find_all(kernel, ir.TensorLoad)),
        *((x.buffer, x.indices) for x in ir.find_all(kernel, ir.BufferStore)),
    ]
    return [
        division
        for buffer, indices in accesses
        if is_digit(indices)
        for run in find_runs(
            indices, buffer.shape, AffineAccess(buffer, tuple(indices), ()).strides
        )
        if len(run) > 1
        for kind in _DIVISIONS
        for division in ir.find_all([indices[d] for d in run], kind)
    ]


def rewrite_digits(kernel: ir.For, plan: dict[Any, Any]) -> ir.Stmt:
    """Put the plain divisions in place, the outermost first."""
    return ir.mutate(
        kernel,
        [(kind, lambda x, m: plan[x] if x in plan else m.default_mutate(x)) for kind in _DIVISIONS],
    )


def _divided(node: Any, analyzer: sym.Analyzer) -> Any:
    """Return a quotient or a remainder by as few terms as the ranges allow, or the node itself."""
    by = ir.static_int(node.b) if isinstance(node, _DIVISIONS) else None
    if by is None or by < 2:
        return node
    terms, constant = _terms(node.a)
    for step in sorted({gcd(factor, by) for factor, _ in terms} | {gcd(constant, by)})[::-1]:
        high = [(factor // step, x) for factor, x in terms if factor % step == 0]
        low = [(factor, x) for factor, x in terms if factor % step]
        rest = _sum(low, constant % step, node.a)
        whole = _sum(high, constant // step, node.a)
        bound = analyzer.const_int_bound(rest)
        if bound.min_value < 0 or bound.max_value >= step:
            if step < by or not (high or constant // step):
                continue
            if isinstance(node, tirx.FloorDiv):
                return analyzer.simplify(whole + tirx.floordiv(rest, by))
            return analyzer.simplify(tirx.floormod(rest, by))
        if step == 1:
            continue
        if isinstance(node, tirx.FloorDiv):
            return analyzer.simplify(tirx.floordiv(whole, by // step))
        return analyzer.simplify(tirx.floormod(whole, by // step) * step + rest)
    return node


def _terms(expr: Any) -> tuple[Terms, int]:
    """Return the terms of a sum with constant factors, and what is added to them."""
    if (number := ir.static_int(expr)) is not None:
        return [], number
    if isinstance(expr, (tirx.Add, tirx.Sub)):
        (first, a), (second, b) = _terms(expr.a), _terms(expr.b)
        sign = 1 if isinstance(expr, tirx.Add) else -1
        return [*first, *((sign * x, y) for x, y in second)], a + sign * b
    if isinstance(expr, tirx.Mul) and (factor := ir.static_int(expr.b)) is not None:
        terms, constant = _terms(expr.a)
        return [(factor * x, y) for x, y in terms], factor * constant
    return [(1, expr)], 0


def _sum(terms: Terms, constant: int, like: Any) -> Any:
    """Return the sum of terms, of the type of another one."""
    total: Any = ir.cast_like(constant, like)
    for factor, x in terms:
        total = total + x * factor
    return ir.simplify(total)


simplify_digits = kernel_step(plan_digits, rewrite_digits, when=lambda x: bool(product_blocks(x)))
