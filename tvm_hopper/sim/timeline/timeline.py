"""`Timeline`: the lanes of some CTAs of one run, and their drawings."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tvm_hopper.errors import HopperError, require_packages
from tvm_hopper.sim.findings import Finding
from tvm_hopper.sim.timeline.events import TimelineEvent
from tvm_hopper.sim.timeline.lanes import lanes_of
from tvm_hopper.sim.timeline.spans import Lane, Mark

LONG = 100  # units of the axis beyond which a figure leaves out repeated steps
LEAD, MIDDLE, TAIL = 3, 2, 2  # steps of the ring that it shows then


class Timeline:
    """The steps of one CTA's warps and units, in order.

    Parameters
    ----------
    result : Result
        Of a run that kept its events.
    cta : tuple of int, list of these, "all", or None
        Block indices of the CTAs to show; None: the one of the first finding, else the first.
    launch : int or None
        Number of the launch; None: the one of the first finding, else the first.

    Attributes
    ----------
    title : str
        Policy, seed, verdict and CTAs.
    notes : list of str
        Notes on parts that the lanes leave out.
    steps : list of int
        The scheduler step at each unit of the axis.
    """

    def __init__(self, result: Any, cta: Any = None, launch: int | None = None) -> None:
        self.findings: tuple[Finding, ...] = tuple(result.findings)
        self.policy, self.seed, self.verdict = result.policy, result.seed, result.verdict
        launch, events = _of_launch(list(result.events), launch)
        found = [e for e in events if e.kind == "finding" and e.warp >= 0]
        known = sorted({e.cta for e in events if e.kind == "life"}, key=lambda cta: cta[::-1])
        self.ctas = _chosen(known, cta, found[0].cta if found else None)
        self.notes: list[str] = []
        self.barriers: dict[str, str] = {}  # name in findings -> name in the lanes
        self.last = max((max(e.start, e.end) for e in events), default=0)
        raw, of_warp = self._lanes(events)
        if result.events_left_out:
            self.notes.append(f"{result.events_left_out} later events were not kept")
        shown = [e for e in events if e.kind == "finding" and (e.cta in self.ctas or e.warp < 0)]
        self._place(
            raw, [Mark(e.number, e.name, of_warp.get((e.cta, e.warp)), 2 * e.start) for e in shown]
        )
        where = ", ".join(str(one) for one in self.ctas[:4]) + (", ..." * (len(self.ctas) > 4))
        self.title = (
            f"CTA {where} under policy {self.policy!r}, seed {self.seed}: {self.verdict}"
            + (f" (launch {launch})" if launch else "")
        )

    def _lanes(
        self, events: Sequence[TimelineEvent]
    ) -> tuple[list[Lane], dict[tuple[tuple[int, ...], int], int]]:
        """Return the lanes of all CTAs, and the number of each warp's lane."""
        raw: list[Lane] = []
        of_warp: dict[tuple[tuple[int, ...], int], int] = {}
        for one in self.ctas:
            prefix = f"cta {','.join(map(str, one))}: " if len(self.ctas) > 1 else ""
            mine = [e for e in events if e.cta == one]
            lanes, roles, rings, note = lanes_of(mine, self.last, prefix)
            if len(self.ctas) == 1:
                self.barriers.update((e.place, rings.name(e)) for e in mine if e.place)
            names = [lane.name for lane in lanes]
            for role in roles:
                if prefix + role.name in names:
                    number = len(raw) + names.index(prefix + role.name)
                    of_warp.update({(one, warp): number for warp in role.warps})
            raw += lanes
            self.notes += [prefix + note] if note else []
        return raw, of_warp

    def _place(self, raw: Sequence[Lane], marks: Sequence[Mark]) -> None:
        """Put spans and marks on an axis that has a unit for each moment at which something is."""
        moments = {x for lane in raw for s in lane.spans for x in (s.start, s.end)}
        self._moments = sorted(moments | {mark.at for mark in marks}) or [0]
        place = {moment: number for number, moment in enumerate(self._moments)}
        self.steps = [moment // 2 for moment in self._moments]
        self.lanes = []
        for lane in raw:
            spans = sorted(lane.spans, key=lambda s: (s.start, s.row))
            placed = (replace(s, start=place[s.start], end=place[s.end]) for s in spans)
            self.lanes.append(replace(lane, spans=tuple(placed)))
        self.marks = [replace(mark, at=place[mark.at]) for mark in marks]

    def message(self, finding: Finding) -> str:
        """Return the message of a finding, with mbarriers named as in the lanes."""
        text = finding.message
        for place, name in self.barriers.items():
            text = text.replace(place, name)
        return text

    @cached_property
    def ring_steps(self) -> dict[int, tuple[int, int]]:
        """Where each step of the rings begins and ends on the axis."""
        found: dict[int, tuple[int, int]] = {}
        for lane in self.lanes:
            for s in lane.spans:
                if s.step >= 0 and s.kind in ("copy", "active", "product"):
                    low, high = found.get(s.step, (s.start, s.end))
                    found[s.step] = min(low, s.start), max(high, s.end)
        return dict(sorted(found.items()))

    def windows(
        self,
        first: int | None = None,
        last: int | None = None,
        window: tuple[int, int] | None = None,
    ) -> list[tuple[str, int, int]]:
        """Return the parts of the axis to draw, each with a name.

        - `first`, `last`: how many steps of the ring to show from its begin, and before its end.
        - `window`: scheduler steps, from the one up to the other. Without any of the three: all of
          a short run; of a long one its prologue, some steps in the middle (around the first
          finding, if there is one) and its end.
        - raises ValueError: a window that is empty, or steps of a run that has no ring.
        """
        end = len(self._moments) - 1
        if window is not None:
            low = bisect.bisect_left(self.steps, window[0])
            high = min(bisect.bisect_right(self.steps, window[1]), end)
            if low >= high:
                raise ValueError(
                    f"window: found {window!r}; need scheduler steps from 0 to {self.last}, the "
                    "lower one first"
                )
            return [("", low, high)]
        if first is not None or last is not None:
            return self._of_steps(first, last, end)
        return [("", 0, end)] if end <= LONG else self._of_a_long_run(end)

    def _of_steps(
        self, first: int | None, last: int | None, end: int
    ) -> list[tuple[str, int, int]]:
        """Return the parts of the axis that the first and the last steps of the ring take."""
        numbers = list(self.ring_steps)
        if not numbers or (first or 0) < 0 or (last or 0) < 0:
            raise ValueError(
                f"first, last: found first={first}, last={last} of a run with {len(numbers)} "
                "steps of a ring; need numbers of steps from 0, or window=(step, step)"
            )
        parts = [("begin", 0, self._until(numbers, first))] if first else []
        parts += [("end", self._since(numbers, last), end)] if last else []
        return _joined(parts) or [("", 0, end)]

    def _of_a_long_run(self, end: int) -> list[tuple[str, int, int]]:
        """Return its prologue, some steps in the middle or around the first finding, its end."""
        numbers = list(self.ring_steps)
        marked = [mark.at for mark in self.marks if mark.lane is not None]
        if len(numbers) <= LEAD + MIDDLE + TAIL:
            third = LONG // 3
            middle = marked[0] if marked else end // 2
            begin, tail = third, end - third
            inner = (middle - third // 2, middle + third // 2)
        else:
            begin, tail = self._until(numbers, LEAD), self._since(numbers, TAIL)
            half = len(numbers) // 2
            ends = [self.ring_steps[n][1] for n in numbers]
            inner = (ends[half - 1], ends[half - 1 + MIDDLE])
            if marked:
                unit = max(inner[1] - inner[0], 1)
                inner = (marked[0] - unit * 2 // 3, marked[0] + unit // 3)
        name = "around finding 1" if marked else "steady state"
        inner = max(inner[0], 0), min(inner[1], end)
        return _joined([("prologue", 0, begin), (name, *inner), ("end", tail, end)])

    def _until(self, numbers: Sequence[int], count: int | None) -> int:
        """Return where the first steps of the ring have ended."""
        count = min(count or 0, len(numbers))
        return max(self.ring_steps[n][1] for n in numbers[:count])

    def _since(self, numbers: Sequence[int], count: int | None) -> int:
        """Return where the step before the last ones has ended."""
        before = len(numbers) - min(count or 0, len(numbers))
        return self.ring_steps[numbers[before - 1]][1] if before else 0

    def figure(
        self,
        first: int | None = None,
        last: int | None = None,
        window: tuple[int, int] | None = None,
        max_lanes: int = 40,
    ) -> Any:
        """Return a matplotlib figure: the bars of a stage in one colour, waits hatched.

        - `first`, `last`, `window`: part to show: see `windows`.
        - `max_lanes`: how many lanes, from above.
        - raises ValueError: as `windows`.
        - raises HopperError: matplotlib is not installed.
        """
        require_packages("timeline.figure", "matplotlib")
        from tvm_hopper.sim.timeline.picture import draw

        return draw(self, self.windows(first, last, window), max_lanes)

    def html(self, path: str | Path) -> Path:
        """Write one HTML file that needs no network: lanes to move and zoom, and the findings.

        - raises HopperError: bokeh is not installed.
        """
        require_packages("timeline.html", "bokeh")
        from tvm_hopper.sim.timeline.page import page

        path = Path(path)
        path.write_text(page(self), encoding="utf-8")
        return path

    def _repr_html_(self) -> str:
        """Return the figure as an image with its findings, for notebooks."""
        import base64
        import io
        from html import escape

        from tvm_hopper.sim.tables import verdict_html

        try:
            require_packages(str(self.title), "matplotlib")
        except HopperError as error:
            return f"<pre>{escape(str(error))}</pre>{verdict_html('', (), self.findings)}"
        data = io.BytesIO()
        self.figure().savefig(data, format="png", dpi=110)
        image = base64.b64encode(data.getvalue()).decode("ascii")
        picture = (
            f'<img alt="{escape(self.title)}" style="max-width: 100%" '
            f'src="data:image/png;base64,{image}">'
        )
        if not self.findings:
            return picture
        table = verdict_html("", (), self.findings)
        return f"{picture}<details><summary>findings</summary>{table}</details>"

    def to_chrome(self) -> dict[str, Any]:
        """Return the Chrome trace format, which Perfetto reads: a process a CTA, a thread a lane.

        One microsecond stands for one unit of the axis: something that is drawn begins or ends.
        """
        from tvm_hopper.sim.timeline.trace import chrome_trace

        return chrome_trace(self)

    def save(self, path: str | Path) -> Path:
        """Write the Chrome trace as JSON."""
        import json

        path = Path(path)
        path.write_text(json.dumps(self.to_chrome()))
        return path


def _of_launch(events: list[TimelineEvent], launch: int | None) -> tuple[int, list[TimelineEvent]]:
    """Return the events of a launch; None: of the one with the first finding, else the first."""
    if launch is None:
        launch = next((e.launch for e in events if e.kind == "finding" and e.warp >= 0), 0)
    return launch, [e for e in events if e.launch == launch]


def _chosen(
    known: list[tuple[int, ...]], cta: Any, of_finding: tuple[int, ...] | None
) -> list[tuple[int, ...]]:
    if not known:
        raise ValueError(
            "timeline: found no events; need a run that keeps them: simulate(...), or "
            "verify(...).timeline()"
        )
    if cta is None:
        return [of_finding if of_finding in known else known[0]]
    if isinstance(cta, str) and cta == "all":
        return known
    requested = [cta] if isinstance(cta, tuple) else cta
    requested = [
        (*one, 0, 0, 0)[:3] if isinstance(one, tuple) else one for one in requested or [None]
    ]
    for one in requested:
        if one not in known:
            raise ValueError(
                f"cta: found {one!r}; need block indices among the CTAs that ran: "
                f'{", ".join(map(str, known[:8]))}{", ..." * (len(known) > 8)}, or "all"'
            )
    return list(requested)


def _joined(parts: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """Join parts that touch."""
    joined: list[tuple[str, int, int]] = []
    for name, low, high in sorted(parts, key=lambda part: part[1]):
        if joined and low <= joined[-1][2] + 1:
            before = joined.pop()
            name = before[0] if high <= before[2] else f"{before[0]}, {name}"
            low, high = before[1], max(high, before[2])
        joined.append((name, low, high))
    return joined
