"""Releases and meetings that no thread needs any more, or twice: rules of `equivalence.py`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tvm_hopper.sim.machine.memory import RANK_SHIFT, shared_offset

from .recording import Operation, Trace
from .spare_syncs import INIT, WAITS, places_of

ARRIVE = "mbarrier_arrive"
ARRIVALS = (ARRIVE, "mbarrier_arrive_expect_tx")
CLUSTER_ARRIVE, CLUSTER_WAIT = "barrier_cluster_arrive", "barrier_cluster_wait"
SYNC, NAMED = "bar_sync", ("bar_sync", "bar_arrive")
Place = tuple[Any, int]  # of an mbarrier: its CTA, and the byte


def _uses(trace: Trace) -> dict[Place, list[tuple[Any, int, Operation]]] | None:
    """Return who names each mbarrier, where; None if a CTA names others', or lanes several."""
    found: dict[Place, list[tuple[Any, int, Operation]]] = {}
    ranks: dict[Any, int] = {}
    for key, operations in trace.items():
        for i, x in enumerate(operations):
            place = x.operand("0") if x.name in WAITS else x.operand("mbar")
            if "addr" in x and x.name.startswith("mbarrier"):
                place = places_of(x)[0]
                if len(set(places_of(x))) > 1 or not isinstance(place, int):
                    return None
                if ranks.setdefault(key[:-1], place >> RANK_SHIFT) != place >> RANK_SHIFT:
                    return None
            if x.operand("cta_mask") is not None or isinstance(place, tuple):
                return None
            if isinstance(place, int):
                found.setdefault((key[:-1], shared_offset(place)), []).append((key, i, x))
    return found


def without_late_releases(trace: Trace) -> Trace:
    """Leave out arrivals in phases that no warp waits for, whatever the order of other arrivals.

    Where one warp P alone waits for an mbarrier: the arrivals of a warp that knows P to be past its
    last wait. It has waited for a phase of another mbarrier, of which P makes each arrival, and P
    makes the arrival of that phase behind its last wait. So P's waits are over before, and what is
    released is acquired by no warp.
    """
    uses = _uses(trace)
    if uses is None:
        return trace
    last_wait: dict[Place, dict[Any, int]] = {}  # of each warp
    made_by: dict[Place, tuple[Any, list[int]]] = {}  # the only warp that arrives, and where
    for place, named in uses.items():
        waits = [(key, i) for key, i, x in named if x.name in WAITS]
        arrivals = [(key, i) for key, i, x in named if x.name in ARRIVALS and x.elected]
        counts = [x.operand("count") for _, _, x in named if x.name == INIT]
        last_wait[place] = dict(waits)
        several = any(x.name in ARRIVALS and not x.elected for _, _, x in named)
        if len({key for key, _ in arrivals}) == 1 and counts == [1] and not several:
            made_by[place] = arrivals[0][0], [i for _, i in arrivals]
    result: Trace = {}
    for key, operations in trace.items():
        passed: dict[Any, int] = {}  # how far other warps have come, by what this one waited for
        kept = []
        for x in operations:
            if x.name in WAITS and isinstance(x.operand("0"), int):
                other, steps = made_by.get((key[:-1], shared_offset(x.operand("0"))), (None, []))
                phase = x.operand("phase")
                if phase is not None and 0 <= phase < len(steps):
                    passed[other] = max(passed.get(other, -1), steps[phase])
            if x.name == ARRIVE and "addr" in x:
                waiting = last_wait.get((key[:-1], shared_offset(places_of(x)[0])), {})
                over = all(passed.get(who, -1) > i for who, i in waiting.items())
                if len(waiting) == 1 and over:
                    continue
            kept.append(x)
        result[key] = kept
    return result


def without_unawaited_counts(trace: Trace) -> Trace:
    """Let an mbarrier that is only made and arrived at count the warps that arrive.

    No warp waits for a phase of it. That no more arrive than are counted is the judges' part.
    """
    uses = _uses(trace)
    if uses is None:
        return trace
    result = {key: list(operations) for key, operations in trace.items()}
    for named in uses.values():
        if {x.name for _, _, x in named} == {INIT, ARRIVE}:
            count = len({key for key, _, x in named if x.name == ARRIVE})
            for key, i, x in named:
                operands = tuple((k, count if k == "count" else v) for k, v in x.operands)
                result[key][i] = Operation(x.name, x.lanes, operands)
    return result


def without_unmet_arrivals(trace: Trace) -> Trace:
    """Leave out arrivals at a named barrier at which no warp of the CTA waits.

    `barrier.arrive` does not wait itself (PTX ISA 9.1, 9.7.13.1), and nothing acquires it.
    """
    met = {(k[:-1], x.operand("a")) for k, ops in trace.items() for x in ops if x.name == SYNC}
    return {
        key: [x for x in ops if x.name != NAMED[1] or (key[:-1], x.operand("a")) in met]
        for key, ops in trace.items()
    }


def without_meetings_behind_the_cluster(trace: Trace) -> Trace:
    """Leave out a named barrier of whole warps that all come to right behind the cluster's barrier.

    That one orders what each of them did before with what each does behind it, and between the two
    nothing is done.
    """
    uses: dict[Any, dict[Any, list[int]]] = {}
    counts: dict[Any, set[Any]] = {}
    for key, operations in trace.items():
        for i, x in enumerate(operations):
            if x.name in NAMED:
                number = (key[:-1], x.operand("a"))
                uses.setdefault(number, {}).setdefault(key, []).append(i)
                whole = x.name == SYNC and len(x.lanes) == 32
                counts.setdefault(number, set()).add(x.operand("b") if whole else None)
    spare: dict[Any, set[int]] = {key: set() for key in trace}
    for number, users in uses.items():
        times = {len(places) for places in users.values()}
        if counts[number] != {32 * len(users)} or len(times) != 1:
            continue
        for turn in range(*times):
            if all(_behind_the_cluster(trace[key], places[turn]) for key, places in users.items()):
                for key, places in users.items():
                    spare[key].add(places[turn])
    return {k: [x for i, x in enumerate(ops) if i not in spare[k]] for k, ops in trace.items()}


def _behind_the_cluster(operations: list[Operation], place: int) -> bool:
    before = operations[max(place - 2, 0) : place]
    whole = all(len(x.lanes) == 32 and "relaxed" not in str(x.operand("0")) for x in before)
    return whole and [x.name for x in before] == [CLUSTER_ARRIVE, CLUSTER_WAIT]


def without_last_waits_for_the_cluster(trace: Trace) -> Trace:
    """Let any warp of a CTA wait for the cluster at the end: nothing follows that it orders.

    It keeps the CTA's shared memory until the others have come, which one warp does for all.
    """
    result: Trace = {}
    held: dict[Any, set[int]] = {}  # generations that the warps of a CTA stay for
    for key, operations in trace.items():
        result[key] = operations
        if operations and operations[-1].name == CLUSTER_WAIT and len(operations[-1].lanes) == 32:
            result[key] = operations[:-1]
            times = sum(x.name == CLUSTER_ARRIVE for x in operations)
            held.setdefault(key[:-1], set()).add(times)
    for cta, generations in held.items():
        result[(*cta, "stays")] = [Operation("stays", (), (("0", tuple(sorted(generations))),))]
    return result


def without_added_meetings(before: Trace, after: Trace) -> Trace:
    """Leave out named barriers that only the second program has: they order more, and no less.

    Those at which whole warps meet and none arrives alone (`meetings_by_who_meets` has named them
    by these); that all of them come, each as often, is the judges' part.
    """

    def meetings(trace: Trace) -> Counter[Any]:
        return Counter(
            (key[:-1], x.operand("a"))
            for key, ops in trace.items()
            for x in ops
            if x.name == SYNC and isinstance(x.operand("a"), tuple)
        )

    added = meetings(after).keys() - meetings(before).keys()
    return {
        key: [x for x in ops if x.name != SYNC or (key[:-1], x.operand("a")) not in added]
        for key, ops in after.items()
    }
