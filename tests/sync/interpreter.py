"""Runs a body with its syncs on every path of few trips, and says what is unsafe on one of them.

Written from the rules (PTX ISA 9.1: 8.6, 8.9.1.1, 9.7.9.25-27, 9.7.15.4), not from the engine: it
shares the words of `program` only. Two threads stand for the agent: the elected one and
any other. Each access is an event of a thread, and `known` lists who knows, through which proxy,
that it is over. An access is safe if its thread knows, through its proxy, of each earlier event
that it must not meet:

- a generic access is known to its thread's generic proxy at once;
- an async proxy fence passes what a thread knows on to its async proxy;
- a wait for groups tells the thread that issued them; a wait for a phase tells who waits, of what
  was copied through the generic proxy that one alone;
- an acquire tells every thread of what another agent wrote, through that one's proxy;
- a barrier tells all threads what one of them knows, proxy by proxy;
- a thread waits for a phase before the next copy into that slot, or it waits for another phase:
  its wait is an event. Of a buffer of the elected thread that one alone waits.

Registers belong to their thread, and have no proxies.

A copy that is made only if it is read is issued on a path exactly if a later step of that path
reads the version before its slot is copied to again. A step does not know what follows: both are
tried, and a path that turns out to contradict what was taken for granted is no path. What is unsafe
on a path counts once its promises are settled. That such a copy meets nobody but readers of its
version is the program's own affair, and so is that a version which is read has been copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from tvm_hopper.sync.program import (
    Barrier,
    Body,
    Branch,
    Buffer,
    Commit,
    Fence,
    Loop,
    Placement,
    Step,
    Sync,
    Wait,
)

ELECTED, OTHER = "elected", "other"
THREADS = (ELECTED, OTHER)
ALL = frozenset(product(THREADS, ("generic", "async")))

GROUPS = {
    "cp_async": "cp_async_group",
    "tma_store": "bulk_group",
    "tma_reduce": "bulk_group",
    "wgmma": "wgmma_group",
}
COPIES = ("tma_load", "bulk_load", "cp_async_arrive")  # complete on an mbarrier
PROXIES = dict.fromkeys((None, "cp_async", "cp_async_arrive"), ("generic",))  # others: async
MAX_STATES = 100
IN_PLACE = ("wgmma", "tma_reduce")


class Unsafe(Exception):
    """What is wrong on the path at hand."""


class TooManyStates(Exception):
    """The paths of a body differ in too much to be run one by one."""


class Event(NamedTuple):
    buffer: Buffer
    slot: int
    is_write: bool
    thread: str
    op: str | None
    known: frozenset[tuple[str, str]] = frozenset()
    is_open: bool = False  # its group is not committed yet
    num_younger: int | None = None  # committed groups behind its own; None: complete, or no group
    phase: tuple[Buffer, int] | None = None
    in_other_arm: bool = False  # of a branch being run: the other thread's arm does not meet it


class Promise(NamedTuple):
    """What was taken for granted of a version that is copied only if it is read."""

    buffer: Buffer
    version: int
    kind: str  # "made" or "left out", by the copy; "awaited", though no copy was seen
    copy: tuple[int, ...] = ()  # the step's path and the number of its access


class State(NamedTuple):
    events: frozenset[Event] = frozenset()
    phases: frozenset[tuple[Buffer, int]] = frozenset()
    open_op: str | None = None
    has_mma_fence: bool = False
    promises: frozenset[Promise] = frozenset()
    error: str | None = None  # of a path whose promises are not settled


def find_unsafe(body: Body, placements: tuple[Placement, ...], max_trips: int = 4) -> str | None:
    """Return what is unsafe on some path of at most so many trips a loop, or None."""
    try:
        _Run(body, placements, max_trips).program(body)
    except Unsafe as error:
        return str(error)
    return None


def makes_every_copy(body: Body, placements: tuple[Placement, ...], max_trips: int = 4) -> bool:
    """Tell whether some path of a safe body makes each copy that is made only if it is read."""
    run = _Run(body, placements, max_trips)
    run.program(body)
    return run.promised <= run.made


class _Run:
    def __init__(self, body: Body, placements: tuple[Placement, ...], max_trips: int) -> None:
        self.syncs: dict[tuple[int, ...], list[Sync]] = {}
        for placement in placements:
            self.syncs.setdefault(placement.path, []).append(placement.sync)
        self.max_trips = max_trips
        waits = [p.sync.num_pending for p in placements if isinstance(p.sync, Wait)]
        self.oldest = max(waits, default=0)  # every Wait covers what has that many younger groups
        self.active = THREADS
        self.may_meet = True
        self.promised: set[tuple[int, ...]] = set()  # copies, and below those that a path makes
        self.made: set[tuple[int, ...]] = set()
        self.only_if_read: set[Buffer] = set()
        for path, step in _steps(body, ()):
            if step.only_if_read:
                self.promised |= {(*path, i) for i in range(len(step.accesses))}
                self.only_if_read |= {access.buffer for access in step.accesses}

    def program(self, body: Body) -> None:
        for state in self.sequence(body, (), {State()}):
            kinds = {promise.kind for promise in state.promises}
            if "made" in kinds:
                continue
            if state.error:
                raise Unsafe(state.error)
            if "awaited" in kinds:
                _never_opened(state)
            for event in state.events:
                flies = _in_group(event) if event.phase is None else not event.known
                if event.buffer.space != "global" and flies:
                    raise Unsafe(f"{event.op} is in flight at the end")

    def sequence(self, body: Body, path: tuple[int, ...], states: set[State]) -> set[State]:
        for i, statement in enumerate(body):
            at = (*path, i)
            if len(states) > MAX_STATES:
                raise TooManyStates
            states = self.arrive(at, states)
            if isinstance(statement, Step):
                states = {new for state in states for new in self.steps(statement, at, state)}
                continue
            _expect_closed(states)
            if isinstance(statement, Loop):
                states = self.loop(statement, at, states)
            else:
                states = self.branch(statement, at, states)
        states = self.arrive((*path, len(body)), states)
        _expect_closed(states)
        return states

    def arrive(self, path: tuple[int, ...], states: set[State]) -> set[State]:
        for sync in self.syncs.get(path, ()):
            states = {_guarded(lambda x, s=sync: self.sync(s, x), state) for state in states}
        return states

    def loop(self, loop: Loop, path: tuple[int, ...], states: set[State]) -> set[State]:
        behind: set[State] = set()
        for trip in range(self.max_trips + 1):
            if trip >= loop.min_trips:
                states = states - behind  # the trips of these have been run
                behind |= states
            if trip < self.max_trips:
                states = {
                    _advance(state, loop.advances)
                    for state in self.sequence(loop.body, path, states)
                }
        return behind

    def branch(self, branch: Branch, path: tuple[int, ...], states: set[State]) -> set[State]:
        may_meet, active = self.may_meet, self.active
        self.may_meet = may_meet and branch.is_uniform
        behind: set[State] = set()
        for i, arm in enumerate(branch.arms):
            behind |= self.sequence(arm, (*path, i), states)
        if not branch.is_uniform and len(active) == 2:
            for i, j in product(range(len(branch.arms)), repeat=2):
                if i != j:
                    self.active = (ELECTED,)
                    ends = self.sequence(branch.arms[i], (*path, i), states)
                    self.active = (OTHER,)
                    ends = self.sequence(branch.arms[j], (*path, j), ends)
                    behind |= {_unmark(end) for end in ends}
        self.may_meet, self.active = may_meet, active
        return behind

    def sync(self, sync: Sync, state: State) -> State:
        if isinstance(sync, Fence) and sync.kind == "wgmma":
            return state._replace(has_mma_fence=True)
        if isinstance(sync, Commit):
            return self.commit(sync.completion, state)
        if isinstance(sync, Fence):
            return _learn(state, lambda e: {(t, "async") for t in self.active if _knows(e, t)})
        if isinstance(sync, Wait):
            return self.wait(sync, state)
        if isinstance(sync, Barrier):
            if not self.may_meet:
                raise Unsafe("a barrier that not all threads reach")
            return _learn(state, lambda e: {(t, proxy) for t in THREADS for _, proxy in e.known})
        phase = (sync.buffer, sync.ahead)
        waiting = [t for t in self.active if t == ELECTED or not sync.buffer.by_thread]
        slot, alone = sync.ahead % sync.buffer.num_slots, len(self.active) == 1
        waits = {
            Event(sync.buffer, slot, False, thread, None, known, in_other_arm=alone)
            for thread in ([] if sync.buffer.by_thread else waiting)
            for known in [frozenset({(thread, "generic"), (thread, "async")})]
        }
        if phase not in state.phases:
            if sync.buffer not in self.only_if_read:
                _never_opened(state)
            awaited = state.promises | {Promise(*phase, "awaited")}
            return state._replace(promises=awaited, events=state.events | waits)
        learned = _learn(
            state,
            lambda e: (
                set(product(waiting, PROXIES.get(e.op, ("generic", "async"))))
                if e.phase == phase
                else set()
            ),
        )
        return learned._replace(events=learned.events | waits)

    def commit(self, completion: str, state: State) -> State:
        events = set()
        for event in state.events:
            if GROUPS.get(event.op or "") == completion and event.thread in self.active:
                commits = any(e.is_open and e.thread == event.thread for e in state.events)
                if event.is_open:
                    event = event._replace(is_open=False, num_younger=0)
                elif event.num_younger is not None and commits:
                    num_younger = min(event.num_younger + 1, self.oldest)
                    event = event._replace(num_younger=num_younger)
            events.add(event)
        return state._replace(events=_relevant(events), open_op=None, has_mma_fence=False)

    def wait(self, wait: Wait, state: State) -> State:
        def is_over(event: Event) -> bool:
            return (
                GROUPS.get(event.op or "") == wait.completion
                and event.thread in self.active
                and event.num_younger is not None
                and event.num_younger >= wait.num_pending
                and not (wait.read_only and event.is_write)
            )

        proxies = ["generic"] if wait.completion == "cp_async_group" else ["generic", "async"]
        events = {
            e._replace(num_younger=None, known=e.known | {(e.thread, proxy) for proxy in proxies})
            if is_over(e)
            else e
            for e in state.events
        }
        return _learn(state._replace(events=frozenset(events)), lambda _: set())

    def steps(self, step: Step, path: tuple[int, ...], state: State) -> set[State]:
        """Run a step with and without each copy that it makes only if it is read."""
        promises = set(state.promises)
        for access in step.accesses:
            read = {p for p in promises if p[:2] == (access.buffer, access.ahead)}
            if access.is_write or not read:
                continue
            if any(promise.kind == "left out" for promise in read):
                return set()
            self.made |= {promise.copy for promise in read}
            promises -= read
        if not step.only_if_read:
            state = state._replace(promises=frozenset(promises))
            return {_guarded(lambda x: self.step(step, x), state)}
        for access, promise in product(step.accesses, state.promises):
            buffer, version = access.buffer, access.ahead
            if buffer == promise.buffer and (version - promise.version) % buffer.num_slots == 0:
                promises.discard(promise)
                if promise.kind == "made":
                    return set()
                if promise.kind == "awaited":
                    state = _guarded(_never_opened, state)
        found = set()
        for are_made in product([True, False], repeat=len(step.accesses)):
            copies = list(enumerate(zip(step.accesses, are_made, strict=True)))
            new = {
                Promise(a.buffer, a.ahead, "made" if is_made else "left out", (*path, i))
                for i, (a, is_made) in copies
            }
            own = replace(step, accesses=tuple(a for _, (a, is_made) in copies if is_made))
            after = state._replace(promises=frozenset(promises | new))
            found.add(_guarded(lambda x, own=own: self.step(own, x), after))
        return found

    def step(self, step: Step, state: State) -> State:
        if state.open_op not in (None, step.op):
            raise Unsafe(f"{step.name} after a group that is not committed")
        if step.op == "wgmma" and not state.has_mma_fence:
            raise Unsafe(f"{step.name} without a fence in front")
        threads = [t for t in self.active if step.issuer == "all" or t == ELECTED]
        touched = [(access.buffer, access.ahead, access.is_write) for access in step.accesses]
        if step.op in IN_PLACE:
            written = {(buffer, version) for buffer, version, is_write in touched if is_write}
            touched = [x for x in touched if x[2] or x[:2] not in written]
        for buffer, version, is_write in [] if step.is_acquire else touched:
            for event in state.events:
                is_over = event.buffer.name in buffer.overlays and not step.is_release
                if is_over or (event.buffer, event.slot) == (buffer, version % buffer.num_slots):
                    is_promised = event.phase and event.phase[0] in self.only_if_read
                    if not is_promised or (event.phase == (buffer, version) and not is_write):
                        self.check(step, event, is_write, threads)
        if step.is_release:
            given = {
                (buffer, version % buffer.num_slots)
                for buffer, version, _ in touched
                if not buffer.overlays  # another agent than the one it is given to may meet it
            }
            kept = {e for e in state.events if (e.buffer, e.slot) not in given}
            return state._replace(events=frozenset(kept))
        if step.is_acquire:
            known = frozenset((thread, "generic") for thread in THREADS)
            brought = {
                Event(buffer, version % buffer.num_slots, True, "another agent", None, known)
                for buffer, version, _ in touched
                if buffer.proxy == "generic"
            }
            return state._replace(events=state.events | brought)
        return self.issue(step, state, touched, threads)

    def check(self, step: Step, event: Event, is_write: bool, threads: list[str]) -> None:
        if not (is_write or event.is_write or step.is_release):
            return
        if step.op == event.op and step.op in IN_PLACE and is_write and event.is_write:
            return
        both_plain = step.op is None and event.op is None and not step.is_release
        if both_plain and event.buffer.space == "global":
            return
        if step.is_release:
            is_safe = any((t, event.buffer.proxy) in event.known for t in THREADS)
            if event.buffer.space == "registers":
                is_safe = (event.thread, "generic") in event.known
            if not is_safe:
                raise Unsafe(f"{step.name} releases what {event.op} by {event.thread} still uses")
            return
        proxy = "generic" if step.op in PROXIES else "async"
        for thread in threads:
            if event.buffer.space == "registers":
                is_safe = event.thread != thread or (thread, "generic") in event.known
            else:
                is_safe = (thread, proxy) in event.known
            if not is_safe and not (event.in_other_arm and event.thread != thread):
                raise Unsafe(f"{step.name} by {thread} meets {event.op} by {event.thread}")

    def issue(self, step: Step, state: State, touched: list, threads: list[str]) -> State:
        events, phases = set(state.events), set(state.phases)
        copies = step.op in COPIES
        opened = {(b, v) for b, v, is_write in touched if is_write and copies}
        for buffer, version in opened:
            n = buffer.num_slots
            phases = {p for p in phases if p[0] != buffer or (p[1] - version) % n}
        for (buffer, version, is_write), thread in product(touched, threads):
            event = Event(buffer, version % buffer.num_slots, is_write, thread, step.op)
            event = event._replace(in_other_arm=len(self.active) == 1)
            if copies:
                own = [(buffer, version)] if is_write else opened
                events |= {event._replace(phase=phase) for phase in own}
            elif step.op in GROUPS:
                events.add(event._replace(is_open=True))
            elif buffer.space != "registers":
                events.add(event._replace(known=frozenset({(thread, "generic")})))
        return state._replace(
            events=frozenset(events),
            phases=frozenset(phases | (opened if threads else set())),
            open_op=step.op if step.op in GROUPS else None,
        )


def _guarded(run, state: State) -> State:
    """Put an error off until it is known that its path is one."""
    if state.error is not None:
        return state
    try:
        return run(state)
    except Unsafe as error:
        if not state.promises:
            raise
        return State(promises=state.promises, error=str(error))


def _never_opened(state: State) -> State:
    raise Unsafe("a wait for a phase that was never opened")


def _steps(body: Body, path: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Step]]:
    for i, statement in enumerate(body):
        if isinstance(statement, Step):
            yield (*path, i), statement
        elif isinstance(statement, Loop):
            yield from _steps(statement.body, (*path, i))
        else:
            for j, arm in enumerate(statement.arms):
                yield from _steps(arm, (*path, i, j))


def _in_group(event: Event) -> bool:
    return event.is_open or event.num_younger is not None


def _knows(event: Event, thread: str) -> bool:
    return (thread, "generic") in event.known


def _learn(state: State, learn) -> State:
    """Add to what is known of each event; what all know is forgotten."""
    events = set()
    for event in state.events:
        known = event.known | learn(event)
        enough = {(event.thread, "generic")} if event.buffer.space == "registers" else ALL
        if not known >= enough:
            events.add(event._replace(known=known))
    return state._replace(events=_relevant(events))


def _relevant(events: set[Event]) -> frozenset[Event]:
    """Leave out events for which another one of the same access is as bad in every respect."""
    alike: dict[Event, list[Event]] = {}
    for event in events:
        alike.setdefault(event._replace(known=frozenset(), num_younger=None), []).append(event)

    def is_as_bad(a: Event, b: Event) -> bool:
        if a.num_younger is None:
            return b.num_younger is None and a.known <= b.known
        return a.known <= b.known and (b.num_younger is None or a.num_younger <= b.num_younger)

    return frozenset(
        event
        for group in alike.values()
        for event in group
        if not any(other is not event and is_as_bad(other, event) for other in group)
    )


def _expect_closed(states: set[State]) -> None:
    if any(state.open_op for state in states):
        raise Unsafe("a group that is not committed")


def _advance(state: State, rings: frozenset[Buffer]) -> State:
    """Count versions and slots from the next trip on, so that equal states are equal."""

    def older(phase: tuple[Buffer, int]) -> tuple[Buffer, int]:
        return (phase[0], phase[1] - (phase[0] in rings))

    return state._replace(
        events=frozenset(
            event._replace(
                slot=(event.slot - (event.buffer in rings)) % event.buffer.num_slots,
                phase=event.phase and older(event.phase),
            )
            for event in state.events
        ),
        phases=frozenset(map(older, state.phases)),
        promises=frozenset(
            promise._replace(version=older((promise.buffer, promise.version))[1])
            for promise in state.promises
        ),
    )


def _unmark(end: State) -> State:
    return end._replace(events=frozenset(e._replace(in_other_arm=False) for e in end.events))
