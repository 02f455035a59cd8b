"""Fold the warps of one role into one lane: pipeline steps and waits.

The lane waits where each of its warps waits, or has ended; else it works, on the step that its
first working warp has begun.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tvm_hopper.sim.timeline.events import CP_ASYNC, LOADS, NEVER, TimelineEvent
from tvm_hopper.sim.timeline.rings import Fill, Rings
from tvm_hopper.sim.timeline.roles import WarpRole
from tvm_hopper.sim.timeline.spans import Facts, Span, half

WORKS = "active"
WAITS = "wait"
_OF_A_WARP = ("life", "wait", "acquire", CP_ASYNC, *LOADS)


class _State(NamedTuple):
    """A warp's state from some step on; `kind` is empty before it begins and after it ends."""

    kind: str
    fills: tuple[Fill, ...] = ()
    event: TimelineEvent | None = None
    name: str = ""


_GONE = _State("")
_Change = tuple[int, int, str, TimelineEvent]


def role_spans(
    events: Sequence[TimelineEvent], role: WarpRole, rings: Rings, last: int
) -> list[Span]:
    """Return the spans of one role.

    - `last`: the last step of the run.
    """
    changes = [
        (at, order, warp, state)
        for warp in role.warps
        for order, (at, state) in enumerate(_states(events, warp, role.kind, rings, last))
    ]
    changes.sort(key=lambda change: change[:2])
    now = dict.fromkeys(role.warps, _GONE)
    spans: list[Span] = []
    begun, shown = 0, _GONE
    for number, (at, _, warp, state) in enumerate(changes):
        now[warp] = state
        if number + 1 < len(changes) and changes[number + 1][0] == at:
            continue
        folded = _fold(list(now.values()))
        if _look(folded) == _look(shown):
            continue
        if shown.kind and at > begun:
            spans.append(_span(shown, begun, at))
        begun, shown = at, folded
    end = half(NEVER, last)
    if shown.kind and end > begun:
        spans.append(_span(shown, begun, end))
    return spans


def short_name(event: TimelineEvent, rings: Rings) -> str:
    """Name the target of a wait: "full[2] phase 1", "barrier 0", "wgmma"."""
    if event.barrier:
        return f"{rings.name(event)} phase {event.phase}"
    name = event.name.partition(" of cta")[0].partition(" (")[0]
    for lead in ("waits for a ", "waits for ", "waits "):
        name = name.removeprefix(lead)
    return name


def _states(
    events: Sequence[TimelineEvent], warp: int, kind: str, rings: Rings, last: int
) -> list[tuple[int, _State]]:
    """Return from when on a warp is in which state, in the order of time.

    One that could go on, but has not been taken yet, works.
    """
    begin = min(half(event.start, last) for event in events)
    found: list[_Change] = []
    for event in _whole_waits(events, warp):
        if event.kind == "life":
            found.append((begin, 0, "begin", event))
            if event.end != NEVER:
                found.append((half(event.end, last) + 1, 4, "end", event))
        elif event.kind == WAITS:
            found.append((half(event.start, last) + 1, 3, WAITS, event))
            if event.end != NEVER:
                found.append((half(event.end, last), 1, "go on", event))
        elif event.kind == "acquire" or (kind == "producer" and event.kind in (*LOADS, CP_ASYNC)):
            found.append((half(event.start, last), 2, "step", event))
    found.sort(key=lambda one: one[:2])
    states: list[tuple[int, _State]] = []
    fills: tuple[Fill, ...] = ()
    for number, (at, _, change, event) in enumerate(found):
        if change == "end":
            states.append((at, _GONE))
        elif change == WAITS:
            states.append((at, _State(WAITS, fills, event, short_name(event, rings))))
        else:
            fills = _next_fills(found[number:], rings) or fills
            states.append((at, _State(WORKS, fills, event)))
    return states


def _next_fills(changes: Sequence[_Change], rings: Rings) -> tuple[Fill, ...]:
    """Return the first step that a warp begins before it waits again, or those of one moment."""
    found: dict[Fill, None] = {}
    moment = None
    for at, _, change, event in changes:
        if change == WAITS or moment not in (None, at):
            break
        if change == "step" and (fill := rings.fill(event)) is not None:
            found[fill] = None
            moment = at
    return tuple(found)


def _whole_waits(events: Sequence[TimelineEvent], warp: int) -> list[TimelineEvent]:
    """Return the events of a warp; a wait that it was woken from in vain is one with the next."""
    found: list[TimelineEvent] = []
    for event in events:
        if event.warp != warp or event.issued_by or event.kind not in _OF_A_WARP:
            continue
        if event.kind == WAITS and found and _wait_of(found[-1]) == _wait_of(event):
            found[-1] = found[-1]._replace(end=event.end)
        else:
            found.append(event)
    return found


def _wait_of(event: TimelineEvent) -> tuple[object, ...]:
    return event.kind, event.place or event.name, event.statement, event.it, event.phase


def _fold(states: list[_State]) -> _State:
    for kind in (WORKS, WAITS):
        for state in states:
            if state.kind == kind:
                return state
    return _GONE


def _look(state: _State) -> tuple[str, object]:
    """Return a key that distinguishes spans."""
    return state.kind, state.name if state.kind == WAITS else state.fills


def _span(state: _State, start: int, end: int) -> Span:
    event, fills = state.event, state.fills
    assert event is not None  # a working or waiting state has an event
    facts: Facts = {"iteration": ", ".join(map(str, event.it))} if event.it else {}
    if event.statement:
        facts["statement"] = event.statement
    if state.kind == WAITS:
        facts = {"what": f"waits for {state.name}", **facts}
        if event.barrier:
            facts["mbarrier"] = f"{event.barrier}[{event.slot}] phase {event.phase}"
        if event.end == NEVER:
            facts["end"] = "never"
        return Span(0, start, end, WAITS, state.name, facts=facts)
    facts = {"what": "works", **facts}
    if not fills:
        return Span(0, start, end, WORKS, "", facts=facts)
    steps, stages = sorted({f.step for f in fills}), sorted({f.stage for f in fills})
    label = "-".join(map(str, steps[:1] + steps[1:][-1:]))
    facts |= {"step": label, "stage": "-".join(map(str, stages[:1] + stages[1:][-1:]))}
    stage = stages[0] if len(stages) == 1 else -1
    return Span(0, start, end, WORKS, label, stage, steps[-1], facts)
