"""Waits, releases, barriers and fences that change nothing: rules of `equivalence.py`."""

from typing import Any

import numpy as np

from tvm_hopper.sim.machine.memory import RANK_SHIFT, shared_offset

from .recording import Operation, Trace

INIT = "mbarrier_init"
WAITS = {"cuda_mbarrier_wait"}
BETWEEN_PRODUCTS = {"wgmma_fence", "wgmma_commit_group", "cuda_mbarrier_wait"}
# A wait that leaves fewer groups pending waits for more, and of what ends by itself.
FEWER_PENDING = {"wgmma_wait_group", "cp_async_bulk_wait_group"}


def at_least(wanted: Operation, found: Operation) -> bool:
    """Tell whether an operation does what another does, or waits for more."""
    if wanted == found:
        return True
    if wanted.name != found.name or wanted.name not in FEWER_PENDING:
        return False
    if wanted.lanes != found.lanes:
        return False
    rest = [{k: v for k, v in x.operands if k != "group"} for x in (wanted, found)]
    return rest[0] == rest[1] and 0 <= found.operand("group") <= wanted.operand("group")


def without_waits_for_none(operations: list[Operation]) -> list[Operation]:
    """Leave out a wait that leaves as many WGMMA groups pending as there are."""
    kept: list[Operation] = []
    pending = 0
    begun = False
    for x in operations:
        begun |= x.name == "wgmma_commit_group"
        pending += x.name == "wgmma_commit_group"
        if x.name == "wgmma_wait_group" and begun:
            if pending <= x.operand("group"):
                continue
            pending = x.operand("group")
        kept.append(x)
    return kept


def last_wait(operations: list[Operation]) -> list[Operation]:
    """Take a wait for groups and a wait for as many or more right behind it for the second.

    A wait for all groups also stands for those in front of products that go on with a sum: they are
    in order, and nothing in between reads a result or gives an operand away.
    """
    kept: list[Operation] = []
    for x in operations:
        if x.name == "wgmma_wait_group" and x.operand("group") == 0:
            i = len(kept) - 1
            while i >= 0:
                if kept[i].name == x.name and kept[i].lanes == x.lanes:
                    del kept[i]
                elif kept[i].name not in BETWEEN_PRODUCTS and kept[i].operand("scale_d") != 1:
                    break
                i -= 1
        if kept and x.name in FEWER_PENDING and at_least(kept[-1], x):
            kept[-1] = x
        else:
            kept.append(x)
    return kept


def one_group(operations: list[Operation]) -> list[Operation]:
    """Commit products with the next ones, where every wait is for all groups.

    With no wait in between, the next wait covers both, whether these are one group or two.
    """
    if any(x.name == "wgmma_wait_group" and x.operand("group") != 0 for x in operations):
        return operations
    kept: list[Operation] = []
    later = ""  # the next commit or wait
    for x in reversed(operations):
        if x.name == later == "wgmma_commit_group":
            continue
        if x.name in ("wgmma_commit_group", "wgmma_wait_group"):
            later = x.name
        kept.append(x)
    return kept[::-1]


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


def idle_lanes_wait_for_grid(operations: list[Operation]) -> list[Operation]:
    """Let lanes that do nothing any more wait for the grid before, too, as far as any lane does.

    Where no lane does anything, none waits.
    """
    places = [i for i, x in enumerate(operations) if waits_for_grid(x)]
    if not places:
        return operations
    last = places[-1]
    if last == len(operations) - 1:
        return [x for x in operations if not waits_for_grid(x)]
    busy = {lane for x in operations[last + 1 :] for lane in x.lanes}
    waiting = {operations[i].operand("lane") for i in places}
    model = operations[last]
    rest = tuple((k, v) for k, v in model.operands if k != "lane")
    idle = sorted(set(range(32)) - busy - waiting)
    added = [Operation(model.name, (), (*rest, ("lane", lane))) for lane in idle]
    first = last
    while first and waits_for_grid(operations[first - 1]):
        first -= 1
    run = sorted(operations[first : last + 1] + added, key=lambda x: x.operand("lane"))
    return [*operations[:first], *run, *operations[last + 1 :]]


def without_first_phase(operations: list[Operation]) -> list[Operation]:
    """Leave out waits for the phase before the first: it is over, and nobody has released in it."""
    return [x for x in operations if not (x.name in WAITS and x.operand("phase") == -1)]


def places_of(x: Operation) -> list[int]:
    """Return the addresses of mbarriers that the lanes of an arrival name, in the cluster."""
    value = x.operand("addr")
    if isinstance(value, tuple):
        _, dtype, data = value
        return [int(place) for place in np.frombuffer(data, dtype)]
    return [value] * max(len(x.lanes), 1)


def without_unawaited_releases(trace: Trace) -> Trace:
    """Leave out the arrivals of phases that no warp waits for.

    Of mbarriers at which so many warps as are counted arrive, one lane of each once a phase: behind
    the last phase that is waited for, nobody acquires what these release. Where CTAs arrive at each
    other's, these must be one cluster.
    """
    named = [(k[:-1], x, places_of(x)) for k, ops in trace.items() for x in ops if "addr" in x]
    if any(not isinstance(place, int) for _, _, places in named for place in places):
        return trace
    ranks = {cta: places[0] >> RANK_SHIFT for cta, x, places in named if x.name == INIT}
    alone = all(p >> RANK_SHIFT == ranks.get(cta) for cta, _, places in named for p in places)
    if not alone and len(set(ranks.values())) < len({key[:-1] for key in trace}):
        return trace

    def name(key: Any, place: int) -> Any:
        return place % (1 << 32), key[:-1] if alone else None

    counts: dict[Any, int] = {}
    awaited: dict[Any, int] = {}
    arriving: dict[Any, set[Any]] = {}
    others: set[Any] = set()
    for key, x in ((key, x) for key, ops in trace.items() for x in ops):
        if x.name in WAITS:
            place, phase = x.operand("0"), x.operand("phase")
            if phase is None or not isinstance(place, int):
                return trace
            place = name(key, place)
            awaited[place] = max(awaited.get(place, 0), phase + 1)
        elif "addr" in x:
            places = [name(key, place) for place in places_of(x)]
            if x.name == INIT:
                counts[places[0]] = x.operand("count")
            elif x.name == "mbarrier_arrive" and len(set(places)) == len(places):
                for place in places:
                    arriving.setdefault(place, set()).add(key)
            else:
                others |= set(places)
    spare = {p for p, keys in arriving.items() if counts.get(p) == len(keys)} - others
    result: Trace = {}
    for key, ops in trace.items():
        left = {place: awaited.get(place, 0) for place in spare}
        result[key] = []
        for x in ops:
            arrives = x.name == "mbarrier_arrive" and "addr" in x
            places = [name(key, p) for p in places_of(x)] if arrives else []
            for place in places:
                left[place] = left.get(place, 1 << 32) - 1
            if not places or max(left[place] for place in places) >= 0:
                result[key].append(x)
    return result


def without_grid_waits_of_others(trace: Trace) -> Trace:
    """Leave out waits for the grid before in front of a wait for copies of one that waited for it.

    What that grid did is visible to the whole grid behind the wait of any thread (PTX ISA 9.1,
    9.7.13.13); the copies are issued behind it, and a phase that they complete comes later.
    """
    early = set()  # barriers at which somebody arrives who may not have waited
    known = set()
    for key, operations in trace.items():
        waited = 0
        for x in operations:
            waited += waits_for_grid(x)
            place = x.operand("addr") if x.operand("mbar") is None else x.operand("mbar")
            if x.operand("cta_mask") is not None or isinstance(place, tuple):
                return trace
            if place is not None and x.name != INIT:
                name = (key[:-1], shared_offset(place))
                (known if waited >= 32 else early).add(name)
    result: Trace = {}
    for key, operations in trace.items():
        kept: list[Operation] = []
        for x in operations:
            name = (key[:-1], shared_offset(x.operand("0"))) if x.name in WAITS else None
            if name in known - early and (x.operand("phase") or 0) >= 0 and len(x.lanes) == 32:
                while kept and waits_for_grid(kept[-1]):
                    kept.pop()
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


def released_by_any_warp(trace: Trace) -> Trace:
    """Let any warp of a warp group arrive behind the group's `wgmma.wait_group`.

    Its products are executed by the four warps together; that one elected thread may release a slot
    for all of them is an assumption of the simulator as well (docs/simulator.md). A release is
    known by the groups that are complete, and by the waits for mbarriers before it.
    """
    result: Trace = {}
    released: dict[Any, list[Any]] = {}
    for key, operations in trace.items():
        kept: list[Operation] = []
        commits, waits, complete = 0, 0, None
        for x in operations:
            if complete is not None and x.name == "mbarrier_arrive" and x.elected:
                group = (*key[:-1], str(key[-1]).rpartition("/")[0])
                released.setdefault(group, []).append((complete, waits, x.operands))
                continue
            commits += x.name == "wgmma_commit_group"
            waits += x.name in WAITS
            waited = x.name == "wgmma_wait_group"
            complete = commits - x.operand("group") if waited else None
            kept.append(x)
        result[key] = kept
    for group, arrivals in released.items():
        result[group] = [Operation("released", (), (("0", sorted(arrivals, key=str)),))]
    return result
