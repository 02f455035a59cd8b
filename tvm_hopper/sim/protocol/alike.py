"""Clusters whose threads synchronise alike: one of each kind is explored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tvm_hopper.sim.protocol.expr import Address
from tvm_hopper.sim.protocol.trace import SyncEvent, Trace, UnanalysableError

MAX_CLUSTERS = 512
Position = list[dict[str, int]]  # of each CTA of a cluster, by thread tag


def one_of_each_kind(
    places: list[Position], trace: Callable[[Position], list[Trace]]
) -> list[tuple[Position, list[Trace]]]:
    """Trace clusters, and keep the first of those whose events are the same.

    Raises
    ------
    UnanalysableError
        There are more than can be followed.
    """
    if len(places) > MAX_CLUSTERS:
        raise UnanalysableError(
            f"what {len(places)} clusters do follows from data; at most {MAX_CLUSTERS} are followed"
        )
    kinds: dict[Any, tuple[Position, list[Trace]]] = {}
    for members in places:
        traces = trace(members)
        kinds.setdefault(tuple(map(_likeness, traces)), (members, traces))
    return list(kinds.values())


def _likeness(trace: Trace) -> tuple[Any, ...]:
    return trace.truncated, *map(_of_event, trace.events)


def _of_event(event: SyncEvent) -> tuple[Any, ...]:
    return event.kind, id(event.node), event.mask.tobytes(), event.loops, *map(_of, event.values)


def _of(value: Any) -> Any:
    if isinstance(value, Address):
        return value.space, _of(value.offset), _of(value.rank)
    return (value.dtype.str, value.tobytes()) if isinstance(value, np.ndarray) else str(value)
