"""CTAs of a cluster that share only the cluster barrier: explored one after another.

Eight CTAs that each run a pipeline of their own, and meet at two cluster barriers, have as many
states as all ways to combine theirs. Between the meetings no order of steps of different CTAs
matters, so that it suffices to let one of them go on as far as it can (a persistent set: Godefroid,
"Partial-order methods for the verification of concurrent systems", 1996).

Let G be CTAs whose agents touch no mbarrier and no block barrier of others, nor others theirs.
Steps of other CTAs change nothing that a step of G reads or writes, except the cluster barrier.
There, arrivals and exits of agents that alternate commute, and a wait that can pass stays able to
pass (`System.cluster_alternates`). Others alone could enable a blocked wait of G only if the
generation needed no more agent of G. If some agent of G has neither arrived at it nor exited, all
enabled steps of G are therefore a persistent set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tvm_hopper.sim.protocol.state import SystemState
from tvm_hopper.sim.protocol.system import CLUSTER, System


class IndependentCtas:
    """The sets of agents of one system that share the cluster barrier alone."""

    def __init__(self, system: System) -> None:
        self.system = system

    def able(self, state: SystemState) -> Iterator[frozenset[int]]:
        """Yield the sets whose steps, if any can be taken, need no step of others next to them."""
        system = self.system
        if not system.groups:
            return
        generation = state.meetings[system.meeting_index[CLUSTER]][0]
        for members in system.groups:
            if any(
                state.positions[n] < system.parts[n].ends and state.tickets[n] != generation
                for n in members
            ):
                yield members

    def successors(self, state: SystemState, movers: Sequence[int]) -> list[SystemState]:
        """Return the steps of the first set that can take any; none if no set may go alone."""
        for members in self.able(state):
            inside = [number for number in movers if number in members]
            if found := self.system.successors(state, inside, members):
                return found
        return []
