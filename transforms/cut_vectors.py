"""Cut vectors into ones that the CUDA code generator can print, and a thread can load at once.

    for v in vectorized(8):
        C[i * 8 + v] = T.Cast("float16", T.Cast("float32", tile[i * 8 + v]) * 2.0)
  ->
    for part in unroll(2):
        for v in vectorized(4):
            C[i * 8 + (part * 4 + v)] = ...

A thread loads and stores 16 bytes at most, and of longer vectors, as they come about between a load
and a store of halves, TVM prints text that does not compile (codegen_patches/vectors.py).

Before: any loops.  After: a vectorized loop has as many iterations as each type in it allows; the
swizzle, which moves 16 bytes at once, takes no vector apart.
Not here: vectors that stock passes make.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

from tvm import tirx
from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.codegen_patches.vectors import most_lanes
from tvm_hopper.requests.bodies import is_memory_bound
from tvm_hopper.requests.keys import ASYNC_COPY


@dataclass(frozen=True)
class VectorPlan:
    """A vectorized loop, and how many of its iterations are to be one vector."""

    loop: ir.For
    lanes: int

    @property
    def num_parts(self) -> int:
        """How many vectors are made of it."""
        return int(self.loop.extent) // self.lanes


def plan_vectors(kernel: ir.For) -> tuple[VectorPlan, ...]:
    """Return the loops that have to be cut, the outermost first."""
    plans = []
    for loop in ir.find_all(kernel, ir.For, lambda x: x.kind == ir.ForKind.VECTORIZED):
        lanes = ir.static_int(loop.extent)
        if lanes is not None and (fewer := gcd(lanes, most_lanes(loop))) < lanes:
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


@prim_func_pass(opt_level=0, name="tvm_hopper.CutVectors")
class CutVectors:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Cut the vectors of one function's kernels that are ours."""

        def cut(kernel: ir.For) -> ir.For:
            is_ours = ir.find_blocks(kernel, ASYNC_COPY) or is_memory_bound(kernel)
            if not is_ours or not (plan := plan_vectors(kernel)):
                return kernel
            after = rewrite_vectors(kernel, plan)
            assert not plan_vectors(after), "CutVectors left a vector that is too long"
            return after

        return ir.map_kernels(func, cut)
