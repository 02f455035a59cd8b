"""Copies that an agent issues between two of its steps, looked up instead of walked through.

They block no agent, and a warp that sends what it has reduced to each thread block of a cluster
issues as many as there are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

from tvm_hopper.sim.protocol.agents import Key, SkeletonAgent


def arrivals_on(agents: Iterable[SkeletonAgent]) -> Counter[Key]:
    """Count the arrivals on each mbarrier, of all agents and phases."""
    found: Counter[Key] = Counter()
    for agent in agents:
        for op in agent.ops:
            if op.kind not in ("init", "load", "wait", "bar"):
                found.update({key: count for key, count, _ in op.targets})
    return found


def last_arrivals_on(agents: Iterable[SkeletonAgent]) -> dict[Key, dict[int, int]]:
    """Return of each mbarrier, by agent, its last step that arrives there or makes it."""
    found: dict[Key, dict[int, int]] = {}
    for number, agent in enumerate(agents):
        for step, op in enumerate(agent.ops):
            if op.kind not in ("expect", "load", "wait", "bar"):
                for key, _, _ in op.targets:
                    found.setdefault(key, {})[number] = step
    return found


class Issued:
    """The copies of one agent, by barrier."""

    def __init__(self, agent: SkeletonAgent) -> None:
        self.places: dict[Key, list[int]] = {}
        self.before: dict[Key, list[int]] = {}  # bytes that come to a barrier before each of these
        self.after: list[int] = []  # of each step, the next one from there that is no copy
        for place, op in enumerate(agent.ops):
            if op.kind != "load":
                continue
            for key, _, size in op.targets:
                self.places.setdefault(key, []).append(place)
                before = self.before.setdefault(key, [0])
                before.append(before[-1] + size)
        following = len(agent.ops)
        for place in reversed(range(len(agent.ops))):
            following = following if agent.ops[place].kind == "load" else place
            self.after.append(following)
        self.after = [*self.after[::-1], len(agent.ops)]

    def lands_at(self, keys: set[Key], start: int, end: int) -> bool:
        """Tell whether some of these steps is a copy that lands at one of some barriers."""
        found = (self.places.get(key, ()) for key in keys)
        return any(bisect_left(x, start) < bisect_left(x, end) for x in found)

    def bytes_from(self, key: Key, start: int) -> int:
        """Return how many bytes the copies from a step on bring to a barrier."""
        before = self.before[key]
        return before[-1] - before[bisect_left(self.places[key], start)]


def issuers_of(agents: Iterable[Issued]) -> dict[Key, list[int]]:
    """Return of each mbarrier at which copies land the agents that issue them."""
    found: dict[Key, list[int]] = {}
    for number, issued in enumerate(agents):
        for key in issued.places:
            found.setdefault(key, []).append(number)
    return found
