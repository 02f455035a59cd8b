"""Split the last elements of a tensor from its vectors.

    for v in vectorized(8):
        with sblock("copy"):
            where(base + v < 7007)
            tile[v] = X[base + v]
  ->
    if base + 7 < 7007:
        for v in vectorized(8): tile[v] = X[base + v]
    else:
        for v in unroll(8):
            if base + v < 7007: tile[v] = X[base + v]

Of a condition that not all elements of a vector agree on, TVM makes a loop over them, for each of
the vectors. One thread of the grid has such a vector.

Before: conditions are on opaque blocks.  After: no condition around a vector of a kernel that is
bound by memory depends on the element.
Not here: conditions other than an upper bound, which stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.requests.bodies import is_memory_bound
from tvm_hopper.transforms.kernel_pass import kernel_step


@dataclass(frozen=True)
class Tail:
    """A vector, the block in it, and those terms of its condition that bound the element."""

    loop: ir.For
    realize: ir.SBlockRealize
    bounds: tuple[Any, ...]


def plan_tails(kernel: ir.For) -> tuple[Tail, ...]:
    """Find the vectors of which a part may lie after a bound."""
    found = []
    for loop in ir.find_all(kernel, ir.For, lambda x: x.kind == ir.ForKind.VECTORIZED):
        realize = loop.body
        if not isinstance(realize, ir.SBlockRealize):
            continue
        terms = list(ir.conjuncts(realize.predicate))
        bounds = tuple(x for x in terms if _rises(x, loop))
        others = [x for x in terms if x not in bounds and ir.depends_on(x, [loop.loop_var])]
        if bounds and not others:
            found.append(Tail(loop, realize, bounds))
    return tuple(found)


def _rises(term: Any, loop: ir.For) -> bool:
    """Tell `base + v < bound`, which holds for all elements if it does for the last one."""
    if not isinstance(term, tirx.LT) or ir.depends_on(term.b, [loop.loop_var]):
        return False
    first = ir.substitute(term.a, {loop.loop_var: 0})
    step = ir.simplify(term.a - first - loop.loop_var)
    return ir.depends_on(term.a, [loop.loop_var]) and ir.is_const(step, 0)


def rewrite_tails(kernel: ir.For, plan: tuple[Tail, ...]) -> ir.For:
    """Let whole vectors go without a condition, and others one element after another."""
    return ir.replace_nodes(kernel, ir.For, {x.loop: _split(x) for x in plan})


def _split(tail: Tail) -> ir.Stmt:
    loop, realize = tail.loop, tail.realize
    last = {loop.loop_var: int(loop.extent) - 1}
    whole = ir.conjunction(ir.simplify(ir.substitute(x, last)) for x in tail.bounds)
    rest = [x for x in ir.conjuncts(realize.predicate) if x not in tail.bounds]
    plain = ir.SBlockRealize([], ir.conjunction(rest), realize.block)
    single = ir.For(loop.loop_var, loop.min, loop.extent, ir.ForKind.UNROLLED, realize)
    vector = ir.with_body(loop, plain)
    return ir.IfThenElse(whole, vector, ir.fresh_variables(single))


split_vector_tails = kernel_step(plan_tails, rewrite_tails, when=is_memory_bound)
