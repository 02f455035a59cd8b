"""The roles of a CTA's warps, by the instructions that they issue: one lane for each role.

A warp whose copies complete on an mbarrier, and that neither multiplies nor waits for such copies,
is a producer; one that multiplies or waits for them is a consumer. Where no warp has one of these
jobs alone, that one lane of one warp issues the copies for all makes no role of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tvm_hopper.sim.timeline.events import (
    CP_ASYNC,
    CP_ASYNC_ARRIVES,
    GLOBAL,
    LOADS,
    WGMMA,
    TimelineEvent,
)
from tvm_hopper.sim.timeline.rings import Rings

WARPS_OF_A_GROUP = 4
ORDER = ("producer", "", "store", "consumer")


class WarpRole(NamedTuple):
    """Warps of one CTA that do the same; `kind` is producer, consumer, store, or empty."""

    kind: str
    name: str
    warps: tuple[int, ...]


def roles_of(
    events: Iterable[TimelineEvent], rings: Rings
) -> tuple[list[WarpRole], tuple[int, ...]]:
    """Return the roles of one CTA's warps, and the warps that have nothing to do."""
    does: dict[int, set[str]] = defaultdict(set)
    waits: dict[int, str] = defaultdict(str)
    for event in events:
        if event.warp < 0 or event.issued_by:
            continue
        does[event.warp] |= {job} if (job := _job(event, rings)) else set()
        if event.kind == "wait" and event.barrier:
            waits[event.warp] += rings.name(event)
    whole = {warp - warp % WARPS_OF_A_GROUP for warp, jobs in does.items() if WGMMA in jobs}
    for first in whole:  # one of the four issues for all
        for warp in range(first, first + WARPS_OF_A_GROUP):
            does[warp] |= {WGMMA}
    alone = any(_only("load", jobs) for jobs in does.values())
    storing = any(_only("store", jobs) for jobs in does.values())
    groups: dict[tuple[str, int, str], list[int]] = defaultdict(list)
    for warp in sorted(does):
        jobs = does[warp]
        kind = _kind(jobs, alone, storing)
        group = warp // WARPS_OF_A_GROUP if WGMMA in jobs else -1
        stuck = waits[warp] if jobs == {"wait"} else ""  # nothing else distinguishes such warps
        if jobs:
            groups[kind, group, stuck].append(warp)
    idle = tuple(warp for warp in sorted(does) if not does[warp])
    return _named(groups, len(does)), idle


def _job(event: TimelineEvent, rings: Rings) -> str:
    """Return the job of a warp that an event shows; empty if none."""
    if event.kind in (*LOADS, CP_ASYNC, CP_ASYNC_ARRIVES):
        return "load"
    if event.kind == "acquire":
        return "consume"
    if event.kind == WGMMA:
        return WGMMA
    if event.kind in GLOBAL.values():
        return "compute" if event.kind == GLOBAL[True] else "read"
    if event.kind == "wait" and event.barrier:
        return "consume" if rings.fill(event) is not None else "wait"
    return "" if event.kind in ("life", "wait", "finding") else "store"


def _only(job: str, jobs: set[str]) -> bool:
    return job in jobs and jobs <= {job, "wait", "read"}


def _kind(jobs: set[str], alone: bool, storing: bool) -> str:
    if alone and _only("load", jobs):
        return "producer"
    if storing and _only("store", jobs):
        return "store"
    return "consumer" if alone else ""


def _named(groups: dict[tuple[str, int, str], list[int]], num_warps: int) -> list[WarpRole]:
    roles = []
    for kind in ORDER:
        found = [
            warps for (of, *_), warps in sorted(groups.items(), key=lambda g: g[1]) if of == kind
        ]
        for number, warps in enumerate(found):
            name = f"{kind} {number}" if len(found) > 1 else kind
            text = f"{name} ({numbers(warps)})" if kind else numbers(warps)
            if not kind and len(warps) == num_warps > 1:
                text = f"all {num_warps} warps"
            roles.append(WarpRole(kind, text, tuple(warps)))
    return roles


def numbers(warps: Sequence[int]) -> str:
    """Return warps for people: "warp 0", "warps 4-7", "warps 0, 4-11"."""
    runs: list[list[int]] = []
    for warp in warps:
        if runs and warp == runs[-1][-1] + 1:
            runs[-1].append(warp)
        else:
            runs.append([warp])
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return f"warp{'s' * (len(warps) > 1)} {', '.join(texts)}"
