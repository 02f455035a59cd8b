"""Steps of a role skeleton that may be taken first, and alone, since no order of them matters.

A step may be taken alone if nothing that depends on it can happen before it, whatever the other
agents do (a persistent set of one).  Every order of steps then has an equivalent one that begins
with it: the same steps in the same local situations, hence the same broken rules and the same last
state.  Each step of the system moves an agent or lands a copy, so there are no cycles around which
a step could be put off for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tvm_hopper.sim.protocol.system import CLUSTER, System, SystemState


def eager(system: System, state: SystemState, movers: Iterable[int]) -> list[SystemState]:
    """Take one step first, and alone, if putting it off could show nothing more.

    Such steps block nobody, and all that they do is to enable: issuing a copy; meeting at a barrier
    that always needs the same agents, as the cluster barrier does where every agent arrives and
    waits by turns; an arrival or a delivery that does not complete its phase, or
    that completes one which nobody can miss; a wait that passes, where the phase cannot end and
    nobody can arrive in it before this agent goes on. An arrival that comes early is the worst case
    for the rule that somebody observes each phase.
    """
    waits = []
    for number in movers:
        agent, position = system.agents[number], state.positions[number]
        if position == len(agent.ops):
            continue
        op = agent.ops[position]
        if op.kind == "wait":
            waits.append((number, op))
        elif (
            op.kind in ("load", "cluster_sync")
            or (op.kind in ("cluster_arrive", "cluster_wait") and system.cluster_in_turns)
            or (op.kind == "bar" and op.value in system.fixed_meetings)
            or (op.kind == "arrive" and _harmless(system, state, op, 1))
        ):
            after = system.step(state, number)
            if after is not None:
                return [after]
    for place, (issuer, step) in enumerate(state.flight):
        if _harmless(system, state, system.agents[issuer].ops[step], -1):
            return [system.deliver(state, place)]
    for number, op in waits:
        slot = system.index[op.targets[0][0]]
        phase, expected, pending, _, _ = state.barriers[slot]
        passes = expected and (phase & 1) != op.value
        if passes and pending and not may_arrive(system, state, number, slot):
            after = system.step(state, number)
            if after is not None:
                return [after]
    return []


def _harmless(system: System, state: SystemState, op: Any, sign: int) -> bool:
    """Tell whether an arrival or a delivery changes nothing that a wait could have seen before."""
    for key, count, size in op.targets:
        slot = system.index[key]
        phase, expected, pending, tx, _ = state.barriers[slot]
        if not expected or pending < count:
            return False
        # copies that bring more than is expected may step over zero: their order decides
        if sign < 0 and system.bytes_in_flight(state, key) > tx:
            return False
        ends = pending == count and tx + sign * size == 0
        # bytes that nobody expects belong to this phase or to the next: their order decides
        if ends and (system.may_miss(state, slot, phase) or (sign > 0 and key in system.filled)):
            return False
    return True


def may_arrive(system: System, state: SystemState, frozen: int, slot: int) -> bool:
    """Tell whether others may arrive on a barrier (or remake it) while one agent stands still.

    The others run ahead as far as counts allow. Bytes, and the order in which arrivals come, are
    left out, so that whatever they can do, they do here; a barrier whose count can change never
    blocks here. A wait on a barrier with pending arrivals therefore depends on nothing that comes
    before this agent's next step, if this returns False: only an arrival could end the phase.
    """
    positions = list(state.positions)
    arrivals = [0] * len(system.keys)
    threads = [0] * len(system.meetings)
    seen: dict[tuple[int, int], int] = {}  # phase that an agent has waited for at least
    met: dict[tuple[int, int], int] = {}
    moved = True
    while moved:
        moved = False
        for number, agent in enumerate(system.agents):
            if number == frozen:
                continue
            while positions[number] < len(agent.ops):
                op = agent.ops[positions[number]]
                if op.kind == "wait":
                    if not _may_pass(system, state, number, op, arrivals, seen):
                        break
                elif op.kind in ("bar", "cluster_sync", "cluster_arrive", "cluster_wait"):
                    if not _may_meet(system, state, number, op, threads, met):
                        break
                elif op.kind not in ("load", "expect"):
                    for key, count, _ in op.targets:
                        place = system.index[key]
                        if place == slot:
                            return True
                        arrivals[place] += count
                positions[number] += 1
                moved = True
    return False


def _may_pass(
    system: System,
    state: SystemState,
    number: int,
    op: Any,
    arrivals: list[int],
    seen: dict[tuple[int, int], int],
) -> bool:
    """Tell whether a wait can pass after at most so many arrivals."""
    slot = system.index[op.targets[0][0]]
    phase, expected, pending, _, _ = state.barriers[slot]
    if expected <= 0 or slot in system.unsteady:
        return True
    last = phase
    if arrivals[slot] >= pending:
        last += 1 + (arrivals[slot] - pending) // expected
    wanted = max(seen.get((number, slot), phase), phase)
    if wanted & 1 == op.value:
        wanted += 1
    if wanted > last:
        return False
    seen[number, slot] = wanted
    return True


def _may_meet(
    system: System,
    state: SystemState,
    number: int,
    op: Any,
    threads: list[int],
    met: dict[tuple[int, int], int],
) -> bool:
    """Tell whether an agent can go on from a barrier after at most so many threads came to it."""
    if op.kind == "bar":
        ((key, _, arrive_only),) = op.targets
    else:
        key, arrive_only = CLUSTER, op.kind == "cluster_arrive"
    slot = system.meeting_index[key]
    generation, arrived = state.meetings[slot]
    began = met.get((number, slot))  # generation that this agent takes part in
    if began is None:
        ticket = state.tickets[number]
        came = op.kind == "cluster_wait" or (ticket >= 0 and not arrive_only)
        began = ticket if came else generation
        if not came:
            threads[slot] += op.threads
        met[number, slot] = began
    complete = generation + (arrived + threads[slot]) // system.least[key]
    if complete <= began and not arrive_only:
        return False
    del met[number, slot]  # the next meeting brings its threads again
    return True
