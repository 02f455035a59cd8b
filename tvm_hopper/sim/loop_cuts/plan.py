"""Decide which loops may skip their middle iterations when only synchronisation is checked.

    for k in range(64):                            iterations 0 to 7, then 56 to 63: k & 3 and the
        wait(empty[k & 3], (k >> 2) + 1 & 1)  ->   parity repeat every 8 iterations, so iteration 56
        load(A[k * 64], ring[k & 3])               finds the state that iteration 8 would have found

Control must not depend on data anywhere in the kernel. Then a loop's iterations repeat if, with P
its period, every condition, every operand of an instruction that synchronises and
every place in shared memory is the same P iterations later; places in global
memory that is only read may move on by equal steps. Such a loop runs its first P iterations and the
rest of the division, and its last P: 2 P + n % P of n. A condition that changes in few iterations
(`threshold.py`) moves the iterations that are left out to where it does not. They are a whole
number of periods, so that

* slots, parities and the code after the loop are as in the whole run, if every mbarrier goes
  through an even number of phases meanwhile: the machine counts that for each run (`balance.py`);
* every slot is used with both parities before the gap and twice more after it, since P covers the
  slots and both parities;
* the state that one iteration finds (for each byte of shared memory the last write and the reads
  since, copies in flight, groups not waited for) comes from the period before it;
* lowest and highest places in global memory are touched: places that move by equal steps lie
  between those of the first and of the last iterations.

Loops that store to global memory are listed separately: one period does not determine the bytes
that all iterations write, so one run must do them all.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import tvm_ffi
from tvm import ir, tirx

from tvm_hopper.sim.loop_cuts.reader import Reader, RefusedError
from tvm_hopper.sim.loop_cuts.shift import DATA, Known, Shift
from tvm_hopper.sim.options import LoopCut
from tvm_hopper.sim.tir import PtxCall, nodes_in

MAX_PERIOD = 1 << 10
_ROUNDS = 8  # rounds of propagation through registers


@dataclass(frozen=True)
class CutPlan:
    """Loops that runs of one kernel may cut.

    - `refused`: why data must be computed with, and all loops run; empty if they need not.
    - `cuts` (tuple of (For, LoopCut)): loops that may be cut in every run.
    - `storing` (tuple of (For, LoopCut)): loops that may be cut if another run does all their
      iterations.
    """

    refused: str
    cuts: tuple[tuple[Any, LoopCut], ...] = ()
    storing: tuple[tuple[Any, LoopCut], ...] = ()


class _Loop(NamedTuple):
    """A loop around instructions, and the reader of its body; `body`: None if it cannot be cut."""

    node: Any
    depth: int
    body: Reader | None


class _FunctionReader(Reader):
    """Reads a whole function, and each of its loops on the way."""

    def __init__(
        self, known: Known, decoded: dict[Any, PtxCall | None], numbers: Mapping[Any, int]
    ) -> None:
        super().__init__(known, decoded)
        self.numbers = numbers  # by parameter
        self.loops: list[_Loop] = []
        self.around: list[Any] = []
        self.blocks: dict[Any, str] = {}

    def _attrstmt(self, node: Any) -> None:
        if node.attr_key == "thread_extent":
            tag = str(node.node.thread_tag)
            if not tag.startswith("threadIdx"):
                self.blocks[node.node.var] = tag
        super()._attrstmt(node)

    def _for(self, node: Any) -> None:
        start = self.value(node.min)
        inside = self.known.copy()
        body = Reader(inside, self.decoded, node.loop_var, tuple(self.around))
        body.bound.update(self.bound)
        body.scalars = {*self.blocks, *self.numbers}
        body.forget(node.body)
        inside.values[node.loop_var] = Shift(1, 1, isinstance(start, Shift) and start.positive)
        try:
            body.read(node.body)
            if body.synchronises:
                cuttable = body.period <= MAX_PERIOD
                self.loops.append(_Loop(node, len(self.around), body if cuttable else None))
        except RefusedError:
            if _instructions(node.body):
                self.loops.append(_Loop(node, len(self.around), None))
        self.around.append(node.loop_var)
        super()._for(node)
        self.around.pop()


def _instructions(body: Any) -> bool:
    """Return whether any instruction is in a statement."""
    found = nodes_in(body, tirx.Evaluate)
    return any(isinstance(one.value, ir.Call) for one in found)


def plan_cuts(func: tirx.PrimFunc, scalars: Mapping[str, int]) -> CutPlan:
    """Decide which loops may be cut.

    - `func`: final device function.
    - `scalars`: integer parameters of the launch, by name.
    """
    return _planned(func, tuple(sorted(scalars.items())))


@functools.lru_cache(maxsize=32)
def _planned(func: tirx.PrimFunc, scalars: tuple[tuple[str, int], ...]) -> CutPlan:
    decoded: dict[Any, PtxCall | None] = {}
    tainted: set[Any] = set()
    numbers = {p: dict(scalars)[p.name] for p in func.params if p.name in dict(scalars)}
    for _ in range(_ROUNDS):
        known = Known(tainted=tainted)
        for param in func.params:
            if param in numbers:
                known.values[param] = Shift(1, 0, numbers[param] >= 0, numbers[param])
            elif not isinstance(param.ty, ir.PointerType) and "float" in str(param.ty):
                known.values[param] = DATA
        before = len(tainted)
        reader = _FunctionReader(known, decoded, numbers)
        try:
            reader.read(func.body)
        except RefusedError as error:
            return CutPlan(str(error))
        if len(tainted) == before:
            return _of_groups(reader.loops, {**numbers, **reader.blocks})
    return CutPlan("data moves through too many registers")


def _of_groups(loops: list[_Loop], known: Mapping[Any, int | str]) -> CutPlan:
    """Cut loops alike that are as deep and run as often: the roles of a kernel go through them.

    If one of them cannot be cut, none is: all roles must leave out the same iterations.
    """
    groups: list[list[_Loop]] = []
    for loop in loops:
        for group in groups:
            alike = tvm_ffi.structural_equal(loop.node.extent, group[0].node.extent)
            if alike and loop.depth == group[0].depth:
                group.append(loop)
                break
        else:
            groups.append([loop])
    cuts: list[tuple[Any, LoopCut]] = []
    storing: list[tuple[Any, LoopCut]] = []
    for group in groups:
        bodies = [loop.body for loop in group if loop.body is not None]
        if len(bodies) < len(group):
            continue
        period = math.lcm(*(body.period for body in bodies))
        conditions = tuple(one for body in bodies for one in body.thresholds)
        where = storing
        if not any(body.stores for body in bodies):  # else another run touches every place
            where, period = cuts, math.lcm(period, *(body.place_period for body in bodies))
        for loop in group:
            name, stores = str(loop.node.loop_var.name), where is storing
            cut = LoopCut(name, period, conditions, known, stores)
            where.append((loop.node, cut))
    return CutPlan("", tuple(cuts), tuple(storing))
