"""Format a model report as text and HTML: what costs most comes first.

Names come from the model, and configurations hold brackets: both are escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from typing import Any

from tvm_hopper.dlight.decisions import NOT_APPLICABLE
from tvm_hopper.schedule.products.recognize import OF_TENSOR_CORES

from .model_times import COPY_RATE, LEAST, ranges_of
from .records import GIVEN, LIBRARY, NOBODY, OURS, STOCK, FunctionRecord
from .report_sections import BOUND, ESTIMATED, MEASURED, ReportRow, Section
from .work import RESHAPE, RULE_OF_KIND, plain_text

WIDTH = 150  # columns of a text
BAR = 10  # characters of a full bar
COSTLY, LEAST_SHARE = 3, 0.05  # causes that the report's head names, each of so much of the time
NAMED = 3  # functions of a cause
LEAST_OF_SMALL = 1.05  # of the time of the smallest kernel, up to which a function is one
LEAST_OF_RATE = 0.9  # of a copy's bytes a microsecond, from which memory is what holds a kernel
HEADS = ("us", "share", "", "function", "by", "FLOPs", "bytes", "how, or why not by tvm_hopper")
CLASS_HEADS = ("function", "rows", "configuration")
COLOURS = {
    OURS: "#2e9e5b",
    STOCK: "#e07b39",
    GIVEN: "#6b8fb5",
    LIBRARY: "#8a7fb8",
    NOBODY: "#c0392b",
}
EXTERNAL = "an external function, dispatched before our pipeline"
PAGED = "TVM's attention on its paged cache, which the model asks for; no rule is asked"
COPIED = (
    "TVM copies a reshape that the model returns, or that is outside of dataflow blocks; others "
    "are free"
)
HOIST = (
    "make them once: tvm_hopper.relax.hoist_weights(mod, target); casts also go by to_half and "
    "cast_weights"
)
MOVED = "{moved}"
FAST_AS_MEMORY = f"moves {MOVED}, as fast as memory does; it gets faster if it moves fewer bytes"
SMALL = f"takes {LEAST} us, as the smallest kernel in a CUDA graph; a larger batch uses it better"
UNKNOWN = "nothing is known to slow it; tvm_hopper.tune(mod, target) may find a faster schedule"
FLOAT32 = f"found float32; need {OF_TENSOR_CORES}"
HALVE = "tvm_hopper.relax.to_half(mod) lets products have 16 bits"
WIDE_PRODUCTS = f"multiplies float32, which tensor cores do not; {HALVE}"
_STYLE = """<style>
.tvmh{font-family:system-ui,sans-serif;font-size:13px} .tvmh table{border-collapse:collapse}
.tvmh td,.tvmh th{padding:3px 8px;text-align:left;vertical-align:top;border-bottom:1px solid #ddd}
.tvmh td.n{text-align:right;white-space:nowrap} .tvmh .bar{height:12px;border-radius:2px}
.tvmh .all{display:flex;height:22px;width:640px;margin:6px 0} .tvmh .all div{overflow:hidden;
color:#fff;font-size:12px;padding:3px 0 0 4px;box-sizing:border-box;white-space:nowrap}
.tvmh h3{margin:12px 0 4px} .tvmh p{margin:4px 0}
</style>"""


def reason(record: FunctionRecord) -> str:
    """Return one reason why a function is not ours: that of the rule for its kind."""
    if record.computed_by == LIBRARY:
        return EXTERNAL
    if record.kind == "attention":
        return PAGED
    if record.kind == RESHAPE:
        return COPIED
    if record.computed_by == GIVEN:
        return record.rule
    told = [(rule, why) for rule, why in record.refused if why not in ("", NOT_APPLICABLE)]
    fits = [x for x in told if x[0] == RULE_OF_KIND.get(record.kind)]
    text = next((f"{rule}: {plain_text(why)}" for rule, why in [*fits, *told]), "")
    head, wide, _ = text.partition(FLOAT32)
    return f"{head}{wide}; {HALVE}" if wide else text


def class_rows(record: FunctionRecord) -> list[tuple[str, str]]:
    """Return (rows, configuration) of a function's kernels; neighbours of one kind are one."""
    found: list[tuple[list[tuple[float, float]], str]] = []
    for kernel in record.kernels:
        ranges, text = ranges_of(kernel.launched_for), kernel.configuration or "as it was given"
        if found and found[-1][1] == text:
            found[-1] = ([*found[-1][0], *ranges], text)
        else:
            found.append((ranges, text))
    return [(_ranges_text(ranges), text) for ranges, text in found]


def _ranges_text(ranges: list[tuple[float, float]]) -> str:
    joined: list[tuple[float, float]] = []
    for low, high in sorted(ranges):
        if joined and joined[-1][1] >= low - 1:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return ", ".join(_range_text(*x) for x in joined) or "any"


def _range_text(low: float, high: float) -> str:
    if high == float("inf"):
        return f"{max(low, 1):.0f} and more"
    return f"{high:.0f}" if max(low, 1) == high else f"{max(low, 1):.0f} to {high:.0f}"


def summary(report: Any, section: Section) -> str:
    """Say how much of a Relax function is served."""
    rows, shares = section.rows, section.served
    ours = sum(x.is_served for x in rows)
    kinds = {x.time_is for x in rows}
    time = "the measured time" if MEASURED in kinds else "the estimated time"
    names = ("the FLOPs", "the bytes", time)
    parts = [f"{_percent(x)} of {name}" for name, x in zip(names, shares.values(), strict=True)]
    parts[2] = f"at most {parts[2]}" if BOUND in kinds else parts[2]  # others may take longer
    symbols = {x: report.sizes[x] for x in section.symbols if x in report.sizes}
    sizes = ", ".join(f"{name} = {size}" for name, size in symbols.items())
    assumed = [x for x in symbols if x in report.assumed]
    told = f"; sizes: {sizes}" if sizes else ""
    told += f" ({', '.join(assumed)} assumed)" if assumed else ""
    unknown = [x.function.name for x in rows if x.cost.flops is None]
    told += f"; FLOPs unknown, not counted: {', '.join(unknown)}" if unknown else ""
    nobody = sum(x.function.computed_by == NOBODY for x in rows)
    told += f"; {nobody} by nobody: they will not build" if nobody else ""
    return (
        f"tvm_hopper serves {parts[0]}, {parts[1]} and {parts[2]} of {section.caller} "
        f"({ours} of {len(rows)} functions{told})"
    )


def advice(section: Section) -> Iterator[str]:
    """Yield what costs most, whoever computes it, by its cause, and what could be done about it."""
    again = [x for x in section.rows if x.weight_bytes]
    rest = [x for x in section.rows if not x.weight_bytes]
    lines = [(x.time, x.text(section.total)) for x in _causes(rest)]
    if again:
        size = number(sum(x.weight_bytes for x in again), "B")
        time = sum(x.cost.microseconds or 0 for x in again)
        text = f"weights cast, transposed or repeated at each call: {size}, "
        text += f"{_percent(time / section.total)} of the time ({_names(again)}); {HOIST}"
        lines = [(time, text), *lines]
    least = LEAST_SHARE * section.total
    yield from [text for time, text in lines if time >= least][:COSTLY]


@dataclass(frozen=True)
class _Cause:
    """Functions that one thing holds."""

    rows: list[ReportRow]
    why: str

    @property
    def time(self) -> float:
        """Microseconds of all of them."""
        return sum(x.cost.microseconds or 0.0 for x in self.rows)

    def text(self, total: float) -> str:
        """Say what it costs, who computes it, and what could be done."""
        kinds = {x.time_is for x in self.rows}
        least = f" ({BOUND} {self.time:.1f} us)" if BOUND in kinds else ""
        by = "ours" if self.rows[0].is_served else f"not ours{least}"
        moved = number(sum(x.cost.num_bytes or 0 for x in self.rows), "B")
        why = self.why.replace(MOVED, moved)
        return f"{_percent(self.time / total)} of the time: {_names(self.rows)}, {by}: {why}"


def _causes(rows: Sequence[ReportRow]) -> list[_Cause]:
    """Put functions together that one thing holds, what costs most first."""
    found: dict[tuple[bool, str], list[ReportRow]] = {}
    for row in rows:
        if row.cost.microseconds is not None:
            found.setdefault((row.is_served, _what_holds(row)), []).append(row)
    causes = [_Cause(some, why) for (_, why), some in found.items()]
    return sorted(causes, key=lambda x: -x.time)


def _names(rows: Sequence[ReportRow]) -> str:
    """Name the costliest of some functions, and how often each is called."""
    names = [x.function.name + (f" x {x.calls}" if x.calls > 1 else "") for x in rows[:NAMED]]
    rest = len(rows) - len(names)
    return ", ".join(names) + (f" and {rest} more" if rest else "")


def _what_holds(row: ReportRow) -> str:
    """Say what keeps a function from being faster."""
    if slow := _element_accesses(row):
        return "; ".join(slow)
    moved, time = row.cost.num_bytes or 0.0, row.cost.microseconds or 0.0
    if moved >= LEAST_OF_RATE * time * COPY_RATE:
        return FAST_AS_MEMORY
    if row.is_served:
        return SMALL if time <= LEAST_OF_SMALL * LEAST * row.calls else UNKNOWN
    why = reason(row.function)
    return WIDE_PRODUCTS if why.endswith(HALVE) else why


def _element_accesses(row: ReportRow) -> list[str]:
    return [
        f"{x.tensor} is accessed {x.num_bytes} bytes at a time, and memory moves {x.fetched} for "
        "each: store it so that neighbours are accessed together"
        for x in row.function.elements
        if x.fetched > x.num_bytes
    ]


def _title(section: Section) -> str:
    """Return a section's time, and what kind of figure it is."""
    kinds = {x.time_is for x in section.rows}
    kind = MEASURED if MEASURED in kinds else ESTIMATED
    least = f"{BOUND} " if BOUND in kinds else ""
    return f"{section.caller}: {least}{section.total:.1f} us, {kind}"


def number(value: float | None, unit: str = "") -> str:
    """Write a number with three digits and a prefix."""
    if value is None:
        return "?"
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value:.0f} {unit}".rstrip()


def _percent(share: float | None) -> str:
    if share is None:
        return "none"
    return "under 1%" if 0 < share < 0.005 else f"{100 * share:.0f}%"


def _explained(row: ReportRow) -> str:
    record, lines = row.function, []
    if row.is_served:
        kernel = row.kernel
        lines.append((kernel.configuration if kernel else "") or record.rule)
        lines += [record.note] if record.note else []
        lines += _element_accesses(row)
    else:
        lines.append(reason(record))
    if row.rows:
        lines.append(f"rows: {row.rows}")
    if row.weight_bytes:
        lines.append(f"of weights alone, at each call: {number(row.weight_bytes, 'B')}")
    return "\n".join(x for x in lines if x)


def _cells(row: ReportRow, total: float) -> tuple[str, ...]:
    time, record = row.cost.microseconds, row.function
    share = (time or 0) / total if total else 0.0
    calls = f" x {row.calls}" if row.calls > 1 else ""
    sign = "≥ " if row.time_is == BOUND else ""
    by = record.computed_by + (f", {record.rule}" if record.rule and not row.is_served else "")
    return (
        "?" if time is None else f"{sign}{time:.1f}",
        "?" if time is None else _percent(share),
        "█" * round(BAR * share),
        f"{record.name}{calls}",
        by,
        number(row.cost.flops),
        number(row.cost.num_bytes, "B"),
        _explained(row),
    )


def _classes(report: Any) -> list[tuple[str, str, str]]:
    return [
        (record.name if i == 0 else "", rows, text)
        for record in report.functions
        if len(kinds := class_rows(record)) > 1
        for i, (rows, text) in enumerate(kinds)
    ]


def _uncalled(report: Any) -> str:
    names = [x.name for x in report.functions if not x.calls]
    return f"called by no Relax function: {', '.join(names)}" if names else ""


def as_text(report: Any) -> str:
    """Return the report for a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=StringIO(), width=WIDTH, color_system=None)

    def show(title: str, heads: tuple[str, ...], rows: Any) -> None:
        table = Table(title=Text(title), title_justify="left")
        for head in heads:
            numbers = head in HEADS[:2] + HEADS[5:7]
            table.add_column(head, justify="right" if numbers else "left", no_wrap=numbers)
        for row in rows:
            table.add_row(*(Text(cell, overflow="fold") for cell in row))
        console.print(table)

    lines = [summary(report, x) for x in report.sections] or ["nothing is called"]
    console.print(Text("\n".join(lines)))
    for section in report.sections:
        for line in advice(section):
            console.print(Text(f"{section.caller}: {line}"))
        show(_title(section), HEADS, [_cells(x, section.total) for x in section.rows])
    if classes := _classes(report):
        show("kernels by number of rows", CLASS_HEADS, classes)
    if left := _uncalled(report):
        console.print(Text(left))
    assert isinstance(console.file, StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def as_page(report: Any) -> str:
    """Return the report as an HTML page."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Model report</title>'
        f'</head><body style="margin:1.5em">\n{as_html(report)}\n</body></html>\n'
    )


def as_html(report: Any) -> str:
    """Return the report for a notebook: bars are shares of the time, colours say who computes."""
    parts = [_STYLE, '<div class="tvmh">']
    legend = "".join(
        f'<span style="color:{colour}">&#9632;</span> {escape(by)} &nbsp;'
        for by, colour in COLOURS.items()
        if any(x.computed_by == by for x in report.functions)
    )
    parts += [f"<p><b>{escape(summary(report, x))}</b></p>" for x in report.sections]
    parts.append(f"<p>{legend}</p>")
    for section in report.sections:
        title = f"<h3>{escape(_title(section))}</h3>"
        parts.append(title + _whole(section))
        parts += [f"<p>{escape(x)}</p>" for x in advice(section)]
        lines = "".join(_html_row(x, section.total) for x in section.rows)
        parts.append(f"<table>{_html_heads(HEADS)}{lines}</table>")
    if classes := _classes(report):
        lines = "".join(
            "<tr>" + "".join(f"<td>{_cell(x)}</td>" for x in y) + "</tr>" for y in classes
        )
        parts.append(
            "<details><summary>kernels by number of rows</summary>"
            f"<table>{_html_heads(CLASS_HEADS)}{lines}</table></details>"
        )
    if left := _uncalled(report):
        parts.append(f"<p>{escape(left)}</p>")
    return "".join([*parts, "</div>"])


def _whole(section: Section) -> str:
    """Return one bar: the time by who takes it."""
    parts, rows, total = [], section.rows, section.total
    for by, colour in COLOURS.items():
        time = sum(x.cost.microseconds or 0 for x in rows if x.function.computed_by == by)
        if time and total:
            width = f"{100 * time / total:.1f}%"
            text = f"{by} {_percent(time / total)}"
            parts.append(
                f'<div style="width:{width};background:{colour}" title="{text}">{text}</div>'
            )
    return f'<div class="all">{"".join(parts)}</div>'


def _html_heads(heads: tuple[str, ...]) -> str:
    return "<tr>" + "".join(f"<th>{_cell(x)}</th>" for x in heads) + "</tr>"


def _html_row(row: ReportRow, total: float) -> str:
    cells = list(_cells(row, total))
    share = (row.cost.microseconds or 0) / total if total else 0.0
    colour = COLOURS[row.function.computed_by]
    bar = (
        f'<div class="bar" style="width:{max(1, round(160 * share))}px;background:{colour}"></div>'
    )
    numbers = (0, 1, 5, 6)
    made = [
        f'<td class="n">{_cell(x)}</td>'
        if i in numbers
        else f"<td>{bar if i == 2 else _cell(x)}</td>"
        for i, x in enumerate(cells)
    ]
    return f"<tr>{''.join(made)}</tr>"


def _cell(text: str) -> str:
    return escape(text).replace("\n", "<br>")
