"""An agent's state at the cluster barrier."""

from __future__ import annotations

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
