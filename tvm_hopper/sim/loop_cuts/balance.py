"""Check that skipped iterations leave every barrier balanced.

A whole run differs from one with fewer iterations by whole periods. These leave no trace if each
mbarrier takes as many arrivals as complete the phases that each of its waiting warps goes through,
and these phases are an even number, so that parities go on as before. Then the whole program does
not block, or pass, where the shorter run does not: the arrivals and the waits that are against
each other differ by the same amounts. Named and cluster barriers likewise, by generations.

Each warp counts the effects of a period in the iterations before those left out: the numbers of
instructions that it executed, which no schedule changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tvm_hopper.sim.loop_cuts.threshold import iterations_to_run
from tvm_hopper.sim.options import LoopCut, ShortcutError

ARRIVE, WAIT = "arrive", "wait"


class Cut(NamedTuple):
    """How much of one loop ran."""

    name: str
    ran: int
    iterations: int
    period: int

    def __str__(self) -> str:
        """Describe it in one line."""
        return f"{self.name}: {self.ran} of {self.iterations} iterations, period {self.period}"


class BarrierFlow:
    """Arrivals and waits of one warp: so far, and of iterations that were left out.

    Keys are ("arrive" or "wait", barrier).
    """

    def __init__(self) -> None:
        self.done: Counter[tuple[str, Any]] = Counter()
        self.skipped: Counter[tuple[str, Any]] = Counter()

    def add(self, kind: str, barrier: Any, count: int = 1) -> None:
        """Count an instruction."""
        self.done[kind, barrier] += count

    def skip(self, before: Counter[tuple[str, Any]], times: int) -> None:
        """Add the counts since `before` some more times."""
        for key, count in (self.done - before).items():
            self.skipped[key] += count * times
            self.done[key] += count * times  # for a loop around this one


def cut_iterations(warp: Any, cut: LoopCut, start: int, extent: int) -> Iterator[int]:
    """Yield the values of a loop variable but for those in the middle."""
    iterations = range(start, start + extent)
    first, last = iterations_to_run(extent, cut.period, _truths(warp, cut, iterations))
    if first + last >= extent:
        yield from iterations
        return
    if warp.split:
        raise ShortcutError(f"loop {cut.name} runs in one of two branches of a warp")
    warp.machine.cut_loops.setdefault(Cut(cut.name, first + last, extent, cut.period))
    warp.machine.stores_left_out |= cut.stores
    yield from iterations[: first - cut.period]
    before = warp.flow.done.copy()
    yield from iterations[first - cut.period : first]
    warp.flow.skip(before, (extent - first - last) // cut.period)
    yield from iterations[extent - last :]


def _truths(warp: Any, cut: LoopCut, iterations: range) -> list[np.ndarray]:
    """Return the conditions of a loop in each iteration."""
    if not cut.conditions:
        return []
    known = {
        var: warp.threads[value] if isinstance(value, str) else value
        for var, value in cut.known.items()
    }
    return [condition.truths(known, warp.it, iterations) for condition in cut.conditions]


def check_balance(warps: list[Any]) -> None:
    """Check that the iterations left out leave no trace.

    - raises ShortcutError: they do, or it is unknown: all iterations have to run.
    """
    arrivals: Counter[Any] = Counter()
    waits: dict[Any, list[int]] = {}
    for warp in warps:
        for (kind, barrier), count in warp.flow.skipped.items():
            if kind == ARRIVE:
                arrivals[barrier] += count
        for kind, barrier in warp.flow.done:
            if kind == WAIT:
                waits.setdefault(barrier, []).append(warp.flow.skipped[kind, barrier])
    for barrier in {**arrivals, **waits}:
        needed = max(barrier.needed, 1)
        phases, left = divmod(arrivals[barrier], needed)
        uneven = barrier.has_parity and phases % 2
        if left or uneven or any(count != phases for count in waits.get(barrier, [])):
            raise ShortcutError(f"arrivals and waits differ on {barrier.name}")
