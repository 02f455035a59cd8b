"""Sums over an agent's steps: the copies that it issues, and its part in the cluster barrier."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

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
    """Return, for each mbarrier and agent, the last step that arrives at it or initialises it."""
    found: dict[Key, dict[int, int]] = {}
    for number, agent in enumerate(agents):
        for step, op in enumerate(agent.ops):
            if op.kind not in ("expect", "load", "wait", "bar"):
                for key, _, _ in op.targets:
                    found.setdefault(key, {})[number] = step
    return found


def groups_of(agents: Iterable[SkeletonAgent]) -> list[frozenset[int]]:
    """Return sets of agents of CTAs that name no barrier of one another; none if there is one."""
    agents = list(agents)
    home = {agent.cta: agent.cta for agent in agents}

    def find(cta: int) -> int:
        while home.setdefault(cta, cta) != cta:
            cta = home[cta]
        return cta

    for agent in agents:
        for op in agent.ops:
            for (cta, *_), _, _ in op.targets:
                home[find(cta)] = find(agent.cta)
    found: dict[int, set[int]] = {}
    for number, agent in enumerate(agents):
        found.setdefault(find(agent.cta), set()).add(number)
    return [frozenset(members) for members in found.values()] if len(found) > 1 else []


class Issued:
    """The copies of one agent, by barrier."""

    def __init__(self, agent: SkeletonAgent) -> None:
        self.places: dict[Key, list[int]] = {}
        self.before: dict[Key, list[int]] = {}  # bytes that come to a barrier before each of these
        self.after: list[int] = []  # by step, the next step that is no copy
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
        """Return whether some of these steps is a copy that lands at one of some barriers."""
        found = (self.places.get(key, ()) for key in keys)
        return any(bisect_left(x, start) < bisect_left(x, end) for x in found)

    def bytes_from(self, key: Key, start: int) -> int:
        """Return how many bytes the copies from a step on bring to a barrier."""
        before = self.before[key]
        return before[-1] - before[bisect_left(self.places[key], start)]


def issuers_of(agents: Iterable[Issued]) -> dict[Key, list[int]]:
    """Return, for each mbarrier at which copies land, the agents that issue them."""
    found: dict[Key, list[int]] = {}
    for number, issued in enumerate(agents):
        for key in issued.places:
            found.setdefault(key, []).append(number)
    return found


@dataclass(frozen=True)
class ClusterPart:
    """One agent's part in the cluster barrier.

    - `threads`: how many of its threads come, or exit.
    - `times`: how often it arrives.
    - `ends`: step at which it has exited.
    - `pending`: it exits without waiting for the generation that it arrived in last.
    """

    threads: int
    times: int
    ends: int
    pending: bool

    @staticmethod
    def of(agent: SkeletonAgent) -> ClusterPart:
        """Read the steps of an agent."""
        ops = [op for op in agent.ops if op.kind.startswith("cluster_")]
        times = sum(op.kind != "cluster_wait" for op in ops)
        threads = max((op.threads for op in ops), default=agent.threads)
        ends = len(agent.ops) if agent.exit_after is None else agent.exit_after
        return ClusterPart(threads, times, ends, bool(ops) and ops[-1].kind == "cluster_arrive")


def alternates(agent: SkeletonAgent) -> bool:
    """Return whether an agent never comes to the cluster barrier again before it has waited for it.

    Then each generation needs each agent once, with the same threads: in which order they come
    changes nothing, and a wait that can pass will always be able to.
    """
    arrived, threads = False, set()
    for op in agent.ops:
        if op.kind in ("cluster_sync", "cluster_arrive"):
            if arrived:
                return False
            threads.add(op.threads)
            arrived = op.kind == "cluster_arrive"
        elif op.kind == "cluster_wait":
            if not arrived:
                return False
            arrived = False
    return len(threads) < 2
