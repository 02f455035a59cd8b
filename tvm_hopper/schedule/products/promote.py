"""Promoted sums: each step of a product is summed alone, and added in float32.

    for k: C[i, j] += A[i, k] * B[j, k]
  ->
    for k0:
        P[i, j] = 0
        for k1: P[i, j] += A[i, k0 * 128 + k1] * B[j, k0 * 128 + k1]      in 14 bits
        C[i, j] += P[i, j]                                                in float32

Both sums are register tiles of one layout: a thread adds what it holds.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from tvm import s_tir

from tvm_hopper.errors import cannot_schedule

PROMOTED = "promoted"
MOST_PRODUCTS = 128  # that are summed in 14 bits before the sum is promoted


def check_request(where: str, config: Any) -> None:
    """Refuse fields of a configuration that exclude partial sums in registers of their own."""
    name, need = "", ""
    if not config.has_tiles:
        name, need = "form", "tiles, which tensor cores sum in 14 bits"
    elif config.is_sampled:
        name, need = "tile", "a tile and stages that are known: the depth says what is promoted"
    elif config.shares_sums:
        name, need = "split_k", "one of the two: a thread block promotes a whole sum"
    elif config.wgmma_pending:
        name, need = "wgmma_pending", "0: each partial sum is added before the next one begins"
    if need:
        found = f"accumulate={PROMOTED!r} with {name}={getattr(config, name)!r}"
        raise cannot_schedule(where, found, need)


def check_promotable(where: str, problem: Any) -> None:
    """Refuse to promote sums that lose nothing, or that begin with a number."""
    where = f"{where}, accumulate={PROMOTED!r}"
    if not problem.lhs.dtype.startswith("float8"):
        found = f"operands of {problem.lhs.dtype}"
        raise cannot_schedule(where, found, "float8: other sums keep all bits of float32")
    if problem.acc_dtype != "float32":
        found = f"a sum in {problem.acc_dtype}"
        raise cannot_schedule(where, found, "float32, in which partial sums are added")
    if not problem.starts_from_zero:
        found = "a sum that does not start from zero"
        raise cannot_schedule(where, found, "one that does, with the rest after it")


def promote_sums(sch: s_tir.Schedule, block: Any, loops: Any) -> tuple[Any, Any]:
    """Sum each step in registers, which a step then adds to the output's.

    - `block` (SBlockRV): the multiply-add in tiles; afterwards what adds the partial sums.
    - `loops` (TileLoops): the loops of the tiles.
    - returns `partial` (SBlockRV): the multiply-add of a step.
    - returns `loops` (TileLoops): the loops around both.
    """
    before = [sch.get(x) for x in sch.get_loops(block)]

    def place(loop: Any) -> int:
        node = sch.get(loop)
        return next(i for i, x in enumerate(before) if x.same_as(node))

    known = {x.name: getattr(loops, x.name) for x in fields(loops)}
    places = {
        name: tuple(map(place, x)) if isinstance(x, tuple) else place(x)
        for name, x in known.items()
        if x is not None
    }
    partial = sch.rfactor(loops.k_outer, 0)
    after = sch.get_loops(block)
    found = {
        name: tuple(after[i] for i in at) if isinstance(at, tuple) else after[at]
        for name, at in places.items()
    }
    loops = replace(loops, **found)
    sch.compute_at(partial, loops.k_outer)
    sch.set_scope(partial, 0, "local")
    return partial, loops


def begin_sums(sch: s_tir.Schedule, block: Any, partial: Any, k_outer: Any) -> None:
    """Begin the output's sum before the loop over steps, and a partial sum in each step.

    Last: the blocks left are no reductions to TVM, which then moves nothing more.
    """
    sch.decompose_reduction(block, k_outer)
    sch.decompose_reduction(partial, sch.get_loops(partial)[-3])
