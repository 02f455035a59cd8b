"""A timeline as a Chrome trace: a process a CTA, a thread a role or a row of a unit."""

from __future__ import annotations

from typing import Any

from tvm_hopper.sim.timeline.spans import Lane, Span


def thread_name(lane: Lane, row: int) -> str:
    """Return the name of one row of a lane."""
    names = [name for name in lane.rows[: row + 1] if name]
    name = f"{lane.name}, {names[-1]}" if names else lane.name
    same = row - max((n for n in range(row + 1) if lane.rows[n]), default=0)
    return f"{name} ({same + 1})" if same else name


def chrome_trace(timeline: Any) -> dict[str, Any]:
    """Return the events of the trace; args hold statement, stage, phase and other details."""
    events: list[dict[str, Any]] = []
    threads: dict[tuple[int, int], tuple[int, int]] = {}  # lane and row -> process and thread
    for number, cta in enumerate(timeline.ctas):
        name = f"CTA {','.join(map(str, cta))}"
        events.append(_named("process_name", number, 0, name))
    for number, lane in enumerate(timeline.lanes):
        process = timeline.ctas.index(lane.cta)
        for row in range(len(lane.rows)):
            thread = len(threads)
            threads[number, row] = process, thread
            name = thread_name(lane, row).partition(": ")[2] or thread_name(lane, row)
            events.append(_named("thread_name", process, thread, name))
            order = {"sort_index": thread}
            events.append({**_named("thread_sort_index", process, thread, ""), "args": order})
    for number, lane in enumerate(timeline.lanes):
        for span in lane.spans:
            process, thread = threads[number, span.row]
            events.append(_complete(span, process, thread))
    for mark in timeline.marks:
        process, thread = threads.get((mark.lane or 0, 0), (0, 0))
        found = timeline.findings[mark.number]
        args = {"message": timeline.message(found), "missing": found.missing, "fix": found.hint}
        events.append(
            {
                **{"ph": "i", "s": "t" if mark.lane is not None else "g", "cat": "finding"},
                **{"pid": process, "tid": thread, "ts": mark.at, "name": mark.rule, "args": args},
            }
        )
    return {"traceEvents": events, "otherData": {"title": timeline.title}}


def _named(metadata: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": thread, "name": metadata, "args": {"name": name}}


def _complete(span: Span, process: int, thread: int) -> dict[str, Any]:
    name = f"waits for {span.label}" if span.kind == "wait" else span.label or "works"
    if span.step >= 0:
        name = f"step {span.label}"
    return {
        **{"ph": "X", "pid": process, "tid": thread, "ts": span.start},
        **{"dur": span.end - span.start, "name": name, "cat": span.kind, "args": dict(span.facts)},
    }
