"""Agents of a role skeleton: the steps of each warp, or warp group, on barriers, in order.

The warps of a group that issues wgmma run as one agent: wgmma is executed by the whole group, so
none of them can fall after by a step.  Every other warp with events is an agent of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, repeat
from typing import Any

import numpy as np

from tvm_hopper.facts.programming_model import THREADS_PER_WARP as WARP, WARP_GROUP_THREADS as GROUP
from tvm_hopper.sim.protocol.expr import UNKNOWN, Address
from tvm_hopper.sim.protocol.trace import SyncEvent, Trace, UnanalysableError
from tvm_hopper.sim.races.lane_order import lane_bits

Key = tuple[int, str, int]  # CTA, allocation, byte
_MEETINGS = ("barrier", "cluster_sync", "cluster_arrive", "cluster_wait")
_ENDS = ("arrive", "drop", "expect", "load", "copy_arrive")  # steps that may let a wait pass


@dataclass(frozen=True)
class Op:
    """One step of an agent.

    `targets` are (barrier, count, bytes): arrivals and expected bytes, or delivered bytes.
    `skipped` are the parities by which other agents, alternating with this one, waited on it.
    """

    kind: str
    targets: tuple[tuple[Key, int, int], ...] = ()
    value: int = 0
    threads: int = 0
    event: Any = None  # event of the trace; None only in agents made by hand
    skipped: tuple[int, ...] = ()


@dataclass(frozen=True)
class SkeletonAgent:
    """A warp or a warp group of one CTA.

    After `exit_after` steps (None: all) it has exited; later steps only stand for the exit.
    """

    cta: int
    name: str
    ops: tuple[Op, ...]
    threads: int = WARP
    exit_after: int | None = None


def build_agents(
    traces: Sequence[Trace], boxes: dict[str, int]
) -> tuple[list[SkeletonAgent], bool]:
    """Return the agents of the CTAs of one cluster, and whether copies are counted in bytes.

    Without the bytes of every copy the transaction counts are left out: a barrier then completes
    on its arrivals, and the copies are assumed to deliver the expected bytes.
    """
    unlike = {id(trace): trace for trace in traces}.values()
    loads = [e for trace in unlike for e in trace.events if e.kind == "load"]
    sizes = {id(e): _copy_bytes(e, boxes) for e in loads}
    counted = all(size is not None for size in sizes.values())
    masks = {id(trace): _Masks(trace) for trace in unlike}
    agents = []
    for cta, trace in enumerate(traces):
        agents += _agents_of(cta, masks[id(trace)], len(traces), sizes if counted else None)
    return agents, counted


def _copy_bytes(event: SyncEvent, boxes: dict[str, int]) -> int | None:
    size = event.values[1]
    if isinstance(size, int) and size >= 0:
        return size
    source = event.values[3]
    names: list[Any] = [source]
    while names:
        node = names.pop()
        name = getattr(node, "name", None)
        if isinstance(name, str) and name in boxes:
            return boxes[name]
        names += list(getattr(node, "args", []))
    return None


class _Masks:
    """Distinguishes the warps of a CTA: the threads and operands of each event."""

    def __init__(self, trace: Trace) -> None:
        unheard = ("register", "shared", "shared_matrix")
        self.events = [e for e in trace.events if e.kind not in unheard]
        self.num_threads = trace.num_threads
        self.lanes_of = _LanesOf()
        self._masks = {id(e.mask): e.mask for e in self.events}.values()
        self._arrays = [
            (event.mask, value)
            for event in self.events
            for whole in event.values
            for value in ((whole.offset, whole.rank) if isinstance(whole, Address) else (whole,))
            if isinstance(value, np.ndarray)
        ]
        self.spans = list(self._spans())

    def _spans(self) -> Iterator[tuple[np.ndarray, str, bool, bytes]]:
        """Yield each warp, or warp group that multiplies: its threads, name, and likeness."""
        for start in range(0, self.num_threads, GROUP):
            group = np.arange(start, min(start + GROUP, self.num_threads))
            if any(e.kind == "mma" and e.mask[group].any() for e in self.events):
                yield group, f"warp_group{start // GROUP}", True, self.likeness(group)
                continue
            for warp in np.split(group, range(WARP, len(group), WARP)):
                yield warp, f"warp{warp[0] // WARP}", False, self.likeness(warp)

    def likeness(self, span: np.ndarray) -> bytes:
        """Return a key that is equal for spans with the same events and equal operands."""
        parts = [np.int64(len(span)), *(mask[span] for mask in self._masks)]
        parts += [value[span] for mask, value in self._arrays if mask[span].any()]
        return b"".join(part.tobytes() for part in parts)


def _agents_of(
    cta: int, masks: _Masks, peers: int, sizes: dict[int, int | None] | None
) -> list[SkeletonAgent]:
    events, lanes_of = masks.events, masks.lanes_of
    alike: dict[bytes, list[tuple[str, int, tuple[Op, ...]]]] = {}

    def parts_of(
        span: np.ndarray, whole: bool, known: bytes
    ) -> list[tuple[str, int, tuple[Op, ...]]]:
        """Return the agents of a span: of each the end of its name, its threads and its steps."""
        if known not in alike:
            alike[known] = []
            for part, name in [(span, "")] if whole else _parts(span, events, cta, lanes_of):
                ops = [
                    op
                    for event in events
                    if (bits := lanes_of(event, part))
                    for op in _ops(event, part, bits.bit_count(), cta, peers, sizes)
                ]
                ops = _with_skipped_parities(ops, part, events, cta)
                alike[known].append((name, len(part), tuple(_until_opaque(ops))))
        return alike[known]

    agents = [
        SkeletonAgent(cta, f"cta{cta}/{name}{end}", ops, threads)
        for span, name, multiplies, known in masks.spans
        for end, threads, ops in parts_of(span, multiplies, known)
    ]
    meetings = _whole_meetings(agents)
    left: dict[tuple[int, int], SkeletonAgent] = {}  # alike agents share their steps
    for agent in agents:
        key = id(agent.ops), agent.threads
        if key not in left:
            left[key] = _leave_barriers(agent, meetings)
    found = [replace(left[id(a.ops), a.threads], name=a.name) for a in agents]
    return [agent for agent in found if agent.ops]


def fold(agents: Sequence[SkeletonAgent]) -> list[SkeletonAgent]:
    """Let one agent make the steps of all alike ones of a CTA at once.

    Each of its steps has the effect of their steps in sequence, as long as no phase completes
    between them: else a count is exceeded, or bytes are left over. So a run in which nothing is
    found is a run of the agents themselves.
    """
    alike: dict[tuple[int, int, int | None], list[SkeletonAgent]] = {}
    for agent in agents:
        alike.setdefault((id(agent.ops), agent.threads, agent.exit_after), []).append(agent)
    found = []
    for members in alike.values():
        one, count = members[0], len(members)
        if count == 1 or any(op.kind in ("init", "drop") for op in one.ops):
            found += members
            continue
        ops = tuple(_times(op, count) for op in one.ops)
        found.append(replace(one, ops=ops, threads=one.threads * count))
    return found


def _times(op: Op, count: int) -> Op:
    """Return the step with the effect of `count` agents."""
    if op.kind == "bar":
        return replace(op, threads=op.threads * count)
    targets = tuple((key, arrivals * count, size * count) for key, arrivals, size in op.targets)
    return replace(op, targets=targets, threads=op.threads * count)


def _with_skipped_parities(
    ops: list[Op], span: np.ndarray, events: list[SyncEvent], cta: int
) -> list[Op]:
    """Add to each wait the parities that alternating agents waited for by the same statement.

    Agents that alternate on the phases of a barrier wait with alternating parities, in program
    order; each alone would seem to miss some.
    """
    waits = [e for e in events if e.kind == "wait"]
    others = {id(e.node) for e in waits if not e.mask[span].any()}
    others &= {id(e.node) for e in waits if e.mask[span].any()}
    if not others:
        return ops
    seen: dict[tuple[int, Key], list[int]] = {}  # parities, by statement and barrier
    last: dict[tuple[int, Key], int | None] = {}
    skipped: dict[int, tuple[int, ...]] = {}
    all_threads = np.arange(len(waits[0].mask))
    for event in waits:
        if id(event.node) not in others:
            continue
        mine = bool(event.mask[span].any())
        sharers = span if mine else all_threads
        parity = _number(event.values[1], event, sharers) & 1
        for key in _targets(event.values[0], event.mask, sharers, cta, event):
            place = (id(event.node), key)
            between = seen.setdefault(place, [])
            if not mine:
                between.append(parity)
                continue
            row = [last.get(place), *between, parity]
            steps = [x for x in row if x is not None]
            if all(a != b for a, b in pairwise(steps)):
                skipped[id(event)] = tuple(between)
            last[place], seen[place] = parity, []
    return [
        replace(op, skipped=skipped.get(id(op.event), ())) if op.kind == "wait" else op
        for op in ops
    ]


def _until_opaque(ops: list[Op]) -> Iterator[Op]:
    """Yield the steps up to the first call with an unknown body."""
    for op in ops:
        yield op
        if op.kind == "opaque":
            return


class _LanesOf:
    """Tells which threads of a span make an event, as bits; most events share a few masks."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[int, Any, Any]] = {}

    def __call__(self, event: SyncEvent, span: np.ndarray) -> int:
        """Return them; the first thread of the span is the lowest bit."""
        key = id(event.mask), id(span)
        known = self._known.get(key)
        if known is None:  # both are held, so that no other array gets their numbers
            known = self._known[key] = lane_bits(event.mask[span]), event.mask, span
        return known[0]


def _parts(
    warp: np.ndarray, events: list[SyncEvent], cta: int, lanes_of: _LanesOf
) -> list[tuple[np.ndarray, str]]:
    """Divide a warp if some of its lanes wait for others; else it is one agent.

    Threads of one warp go on independently (CUDA C++ Programming Guide, "Independent Thread
    Scheduling"): a lane that waits does not hold up the others. They meet where different lanes
    come to a barrier by different statements, too.
    """
    if not _is_parted(warp, events, cta, lanes_of):
        return [(warp, "")]
    classes: dict[bytes, list[int]] = {}
    does = np.array([event.mask[warp] for event in events])
    for lane, thread in enumerate(warp):
        classes.setdefault(does[:, lane].tobytes(), []).append(int(thread))
    return [(np.array(threads), f"/lane{threads[0] - warp[0]}") for threads in classes.values()]


def _is_parted(warp: np.ndarray, events: list[SyncEvent], cta: int, lanes_of: _LanesOf) -> bool:
    """Return whether lanes of a warp wait for other ones of it, or meet by different statements."""
    here = [(event, lanes_of(event, warp)) for event in events]
    whole = lane_bits(np.ones(len(warp), bool))
    meets = {bits for e, bits in here if e.kind in _MEETINGS and 0 < bits < whole}
    if any(not one & other for one in meets for other in meets):
        return True
    waits = _by_lanes((e, bits) for e, bits in here if e.kind == "wait" and 0 < bits < whole)
    ends = _by_lanes((e, bits) for e, bits in here if waits and bits and e.kind in _ENDS)
    return any(
        _barriers(waiting, warp, cta) & _barriers(ending, warp, cta)
        for one, waiting in waits.items()
        for other, ending in ends.items()
        if not one & other
    )


def _by_lanes(found: Iterable[tuple[SyncEvent, int]]) -> dict[int, list[SyncEvent]]:
    groups: dict[int, list[SyncEvent]] = {}
    for event, lanes in found:
        groups.setdefault(lanes, []).append(event)
    return groups


def _barriers(events: list[SyncEvent], warp: np.ndarray, cta: int) -> set[Key]:
    """Return the barriers that some events of a warp name."""
    return {key for e in events for key in _targets(e.values[0], e.mask, warp, cta, e)}


def _whole_meetings(agents: list[SkeletonAgent]) -> list[Op]:
    """Return the meetings of all threads of a CTA, of the agent that has most."""
    each = [[op for op in agent.ops if _of_whole_cta(op)] for agent in agents]
    return max(each, key=len, default=[])


def _of_whole_cta(op: Op) -> bool:
    return op.kind == "bar" and op.targets[0][1] == -1


def _leave_barriers(agent: SkeletonAgent, meetings: list[Op]) -> SkeletonAgent:
    """Let an agent that ends before the others be counted at the barriers that these meet at.

    `__syncthreads` waits for the threads that have not exited (CUDA C++ Programming Guide,
    "Independent Thread Scheduling").
    """
    done = Counter(op.value for op in agent.ops if _of_whole_cta(op))
    left = []
    for op in meetings:
        if done[op.value]:
            done[op.value] -= 1
        else:
            left.append(replace(op, threads=agent.threads))
    return replace(agent, ops=(*agent.ops, *left), exit_after=len(agent.ops)) if left else agent


def _targets(
    address: Any, mask: np.ndarray, span: np.ndarray, cta: int, event: SyncEvent
) -> dict[Key, list[int]]:
    """Return the threads of the span that name each barrier."""
    if address is UNKNOWN or not isinstance(address, Address):
        raise UnanalysableError(f"address of {event.kind}: {event.node}")
    chosen = span[mask[span]]
    offset, rank = address.offset, cta if address.rank is None else address.rank
    threads: list[int] = chosen.tolist()
    if isinstance(offset, int) and isinstance(rank, int):
        return {(rank, address.space, offset): threads} if threads else {}
    offsets = repeat(offset) if isinstance(offset, int) else offset[chosen].tolist()
    ranks = repeat(rank) if isinstance(rank, int) else rank[chosen].tolist()
    found: dict[Key, list[int]] = {}
    for thread, at, owner in zip(threads, offsets, ranks, strict=False):
        found.setdefault((owner, address.space, at), []).append(thread)
    return found


def _total(value: Any, threads: list[int], event: SyncEvent) -> int:
    """Return the sum of an operand over the threads that name one barrier."""
    if isinstance(value, np.ndarray):
        return int(value[threads].sum())
    return _number(value, event) * len(threads)


def _number(value: Any, event: SyncEvent, span: np.ndarray | None = None) -> int:
    """Return an operand that is one number for all threads, or for those of a span."""
    if isinstance(value, np.ndarray):
        chosen = value[event.mask] if span is None else value[span][event.mask[span]]
        if (chosen == chosen[0]).all():
            return int(chosen[0])
    if not isinstance(value, int):
        raise UnanalysableError(f"operand of {event.kind}: {event.node}")
    return int(value)


def _ops(
    event: SyncEvent,
    span: np.ndarray,
    threads: int,
    cta: int,
    peers: int,
    sizes: dict[int, int | None] | None,
) -> Iterator[Op]:
    """Yield the steps of `threads` threads of a span for an event."""
    kind, values = event.kind, event.values

    def targets(address: Any) -> dict[Key, list[int]]:
        return _targets(address, event.mask, span, cta, event)

    if kind == "init":
        count = _number(values[1], event)
        for key in targets(values[0]):
            yield Op("init", ((key, count, 0),), event=event)
    elif kind == "inval":
        yield Op("inval", tuple((key, 0, 0) for key in targets(values[0])), event=event)
    elif kind == "wait":
        parity = _number(values[1], event, span) & 1
        for key in targets(values[0]):
            yield Op("wait", ((key, 0, 0),), parity, threads, event)
    elif kind in ("arrive", "drop"):
        tx = values[2] if sizes is not None else 0
        yield _arrival(kind, targets(values[0]), values[1], tx, event)
    elif kind == "expect":
        if sizes is not None:
            yield _arrival("expect", targets(values[0]), 0, values[1], event)
    elif kind == "load":
        size = (sizes[id(event)] or 0) if sizes is not None else 0
        yield from _loads(targets(values[0]), values[2], size, peers, event)
    elif kind == "copy_arrive":
        if values[1]:  # .noinc: counted in init; the other form is neutral
            yield _arrival("arrive", targets(values[0]), 1, 0, event)
    elif kind == "barrier":
        yield from _barrier_arrivals(event, span, threads, cta)
    elif kind == "grid_sync":  # other clusters do as this one does, and come in time
        all_threads = len(event.mask) * peers
        yield Op("bar", value=values[0], threads=threads, event=event,
                 targets=(((-1, "grid", values[0]), all_threads, 0),))  # fmt: skip
    elif kind in ("cluster_sync", "cluster_arrive", "cluster_wait", "opaque"):
        yield Op(kind, threads=threads, event=event)
    elif kind in ("unknown_barrier", "try_wait"):
        raise UnanalysableError(f"{kind}: {event.node}")


def _arrival(
    kind: str, targets: dict[Key, list[int]], count: Any, num_bytes: Any, event: SyncEvent
) -> Op:
    """Return the step of threads that arrive on barriers, or expect bytes there."""
    found = tuple(
        (key, _total(count, sharers, event), _total(num_bytes, sharers, event))
        for key, sharers in targets.items()
    )
    return Op(kind, found, event=event)


def _barrier_arrivals(event: SyncEvent, span: np.ndarray, threads: int, cta: int) -> Iterator[Op]:
    """Yield how threads come to named barriers."""
    count = _number(event.values[1], event)
    for number, members in _barrier_ids(event.values[0], event, span, threads).items():
        targets = (((cta, "bar", number), count, int(event.values[2])),)
        yield Op("bar", value=number, threads=members, event=event, targets=targets)


def _loads(
    targets: dict[Key, list[int]], mask: Any, size: int, peers: int, event: SyncEvent
) -> Iterator[Op]:
    """Yield the copies that complete on barriers, of each CTA that a multicast mask names."""
    many = [] if mask == -1 else [r for r in range(peers) if _number(mask, event) >> r & 1]
    for (rank, space, offset), sharers in targets.items():
        ctas = [rank] if mask == -1 else many
        landing = tuple(((c, space, offset), 0, len(sharers) * size) for c in ctas)
        yield Op("load", landing, event=event)


def _barrier_ids(value: Any, event: SyncEvent, span: np.ndarray, threads: int) -> dict[int, int]:
    if isinstance(value, int):
        return {value: threads}
    if value is UNKNOWN or not isinstance(value, np.ndarray):
        raise UnanalysableError(f"number of barrier: {event.node}")
    numbers, counts = np.unique(value[span][event.mask[span]], return_counts=True)
    return {int(n): int(c) for n, c in zip(numbers, counts, strict=True)}
