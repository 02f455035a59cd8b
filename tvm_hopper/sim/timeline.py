"""A run as a picture: one lane per warp and per asynchronous engine, waits visible.

Time counts scheduler steps, not cycles: it shows order and overlap, not speed.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

MAX_EVENTS = 200_000
_COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#da8bc3", "#8c8c8c")


class TimelineEvent(NamedTuple):
    """Something that one lane did from `start` to `end`; `kind` is run, wait, async or finding."""

    lane: str
    kind: str
    name: str
    start: int
    end: int


class Timeline:
    """The events of one result, as a Chrome trace (Perfetto reads it) or a figure."""

    def __init__(self, result: Any) -> None:
        self.events: list[TimelineEvent] = list(result.events)
        self.title = f"policy {result.policy}, seed {result.seed}, verdict {result.verdict}"

    @property
    def lanes(self) -> list[str]:
        """Names of the lanes: warps first, then asynchronous engines."""
        order = {"run": 0, "wait": 0, "async": 1, "finding": 0}
        found = dict.fromkeys(
            e.lane for e in sorted(self.events, key=lambda e: order[e.kind]) if e.kind != "finding"
        )
        return list(found)

    def to_chrome(self) -> dict[str, Any]:
        """Return the Chrome trace format: one microsecond per scheduler step."""
        lanes = {lane: number for number, lane in enumerate(self.lanes)}
        events: list[dict[str, Any]] = [
            {"ph": "M", "pid": 0, "tid": number, "name": "thread_name", "args": {"name": lane}}
            for lane, number in lanes.items()
        ]
        for e in self.events:
            common = {"pid": 0, "tid": lanes.get(e.lane, 0), "name": e.name, "cat": e.kind}
            if e.kind == "finding":
                events.append({**common, "ph": "i", "ts": e.start, "s": "t"})
            else:
                events.append({**common, "ph": "X", "ts": e.start, "dur": max(e.end - e.start, 1)})
        return {"traceEvents": events, "otherData": {"title": self.title}}

    def save(self, path: str | Path) -> Path:
        """Write the Chrome trace as JSON."""
        path = Path(path)
        path.write_text(json.dumps(self.to_chrome()))
        return path

    def figure(self, max_lanes: int = 40) -> Any:
        """Return a matplotlib figure: waits grey, copies in the colour of their stage."""
        from matplotlib.figure import Figure

        lanes = self.lanes[:max_lanes]
        rows = {lane: number for number, lane in enumerate(lanes)}
        figure = Figure(figsize=(12, 1 + 0.28 * len(lanes)), layout="constrained")
        axes = figure.subplots()
        for e in self.events:
            row = rows.get(e.lane)
            if row is None:
                continue
            if e.kind == "finding":
                axes.plot([e.start], [row], marker="x", color="red", markersize=9)
                axes.annotate(e.name, (e.start, row), color="red", fontsize=6)
                continue
            axes.barh(
                row,
                max(e.end - e.start, 1),
                left=e.start,
                height=0.25 if e.kind == "wait" else 0.7,
                color=_colour(e),
                alpha=0.6 if e.kind == "async" else 1,
                lw=0,
            )
        axes.set_yticks(range(len(lanes)), lanes, fontsize=6)
        axes.invert_yaxis()
        axes.set_xlabel("scheduler step")
        axes.set_title(self.title, fontsize=9)
        return figure


def _colour(event: TimelineEvent) -> str:
    if event.kind == "wait":
        return "#dddddd"
    stage = re.search(r"\[(\d+)\]", event.name)
    if event.kind == "async" and stage:
        return _COLOURS[int(stage[1]) % len(_COLOURS)]
    return "#333333" if event.kind == "run" else _COLOURS[-1]
