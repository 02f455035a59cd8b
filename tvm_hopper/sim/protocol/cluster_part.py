"""An agent's state at the cluster barrier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm_hopper.sim.protocol.agents import SkeletonAgent


@dataclass(frozen=True)
class ClusterPart:
    """What one agent is to the cluster barrier.

    Attributes
    ----------
    threads : int
        How many of its threads come, or exit.
    times : int
        How often it arrives.
    ends : int
        Step at which it has exited.
    pending : bool
        It exits without waiting for the generation that it arrived in last.
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
        ends = len(agent.ops) if agent.own is None else agent.own
        return ClusterPart(threads, times, ends, bool(ops) and ops[-1].kind == "cluster_arrive")


def in_turns(agent: SkeletonAgent) -> bool:
    """Tell whether an agent never comes to the cluster barrier again before it has waited for it.

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


def groups_of(agents: Sequence[SkeletonAgent]) -> list[frozenset[int]]:
    """Return sets of agents of CTAs that name no barrier of one another; none if that is one."""
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
