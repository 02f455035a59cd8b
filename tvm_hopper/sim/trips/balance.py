"""Check that skipped iterations leave every barrier balanced.

A whole run differs from one with fewer turns by whole periods. These leave no trace if each
mbarrier takes as many arrivals as complete the phases that each of its waiting warps goes through,
and these phases are an even number, so that parities go on as before. Then the whole program does
not block, or pass, where the shorter run does not: the arrivals and the waits that are against
each other differ by the same amounts. Named and cluster barriers likewise, by generations.

What a period does is counted in the iterations before those left out, by each warp: it is the
number of instructions that it executed, which no schedule changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tvm_hopper.sim.shortcuts import LoopCut, ShortcutError
from tvm_hopper.sim.trips.threshold import turns_to_run

ARRIVE, WAIT = "arrive", "wait"


class Cut(NamedTuple):
    """How much of one loop ran."""

    name: str
    ran: int
    turns: int
    period: int

    def __str__(self) -> str:
        """Say it in one line."""
        return f"{self.name}: {self.ran} of {self.turns} iterations, period {self.period}"


class BarrierFlow:
    """Arrivals and waits of one warp: so far, and of iterations that were left out.

    Keys are ("arrive" or "wait", barrier).
    """

    def __init__(self) -> None:
        self.done: Counter[tuple[str, Any]] = Counter()
        self.skipped: Counter[tuple[str, Any]] = Counter()

    def add(self, what: str, barrier: Any, count: int = 1) -> None:
        """Count an instruction."""
        self.done[what, barrier] += count

    def skip(self, before: Counter[tuple[str, Any]], times: int) -> None:
        """Count what was done since `before` so many times more."""
        for key, count in (self.done - before).items():
            self.skipped[key] += count * times
            self.done[key] += count * times  # for a loop around this one


def cut_turns(warp: Any, cut: LoopCut, start: int, extent: int) -> Iterator[int]:
    """Yield the values of a loop variable but for those in the middle."""
    turns = range(start, start + extent)
    first, last = turns_to_run(extent, cut.period, _truths(warp, cut, turns))
    if first + last >= extent:
        yield from turns
        return
    if warp.split:
        raise ShortcutError(f"loop {cut.name} runs in one of two branches of a warp")
    warp.machine.cut_loops.setdefault(Cut(cut.name, first + last, extent, cut.period))
    warp.machine.stores_left_out |= cut.stores
    yield from turns[: first - cut.period]
    before = warp.flow.done.copy()
    yield from turns[first - cut.period : first]
    warp.flow.skip(before, (extent - first - last) // cut.period)
    yield from turns[extent - last :]


def _truths(warp: Any, cut: LoopCut, turns: range) -> list[np.ndarray]:
    """Return what the conditions in a loop are in each iteration."""
    if not cut.conditions:
        return []
    known = {
        var: warp.threads[value] if isinstance(value, str) else value
        for var, value in cut.known.items()
    }
    return [condition.truths(known, warp.it, turns) for condition in cut.conditions]


def check_balance(warps: list[Any]) -> None:
    """Check that the iterations left out leave no trace.

    Raises
    ------
    ShortcutError
        They do, or it is unknown: all iterations have to run.
    """
    arrivals: Counter[Any] = Counter()
    waits: dict[Any, list[int]] = {}
    for warp in warps:
        for (what, barrier), count in warp.flow.skipped.items():
            if what == ARRIVE:
                arrivals[barrier] += count
        for what, barrier in warp.flow.done:
            if what == WAIT:
                waits.setdefault(barrier, []).append(warp.flow.skipped[what, barrier])
    for barrier in {**arrivals, **waits}:
        needed = max(barrier.needed, 1)
        phases, left = divmod(arrivals[barrier], needed)
        uneven = barrier.has_parity and phases % 2
        if left or uneven or any(count != phases for count in waits.get(barrier, [])):
            raise ShortcutError(f"arrivals and waits differ on {barrier.name}")
