"""Meetings of threads that order nothing: a rule of `equivalence.py`."""

from collections.abc import Callable

from .recording import Operation, Trace

# What all threads of a CTA, or of a cluster, come to.
MEETINGS = ("tvm_storage_sync", "cuda_cluster_sync")
FENCES = {"fence_proxy", "cuda_warp_sync"}
COPIES = ("cp_async_bulk_tensor_g2s", "cp_async_bulk_g2s")
EXPECTS = "mbarrier_arrive_expect_tx"


def without_spare_meetings(trace: Trace) -> Trace:
    """Leave out a meeting that the next one makes superfluous.

    Either nobody does anything in between, or one warp alone does anything since the last and until
    the next. The other warps then neither wait for that warp's work before the next meeting, nor
    did anything that it could wait for: its own program order is all there is. It may initialise
    barriers and issue copies; then nothing is there that a proxy fence of the others could order.

    Or nobody has done anything but to initialise barriers in front of an earlier meeting, and to
    issue copies: who needs these waits for their mbarrier.
    """
    for name, num_same in zip(MEETINGS, (-1, -2), strict=True):  # of one CTA; of all
        result: Trace = {}
        for group in {key[:num_same] for key in trace}:
            members = {key: x for key, x in trace.items() if key[:num_same] == group}
            for spare in (_is_early, _is_spare):
                members = _without_spare(members, name, spare)
            result |= members
        trace = result
    return trace


Spare = Callable[[list[list[Operation]], list[list[Operation]], list[Operation]], bool]


def _without_spare(trace: Trace, name: str, is_spare: Spare) -> Trace:
    warps = {key: _between(x, name) for key, x in trace.items()}
    if len({len(parts) for parts in warps.values()}) != 1:
        return trace
    meeting = next((x for ops in trace.values() for x in ops if x.name == name), None)
    (count,) = {len(parts) for parts in warps.values()}
    kept = {key: list(parts[0]) for key, parts in warps.items()}
    recent = {key: list(parts[0]) for key, parts in warps.items()}  # since the last meeting
    begun: list[Operation] = []  # by anybody, in front of the meeting
    for i in range(1, count):
        follows = i < count - 1
        behind = [parts[i] for parts in warps.values()]
        nothing = not any(parts[i] for parts in warps.values())
        begun += [x for parts in warps.values() for x in parts[i - 1]]
        spare = follows and (nothing or is_spare(list(recent.values()), behind, begun))
        for key, parts in warps.items():
            if not spare:
                assert meeting is not None  # there are several parts
                kept[key].append(meeting)
                recent[key] = []
            kept[key] += parts[i]
            recent[key] += parts[i]
    return kept


ISSUED = {EXPECTS, *COPIES}
SET_UP = {"mbarrier_init", "fence_mbarrier_init", *ISSUED}


def _is_early(
    before: list[list[Operation]], _: list[list[Operation]], begun: list[Operation]
) -> bool:
    """Tell whether nobody did anything yet, nor initialised barriers since the last meeting."""
    return _names(begun) <= SET_UP and all(_names(x) <= ISSUED for x in before)


def _is_spare(
    before: list[list[Operation]], behind: list[list[Operation]], _: list[Operation]
) -> bool:
    """Tell whether a meeting orders nothing, from what warps do around it."""
    busy = [found for x, y in zip(before, behind, strict=True) if (found := _names(x + y))]
    return not busy or (len(busy) == 1 and busy[0] <= SET_UP)


def _names(operations: list[Operation]) -> set[str]:
    return {x.name for x in operations} - FENCES


def _between(operations: list[Operation], name: str) -> list[list[Operation]]:
    parts: list[list[Operation]] = [[]]
    for x in operations:
        if x.name == name:
            parts.append([])
        else:
            parts[-1].append(x)
    return parts
