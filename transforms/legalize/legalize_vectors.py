"""Split vectors into lengths that TVM's code generator prints and a thread loads at once.

    for v in vectorized(8):
        C[i * 8 + v] = T.Cast("float16", T.Cast("float32", tile[i * 8 + v]) * 2.0)
  ->
    for part in unroll(2):
        for v in vectorized(4):
            C[i * 8 + (part * 4 + v)] = ...

A thread loads and stores at most 16 bytes, and TVM's text for longer vectors does not compile
(codegen_patches/vectors.py).

Before: any loops.  After: a vectorized loop has as many iterations as each type in it allows; the
swizzle, which moves 16 bytes at once, takes no vector apart.
Not here: vectors that stock passes make.  `cut_unaligned` runs once the rows of tiles are final
(swizzle_shared_tiles.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

from tvm import sym, tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.vectors import most_lanes
from tvm_hopper.requests.bodies import is_requested
from tvm_hopper.requests.keys import STAGE
from tvm_hopper.transforms.kernel_pass import function_pass, kernel_step

from .load_before_choice import load_before_choice
from .view_bools import copy_bools_as_bytes


@dataclass(frozen=True)
class VectorPlan:
    """A vectorized loop, and how many of its iterations are to be one vector."""

    loop: ir.For
    lanes: int

    @property
    def num_parts(self) -> int:
        """Number of vectors that it is split into."""
        return int(self.loop.extent) // self.lanes


def plan_vectors(
    kernel: ir.For, most: Callable[[ir.For], int] = most_lanes
) -> tuple[VectorPlan, ...]:
    """Return the loops that have to be cut, the outermost first, by what each may have at most."""
    plans = []
    for loop in ir.find_all(kernel, ir.For, lambda x: x.kind == ir.ForKind.VECTORIZED):
        lanes = ir.static_int(loop.extent)
        if lanes is not None and (fewer := gcd(lanes, most(loop))) < lanes:
            plans.append(VectorPlan(loop, fewer))
    return tuple(plans)


def rewrite_vectors(kernel: ir.For, plan: tuple[VectorPlan, ...]) -> Any:
    """Put a loop over parts around each vector."""
    return ir.replace_nodes(kernel, ir.For, {one.loop: _cut(one) for one in plan})


def _cut(plan: VectorPlan) -> ir.Stmt:
    loop, dtype = plan.loop, ir.dtype_of(plan.loop.loop_var)
    if plan.lanes == 1:
        return ir.For(loop.loop_var, loop.min, loop.extent, ir.ForKind.UNROLLED, loop.body)
    lane = ir.Var(loop.loop_var.name, dtype)
    lanes, parts = (tirx.IntImm(dtype, x) for x in (plan.lanes, plan.num_parts))

    def vector(part: Any) -> ir.Stmt:
        body = ir.substitute(loop.body, {loop.loop_var: part * lanes + lane})
        return ir.with_body(loop, body, loop_var=lane, extent=lanes)

    return ir.make_loop("part", parts, vector, ir.ForKind.UNROLLED)


def cut_unaligned(kernel: ir.For) -> ir.For:
    """Cut the vectors that are stored between two multiples of their size in some rows of a tile.

    TVM gives a tile the hull of what is read of it: its rows may be longer than what is copied. It
    takes loads that may lie so apart by itself, but no stores. What threads copy has no mark any
    more: every kernel is looked at, and elsewhere such a vector would not work either.
    """
    pipelines = ir.find_all(kernel, ir.For, lambda x: STAGE in x.annotations)
    staged = [x for loop in pipelines for x in ir.find_all(loop.body, ir.For)]

    def most(loop: ir.For) -> int:
        return _aligned_lanes(loop, has_slots=any(loop.same_as(x) for x in staged))

    plan = plan_vectors(kernel, most)
    return rewrite_vectors(kernel, plan) if plan else kernel


def _aligned_lanes(loop: ir.For, *, has_slots: bool) -> int:
    """Return a number of lanes that divides the steps from row to row, and from slot to slot."""
    lanes, lane, analyzer = int(loop.extent), loop.loop_var, sym.Analyzer()
    analyzer.bind(lane, ir.range_of(loop))
    for store in ir.find_all(loop.body, ir.BufferStore):
        shape = [ir.static_int(x) for x in store.buffer.shape]
        if not store.buffer.scope().startswith("shared") or None in shape:
            continue
        extents = [x for x in shape if x is not None]
        places = [ir.without_carry(x, lane, int(loop.extent)) for x in store.indices]
        starts = [analyzer.simplify(x) for x in (*places[:-1], places[-1] - lane)]
        if any(ir.depends_on(x, [lane]) for x in starts):
            continue  # no neighbors: TVM stores them one by one
        if has_slots:
            lanes = gcd(lanes, prod(extents))
        for axis, start in enumerate(starts):
            known, step = analyzer.modular_set(start), prod(extents[axis + 1 :])
            lanes = gcd(lanes, step * int(known.coeff), step * int(known.base))
    return lanes


LegalizeVectors = function_pass(
    "LegalizeVectors",
    copy_bools_as_bytes,
    load_before_choice,
    kernel_step(plan_vectors, rewrite_vectors, when=is_requested),
)
