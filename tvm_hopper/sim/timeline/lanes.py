"""The lanes of one CTA: one for each role of its warps, one for each unit that works for them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from tvm_hopper.sim.timeline.events import CP_ASYNC, GLOBAL, LOADS, WGMMA, TimelineEvent
from tvm_hopper.sim.timeline.folded import role_spans
from tvm_hopper.sim.timeline.rings import Fill, Rings
from tvm_hopper.sim.timeline.roles import WarpRole, numbers, roles_of
from tvm_hopper.sim.timeline.spans import Lane, Span, pack, span_of

NOT_OF_A_UNIT = ("life", "acquire", "wait", "finding")
MAX_STORES = 4  # rows of stores, beyond which those of a warp that overlap are one span


def lanes_of(
    events: Sequence[TimelineEvent], last: int, prefix: str
) -> tuple[list[Lane], list[WarpRole], Rings, str]:
    """Return the lanes of one CTA, its roles and rings, and a sentence on warps in no lane.

    - `events`: events of that CTA in one launch.
    - `last`: the last step of the run.
    - `prefix`: prefix of the names of lanes.
    """
    rings = Rings(events)
    roles, idle = roles_of(events, rings)
    cta = events[0].cta
    made = [(role.name, ("",), role_spans(events, role, rings, last), role.kind) for role in roles]
    producers = [one for one in made if one[3] == "producer"]
    others = [one for one in made if one[3] != "producer"]
    units = [
        ("TMA loads", *_loads(events, rings, last)),
        ("cp.async", *_cp_async(events, roles, rings, last)),
    ]
    after = [
        ("tensor core", *_products(events, roles, rings, last)),
        ("TMA stores", *_stores(events, last)),
        ("global memory", *_global(events, roles)),
    ]
    ordered = [*(one[:3] for one in producers), *units, *(one[:3] for one in others), *after]
    lanes = [Lane(prefix + name, cta, tuple(rows), tuple(spans)) for name, rows, spans in ordered]
    lanes = [lane for lane in lanes if lane.spans]
    text = f"not shown: {numbers(idle)} only meet the others, or end" if idle else ""
    return lanes, roles, rings, text


def _loads(
    events: Sequence[TimelineEvent], rings: Rings, last: int
) -> tuple[tuple[str, ...], list[Span]]:
    """One row a stage of each ring; the copies of one phase of an mbarrier are one span."""
    fills: dict[Fill, list[TimelineEvent]] = defaultdict(list)
    for event in events:
        if event.kind in LOADS and (fill := rings.fill(event)) is not None:
            fills[fill].append(event)
    rows = sorted({(fill.ring, fill.stage) for fill in fills})
    several = len({ring for ring, _ in rows}) > 1
    names = tuple(f"{ring} {stage}" if several else f"stage {stage}" for ring, stage in rows)
    spans = []
    for fill, found in fills.items():
        times = max(Counter(event.addresses for event in found).values())
        label = f"{fill.step} x{times}" if times > 1 else str(fill.step)  # into one place
        row = rows.index((fill.ring, fill.stage))
        spans.append(span_of(row, found, last, "copy", fill, label))
    return names, spans


def _cp_async(
    events: Sequence[TimelineEvent], roles: Sequence[WarpRole], rings: Rings, last: int
) -> tuple[tuple[str, ...], list[Span]]:
    """One span a commit group, of all warps of a role together."""
    groups: dict[tuple[int, int], list[TimelineEvent]] = defaultdict(list)
    for event in events:
        if event.kind == CP_ASYNC:
            role = next((n for n, r in enumerate(roles) if event.warp in r.warps), -1)
            groups[role, event.number].append(event)
    return pack(
        [
            span_of(0, found, last, "copy", fill, str(number if fill is None else fill.step))
            for (_, number), found in groups.items()
            for fill in [rings.fill(found[0])]
        ]
    )


def _products(
    events: Sequence[TimelineEvent], roles: Sequence[WarpRole], rings: Rings, last: int
) -> tuple[tuple[str, ...], list[Span]]:
    """Rows of each warp group, one span a commit group."""
    names: list[str] = []
    spans: list[Span] = []
    for role in roles:
        groups: dict[int, list[TimelineEvent]] = defaultdict(list)
        for event in events:
            if event.kind == WGMMA and event.warp in role.warps:
                groups[event.number].append(event)
        found = []
        for number in groups:
            read = [f for f in map(rings.read_by, groups[number]) if f is not None]
            steps = sorted({fill.step for fill in read})
            label = "-".join(map(str, steps[:1] + steps[1:][-1:]))
            found.append(
                span_of(0, groups[number], last, "product", read[0] if read else None, label)
            )
        rows, packed = pack(found)
        spans += [replace(span, row=span.row + len(names)) for span in packed]
        names += [f"of {role.name.partition(' (')[0]}" if not n else "" for n in range(len(rows))]
    return tuple(names), spans


def _stores(events: Sequence[TimelineEvent], last: int) -> tuple[tuple[str, ...], list[Span]]:
    """One span a bulk group; where many are in flight, one for those of a warp that overlap."""
    groups: dict[tuple[int, int], list[TimelineEvent]] = defaultdict(list)
    known = (*NOT_OF_A_UNIT, WGMMA, CP_ASYNC, *LOADS, *GLOBAL.values())
    for event in events:
        if event.kind not in known and event.addresses:
            groups[event.warp, event.number].append(event)
    rows, spans = pack([_store(found, last) for found in groups.values()])
    if len(rows) <= MAX_STORES:
        return rows, spans
    merged: list[list[TimelineEvent]] = []
    until: dict[int, int] = {}
    for (warp, _), found in sorted(groups.items(), key=lambda g: (g[0][0], g[1][0].start)):
        span = _store(found, last)
        if span.start < until.get(warp, -1):
            merged[-1] += found
        else:
            merged.append(list(found))
        until[warp] = max(span.end, until.get(warp, -1))
    return pack([_store(found, last) for found in merged])


def _store(events: Sequence[TimelineEvent], last: int) -> Span:
    kind = events[0].kind
    label = f"{len(events)} {kind}s" if len(events) > 1 else kind
    return span_of(0, events, last, "store", None, label)


def _global(
    events: Sequence[TimelineEvent], roles: Sequence[WarpRole]
) -> tuple[tuple[str, ...], list[Span]]:
    """One row for loads and one for stores; consecutive accesses of a role are one span."""
    runs: dict[tuple[str, int], list[list[TimelineEvent]]] = defaultdict(list)
    for event in events:
        if event.kind in GLOBAL.values():
            role = next((n for n, r in enumerate(roles) if event.warp in r.warps), -1)
            found = runs[event.kind, role]
            near = found and event.start - found[-1][-1].start <= 2 * len(roles[role].warps)
            if near and found[-1][-1].name == event.name:
                found[-1].append(event)
            else:
                found.append([event])
    names: list[str] = []
    spans: list[Span] = []
    for kind in GLOBAL.values():
        drawn = [
            span_of(0, one, one[-1].end, "global", None, one[0].name)
            for (of, _), found in sorted(runs.items())
            if of == kind
            for one in found
        ]
        rows, packed = pack(drawn)
        spans += [replace(span, row=span.row + len(names)) for span in packed]
        names += [f"{kind.split()[1]}s" if not n else "" for n in range(len(rows))]
    return tuple(names), spans
