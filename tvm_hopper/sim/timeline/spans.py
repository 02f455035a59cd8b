"""Spans and marks of a timeline, made from events, and their colours.

Spans have places on an axis of half steps: a scheduler step has a first half, in which a warp goes
on, and a second one, from which it waits again. Only their order is drawn: the axis has one unit
for each moment at which something that is drawn begins or ends.

The colours are eight that colour-blind readers distinguish, after Okabe and Ito. Greys of
neighbours differ too, and the number in a bar is the filling of the ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tvm_hopper.sim.timeline.events import NEVER, TimelineEvent
from tvm_hopper.sim.timeline.rings import Fill

Facts = dict[str, str | int]


@dataclass(frozen=True)
class Span:
    """One bar.

    - `row`: in its lane.
    - `start`, `end`: in half steps, or units of the axis.
    - `kind`: "active", "wait", "copy", "product", "store" or "global".
    - `label`: text inside: the step of the ring, or the target of the wait.
    - `stage`, `step`: of the ring; -1 if of none.
    - `facts`: further details, by name.
    """

    row: int
    start: int
    end: int
    kind: str
    label: str
    stage: int = -1
    step: int = -1
    facts: Facts = field(default_factory=dict)


@dataclass(frozen=True)
class Lane:
    """A role or a unit of one CTA; `rows` names its parallel rows."""

    name: str
    cta: tuple[int, ...]
    rows: tuple[str, ...]
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Mark:
    """Where a finding was made: the lane's number, or None if it is of no lane that is drawn."""

    number: int
    rule: str
    lane: int | None
    at: int


def half(step: int, last: int) -> int:
    """Return where a step begins on the axis; `last` is the step at which the run ended."""
    return 2 * (last + 1 if step == NEVER else step)


def facts_of(events: Sequence[TimelineEvent], fill: Fill | None) -> Facts:
    """Return the details of some events that are drawn as one."""
    first = events[0]
    facts: Facts = {}
    kinds = list(dict.fromkeys(event.kind for event in events))
    facts["what"] = ", ".join(f"{sum(e.kind == k for e in events)} x {k}" for k in kinds)
    if first.barrier:
        facts["mbarrier"] = f"{first.barrier}[{first.slot}] phase {first.phase}"
    if fill is not None:
        facts |= {"step": fill.step, "stage": fill.stage}
    if first.it:
        facts["iteration"] = ", ".join(map(str, first.it))
    if num_bytes := sum(event.num_bytes for event in events):
        facts["bytes"] = num_bytes
    texts = list(dict.fromkeys(event.statement for event in events))
    facts["statement"] = "\n".join(texts[:4])
    if issuers := sorted({event.issued_by for event in events if event.issued_by}):
        facts["issued by"] = ", ".join(issuers)
    if any(event.end == NEVER for event in events):
        facts["end"] = "never"
    return facts


def span_of(
    row: int, events: Sequence[TimelineEvent], last: int, kind: str, fill: Fill | None, label: str
) -> Span:
    """Return one span for some events, from the first begin to the last end."""
    stage, step = (fill.stage, fill.step) if fill is not None else (-1, -1)
    start = min(half(event.start, last) for event in events)
    end = max(half(event.end, last) for event in events)
    return Span(row, start, max(end, start + 1), kind, label, stage, step, facts_of(events, fill))


def pack(spans: list[Span]) -> tuple[tuple[str, ...], list[Span]]:
    """Give spans that overlap rows of their own."""
    ends: list[int] = []
    packed = []
    for span in sorted(spans, key=lambda s: (s.start, s.end)):
        row = next((r for r, end in enumerate(ends) if end <= span.start), len(ends))
        ends[row : row + 1] = [span.end]
        packed.append(replace(span, row=row))
    return ("",) * len(ends), packed


STAGES = (
    "#56B4E9",  # sky blue
    "#F0E442",  # yellow
    "#009E73",  # green
    "#E69F00",  # orange
    "#0072B2",  # blue
    "#CC79A7",  # purple
    "#A6761D",  # brown
    "#B2DF8A",  # light green
)
NO_STAGE = "#BDBDBD"
WAIT = "#FFFFFF"
WAIT_EDGE = "#9A9A9A"
FINDING = "#C00000"


def fill_colour(span: Span) -> str:
    """Return the colour of a span: that of its stage."""
    if span.kind == "wait":
        return WAIT
    return STAGES[span.stage % len(STAGES)] if span.stage >= 0 else NO_STAGE


def text_colour(background: str) -> str:
    """Return black or white, the one with more contrast."""
    red, green, blue = (int(background[i : i + 2], 16) for i in (1, 3, 5))
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 110 else "#FFFFFF"
