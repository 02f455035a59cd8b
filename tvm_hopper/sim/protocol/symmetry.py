"""Interchangeable agents of a role skeleton: one state for all the ways to permute them.

Two agents are interchangeable if they are in one CTA and execute the same steps: the same kinds
in the same order, on the same barriers, with the same counts, bytes, parities and numbers of
threads, written by the same statements.  Eight warps that wait for a slot and release it are; a
warp that arrives once more, elsewhere, or for another parity is in no class with the others, and
neither is one whose steps come from another branch.

Why merging is sound.  Let p permute the agents within their classes, and let it act on a state by
moving the local part of each agent (position, ticket, phases that it requested) and by renaming the
issuers of copies in flight.  Barriers and meetings keep counts and not names, so p leaves them.

1. A step reads and writes the local part of its agent, the barriers and meetings that the step
   names, and the copies in flight.  Which step it is, and all tables of `System` (next waits,
   barriers that an agent fills, fixed meetings), follow from the agent's list of steps, which p
   does not change.  Hence t leads from s to s' exactly if p(t) leads from p(s) to p(s'), and both
   break the same rules at the same barriers; only the name of the agent differs.
2. All agents begin at the same place, so p keeps the initial state.
3. By 1 and 2 a state is reachable exactly if all its permutations are, and a state is a deadlock or
   an end exactly if they are.

So it suffices to visit one state of each set of permutations, the one whose local parts are sorted
within each class, and to let one of the agents that are at the same local part step.  `eager`
chooses by a state's barriers and by the steps of agents alone; by 1 the choice for a state is right
for its permutations, and the two reductions may be used together (Emerson, Jha, Peled, "Combining
partial order and symmetry reductions", TACAS 1997).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import gt
from typing import Any

import numpy as np

from tvm_hopper.sim.protocol.agents import SkeletonAgent
from tvm_hopper.sim.protocol.expr import Address
from tvm_hopper.sim.protocol.state import SystemState
from tvm_hopper.sim.protocol.trace import SyncEvent, Trace, UnanalysableError


def program_of(agent: SkeletonAgent) -> tuple[Any, ...]:
    """Return all that the transition system knows of an agent but its name."""
    return (
        agent.cta,
        agent.threads,
        agent.exit_after,
        *(
            (
                *(op.kind, op.targets, op.value, op.threads, op.skipped),
                id(getattr(op.event, "node", None)),
            )
            for op in agent.ops
        ),
    )


def classes_of(agents: Sequence[SkeletonAgent]) -> list[list[int]]:
    """Return the numbers of interchangeable agents, class by class, in order."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for number, agent in enumerate(agents):
        found.setdefault(program_of(agent), []).append(number)
    return list(found.values())


class Symmetry:
    """Chooses one state for all permutations of interchangeable agents."""

    def __init__(self, agents: list[SkeletonAgent]) -> None:
        classes = classes_of(agents)
        self.classes = [members for members in classes if len(members) > 1]
        self.first = {number: members[0] for members in classes for number in members}

    def canonical(self, state: SystemState) -> SystemState:
        """Return the permutation of a state whose local parts are sorted within each class."""
        if not self.classes:
            return state
        local = list(zip(state.positions, state.tickets, state.targets, strict=True))
        moved = False
        for members in self.classes:
            parts = [local[number] for number in members]
            if any(map(gt, parts, parts[1:])):
                moved = True
                for number, part in zip(members, sorted(parts), strict=True):
                    local[number] = part
        flight = tuple(sorted((self.first[agent], step) for agent, step in state.flight))
        if not moved:
            return state if flight == state.flight else state._replace(flight=flight)
        positions, tickets, targets = zip(*local, strict=True)
        return SystemState(positions, tickets, targets, state.barriers, state.meetings, flight)

    def movers(self, state: SystemState) -> Iterator[int]:
        """Yield one agent for each local part of each class, of a canonical state."""
        before = None
        for number, first in self.first.items():
            part = first, state.positions[number], state.tickets[number], state.targets[number]
            if part != before:
                before = part
                yield number


class Alone(Symmetry):
    """Merges nothing: the reference that tests compare the reduction with."""

    def __init__(self, agents: list[SkeletonAgent]) -> None:
        super().__init__(agents)
        self.classes = []
        self.first = {number: number for number in range(len(agents))}


MAX_CLUSTERS = 512
Position = list[dict[str, int]]  # block index of each CTA of a cluster, by thread tag


def one_of_each_kind(
    places: list[Position], trace: Callable[[Position], list[Trace]]
) -> list[tuple[Position, list[Trace]]]:
    """Trace clusters, and keep the first of each set with equal events.

    - raises UnanalysableError: there are more than can be followed.
    """
    if len(places) > MAX_CLUSTERS:
        raise UnanalysableError(
            f"steps of {len(places)} clusters depend on data; at most {MAX_CLUSTERS} are followed"
        )
    kinds: dict[Any, tuple[Position, list[Trace]]] = {}
    for members in places:
        traces = trace(members)
        kinds.setdefault(tuple(map(_likeness, traces)), (members, traces))
    return list(kinds.values())


def _likeness(trace: Trace) -> tuple[Any, ...]:
    return trace.truncated, *map(_of_event, trace.events)


def _of_event(event: SyncEvent) -> tuple[Any, ...]:
    return event.kind, id(event.node), event.mask.tobytes(), event.loops, *map(_of, event.values)


def _of(value: Any) -> Any:
    if isinstance(value, Address):
        return value.space, _of(value.offset), _of(value.rank)
    return (value.dtype.str, value.tobytes()) if isinstance(value, np.ndarray) else str(value)
