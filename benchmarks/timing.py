"""Time contenders against one another: interleaved, by device events or by graph replay.

The chip's clock follows its power and heat within seconds, so a figure counts only beside that of
another contender taken in turn with it, after a warm-up of seconds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

GRAPH_BELOW_US = 50.0
CALLS_PER_GRAPH = 20
SYNC_EVERY = 16  # repeats; keeps the launch queue short of its limit


def _as_is(graph: Any) -> Any:
    return graph


@dataclass(frozen=True)
class Contender:
    """A way to compute the same thing: `call(i)` launches it on the i-th set of tensors."""

    name: str
    call: Callable[[int], Any]
    capture: Callable[[Any], Any] = _as_is  # wraps a torch.cuda.graph


@dataclass(frozen=True)
class Timing:
    """Times of one contender in microseconds."""

    name: str
    median_us: float
    p10_us: float
    p90_us: float
    repeats: int
    method: str


def measure(
    contenders: Sequence[Contender],
    num_sets: int,
    repeats: int = 50,
    warmup_seconds: float = 3.0,
    calls_per_graph: int = CALLS_PER_GRAPH,
    before: Callable[[], Any] | None = None,
) -> list[Timing]:
    """Return the times of every contender, taken in turn: A B B A A B ...

    `num_sets` sets of tensors are used one after the other, so that a small problem does not live
    in the cache. What takes less than 50 us is timed as the replay of a graph of some calls, for
    all: 20, or more where one call takes no longer than the launch of a graph.

    `before` runs in front of each call that is timed, and is not timed: what one contender leaves
    in the cache to be written is not the next one's to pay for. It is not for graphs.
    """
    _warm_up(contenders, num_sets, warmup_seconds)
    rough = by_events([_one_call(c, num_sets) for c in contenders], 10)
    if min(statistics.median(times) for times in rough) >= GRAPH_BELOW_US:
        steps, per_step, method = [_one_call(c, num_sets) for c in contenders], 1, "events"
    else:
        steps = [_graph(c, num_sets, calls_per_graph) for c in contenders]
        per_step, method = calls_per_graph, "graph"
        by_events(steps, 10)
        before = None
    samples = by_events(steps, repeats, before)
    return [
        _summary(contender.name, [t / per_step for t in times], method)
        for contender, times in zip(contenders, samples, strict=True)
    ]


def measure_cold(
    contenders: Sequence[Contender],
    num_sets: int,
    repeats: int = 11,
    calls: int = 0,
    warmup_seconds: float = 0.0,
) -> list[Timing]:
    """Return the times of every contender with inputs that are not in the L2 cache, in turn.

    The sets of tensors are to be larger than the cache together. Each time is that of a graph
    that visits all of them, as often as it takes for `calls` calls, divided by their number.
    """
    if warmup_seconds:
        _warm_up(contenders, num_sets, warmup_seconds)
    per_graph = num_sets * max(1, -(-calls // num_sets))
    steps = [_graph(contender, num_sets, per_graph) for contender in contenders]
    by_events(steps, 2)
    samples = by_events(steps, repeats)
    return [
        _summary(contender.name, [t / per_graph for t in times], "cold graph")
        for contender, times in zip(contenders, samples, strict=True)
    ]


def _summary(name: str, times: list[float], method: str) -> Timing:
    tenths = statistics.quantiles(times, n=10)
    return Timing(name, statistics.median(times), tenths[0], tenths[-1], len(times), method)


def _warm_up(contenders: Sequence[Contender], num_sets: int, seconds: float) -> None:
    import torch

    end, i = time.monotonic() + seconds, 0
    while i == 0 or time.monotonic() < end:
        for _ in range(SYNC_EVERY):
            for contender in contenders:
                contender.call(i % num_sets)
            i += 1
        torch.cuda.synchronize()


def _one_call(contender: Contender, num_sets: int) -> Callable[[int], None]:
    return lambda i: contender.call(i % num_sets)


def _graph(contender: Contender, num_sets: int, num_calls: int) -> Callable[[int], None]:
    import torch

    contender.call(0)  # what a library does once is not captured
    graph = torch.cuda.CUDAGraph()
    with contender.capture(torch.cuda.graph(graph)):
        for i in range(num_calls):
            contender.call(i % num_sets)
    return lambda _: graph.replay()


def by_events(
    steps: Sequence[Callable[[int], None]],
    repeats: int,
    before: Callable[[], Any] | None = None,
) -> list[list[float]]:
    """Return for each step its times in microseconds; the steps take turns.

    Every second time they come in the opposite order: who comes second may read 1 to 8% slow.
    """
    import torch

    torch.cuda.synchronize()
    events: list[list[tuple[Any, Any]]] = [[] for _ in steps]
    for i in range(repeats):
        for step, mine in list(zip(steps, events, strict=True))[:: -1 if i % 2 else 1]:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            if before is not None:
                before()
            start.record()
            step(i)
            end.record()
            mine.append((start, end))
        if i % SYNC_EVERY == SYNC_EVERY - 1:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return [[1000 * start.elapsed_time(end) for start, end in mine] for mine in events]
