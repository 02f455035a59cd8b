"""Steps of a role skeleton that may be taken first, and alone, since no order of them matters.

A step may be taken alone if no dependent step can happen before it, whatever the other
agents do (a persistent set of one).  Every order of steps then has an equivalent one that begins
with it: the same steps in the same local situations, hence the same broken rules and the same last
state.  Each step of the system moves an agent or lands a copy, so there are no cycles around which
a step could be put off forever.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tvm_hopper.sim.protocol.agents import Key
from tvm_hopper.sim.protocol.state import SystemState
from tvm_hopper.sim.protocol.system import CLUSTER, System

_CHANGES = ("init", "expect", "arrive", "drop")


def eager(system: System, state: SystemState, movers: Iterable[int]) -> list[SystemState]:
    """Take steps first, and alone, if putting them off could show nothing more.

    Such steps block no agent and only enable others:

    - issuing a copy
    - meeting at a barrier that always needs the same agents, as the cluster barrier does where
      every agent alternates between arriving and waiting
    - an arrival or a delivery that does not complete its phase, or completes one that no agent can
      miss; neither where more bytes may come than the phase expects
    - a wait that passes, where the phase cannot end and no agent can arrive in it before this
      agent goes on
    - a copy without which its phase cannot end, also before its bytes are expected
      (docs/verification_judges.md, "Copies for several blocks")
    - steps on barriers that no other agent and no copy uses before this agent goes on: as a rule,
      their initialisation

    An early arrival is the worst case for the rule that an agent observes each phase.

    Several such steps of one state are taken together: a step that can come before one of them
    after another was taken can come before it with that other one, so that it may still go first.
    """
    waits, changes, taken = [], [], state
    for number in movers:
        agent, position = system.agents[number], state.positions[number]
        if position == len(agent.ops):
            continue
        op = agent.ops[position]
        if op.kind == "wait":
            waits.append((number, op))
            continue
        if op.kind in _CHANGES:
            changes.append(number)
        if _only_enables(system, op) or (
            op.kind == "arrive" and _harmless(system, state, op, number)
        ):
            after = system.step(taken, number)
            if after is not None:
                taken = _go_on(system, after, number)
    if taken is not state:
        return [taken]
    first = {system.agents[n].ops[step].targets: (n, step) for n, step in reversed(state.flight)}
    for issuer, step in reversed(first.values()):
        if _harmless(system, state, system.agents[issuer].ops[step], None):
            taken = _land(system, taken, (issuer, step))
    for number, op in waits if taken is state else ():
        if _passes_whoever_arrives(system, state, number, op):
            taken = _let_pass(system, state, taken, number)
    if taken is not state:
        return [taken]
    for number in changes:
        after = _change_unseen(system, state, number)
        if after is not None:
            return [after]
    return []


def _passes_whoever_arrives(system: System, state: SystemState, number: int, op: Any) -> bool:
    """Return whether a wait passes and no agent can arrive in its phase before this one goes on."""
    slot = system.index[op.targets[0][0]]
    phase, expected, pending, _, _ = state.barriers[slot]
    passes = expected and (phase & 1) != op.value
    return bool(passes and pending and not may_arrive(system, state, number, slot))


def _only_enables(system: System, op: Any) -> bool:
    """Return whether a step blocks no agent and only lets others go on, whatever they do."""
    return (
        op.kind in ("load", "cluster_sync")
        or (op.kind in ("cluster_arrive", "cluster_wait") and system.cluster_alternates)
        or (op.kind == "bar" and op.value in system.fixed_meetings)
    )


def _go_on(system: System, state: SystemState, number: int) -> SystemState:
    """Let an agent take the further steps that only let others go on, too."""
    ops = system.agents[number].ops
    while (place := state.positions[number]) < len(ops) and _only_enables(system, ops[place]):
        after = system.step(state, number)
        if after is None:
            break
        state = after
    return state


def _let_pass(system: System, before: SystemState, state: SystemState, number: int) -> SystemState:
    """Take a wait that may be taken alone, of an agent and of those alike that were there, too.

    No agent can arrive while one of them stands still, whatever the others do: that holds of the
    last one of them, since the first ones are among the others.
    """
    for other in system.alike[number]:
        if (before.positions[other], before.tickets[other]) == (
            before.positions[number],
            before.tickets[number],
        ):
            state = system.step(state, other) or state
    return state


def _change_unseen(system: System, state: SystemState, number: int) -> SystemState | None:
    """Take an agent past steps at barriers that nothing else comes to before it goes on."""
    ops, place = system.agents[number].ops, state.positions[number]
    several = list(itertools.takewhile(lambda op: op.kind in _CHANGES, ops[place:]))
    for some in (several, several[:1]):
        if not may_touch(system, state, number, {key for op in some for key, _, _ in op.targets}):
            for _ in some:
                after = system.step(state, number)
                if after is None:
                    break
                state = after
            return state
    return None


def _land(system: System, state: SystemState, copy: tuple[int, int]) -> SystemState:
    """Land a copy that is harmless, and with it those at the same barriers that end no phase.

    Such waits are harmless too: bytes in flight and expected bytes fall by the same number, and
    other agents may issue the same copies as before.
    """

    def op_of(copy: tuple[int, int]) -> Any:
        return system.agents[copy[0]].ops[copy[1]]

    def phases(state: SystemState) -> list[int]:
        return [state.barriers[slot][0] for slot in slots]

    def goes_on(op: Any) -> bool:
        return all(
            key == first and state.barriers[slot][3] != size
            for (key, _, size), first, slot in zip(op.targets, keys, slots, strict=True)
        )

    if copy not in state.flight:  # it has landed with another one
        return state
    keys = [key for key, _, _ in op_of(copy).targets]
    slots = [system.index[key] for key in keys]
    before = phases(state)
    state = system.deliver(state, state.flight.index(copy))
    place = 0
    while phases(state) == before and place < len(state.flight):
        op = op_of(state.flight[place])
        if len(op.targets) == len(keys) and goes_on(op):
            state = system.deliver(state, place)
        else:
            place += 1
    return state


def _harmless(system: System, state: SystemState, op: Any, arriving: int | None) -> bool:
    """Return whether an arrival or a delivery changes nothing that a wait could have seen before.

    `arriving` is the agent that arrives; None: a copy lands.
    """
    return all(_harmless_at(system, state, target, arriving) for target in op.targets)


def _harmless_at(
    system: System, state: SystemState, target: tuple[Key, int, int], arriving: int | None
) -> bool:
    """Return whether arriving at one barrier is harmless."""
    key, count, size = target
    slot = system.index[key]
    ahead = RunAhead(system, state, arriving, slot)
    phase, expected, pending, tx, _ = state.barriers[slot]
    if not expected or pending < count or ahead.ends(key):
        return False
    after = tx - size if arriving is None else tx + size
    # bytes that no agent expects belong to this phase or to the next: their order decides
    ends = pending == count and after == 0
    missed = ends and system.may_miss(state, slot, phase)
    if missed or (key in system.expecting and ahead.expects(key)):
        return False
    all_bytes_came = ends and arriving is not None and key in system.filled
    if all_bytes_came and (not system.is_awaited(state, slot, phase) or ahead.arrives_on(slot)):
        return False
    if key not in system.filled or not system.counted:
        return True
    # copies that bring more than is expected may step over zero: their order decides
    more = (tx if arriving is None else after) - system.all_in_flight(state).get(key, 0)
    if more < 0 and arriving is None and system.is_awaited(state, slot, phase):
        more += pending * system.share[key]  # of arrivals without which it cannot end
    return more >= 0 and ahead.brings_at_most(key, more)


def may_arrive(system: System, state: SystemState, frozen: int, slot: int) -> bool:
    """Return whether others may arrive on a barrier (or remake it) while one agent stands still.

    A wait on a barrier with pending arrivals depends on nothing that comes before this agent's
    next step, if this returns False: only an arrival could end the phase.
    """
    return RunAhead(system, state, frozen, None).arrives_on(slot)


def may_touch(system: System, state: SystemState, frozen: int, keys: set[Key]) -> bool:
    """Return whether anything may happen to, or wait for, some barriers while one agent is."""
    landing = (system.agents[agent].ops[step] for agent, step in state.flight)
    if any(key in keys for op in landing for key, _, _ in op.targets):
        return True
    return RunAhead(system, state, frozen, None).comes_to(keys)


class RunAhead:
    """How far agents come at most while something stands still: one of them, or a copy.

    They run as far as counts and bytes allow. More arrivals never block an agent, so how far each
    comes does not depend on the order of agents, and alike agents run as one. The order of arrivals
    and copies is ignored: all steps that are possible in some order are taken. A barrier whose
    count can change never blocks.

    `frozen` is the agent that stands still, None if it is a copy; `open_slot` a barrier whose phase
    cannot end before that agent or copy moves.
    """

    def __init__(
        self, system: System, state: SystemState, frozen: int | None, open_slot: int | None
    ) -> None:
        self.system, self.state, self.frozen, self.open_slot = system, state, frozen, open_slot
        self.taken: list[Any] = []
        self.rest: Iterator[Any] | None = None

    def _begin(self) -> None:
        system, state = self.system, self.state
        self.positions = list(state.positions)
        self.arrivals = [0] * len(system.keys)
        self.threads = [0] * len(system.meetings)
        self.seen: dict[tuple[int, int], int] = {}  # phase that an agent has waited for at least
        self.met: dict[tuple[int, int], int] = {}
        self.times: dict[tuple[int, int], int] = {}  # generations that it has arrived at
        self.tickets = list(state.tickets)
        self.flying = system.all_in_flight(state)
        self.issued: dict[Key, int] = {}  # bytes of copies issued meanwhile
        numbers, self.is_cluster_open = self.agents_to_run()
        # one stands for agents that execute the same steps from the same place
        kinds: dict[tuple[int, int, int], list[int]] = {}
        for number in numbers:
            kind = system.alike[number][0], state.positions[number], state.tickets[number]
            kinds.setdefault(kind, []).append(number)
        self.runners = [members[0] for members in kinds.values()]
        self.times_there = {members[0]: len(members) for members in kinds.values()}

    def agents_to_run(self) -> tuple[Sequence[int], bool]:
        """Return the agents that run, and whether they may pass the cluster barrier at will.

        Agents that share only that barrier with the paused agent (`System.groups`) are left out. No
        agent passes it while the paused agent has neither arrived at it nor exited; else the agents
        left out may have arrived.
        """
        system, frozen, state = self.system, self.frozen, self.state
        group: Iterable[int] = range(len(system.agents))
        if not system.groups:
            return [number for number in group if number != frozen], False
        if frozen is None:
            assert self.open_slot is not None, "a copy lands at a barrier"
            return sorted(system.group_of[system.keys[self.open_slot][0]]), True
        group = system.group_of[system.agents[frozen].cta] - {frozen}
        is_missing = state.positions[frozen] < system.parts[frozen].ends
        return sorted(group), not (is_missing and state.tickets[frozen] < 0)

    def steps(self) -> Iterator[Any]:
        """Yield the steps that agents may take but waits, meetings and copies that are issued."""
        if self.rest is None:
            self._begin()
            self.rest = self._run()
        yield from self.taken
        for op in self.rest:
            self.taken.append(op)
            yield op

    def _run(self) -> Iterator[Any]:
        moved = True
        while moved:
            moved = False
            for number in self.runners:
                ops, after = self.system.agents[number].ops, self.system.issued[number].after
                while (place := after[self.positions[number]]) < len(ops):
                    if place > self.positions[number]:  # its copies may let others go on
                        moved = self._issue(number, place)
                    op = ops[place]
                    if op.kind == "opaque":
                        break
                    if op.kind == "wait":
                        if not self._may_pass(number, op):
                            break
                    elif op.kind in ("bar", "cluster_sync", "cluster_arrive", "cluster_wait"):
                        if not self._may_meet(number, op):
                            break
                    else:
                        yield op
                        if op.kind != "expect":
                            for key, count, _ in op.targets:
                                self.arrivals[self.system.index[key]] += (
                                    count * self.times_there[number]
                                )
                    self.positions[number] += 1
                    moved = True
                if (end := after[self.positions[number]]) > self.positions[number]:
                    moved = self._issue(number, end)

    def _issue(self, number: int, end: int) -> bool:
        """Take an agent past copies that it issues."""
        start, self.positions[number] = self.positions[number], end
        for op in self.system.agents[number].ops[start:end]:
            for key, _, size in op.targets:
                self.issued[key] = self.issued.get(key, 0) + size * self.times_there[number]
        return True

    def arrives_on(self, slot: int) -> bool:
        """Tell whether an agent may arrive on a barrier, or remake it."""
        index, positions = self.system.index, self.state.positions
        last = self.system.last_arrivals.get(slot, {})
        if all(positions[n] > step for n, step in last.items() if n != self.frozen):
            return False  # however far they come
        return any(
            index[key] == slot
            for op in self.steps()
            if op.kind != "expect"
            for key, _, _ in op.targets
        )

    def ends(self, key: Key) -> bool:
        """Return whether an agent may invalidate a barrier."""
        return key in self.system.ended and any(
            op.kind == "inval" and any(key == x for x, _, _ in op.targets) for op in self.steps()
        )

    def expects(self, key: Key) -> bool:
        """Return whether an agent may expect more bytes at a barrier, and arrive elsewhere."""
        return any(
            op.kind == "expect" and any(key == x for x, _, _ in op.targets) for op in self.steps()
        )

    def comes_to(self, keys: set[Key]) -> bool:
        """Return whether an agent may come to a step at one of some barriers."""
        for op in self.steps():
            if any(key in keys for key, _, _ in op.targets):
                return True
        for number in self.runners:
            start, end = self.state.positions[number], self.positions[number]
            steps = self.system.agents[number].ops[start : end + 1]
            if self.system.issued[number].lands_at(keys, start, end) or any(
                op.kind == "wait" and op.targets[0][0] in keys for op in steps
            ):
                return True
        return False

    def brings_at_most(self, key: Key, limit: int) -> bool:
        """Tell whether copies that may be issued bring no more than so many bytes to a barrier."""
        issued, positions = self.system.issued, self.state.positions
        others = (n for n in self.system.issuers.get(key, ()) if n != self.frozen)
        if sum(issued[n].bytes_from(key, positions[n]) for n in others) <= limit:
            return True  # however far they come
        for _ in self.steps():
            pass
        return self.issued.get(key, 0) <= limit

    def _arrivals(self, slot: int) -> int:
        """Return how many arrivals of a barrier can have had their bytes, -1 if none may follow."""
        system, key, tx = self.system, self.system.keys[slot], self.state.barriers[slot][3]
        share = system.share[key]
        if not system.counted or (not share and tx <= 0):
            return self.arrivals[slot]
        rest = self.flying.get(key, 0) + self.issued.get(key, 0) - tx
        if rest < 0:
            return -1
        return min(self.arrivals[slot], rest // share) if share else self.arrivals[slot]

    def _may_pass(self, number: int, op: Any) -> bool:
        """Return whether a wait can pass after at most so many arrivals."""
        slot = self.system.index[op.targets[0][0]]
        phase, expected, pending, _, _ = self.state.barriers[slot]
        if slot == self.open_slot:
            return (phase & 1) != op.value
        if expected <= 0 or slot in self.system.unsteady:
            return True
        last = phase
        if (arrivals := self._arrivals(slot)) >= pending:
            last += 1 + (arrivals - pending) // expected
        wanted = max(self.seen.get((number, slot), phase), phase)
        if wanted & 1 == op.value:
            wanted += 1
        if wanted > last:
            return False
        self.seen[number, slot] = wanted
        return True

    def _may_meet(self, number: int, op: Any) -> bool:
        """Return whether an agent can go on from a barrier after at most so many threads came.

        The n-th time that it comes is in the n-th generation from now, or in a later one.
        """
        if op.kind == "bar":
            ((key, _, arrive_only),) = op.targets
        else:
            if self.is_cluster_open:
                return True
            key, arrive_only = CLUSTER, op.kind == "cluster_arrive"
        system = self.system
        slot = system.meeting_index[key]
        generation, arrived = self.state.meetings[slot]
        began = self.met.get((number, slot))  # generation that this agent takes part in
        if began is None:
            ticket = self.tickets[number]
            is_there = op.kind == "cluster_wait" or (ticket >= 0 and not arrive_only)
            began = ticket if is_there else generation + self.times.get((number, slot), 0)
            if not is_there:
                self.threads[slot] += op.threads * self.times_there[number]
            self.met[number, slot] = began
        came = arrived + self.threads[slot]
        if key == CLUSTER:
            complete = generation
            while complete <= began and (came := came - system.needs_at_least(complete)) >= 0:
                complete += 1
        else:
            complete = generation + came // system.least[key]
        if complete <= began and not arrive_only:
            return False
        del self.met[number, slot]  # the next meeting brings its threads again
        self.tickets[number] = began if op.kind == "cluster_arrive" else -1
        self.times[number, slot] = began - generation + 1
        return True
