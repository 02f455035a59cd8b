"""Proxy fences that another one makes superfluous: rules of `equivalence.py`.

A write is visible to the async proxy if a proxy fence is somewhere on the path of synchronisation
from the write to the access (PTX ISA 9.1, 8.9.1 "Causality order"): of the writer in front of a
barrier, or of the reader behind it.
"""

from collections.abc import Callable
from typing import Any

from .recording import Operation, Trace

FENCE, SYNC = "fence_proxy", "bar_sync"
NAMED = (SYNC, "bar_arrive")
# In front of these, nothing asynchronous has been read that a fence could keep from being written.
SETTING_UP = {"load", "store", "setmaxnreg", "mbarrier_init", "fence_mbarrier_init", FENCE, SYNC}
CTA_SYNC = "tvm_storage_sync"
SETTING_UP |= {CTA_SYNC, "cuda_cluster_sync", "griddepcontrol"}
IDLE = {"setmaxnreg", "griddepcontrol", "mbarrier_init", "fence_mbarrier_init", "prefetch"}

Beside = Callable[[Any, int], Any]


def _number(key: Any, x: Operation) -> Any:
    return key[:-1], x.operand("a")


def _turns(key: Any, operations: list[Operation]) -> list[int]:
    """Return for each operation the how manieth meeting at its barrier it is; else -1."""
    counts: dict[Any, int] = {}
    found = []
    for x in operations:
        if x.name in NAMED:
            counts[_number(key, x)] = counts.get(_number(key, x), -1) + 1
        found.append(counts[_number(key, x)] if x.name in NAMED else -1)
    return found


def _is_whole(x: Operation) -> bool:
    return x.name == FENCE and len(x.lanes) == 32


def _fences_beside(trace: Trace, step: int) -> Beside:
    """Return what finds the fence that all threads of a meeting do next to it, or None.

    `step` is -1 for right in front of it, 1 for right behind it.
    """
    fences: dict[Any, dict[Any, list[Any]]] = {}  # barriers -> warps -> beside each meeting
    counts: dict[Any, set[Any]] = {}
    for key, operations in trace.items():
        for i, x in enumerate(operations):
            if x.name in NAMED:
                near = operations[i + step] if 0 <= i + step < len(operations) else x
                whole = x.name == SYNC and len(x.lanes) == 32 and _is_whole(near)
                warps = fences.setdefault(_number(key, x), {})
                warps.setdefault(key, []).append(near.operands if whole else None)
                counts.setdefault(_number(key, x), set()).add(x.operand("b"))

    def beside(number: Any, turn: int) -> Any:
        warps = fences[number].values()
        alone = counts[number] == {32 * len(warps)} and len({len(x) for x in warps}) == 1
        found = {x[turn] for x in warps} if alone else {None}
        return found.pop() if len(found) == 1 else None

    return beside


def without_fences_of_nothing(trace: Trace) -> Trace:
    """Leave lanes out of a proxy fence that did nothing since their last one.

    Nothing: neither an access nor a wait. A named barrier in between tells a lane of accesses of
    others, unless the threads that meet there all did such a fence right in front of it.
    """
    in_front = _fences_beside(trace, -1)
    result: Trace = {}
    for key, operations in trace.items():
        clean: dict[int, Any] = {}  # lanes that did nothing since this fence
        kept = []
        for x, turn in zip(operations, _turns(key, operations), strict=True):
            if x.name == FENCE and len(x.lanes) > 1:
                left = tuple(lane for lane in x.lanes if clean.get(lane) != x.operands)
                clean |= dict.fromkeys(x.lanes, x.operands)
                if left:
                    kept.append(Operation(x.name, left, x.operands))
                continue
            kept.append(x)
            if turn >= 0 and in_front(_number(key, x), turn) is not None:
                continue
            # One lane of what is no access may be any: `elected_by_anybody`.
            known = len(x.lanes) > 1 or (x.lanes and x.name in ("load", "store"))
            gone = x.lanes if known else range(32)
            clean = {lane: fence for lane, fence in clean.items() if lane not in gone}
        result[key] = kept
    return result


def without_fences_of_idle_warps(trace: Trace) -> Trace:
    """Leave out a fence of shared memory of a warp that neither accessed any nor heard of it.

    All that it did was to set up, and to meet warps once that had done no more.
    """
    begun = {key: _set_up(operations, 0) for key, operations in trace.items()}
    hasty: set[Any] = set()  # CTAs with a warp that does more in front of the first meeting
    for key, operations in trace.items():
        following = {x.name for x in operations[begun[key] : begun[key] + 1]}
        if not following <= {CTA_SYNC, "released"}:  # what `released_by_any_warp` sets apart
            hasty.add(key[:-1])
    result: Trace = {}
    for key, operations in trace.items():
        place = begun[key] if key[:-1] in hasty else _set_up(operations, begun[key] + 1)
        spare = [x for x in operations[place : place + 1] if _is_whole(x)]
        spare = [x for x in spare if "shared" in str(x.operands)]
        result[key] = operations[:place] + operations[place + len(spare) :]
    return result


def _set_up(operations: list[Operation], first: int) -> int:
    """Return where a warp does something else than to set up, from a place on."""
    rest = range(first, len(operations))
    return next((i for i in rest if operations[i].name not in IDLE), len(operations))


def fences_behind_meetings(trace: Trace) -> Trace:
    """Take a fence of all who meet for one behind the meeting, and the last of several for all.

    The last one covers what an earlier one does if accesses and such meetings alone are in between.
    """
    moved = _moved_behind(trace)
    behind = _fences_beside(moved, 1)
    result: Trace = {}
    for key, operations in moved.items():
        kept: list[Operation] = []
        later: Any = None  # the fence that all of this comes to
        early = [x.name in SETTING_UP for x in operations]
        turns = _turns(key, operations)
        for i in range(len(operations) - 1, -1, -1):
            x = operations[i]
            if _is_whole(x):
                if x.operands == later and all(early[:i]):
                    continue
                later = x.operands
            elif turns[i] >= 0:
                later = later if behind(_number(key, x), turns[i]) == later else None
            elif x.name not in ("load", "store"):
                later = None
            kept.append(x)
        result[key] = kept[::-1]
    return result


def _moved_behind(trace: Trace) -> Trace:
    in_front = _fences_beside(trace, -1)
    moved: Trace = {}
    for key, operations in trace.items():
        kept: list[Operation] = []
        for x, turn in zip(operations, _turns(key, operations), strict=True):
            at = turn >= 0 and in_front(_number(key, x), turn) is not None
            kept.insert(len(kept) - at, x)
        moved[key] = kept
    return moved
