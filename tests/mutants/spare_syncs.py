"""Waits, releases, barriers and fences that change nothing: rules of `equivalence.py`."""

from __future__ import annotations

from tvm_hopper.sim.machine.memory import shared_offset, shared_rank

from .recording import Operation, Trace

WAITS = {"cuda_mbarrier_wait"}


def one_sum(one: Operation, other: Operation) -> bool:
    """Tell whether two products are terms of one sum: equal but for rounding, in either order."""
    rest = [{k: v for k, v in x.operands if not k.endswith("_desc")} for x in (one, other)]
    return rest[0] == rest[1] and rest[0].get("scale_d") == 1


def waits_for_grid(x: Operation) -> bool:
    """Tell a wait for the end of the grid before."""
    return x.name == "griddepcontrol" and "'wait'" in str(x.operand("0"))


def grid_waits_by_lanes(operations: list[Operation]) -> list[Operation]:
    """Take a wait for the grid before for one of each lane: each waits for itself."""
    return [
        part
        for x in operations
        for part in (
            [Operation(x.name, (), (*x.operands, ("lane", lane))) for lane in x.lanes]
            if waits_for_grid(x)
            else [x]
        )
    ]


def without_first_phase(operations: list[Operation]) -> list[Operation]:
    """Leave out waits for the phase before the first: it is over, and nobody has released in it."""
    return [x for x in operations if not (x.name in WAITS and x.operand("phase") == -1)]


def without_unawaited_releases(trace: Trace) -> Trace:
    """Leave out the arrivals of phases that no warp of the CTA waits for.

    Of mbarriers at which so many warps as are counted arrive, one lane of each once a phase: behind
    the last phase that is waited for, nobody acquires what these release. Not where CTAs arrive at
    each other's.
    """
    places = [x.operand("addr") for ops in trace.values() for x in ops if x.operand("addr")]
    if any(not isinstance(place, int) or shared_rank(place) for place in places):
        return trace
    result: Trace = {}
    for cta in {key[:-1] for key in trace}:
        members = {key: x for key, x in trace.items() if key[:-1] == cta}
        counts, awaited, arriving, others = {}, {}, {}, set()
        for key, x in ((key, x) for key, ops in members.items() for x in ops):
            if x.name in WAITS:
                place = x.operand("0")
                phase, known = x.operand("phase"), isinstance(place, int)
                if phase is None or not known:
                    return trace
                place = shared_offset(place)
                awaited[place] = max(awaited.get(place, 0), phase + 1)
            elif (place := x.operand("addr")) is not None:
                place = shared_offset(place)
                if x.name == "mbarrier_init":
                    counts[place] = x.operand("count")
                elif x.name == "mbarrier_arrive" and x.elected:
                    arriving.setdefault(place, set()).add(key)
                else:
                    others.add(place)
        spare = {p for p, keys in arriving.items() if counts.get(p) == len(keys)} - others
        for key, ops in members.items():
            left = {place: awaited.get(place, 0) for place in spare}
            kept = []
            for x in ops:
                place = shared_offset(x.operand("addr")) if x.name == "mbarrier_arrive" else None
                if place in left:
                    left[place] -= 1
                    if left[place] < 0:
                        continue
                kept.append(x)
            result[key] = kept
    return result


def without_unused_barriers(trace: Trace) -> Trace:
    """Leave out initialisations of mbarriers that nothing else names, in any CTA."""
    named = set()
    for x in (x for ops in trace.values() for x in ops if x.name != "mbarrier_init"):
        places = [value for _, value in x.operands if isinstance(value, int)]
        if not places and "mbarrier" in x.name and x.name != "fence_mbarrier_init":
            return trace  # each lane names another one
        named |= {shared_offset(place) for place in places}
    return {
        key: [x for x in ops if x.name != "mbarrier_init" or x.operand("addr") in named]
        for key, ops in trace.items()
    }


def fences_of_registers_once(operations: list[Operation]) -> list[Operation]:
    """Leave out a wgmma.fence behind which products of one shape go on with the same sum.

    PTX ISA 9.1, 9.7.15.7.1: none is needed between wgmma.mma_async of one shape that accumulate in
    the same registers. Registers that threads write are not recorded: these are the judges' part
    (WGMMA_FENCE_MISSING); what is loaded or stored in between may be one.
    """
    kept: list[Operation] = []
    since: list[Operation] | None = None  # the last fence; None if it may be needed again
    for i, x in enumerate(operations):
        product = x.operand("b_desc") is not None
        if x.name in ("load", "store") or x.name.startswith(("ptx_legacy", "mma")):
            since = None
        if x.name == "wgmma_fence":
            following = next((y for y in operations[i:] if y.operand("b_desc") is not None), None)
            if since and following is not None and all(one_sum(y, following) for y in since[-1:]):
                continue
            since = [] if since is None else since
        elif product and since is not None:
            since.append(x)
        kept.append(x)
    return kept
