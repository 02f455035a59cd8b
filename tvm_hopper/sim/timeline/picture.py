"""A timeline for print, by matplotlib: lanes from top to bottom, parts of the axis side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from tvm_hopper.sim.timeline.spans import (
    FINDING,
    NO_STAGE,
    STAGES,
    WAIT,
    WAIT_EDGE,
    Mark,
    Span,
    fill_colour,
    text_colour,
)

WIDTH = 13.0  # inches
ROW = 0.21  # inches of a row
SIDES = 2.6  # inches of the width that are no axis
FONT = 7.0  # points
WIDE = 0.62  # width of a character by its height
MAX_LISTED = 8  # findings below the picture


def draw(timeline: Any, windows: Sequence[tuple[str, int, int]], max_lanes: int) -> Any:
    """Return a matplotlib figure of some parts of a timeline."""
    from matplotlib.figure import Figure

    lanes = timeline.lanes[:max_lanes]
    tops, top = [], 0.0
    for lane in lanes:
        tops.append(top)
        top += max(len(lane.rows), 1) + 0.45
    listed = _listed(timeline)
    height = 1.5 + ROW * top + 0.155 * listed.count("\n") + (0.155 if listed else 0)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    widths = [max(high - low, 1) for _, low, high in windows]
    grid = figure.subplots(
        1, len(windows), sharey=True, squeeze=False, gridspec_kw={"width_ratios": widths}
    )
    unit = (WIDTH - SIDES) * 72 / sum(widths)  # points
    for axes, (name, low, high) in zip(grid[0], windows, strict=True):
        for lane, at in zip(lanes, tops, strict=True):
            for span in lane.spans:
                if span.end > low and span.start < high:
                    _bar(axes, span, at, max(span.start, low), min(span.end, high), unit)
        for at, marks in _by_moment(timeline.marks).items():
            if low <= at <= high:
                _mark(axes, at, marks, tops)
        for at in tops[1:]:
            axes.axhline(at - 0.22, color="#DDDDDD", lw=0.6, zorder=0)
        axes.set_xlim(low, high)
        axes.set_ylim(top - 0.2, -1.3 if timeline.marks else -0.25)
        axes.set_title(name, fontsize=FONT + 1, loc="left", color="#444444")
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        _ticks(axes, timeline.steps, low, high, unit)
    left = grid[0][0]
    left.set_yticks(*_row_names(lanes, tops), fontsize=FONT)
    for axes in grid[0]:
        axes.tick_params(axis="y", length=0)
    figure.suptitle(timeline.title, fontsize=FONT + 3, x=0.01, ha="left")
    figure.supxlabel(
        "scheduler step (order, not time: one unit wherever something begins or ends)"
        + ("\n" + listed if listed else ""),
        fontsize=FONT,
        x=0.01,
        ha="left",
    )
    _legend(figure, timeline)
    return figure


def _bar(axes: Any, span: Span, top: float, low: int, high: int, unit: float) -> None:
    waits = span.kind == "wait"
    colour = fill_colour(span)
    at = top + span.row
    axes.barh(
        at,
        high - low,
        left=low,
        height=0.84,
        align="edge",
        color=colour,
        hatch="////" if waits else None,
        edgecolor=WAIT_EDGE if waits else "#333333",
        lw=0.3 if waits else 0.5,
        zorder=2,
    )
    label = _fitting(span, (high - low) * unit)
    if label:
        axes.text(
            *((low + high) / 2, at + 0.45, label),
            ha="center",
            va="center",
            fontsize=FONT - (1 if waits else 0),
            color=text_colour(colour),
            clip_on=True,
            zorder=4,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6} if waits else None,
            parse_math=False,
        )


def _fitting(span: Span, points: float) -> str:
    """Return the longest text of a span that fits into its bar."""
    size = FONT - (1 if span.kind == "wait" else 0)
    texts = [span.label]
    if span.kind == "wait":
        texts.append(span.label.replace(" phase ", ":"))
    return next((text for text in texts if len(text) * size * WIDE + 2 <= points), "")


def _by_moment(marks: Sequence[Mark]) -> dict[int, list[Mark]]:
    found: dict[int, list[Mark]] = {}
    for mark in marks:
        found.setdefault(mark.at, []).append(mark)
    return found


def _mark(axes: Any, at: int, marks: Sequence[Mark], tops: Sequence[float]) -> None:
    axes.axvline(at, color=FINDING, lw=0.9, ls=(0, (4, 2)), zorder=3)
    for lane in {mark.lane for mark in marks}:
        if lane is not None and lane < len(tops):
            axes.plot(
                *([at], [tops[lane] + 0.42]),
                marker="X",
                color=FINDING,
                markeredgecolor="white",
                markersize=9,
                zorder=6,
            )
    numbers = [mark.number + 1 for mark in marks]
    axes.text(
        *(at, -0.75, str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"),
        ha="center",
        va="center",
        fontsize=FONT,
        color="white",
        weight="bold",
        bbox={"boxstyle": "round,pad=0.25", "facecolor": FINDING, "edgecolor": "none"},
        zorder=7,
    )


def _row_names(lanes: Sequence[Any], tops: Sequence[float]) -> tuple[list[float], list[str]]:
    places, names = [], []
    for lane, top in zip(lanes, tops, strict=True):
        for number, row in enumerate(lane.rows):
            text = ", ".join(x for x in (lane.name if number == 0 else "", row) if x)
            if text:
                places.append(top + number + 0.45)
                names.append(text.replace("$", r"\$"))
    return places, names


def _ticks(axes: Any, steps: Sequence[int], low: int, high: int, unit: float) -> None:
    every = max(int(30 / unit), 1)
    places = list(range(low, high + 1, every))
    axes.set_xticks(places, [str(steps[place]) for place in places], fontsize=FONT - 1)


def _listed(timeline: Any) -> str:
    """Return the findings in words, and notes on parts that the lanes leave out."""
    lines = []
    for number, finding in enumerate(timeline.findings[:MAX_LISTED], 1):
        text = f"{number}  {finding.rule}: {timeline.message(finding)}"
        if finding.missing:
            text += f"; missing: {finding.missing}"
        lines += textwrap.wrap(text, 235, subsequent_indent="    ")[:2]
    if len(timeline.findings) > MAX_LISTED:
        lines.append(f"and {len(timeline.findings) - MAX_LISTED} more findings")
    lines += timeline.notes
    return "\n".join(lines).replace("$", r"\$")


def _legend(figure: Any, timeline: Any) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    stages = sorted({s.stage for lane in timeline.lanes for s in lane.spans if s.stage >= 0})
    handles: list[Any] = [
        Patch(facecolor=STAGES[stage % len(STAGES)], edgecolor="#333333", label=f"stage {stage}")
        for stage in stages[: len(STAGES)]
    ]
    handles.append(Patch(facecolor=NO_STAGE, edgecolor="#333333", label="no stage"))
    handles.append(Patch(facecolor=WAIT, edgecolor=WAIT_EDGE, hatch="////", label="waits for"))
    if timeline.marks:
        handles.append(
            Line2D([], [], marker="X", ls="", color=FINDING, markersize=8, label="finding")
        )
    figure.legend(
        handles=handles,
        loc="outside upper right",
        ncols=len(handles),
        fontsize=FONT,
        frameon=False,
        title="the number in a bar: the step of the ring (which filling)" if stages else None,
        title_fontsize=FONT,
        handlelength=1.4,
        columnspacing=1.0,
    )
