"""The transition system of a role skeleton: agents, barriers, copies in flight.

A state is a tuple, so that states can be compared and kept in a set.  Barriers carry their full
phase; hardware keeps one bit, and a parity hides the difference.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

from tvm_hopper.sim.protocol.agent_steps import (
    ClusterPart,
    Issued,
    alternates,
    arrivals_on,
    groups_of,
    issuers_of,
    last_arrivals_on,
)
from tvm_hopper.sim.protocol.agents import Key, Op, SkeletonAgent
from tvm_hopper.sim.protocol.state import (
    Running,
    State,
    SystemState,
    Violation,
    closed,
    opened,
    wanted_after_skips,
)
from tvm_hopper.sim.protocol.symmetry import classes_of

DEAD = (0, 0, 0, 0, -1)
CLUSTER: Key = (-1, "cluster", 0)  # barrier of all threads of a cluster


class System:
    """Successor function over the agents of one cluster."""

    def __init__(
        self,
        agents: Sequence[SkeletonAgent],
        threads_per_cta: int,
        num_ctas: int,
        counted: bool = True,
    ) -> None:
        self.agents = list(agents)
        self.counted = counted
        self.threads = threads_per_cta
        self.parts = [ClusterPart.of(agent) for agent in agents]
        self.cluster_threads = sum(part.threads for part in self.parts)
        keys: set[Key] = set()
        meetings: set[Key] = {CLUSTER}
        for agent in agents:
            for op in agent.ops:
                for key, _, _ in op.targets:
                    (meetings if op.kind == "bar" else keys).add(key)
        self.keys = sorted(keys)
        self.index = {key: i for i, key in enumerate(self.keys)}
        self.meetings = sorted(meetings, key=str)
        self.meeting_index = {key: i for i, key in enumerate(self.meetings)}
        self.violations: dict[tuple[Any, ...], Violation] = {}
        self.arrivals = arrivals_on(self.agents)
        self.cluster_alternates = all(alternates(agent) for agent in agents)
        self.filled = self._keys_of("load", self.agents)
        self.sites: dict[tuple[Key, int], set[int]] = {}  # by generation of a block barrier
        # the mbarriers that each agent waits on: their places in its row of `targets`
        self.columns = [self._columns(agent) for agent in agents]

    def _columns(self, agent: SkeletonAgent) -> dict[int, int]:
        waited = dict.fromkeys(
            self.index[op.targets[0][0]] for op in agent.ops if op.kind == "wait"
        )
        return {slot: column for column, slot in enumerate(waited)}

    # -- used only by a search through all orders

    @cached_property
    def group_of(self) -> dict[int, frozenset[int]]:
        """The group that the agents of each CTA belong to."""
        return {self.agents[n].cta: members for members in self.groups for n in members}

    @cached_property
    def alike(self) -> list[list[int]]:
        """For each agent, the agents that execute the same steps, itself included."""
        found = {n: members for members in classes_of(self.agents) for n in members}
        return [found[number] for number in range(len(self.agents))]

    @cached_property
    def waiters(self) -> dict[int, list[int]]:
        """For each mbarrier, the agents that wait on it."""
        found: dict[int, list[int]] = {}
        for number, columns in enumerate(self.columns):
            for slot in columns:
                found.setdefault(slot, []).append(number)
        return found

    @cached_property
    def expecting(self) -> set[Key]:
        """The mbarriers that some agent expects bytes on."""
        return self._keys_of("expect", self.agents)

    @staticmethod
    def _keys_of(kind: str, agents: Iterable[SkeletonAgent]) -> set[Key]:
        """Return the barriers that steps of one kind name: "load", those that copies complete."""
        ops = (op for agent in agents for op in agent.ops if op.kind == kind)
        return {key for op in ops for key, _, _ in op.targets}

    @cached_property
    def issued(self) -> list[Issued]:
        """The bytes of each agent's copies, and their destinations."""
        return [Issued(agent) for agent in self.agents]

    @cached_property
    def issuers(self) -> dict[Key, list[int]]:
        """Of each mbarrier at which copies land, the agents that issue them."""
        return issuers_of(self.issued)

    @cached_property
    def last_arrivals(self) -> dict[int, dict[int, int]]:
        """Of each mbarrier, each agent that arrives on it or makes it, and the last such step."""
        return {self.index[key]: last for key, last in last_arrivals_on(self.agents).items()}

    @cached_property
    def next_waits(self) -> list[list[dict[int, Op]]]:
        """For each agent and each of its positions, its next wait on each barrier."""
        return [self._next_waits(agent) for agent in self.agents]

    def _next_waits(self, agent: SkeletonAgent) -> list[dict[int, Op]]:
        table: list[dict[int, Op]] = [{}]
        for op in reversed(agent.ops):
            after = table[-1]
            if op.kind == "wait":
                after = {**after, self.index[op.targets[0][0]]: op}
            table.append(after)
        return table[::-1]

    def may_miss(self, state: SystemState, slot: int, phase: int) -> bool:
        """Return whether some agent still wants to see the phase before `phase` complete."""
        return any(wanted < phase for wanted in self._wanted(state, slot))

    def is_awaited(self, state: SystemState, slot: int, phase: int) -> bool:
        """Return whether no next wait on a barrier can pass before `phase` ends.

        All of them wait for this phase, or for a later one of the same parity.
        """
        wanted = self._wanted(state, slot)
        return all(later >= phase and (later - phase) % 2 == 0 for later in wanted)

    def _wanted(self, state: SystemState, slot: int) -> Iterator[int]:
        """Yield the phase of a barrier that each agent's next wait on it needs."""
        for number in self.waiters.get(slot, ()):
            wait = self.next_waits[number][state.positions[number]].get(slot)
            if wait is not None:
                last = state.targets[number][self.columns[number][slot]]
                yield wanted_after_skips(last, wait.skipped, wait.value)

    def all_in_flight(self, state: SystemState) -> dict[Key, int]:
        """Return the bytes that copies in flight will deliver to each barrier."""
        found: dict[Key, int] = {}
        for agent, step in state.flight:
            for key, _, size in self.agents[agent].ops[step].targets:
                found[key] = found.get(key, 0) + size
        return found

    @cached_property
    def fixed_meetings(self) -> set[int]:
        """The block barriers at which every generation needs all agents that use them."""
        members: dict[Key, dict[int, set[int]]] = {}
        counts: dict[Key, set[int]] = {}
        for number, agent in enumerate(self.agents):
            for op in agent.ops:
                if op.kind == "bar":
                    ((key, count, _),) = op.targets
                    members.setdefault(key, {}).setdefault(number, set()).add(op.threads)
                    counts.setdefault(key, set()).add(self.threads if count == -1 else count)
        fixed = {
            key
            for key, users in members.items()
            if all(len(threads) == 1 for threads in users.values())
            and counts[key] == {sum(min(threads) for threads in users.values())}
        }
        return {key[2] for key in fixed} - {key[2] for key in members if key not in fixed}

    @cached_property
    def groups(self) -> list[frozenset[int]]:
        """Sets of agents of CTAs that share only the cluster barrier; none unless all alternate."""
        return groups_of(self.agents) if self.cluster_alternates else []

    @cached_property
    def ended(self) -> set[Key]:
        """The mbarriers that are invalidated."""
        return self._keys_of("inval", self.agents)

    @cached_property
    def unsteady(self) -> set[int]:
        """The mbarriers whose count changes."""
        return self._counts[0]

    @cached_property
    def least(self) -> dict[Key, int]:
        """The least count of each meeting."""
        return self._counts[1]

    @cached_property
    def _counts(self) -> tuple[set[int], dict[Key, int]]:
        made: set[int] = set()
        unsteady: set[int] = set()
        least: dict[Key, int] = {CLUSTER: 1}
        for agent in self.agents:
            for op in agent.ops:
                for key, count, _ in op.targets:
                    if op.kind == "bar":
                        count = max(self.threads if count == -1 else count, 1)
                        least[key] = min(count, least.get(key, count))
                    elif op.kind in ("drop", "init", "inval"):
                        slot = self.index[key]
                        if op.kind != "init" or slot in made:
                            unsteady.add(slot)
                        made.add(slot)
        return unsteady, least

    def needs_at_least(self, generation: int) -> int:
        """Return the least number of threads that a generation of the cluster barrier needs.

        If all agents alternate, an agent takes part in the n-th if it arrives n times and has not
        exited before.
        """
        if not self.cluster_alternates:
            return 1
        least = self._needed_by_generation
        return least[generation] if generation < len(least) else 1

    @cached_property
    def _needed_by_generation(self) -> list[int]:
        last = max((part.times for part in self.parts), default=0)
        return [
            max(1, sum(part.threads for part in self.parts if part.times > generation))
            for generation in range(last)
        ]

    @cached_property
    def share(self) -> dict[Key, int]:
        """The least number of bytes that each arrival on a barrier expects."""
        found: dict[Key, int] = {}
        for agent in self.agents:
            for op in agent.ops:
                if op.kind not in ("init", "bar"):
                    for key, count, size in op.targets:
                        if count:
                            found[key] = min(found.get(key, size // count), size // count)
        return {key: found.get(key, 0) for key in self.keys}

    def initial(self) -> SystemState:
        """Return the state before the first step."""
        count = len(self.agents)
        return SystemState(
            (0,) * count,
            (-1,) * count,
            tuple((-2,) * len(columns) for columns in self.columns),
            (DEAD,) * len(self.keys),
            ((0, 0),) * len(self.meetings),
            (),
        )

    def finished(self, state: SystemState | Running) -> bool:
        """Return whether every agent has ended."""
        return all(p == len(a.ops) for p, a in zip(state.positions, self.agents, strict=True))

    def opaque_calls(self, state: SystemState | Running) -> set[str]:
        """Return the calls of unknown bodies that some agent is at, by name."""
        steps = (a.ops[p : p + 1] for p, a in zip(state.positions, self.agents, strict=True))
        return {op.event.values[0] for ops in steps for op in ops if op.kind == "opaque"}

    def violate(self, rule: str, key: Key | None, agent: str, text: str, op: Op) -> None:
        """Keep a violation once per rule, barrier and agent."""
        self.violations.setdefault((rule, key, agent), Violation(rule, key, agent, text, op))

    # -- steps ------------------------------------------------------------------------------------

    def successors(
        self,
        state: SystemState,
        movers: Iterable[int] | None = None,
        issuers: Container[int] | None = None,
    ) -> list[SystemState]:
        """Return every state that one step of an agent (of `movers`) or of a copy leads to.

        Counts copies that any agent, or one of `issuers`, has issued.
        """
        found = []
        for number in range(len(self.agents)) if movers is None else movers:
            after = self.step(state, number)
            if after is not None:
                found.append(after)
        seen = set()
        for position, item in enumerate(state.flight):
            if item not in seen and (issuers is None or item[0] in issuers):
                seen.add(item)
                found.append(self.deliver(state, position))
        return found

    def deliver(self, state: State, position: int) -> State:
        """Complete one copy in flight."""
        flight = opened(state.flight)
        agent, step = flight.pop(position)
        op = self.agents[agent].ops[step]
        barriers = opened(state.barriers)
        for key, _, size in op.targets:
            self._change(barriers, key, 0, -size, op, self.agents[agent].name)
        return state._replace(barriers=closed(state, barriers), flight=closed(state, flight))

    def step(self, state: State, number: int) -> State | None:
        """Run the next step of one agent; None if it has ended or is blocked."""
        agent, position = self.agents[number], state.positions[number]
        if position == len(agent.ops):
            return None
        op = agent.ops[position]
        if op.kind == "opaque":  # its effects are unknown: the agent is not followed further
            return None
        if op.kind == "wait":
            return self._wait(state, number, op)
        if op.kind in ("bar", "cluster_sync", "cluster_arrive", "cluster_wait"):
            return self._meet(state, number, op)
        if op.kind == "load":
            if self.counted:
                flight = opened(state.flight)
                insort(flight, (number, position))
                state = state._replace(flight=closed(state, flight))
            return self._advance(state, number)
        barriers = opened(state.barriers)
        if op.kind == "init":
            for key, count, _ in op.targets:
                slot = self.index[key]
                if barriers[slot][1]:
                    self.violate(
                        "MBAR_REINIT_LIVE", key, agent.name, "mbarrier.init on a live object", op
                    )
                barriers[slot] = (0, count, count, 0, -1)
        elif op.kind == "inval":
            state = self._end(state, barriers, agent.name, op)
        else:
            for key, count, size in op.targets:
                if op.kind == "drop":
                    slot = self.index[key]
                    phase, expected, pending, tx, observed = barriers[slot]
                    barriers[slot] = (phase, expected - count, pending, tx, observed)
                self._change(barriers, key, count, size, op, agent.name)
        return self._advance(state, number)._replace(barriers=closed(state, barriers))

    def _end(self, state: State, barriers: list, agent: str, op: Op) -> State:
        """End barriers; waits on one that is initialised there later begin with its first phase."""
        targets = opened(state.targets)
        for key, _, _ in op.targets:
            slot = self.index[key]
            if not barriers[slot][1]:
                self.violate("MBAR_USE_BEFORE_INIT", key, agent, "inval before mbarrier.init", op)
            barriers[slot] = DEAD
            for number, columns in enumerate(self.columns):
                if slot in columns:
                    row = opened(targets[number])
                    row[columns[slot]] = -2
                    targets[number] = closed(state, row)
        return state._replace(targets=closed(state, targets))

    def _advance(self, state: State, number: int, ticket: int | None = None) -> State:
        state = state.advanced(number)
        return state if ticket is None else self._take_ticket(state, number, ticket)

    def _take_ticket(self, state: State, number: int, ticket: int) -> State:
        tickets = opened(state.tickets)
        tickets[number] = ticket
        return state._replace(tickets=closed(state, tickets))

    def _change(
        self, barriers: list[Any], key: Key, count: int, size: int, op: Op, agent: str
    ) -> None:
        """Apply arrivals and bytes to a barrier; complete its phase when both are zero."""
        slot = self.index[key]
        phase, expected, pending, tx, observed = barriers[slot]
        if not expected:
            self.violate("MBAR_USE_BEFORE_INIT", key, agent, f"{op.kind} before mbarrier.init", op)
            return
        # without byte counts a copy orders nothing, and a right kernel could seem to run ahead
        if count and observed < phase - 1 and self.counted:
            self.violate(
                "MBAR_MISSING_WAIT", key, agent,
                f"arrives on phase {phase}, and no agent has observed phase {phase - 1}", op,
            )  # fmt: skip
        tx += size
        pending -= count
        if pending < 0:
            self.violate(
                "MBAR_ARRIVE_OVERFLOW", key, agent,
                f"arrive count {count} exceeds pending {pending + count} in phase {phase}; "
                f"init counts {expected}", op,
            )  # fmt: skip
            pending = 0
        if pending == 0 and tx == 0 and op.kind != "expect":
            phase, pending = phase + 1, expected
        barriers[slot] = (phase, expected, pending, tx, observed)

    def _wait(self, state: State, number: int, op: Op) -> State | None:
        ((key, _, _),) = op.targets
        slot = self.index[key]
        phase, expected, pending, tx, observed = state.barriers[slot]
        agent = self.agents[number].name
        if not expected:
            self.violate("MBAR_USE_BEFORE_INIT", key, agent, "waits before mbarrier.init", op)
            return self._advance(state, number)
        column = self.columns[number][slot]
        last = state.targets[number][column]
        if last == -2 and not op.skipped:  # may mean any phase: take the one that can be tested
            wanted = phase - 1 if (phase - 1) & 1 == op.value else phase
        else:
            wanted = wanted_after_skips(last, op.skipped, op.value)
        passes, complete = (phase & 1) != op.value, phase > wanted
        begins = passes and last == -2 and phase == 0
        if begins and key in self.filled - self._keys_of("load", [self.agents[number]]):
            self.violate(
                "MBAR_PHASE_ALIAS", key, agent,
                "the first wait has parity 1 and passes before any copy has landed; need parity 0",
                op,
            )  # fmt: skip
        follows = wanted == last + 2 and not op.skipped
        if passes and follows and self.arrivals[key] < expected * wanted:
            wanted, complete = last, True  # no phase after `last` can complete
        if passes != complete:
            text = f"passes in phase {phase}, where phase {wanted} was meant"
            if complete:
                text = f"blocks in phase {phase}, but phase {wanted} is over"
            self.violate("MBAR_PHASE_ALIAS", key, agent, f"parity {op.value} {text}", op)
        if not passes:
            return None
        barriers = opened(state.barriers)
        barriers[slot] = (phase, expected, pending, tx, max(observed, phase - 1))
        targets = opened(state.targets)
        row = opened(targets[number])
        row[column] = wanted
        targets[number] = closed(state, row)
        after = self._advance(state, number)
        return after._replace(barriers=closed(state, barriers), targets=closed(state, targets))

    def _meet(self, state: State, number: int, op: Op) -> State | None:
        agent = self.agents[number]
        if op.kind == "bar":
            ((key, count, arrive_only),) = op.targets
            count = self.threads if count == -1 else count
        else:
            key, count, arrive_only = CLUSTER, self.cluster_threads, 0
            arrive_only = op.kind == "cluster_arrive"
        slot = self.meeting_index[key]
        generation, arrived = state.meetings[slot]
        ticket = state.tickets[number]
        meetings = opened(state.meetings)
        if op.kind == "cluster_wait" or (ticket >= 0 and not arrive_only):
            if generation > ticket:
                return self._advance(state, number, -1)
            if key != CLUSTER or arrived < self._cluster_needs(state):
                return None
            meetings[slot] = (generation + 1, 0)  # the missing threads have exited
            return self._advance(state, number, -1)._replace(meetings=closed(state, meetings))
        if op.kind == "cluster_arrive" and ticket >= 0:
            text = "barrier.cluster.arrive again, without a wait for the generation before"
            self.violate("NAMED_BAR_MISMATCH", None, agent.name, text, op)
        arrived += op.threads
        if op.kind == "bar" and not arrive_only:  # agents that only arrive do so elsewhere
            self.sites.setdefault((key, generation), set()).add(id(op.event.node))
        if arrived > count:
            self.violate(
                "NAMED_BAR_MISMATCH", None, agent.name,
                f"barrier {op.value}: {arrived} threads arrive, count {count}", op,
            )  # fmt: skip
        complete = arrived >= (self._cluster_needs(state) if key == CLUSTER else count)
        meetings[slot] = (generation + 1, 0) if complete else (generation, arrived)
        state = state._replace(meetings=closed(state, meetings))
        if op.kind == "cluster_arrive":
            return self._advance(state, number, generation)
        if arrive_only or complete:
            return self._advance(state, number)
        return self._take_ticket(state, number, generation)

    def _cluster_needs(self, state: SystemState | Running) -> int:
        """Return the threads that a generation needs: all that have not exited before it.

        `barrier.cluster.wait` waits for the non-exited threads of the cluster (PTX ISA,
        barrier.cluster).
        """
        generation = state.meetings[self.meeting_index[CLUSTER]][0]
        return self.cluster_threads - sum(
            part.threads
            for part, position, ticket in zip(
                self.parts, state.positions, state.tickets, strict=True
            )
            if position >= part.ends and not (part.pending and ticket == generation)
        )
