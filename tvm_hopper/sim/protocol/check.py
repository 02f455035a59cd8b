"""Deadlock freedom of a kernel's role skeleton, by running it once or in every interleaving.

`run_skeleton` follows one schedule and is cheap enough for every compilation; `explore_skeleton`
visits every reachable state up to a budget.  Overflow, and control flow that depends on data, make
the verdict incomplete, never clean.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import numpy as np
from tvm import tirx

from tvm_hopper.sim.findings import Finding, finding, worst
from tvm_hopper.sim.grid import indices
from tvm_hopper.sim.protocol.agents import Key, SkeletonAgent, build_agents, fold
from tvm_hopper.sim.protocol.expr import UNKNOWN, compile_expr
from tvm_hopper.sim.protocol.given import NOTHING_GIVEN, READ, Given, as_environment
from tvm_hopper.sim.protocol.independent_ctas import IndependentCtas
from tvm_hopper.sim.protocol.maps import box_bytes
from tvm_hopper.sim.protocol.order import eager
from tvm_hopper.sim.protocol.state import Running, SystemState, Violation
from tvm_hopper.sim.protocol.symmetry import Alone, Symmetry, one_of_each_kind, program_of
from tvm_hopper.sim.protocol.system import CLUSTER, System
from tvm_hopper.sim.protocol.trace import WHOLE, Trace, UnanalysableError, trace_cta
from tvm_hopper.sim.tir import slot_of, thread_extents

MAX_STATES = 200_000
MAX_ITERATIONS = 9  # 2 S + 1 for a ring of four slots


@dataclass(frozen=True)
class SkeletonReport:
    """Result of running or exploring the skeleton.

    - `findings`: broken rules; an INCOMPLETE finding where something was not covered.
    - `states`: states visited.
    - `covers`: which CTAs and how many iterations, in words.
    """

    findings: tuple[Finding, ...]
    states: int
    covers: str

    @property
    def verdict(self) -> str:
        """One of clean < review < incomplete < error."""
        return worst(self.findings)

    @property
    def rules(self) -> set[str]:
        """Names of the rules that were broken."""
        return {one.rule for one in self.findings}


@dataclass
class Skeleton:
    """Traces of the CTAs of one cluster, and the transition system over them."""

    traces: list[Trace]
    agents: list[SkeletonAgent]
    system: System
    counted: bool
    where: str
    truncated: bool
    names: dict[Key, str] = field(default_factory=dict)

    @property
    def read(self) -> set[str]:
        """Names of the tensors that its loops and conditions follow from."""
        return set().union(*(trace.env[READ] for trace in self.traces))


def cluster_positions(
    func: tirx.PrimFunc, every: bool = False, given: Given = NOTHING_GIVEN
) -> list[list[dict[str, int]]]:
    """Return positions of the first and of the last cluster of the grid, or of all, CTA by CTA.

    A size that is no constant and does not follow from `given` counts as 1.
    """
    extents = thread_extents(func)

    def size(tag: str) -> int:
        extent = compile_expr(extents[tag][1])(as_environment(given)) if tag in extents else 1
        return extent if isinstance(extent, int) else 1

    shape = [size(f"clusterCtaIdx.{axis}") for axis in "xyz"]
    grid = [max(size(f"blockIdx.{axis}"), 1) for axis in "xyz"]
    steps = [range(0, max(g // s, 1) * s, s) for g, s in zip(grid, shape, strict=True)]
    firsts = [tuple(step[0] for step in steps), tuple(step[-1] for step in steps)]
    if every:
        firsts = [(x, y, z) for z in steps[2] for y in steps[1] for x in steps[0]]
    found = []
    for first in dict.fromkeys(firsts):
        members = []
        for place in indices(shape):
            position = {}
            for axis, start, inside in zip("xyz", first, place, strict=True):
                position[f"blockIdx.{axis}"] = start + inside
                position[f"clusterCtaIdx.{axis}"] = inside
            members.append(position)
        found.append(members)
    return found


def extract_skeletons(
    func: tirx.PrimFunc,
    host_func: tirx.PrimFunc | None = None,
    max_iterations: int = MAX_ITERATIONS,
    last: bool = True,
    cut_inner: bool = False,
    given: Given = NOTHING_GIVEN,
    folded: bool = False,
) -> list[Skeleton]:
    """Trace the first cluster of the grid, and the last one if `last`.

    `max_iterations`, `cut_inner` and `given` are those of `trace_cta`. If the steps of a
    cluster depend on `given`, all clusters are traced, and one of each kind is returned. With
    `folded` one agent stands for all alike ones of a CTA.

    - raises UnanalysableError: synchronisation depends on data, or uses an instruction that the
      skeleton lacks.
    """
    boxes = box_bytes(host_func, func)

    places = cluster_positions(func, given=given)[: 2 if last else 1]

    def trace_at(position: dict[str, Any]) -> Trace:
        return trace_cta(func, position, max_iterations, cut_inner=cut_inner, given=given)

    def trace(members: list[dict[str, int]]) -> list[Trace]:
        if len(members) > 1:
            with suppress(UnanalysableError):  # steps may differ between CTAs
                return [trace_at(_in_common(members))] * len(members)
        return [trace_at(position) for position in members]

    traced = [(members, trace(members)) for members in places]
    if any(one.env[READ] for _, traces in traced for one in traces):
        traced = one_of_each_kind(cluster_positions(func, True, given), trace)
    found = []
    for members, traces in traced:
        agents, counted = build_agents(traces, boxes)
        agents = fold(agents) if folded else agents
        _refuse_nested_meetings(agents)
        where = "CTA " + ", ".join(str(tuple(m[f"blockIdx.{a}"] for a in "xyz")) for m in members)
        found.append(
            Skeleton(
                traces,
                agents,
                System(agents, traces[0].num_threads, len(traces), counted),
                counted,
                where,
                any(trace.truncated for trace in traces),
            )
        )
    return found


def _in_common(members: list[dict[str, int]]) -> dict[str, Any]:
    """Return the position of the CTAs of a cluster, unknown where it is not the same of all."""
    return {
        tag: at if all(position[tag] == at for position in members) else UNKNOWN
        for tag, at in members[0].items()
    }


def _refuse_nested_meetings(agents: list[SkeletonAgent]) -> None:
    for agent in agents:
        pending = False
        for op in agent.ops:
            if op.kind == "bar" and pending:
                raise UnanalysableError("block barrier between barrier.cluster.arrive and .wait")
            pending = op.kind == "cluster_arrive" or (pending and op.kind != "cluster_wait")


def run_once(skeleton: Skeleton) -> Running:
    """Follow one schedule: each agent as far as it goes, copies complete when all are blocked."""
    system = skeleton.system
    state, moved = Running(system.initial()), True
    while moved:
        moved = False
        for number in range(len(system.agents)):
            while system.step(state, number) is not None:
                moved = True
        while state.flight:
            system.deliver(state, 0)
            moved = True
    return state


def explore(
    skeleton: Skeleton,
    max_states: int,
    reduce: bool = True,
    merge: bool = True,
    end: float = math.inf,
) -> tuple[list[SystemState], int, bool]:
    """Visit every reachable state; return the deadlocks, the count, and whether it finished.

    `reduce` lets `eager` and `IndependentCtas` choose between orders that make no difference;
    `merge` visits one of the states that differ only by a permutation of interchangeable agents.
    `end` is a deadline of the monotonic clock.
    """
    system = skeleton.system
    symmetry = (Symmetry if merge else Alone)(system.agents)
    independent = IndependentCtas(system)
    start = symmetry.canonical(system.initial())
    seen, stack = {start}, [start]
    stuck: list[SystemState] = []
    while stack:
        state = stack.pop()
        if monotonic() > end:
            return stuck, len(seen), False
        movers = list(symmetry.movers(state))
        following = (
            reduce and (eager(system, state, movers) or independent.successors(state, movers))
        ) or system.successors(state, movers)
        if not following and not system.finished(state) and not system.opaque_calls(state):
            stuck.append(state)
            if len(stuck) >= 4:
                return stuck, len(seen), True
        for after in map(symmetry.canonical, following):
            if after not in seen:
                if len(seen) >= max_states:
                    return stuck, len(seen), False
                seen.add(after)
                stack.append(after)
    return stuck, len(seen), True


def _name(key: Key | None, skeleton: Skeleton) -> str:
    if key is None:
        return ""
    for trace in skeleton.traces:
        for event in trace.events:
            if event.kind == "init" and np.any(event.values[0].offset == key[2]):
                text = str(event.node.args[0])
                inside = text.partition("address_of(")[2].partition("[")[0]
                if inside:
                    return f"{inside} at byte {key[2]}"
    return f"barrier at byte {key[2]}"


def _slot(agent: SkeletonAgent, op: Any) -> str:
    """Name the slot that an agent waits for, where its barrier has no name of its own."""
    slot = slot_of(op.event.node, op.targets[0][0][2]) if op.event is not None else None
    if slot is None:
        return ""
    kind = "empty" if any(other.kind == "load" for other in agent.ops) else "full"
    return f"{kind}[{slot}], "


def _waits(skeleton: Skeleton, state: SystemState | Running) -> str:
    """Describe what each blocked agent waits for: the wait-for graph in words."""
    system, parts = skeleton.system, []
    for agent, position in zip(system.agents, state.positions, strict=True):
        if position == len(agent.ops):
            continue
        op = agent.ops[position]
        loops = f" at iteration {op.event.loops}" if op.event and op.event.loops else ""
        if op.kind == "wait":
            key = op.targets[0][0]
            phase, _, pending, tx, _ = state.barriers[system.index[key]]
            name = _slot(agent, op) + _name(key, skeleton)
            parts.append(
                f"{agent.name} waits {name} parity {op.value}{loops} "
                f"(phase {phase}, needs {pending} arrivals and {tx} bytes)"
            )
        else:
            slot = op.targets[0][0] if op.targets else CLUSTER
            _, arrived = state.meetings[system.meeting_index[slot]]
            parts.append(f"{agent.name} waits at barrier {op.value}{loops} ({arrived} arrived)")
    return "; ".join(parts)


def _finding(rule: str, message: str, buffer: str = "", statement: str = "") -> Finding:
    statements = (statement,) if statement else ()
    return finding(rule, message, buffer=buffer, statements=statements, policy="skeleton")


def _statement(op: Any) -> str:
    return str(op.event.node)[:200] if op.event is not None else ""


def violations_of(skeleton: Skeleton) -> list[Finding]:
    """Return the findings of the violations of a run, one per rule and barrier."""
    found: dict[tuple[Any, ...], Finding] = {}
    for violation in skeleton.system.violations.values():
        key = (violation.rule, violation.barrier)
        if key not in found:
            found[key] = _violation(violation, skeleton)
    return list(found.values())


def _violation(violation: Violation, skeleton: Skeleton) -> Finding:
    name = _name(violation.barrier, skeleton)
    return _finding(
        violation.rule, f"{violation.agent}: {violation.text}", name, _statement(violation.op)
    )


def deadlock_of(skeleton: Skeleton, state: SystemState | Running) -> list[Finding]:
    """Report a state in which nothing can move, and barriers that miss only bytes."""
    found = [_finding("DEADLOCK", f"no agent can progress: {_waits(skeleton, state)}")]
    for key, (_, expected, pending, tx, _) in zip(
        skeleton.system.keys, state.barriers, strict=True
    ):
        if expected and pending == 0 and tx:
            found.append(
                _finding(
                    "MBAR_TX_MISMATCH",
                    f"all arrivals are there, {tx} bytes are expected that no copy delivers",
                    _name(key, skeleton),
                )
            )
    return found + _wrong_starts(skeleton, state)


def _wrong_starts(skeleton: Skeleton, state: SystemState | Running) -> list[Finding]:
    """Find producers that block at once: their slots are free, but never signalled."""
    found = []
    for agent, position in zip(skeleton.system.agents, state.positions, strict=True):
        if position == len(agent.ops) or agent.ops[position].kind != "wait":
            continue
        op = agent.ops[position]
        key = op.targets[0][0]
        produced = any(o.kind == "load" or o.kind == "arrive" for o in agent.ops[:position])
        produces = any(o.kind == "load" for o in agent.ops[position:])
        phase = state.barriers[skeleton.system.index[key]][0]
        if produces and not produced and phase == 0 and op.value == 0:
            found.append(
                _finding(
                    "MBAR_PHASE_ALIAS",
                    f"{agent.name} waits parity 0 on a fresh barrier before it has produced "
                    "anything; the first wait of a producer needs parity 1",
                    _name(key, skeleton),
                    _statement(op),
                )
            )
    return found


def explore_skeleton(
    func: tirx.PrimFunc,
    host_func: tirx.PrimFunc | None = None,
    max_states: int = MAX_STATES,
    max_iterations: int = MAX_ITERATIONS,
    given: Given = NOTHING_GIVEN,
    budget_s: float = math.inf,
) -> SkeletonReport:
    """Explore every interleaving of the first and of the last cluster's roles.

    - `func`: final device function.
    - `host_func`: final host function: it defines the bytes that each copy delivers. Without it
      each copy delivers the expected bytes.
    - `max_states`, `max_iterations`: budgets: states in all, iterations of any loop. If roles with
      cut loops block each other, every iteration is followed before a deadlock is reported.
    - `given`: integers in memory, by parameter. Loops and conditions may follow from them: then one
      cluster of each kind is explored, and the findings hold for these integers only.
    - `budget_s`: seconds in all; findings made within them are valid.
    """
    end = (begun := monotonic()) + budget_s
    try:
        skeletons = extract_skeletons(func, host_func, max_iterations, given=given)
    except UnanalysableError as error:
        return SkeletonReport((_incomplete(str(error)),), 0, "nothing")
    findings: list[Finding] = []
    states, covers = 0, []
    passed: set[tuple[Any, ...]] = set()
    for number, skeleton in enumerate(skeletons):
        kind, complete, count = tuple(map(program_of, skeleton.agents)), True, 0
        stuck: list[SystemState] = []
        if kind not in passed:  # the last cluster does as the first, as a rule
            stuck, count, complete = explore(skeleton, max_states - states, end=end)
            if complete and not stuck and not skeleton.system.violations:
                passed.add(kind)
        states += count
        if stuck and skeleton.truncated and skeleton.read:  # kinds may differ without the cut
            left = max(end - monotonic(), 0.0)
            return explore_skeleton(func, host_func, max_states, WHOLE, given, left)
        if stuck and skeleton.truncated:  # the cut may be all that is wrong
            whole = _uncut(func, host_func, number)
            if whole is None:
                findings.append(_incomplete("a loop is too long to follow every iteration"))
                stuck = []
            else:
                skeleton = whole
                stuck, count, complete = explore(skeleton, max_states - states, end=end)
                states += count
        findings += _findings_of(skeleton, stuck)
        if not complete and monotonic() > end:
            text = f"{states} states in {monotonic() - begun:.1f} s, and not all; raise budget_s"
            findings.append(_incomplete(text))
        elif not complete:
            findings.append(_incomplete(f"more than {max_states} states; raise the budget"))
        covers.append(_explored(skeleton, max_iterations))
    if read := set().union(*(skeleton.read for skeleton in skeletons)):
        given_by = ", ".join(sorted(read))
        covers.append(f"one of each kind, by the contents of {given_by} in this call")
    unique = {(f.rule, f.message): f for f in findings}
    return SkeletonReport(tuple(unique.values()), states, "; ".join(covers))


def _findings_of(skeleton: Skeleton, stuck: list[SystemState]) -> list[Finding]:
    """Return the findings of a skeleton, and of its states without successors."""
    hidden = "steps of a thread after the call of {} are not followed"
    findings = deadlock_of(skeleton, stuck[0]) if stuck else []
    findings += violations_of(skeleton)
    return findings + [_incomplete(hidden.format(name)) for name in opaque_calls(skeleton)]


def _explored(skeleton: Skeleton, max_iterations: int) -> str:
    """Return which CTAs and iterations a skeleton covers."""
    where = skeleton.where
    where += f" with at most {max_iterations} iterations" * skeleton.truncated
    if any(e.kind == "spin" for trace in skeleton.traces for e in trace.events):
        where += ", waits for words of global memory taken to pass"
    return where + " and those alike" if skeleton.read else where


def _uncut(func: tirx.PrimFunc, host_func: tirx.PrimFunc | None, number: int) -> Skeleton | None:
    """Return a skeleton with all iterations of its loops; None if these are too many."""
    try:
        return extract_skeletons(func, host_func, WHOLE, last=number > 0)[number]
    except UnanalysableError:  # other errors occur with cut loops too
        return None


def _incomplete(text: str) -> Finding:
    return _finding("INCOMPLETE", f"skeleton: {text}")


def run_skeleton(
    func: tirx.PrimFunc,
    host_func: tirx.PrimFunc | None = None,
    max_iterations: int = MAX_ITERATIONS,
    given: Given = NOTHING_GIVEN,
) -> tuple[list[Finding], list[Skeleton]]:
    """Follow one schedule of the first cluster; return findings and the skeleton for other rules.

    A loop that is cut may make right roles disagree, so a deadlock is believed only when it stays
    without the cut. There are several skeletons if loops depend on `given`.

    - raises UnanalysableError: as `extract_skeletons`.
    """
    skeletons = extract_skeletons(func, host_func, max_iterations, False, True, given, folded=True)
    findings = [one for skeleton in skeletons for one in _check_skeleton(skeleton)]
    if findings:  # alike agents may go on one at a time
        skeletons = extract_skeletons(func, host_func, max_iterations, False, True, given)
        findings = [one for skeleton in skeletons for one in _check_skeleton(skeleton)]
    if findings and any(skeleton.truncated for skeleton in skeletons):
        skeletons = extract_skeletons(func, host_func, WHOLE, False, given=given)
        findings = [one for skeleton in skeletons for one in _check_skeleton(skeleton)]
    return findings, skeletons


def _check_skeleton(skeleton: Skeleton) -> list[Finding]:
    state = run_once(skeleton)
    over = skeleton.system.finished(state) or skeleton.system.opaque_calls(state)
    found = [] if over else deadlock_of(skeleton, state)
    return found + violations_of(skeleton)


def opaque_calls(skeleton: Skeleton) -> list[str]:
    """Name the calls after which an agent is not followed, since their bodies are unknown."""
    steps = (op for agent in skeleton.agents for op in agent.ops if op.kind == "opaque")
    return sorted({op.event.values[0] for op in steps})
