"""A timeline as one HTML file that needs no network: lanes by Bokeh, findings as a table.

Names come from the module that ran. They get into the page as JSON data, which Bokeh escapes, as
tooltips, which it escapes, or through `html.escape`.
"""

from __future__ import annotations

from html import escape
from typing import Any

from tvm_hopper.sim.tables import STYLE, findings_html
from tvm_hopper.sim.timeline.spans import FINDING, STAGES, WAIT_EDGE, fill_colour, text_colour
from tvm_hopper.sim.timeline.trace import thread_name

SHOWN = 110  # units of the axis at first
ROW = 24  # pixels of a row
CHARACTER = 6.5  # pixels, about
WIDTH = 1100  # pixels of the axis, about
FACTS = ("what", "mbarrier", "step", "stage", "iteration", "bytes", "issued by", "end", "statement")

_READING = """Each bar is a step of a role or of a unit. Its colour is the stage of the ring, the
number in it is the filling of the ring: one number is the same data in all lanes. Hatched
bars wait. The axis counts scheduler steps: order, not time. Drag to move, use the wheel to zoom, or
move the frame below; point at a bar for its statement."""


def page(timeline: Any) -> str:
    """Return the page."""
    from bokeh.embed import components
    from bokeh.layouts import column
    from bokeh.resources import Resources

    main, overview = _plots(timeline)
    resources = Resources(mode="inline", components=["bokeh"])
    script, div = components(column(main, overview, sizing_mode="stretch_width"))
    title = escape(timeline.title)
    notes = "".join(f"<p>{escape(note)}</p>" for note in timeline.notes)
    found = findings_html(timeline.findings)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>'
        f"\n<style>body {{ font-family: sans-serif; margin: 1.5em; }}\n{STYLE}</style>\n"
        f"{resources.render_js()}\n{script}\n</head>\n<body>\n<h1>{title}</h1>\n"
        f"<p>{_READING}</p>\n{div}\n{notes}\n{found}\n</body>\n</html>\n"
    )


def _plots(timeline: Any) -> tuple[Any, Any]:
    """Return the lanes, and a small plot of all of them with a frame around the shown part."""
    from bokeh.models import HoverTool, Range1d, RangeTool
    from bokeh.plotting import figure

    names, places = _rows(timeline)
    bars = _bars(timeline, places)
    end = max(len(timeline.steps) - 1, 1)
    shown = Range1d(0, min(SHOWN, end), bounds=(0, end))
    if timeline.marks and end > SHOWN:
        shown.start = max(timeline.marks[0].at - SHOWN * 2 // 3, 0)
        shown.end = min(shown.start + SHOWN, end)
    top = len(names)
    main = figure(
        **{"height": ROW * top + 70, "sizing_mode": "stretch_width", "x_range": shown},
        **{"y_range": Range1d(top - 0.2, -1.2), "tools": "xpan,xwheel_zoom,reset,save"},
        **{"active_scroll": "xwheel_zoom", "toolbar_location": "above"},
    )
    hover = []
    for waits in (False, True):
        look = {"hatch_pattern": "/", "hatch_color": WAIT_EDGE} if waits else {}
        drawn = main.quad(
            **{"left": "left", "right": "right", "top": "top", "bottom": "bottom"},
            **{"fill_color": "colour", "line_color": "line", "line_width": 0.5, **look},
            source={name: [v for v, w in zip(bars[name], bars["waits"], strict=True) if w is waits]
                    for name in bars},
        )  # fmt: skip
        hover.append(drawn)
    main.text(
        **{"x": "middle", "y": "centre", "text": "label", "text_color": "text"},
        **{"text_align": "center", "text_baseline": "middle", "text_font_size": "11px"},
        **{"background_fill_color": "background", "padding": 1},
        source=_labels(bars, float(shown.end - shown.start)),
    )
    main.add_tools(
        HoverTool(
            renderers=hover,
            tooltips=[("lane", "@lane"), *((fact, f"@{{{fact}}}") for fact in FACTS)],
        )
    )
    _mark(main, timeline, places)
    _axes(main, timeline, names)
    overview = figure(
        **{"height": 90, "sizing_mode": "stretch_width", "x_range": Range1d(0, end)},
        **{"y_range": Range1d(top, -0.5), "tools": "", "toolbar_location": None},
    )
    overview.quad(
        **{name: bars[name] for name in ("left", "right", "top", "bottom")},
        **{"fill_color": bars["colour"], "line_color": None},
    )
    overview.yaxis.visible = overview.xaxis.visible = overview.grid.visible = False
    overview.add_tools(RangeTool(x_range=shown))
    return main, overview


def _rows(timeline: Any) -> tuple[list[str], dict[tuple[int, int], int]]:
    names: list[str] = []
    places = {}
    for number, lane in enumerate(timeline.lanes):
        for row in range(len(lane.rows)):
            places[number, row] = len(names)
            names.append(thread_name(lane, row))
    return names, places


def _bars(timeline: Any, places: dict[tuple[int, int], int]) -> dict[str, list[Any]]:
    """Return one column for each property of the bars."""
    rows = []
    for number, lane in enumerate(timeline.lanes):
        for span in lane.spans:
            at, waits, colour = places[number, span.row], span.kind == "wait", fill_colour(span)
            facts = {fact: str(span.facts.get(fact, "")) for fact in FACTS}
            rows.append(
                {
                    **{"left": span.start, "right": span.end, "top": at, "bottom": at + 0.84},
                    **{"colour": colour, "line": WAIT_EDGE if waits else "#333333"},
                    **{"label": span.label, "text": text_colour(colour), "waits": waits},
                    **{"lane": lane.name, **facts},
                }
            )
    names = rows[0] if rows else {}
    return {name: [row[name] for row in rows] for name in names}


def _labels(bars: dict[str, list[Any]], shown: float) -> dict[str, list[Any]]:
    """Return the texts that fit into their bars at the zoom of the beginning."""
    kept: dict[str, list[Any]] = {
        n: [] for n in ("middle", "centre", "label", "text", "background")
    }
    columns = ("left", "right", "top", "label", "text", "colour")
    for left, right, top, label, text, colour in zip(
        *(bars[name] for name in columns), strict=True
    ):
        if len(label) * CHARACTER <= (right - left) * WIDTH / shown:
            kept["middle"].append((left + right) / 2)
            kept["centre"].append(top + 0.42)
            kept["label"].append(label)
            kept["text"].append(text)
            kept["background"].append(colour)
    return kept


def _mark(plot: Any, timeline: Any, places: dict[tuple[int, int], int]) -> None:
    """Draw where findings were made, with their numbers in the table below."""
    from bokeh.models import HoverTool

    data: dict[str, list[Any]] = {"x": [], "y": [], "rule": [], "message": [], "name": []}
    begun: set[int] = set()
    for mark in timeline.marks:
        data["x"].append(mark.at)
        data["y"].append(-0.6 if mark.lane is None else places[mark.lane, 0] + 0.42)
        data["rule"].append(mark.rule)
        data["message"].append(timeline.message(timeline.findings[mark.number]))
        same = [other.number + 1 for other in timeline.marks if other.at == mark.at]
        text = str(same[0]) if len(same) == 1 else f"{same[0]}-{same[-1]}"
        data["name"].append("" if mark.at in begun else text)
        begun.add(mark.at)
    if not data["x"]:
        return
    plot.ray(x="x", y=-1.2, length=0, angle=-1.5707963, color=FINDING, line_dash="dashed",
             source=data)  # fmt: skip
    drawn = plot.scatter(x="x", y="y", marker="x", size=13, line_width=4, color=FINDING,
                         source=data)  # fmt: skip
    plot.text(x="x", y=-0.7, text="name", text_color=FINDING, text_font_size="12px",
              text_font_style="bold", x_offset=4, text_baseline="middle", source=data)  # fmt: skip
    plot.add_tools(
        HoverTool(renderers=[drawn], tooltips=[("finding", "@rule"), ("message", "@message")])
    )


def _axes(plot: Any, timeline: Any, names: list[str]) -> None:
    from bokeh.models import CustomJSTickFormatter, FixedTicker, Legend, LegendItem, PlainText

    plot.yaxis.ticker = FixedTicker(ticks=[number + 0.42 for number in range(len(names))])
    plot.yaxis.major_label_overrides = {
        n + 0.42: PlainText(text=name) for n, name in enumerate(names)
    }
    plot.yaxis.major_tick_line_color = plot.yaxis.axis_line_color = None
    plot.xaxis.axis_label = "scheduler step (order, not time)"
    plot.xaxis.formatter = CustomJSTickFormatter(
        args={"steps": timeline.steps}, code="return tick in steps ? String(steps[tick]) : ''"
    )
    plot.grid.visible = False
    stages = sorted({s.stage for lane in timeline.lanes for s in lane.spans if s.stage >= 0})
    items = [
        LegendItem(
            label=f"stage {stage}",
            renderers=[plot.scatter([-9], [-9], marker="square", size=12,
                                    color=STAGES[stage % len(STAGES)])],
        )
        for stage in stages[: len(STAGES)]
    ]  # fmt: skip
    plot.add_layout(Legend(items=items, orientation="horizontal", border_line_color=None), "above")
