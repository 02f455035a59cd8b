"""Rows too long for a thread block: each pass reloads the row in parts.

  for k: S[i] += X[i, k]                 for j: Y[i, j] = f(X[i, j], S[i], W[j])
->
  for part: load X; S += ...             out of memory
  reduce S across threads
  for part: load X, W; compute; store Y  out of L2, if it still has the row
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from tvm import s_tir, tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.schedule.memory_bound.arrays import Read
from tvm_hopper.schedule.memory_bound.nests import LOADS, Nest, Work
from tvm_hopper.schedule.memory_bound.program import Part
from tvm_hopper.schedule.memory_bound.tiles import RegisterTile, deal_out


@dataclass
class Pass:
    """One pass over a row: what is loaded for it, the block itself, and what is stored."""

    nest: Nest
    loads: list[Nest]
    stores: list[Nest] = field(default_factory=list)


def read_apart(reads: list[Read], parts: list[Part], full: frozenset[str]) -> list[Read]:
    """Let each block that runs along a row load what it reads for itself.

    - raises ScheduleError: a block reads elements that another one computes: nothing holds them
      until then.
    """
    if (kept := find_kept(parts, full)) is not None:
        part, load = kept
        raise cannot_schedule(
            f"block {part.name}, tensor {load.source.name}",
            "a row of results that does not fit the registers of a thread block",
            "results that only memory holds",
            "compute it in a separate function",
        )
    found = []
    for read in reads:
        for part in read.readers:
            found.append(replace(read, readers=(part,), again=True))
    return found


def count_passes(parts: list[Part], full: frozenset[str]) -> int:
    """Count the times that a kernel which streams rows loads them.

    A sum of exponentials is made as their greatest is found
    (`transforms/memory_bound/fuse_online_softmax.py`).
    """
    along = [p for p in parts if p.reduced or p.name in full]
    return len(along) - sum(_is_online(*x) for x in pairwise(along))


def _is_online(most: Part, other: Part) -> bool:
    if not most.reduced or not other.reduced or len(most.outputs) > 1:
        return False
    calls = [x for x in ir.find_all(other.node.body, ir.Call) if x.op.name == "tirx.exp"]
    if len(calls) != 1 or not ir.find_all(most.node.body, tirx.Max):
        return False
    argument = calls[0].args[0]
    greatest = argument.b if isinstance(argument, tirx.Sub) else None
    return isinstance(greatest, ir.TensorLoad) and greatest.source.same_as(most.outputs[0])


def find_kept(parts: list[Part], full: frozenset[str]) -> tuple[Part, Any] | None:
    """Return the first block that reads elements which another one computes, and the load."""
    made = [x for p in parts if p.name in full for x in p.outputs]
    loads = [(part, load) for part in parts for load in part.loads]
    return next((x for x in loads if any(x[1].source.same_as(y) for y in made)), None)


def plan_passes(nests: list[Nest]) -> list[Pass]:
    """Tell which load and which store belong to which pass: they are around it."""
    passes: list[Pass] = []
    loads: list[Nest] = []
    for nest in nests:
        if nest.work in LOADS:
            loads.append(nest)
        elif nest.work in (Work.REDUCE, Work.COMPUTE):
            passes.append(Pass(nest, loads))
            loads = []
        elif nest.work is Work.STORE:
            passes[-1].stores.append(nest)
    return passes


def deal_out_passes(sch: s_tir.Schedule, passes: list[Pass], tile: RegisterTile) -> None:
    """Put loads and stores into the loop over parts of a row that their pass has."""
    inner = replace(tile, cluster=1)  # of what is inside of a thread block's part already
    for one in passes:
        outer = deal_out(sch, _columns(sch, one.nest), tile, whole=False)
        for nest in one.loads:
            sch.compute_at(nest.block, outer)
            deal_out(sch, _columns_inside(sch, nest, outer), inner, whole=True, inside=True)
        for nest in one.stores:
            sch.reverse_compute_at(nest.block, outer)
            deal_out(sch, _columns_inside(sch, nest, outer), inner, whole=True, inside=True)


def _columns(sch: s_tir.Schedule, nest: Nest) -> Any:
    return list(sch.get_loops(nest.block))[-1]


def _columns_inside(sch: s_tir.Schedule, nest: Nest, outer: Any) -> Any:
    """Return the loop over the elements of a part; of one element TVM makes none."""
    loop = _columns(sch, nest)
    return sch.add_unit_loop(nest.block) if sch.get(loop).same_as(sch.get(outer)) else loop
