"""Format a model report as text and HTML.

Names come from the model, and configurations hold brackets: both are escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from io import StringIO
from typing import Protocol

from .records import LIBRARY, NOBODY, OURS, FunctionRecord, KernelRecord, TensorRecord

WIDTH = 130  # columns of a text
HEADS = ("function", "by", "tensors", "kernels", "calls")
NOT_APPLICABLE = "not applicable"


class Reported(Protocol):
    """Interface of a report's table, see `ModelReport`."""

    @property
    def functions(self) -> tuple[FunctionRecord, ...]: ...  # noqa: D102

    @property
    def others(self) -> tuple[FunctionRecord, ...]: ...  # noqa: D102

    @property
    def callers(self) -> tuple[str, ...]: ...  # noqa: D102

    @property
    def sizes(self) -> Mapping[str, int]: ...  # noqa: D102

    def times(self, caller: str) -> dict[str, float | None]: ...  # noqa: D102


def rows_of(record: FunctionRecord) -> tuple[str, ...]:
    """Return the cells of a function's row; a cell may have several lines."""
    by = record.computed_by + (f", {record.rule}" if record.rule else "")
    lines = [_kernel(x) for x in record.kernels]
    if record.note:
        lines.append(record.note)
    lines += [f"{x.tensor}: {x.num_bytes} bytes at a time" for x in record.elements]
    calls = [f"{call.count} of {call.caller}" for call in record.calls]
    return (
        record.name,
        by,
        "\n".join(map(_tensor, record.tensors)),
        "\n".join(lines),
        "\n".join(dict.fromkeys(calls)) or "none",
    )


def _tensor(tensor: TensorRecord) -> str:
    return f"{tensor.dtype}[{', '.join(tensor.shape)}]"


def _kernel(kernel: KernelRecord) -> str:
    when = f"{kernel.launched_for}: " if kernel.launched_for else ""
    time = ""
    if kernel.microseconds is not None:
        rows = f" at {kernel.rows} rows" if kernel.rows is not None else ""
        time = f", {kernel.microseconds:.1f} us{rows}"
    return f"{when}{kernel.configuration or 'as it was given'}{time}"


def reasons(report: Reported) -> Iterator[tuple[str, str, str]]:
    """Yield (function, rule, reason) of functions that are not ours, where there is one to tell."""
    for record in report.others:
        told = [(rule, why) for rule, why in record.refused if why not in ("", NOT_APPLICABLE)]
        if record.computed_by == LIBRARY:
            told = [("", "an external function, dispatched before our pipeline")]
        for rule, why in told:
            yield record.name, rule, why


def summary(report: Reported) -> str:
    """Say how many functions are whose."""
    counts: dict[str, int] = {}
    for record in report.functions:
        counts[record.computed_by] = counts.get(record.computed_by, 0) + 1
    parts = [f"{counts.pop(OURS, 0)} of {len(report.functions)} functions by tvm_hopper"]
    nobody = counts.pop(NOBODY, 0)
    parts += [f"{count} {'by ' if by != 'given' else ''}{by}" for by, count in counts.items()]
    if nobody:
        parts.append(f"{nobody} by nobody: they will not build")
    return ", ".join(parts)


def time_rows(report: Reported) -> Iterator[tuple[str, str, str, str]]:
    """Yield (caller, function, microseconds, share) of what is called, where times are known."""
    for caller in report.callers:
        times = report.times(caller)
        total = sum(x or 0.0 for x in times.values())
        if not total:
            continue
        for name, time in times.items():
            known = time is not None
            yield (
                caller,
                name,
                f"{time:.1f}" if known else "-",
                f"{100 * (time or 0) / total:.0f}%" if known else "-",
            )


TIME_HEADS = ("called from", "function", "us by estimate", "share of these")
REASON_HEADS = ("not ours", "rule", "reason")


def as_text(report: Reported) -> str:
    """Return the report's tables for a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=StringIO(), width=WIDTH, color_system=None)
    for title, heads, rows in _tables(report):
        table = Table(*heads, title=Text(title), title_justify="left")
        for row in rows:
            table.add_row(*(Text(cell, overflow="fold") for cell in row))
        console.print(table)
    assert isinstance(console.file, StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def as_html(report: Reported) -> str:
    """Return the report's tables for a notebook."""
    parts = []
    for title, heads, rows in _tables(report):
        lines = "".join(
            "<tr>" + "".join(f"<td>{_cell(x)}</td>" for x in row) + "</tr>" for row in rows
        )
        head = "".join(f"<th>{_cell(x)}</th>" for x in heads)
        parts.append(f"<table><caption>{_cell(title)}</caption><tr>{head}</tr>{lines}</table>")
    return "".join(parts)


def _cell(text: str) -> str:
    return escape(text).replace("\n", "<br>")


def _tables(report: Reported) -> Iterator[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """Yield (title, heads, rows) of each table that has rows."""
    yield summary(report), HEADS, [rows_of(x) for x in report.functions]
    times: list[tuple[str, ...]] = list(time_rows(report))
    if times:
        sizes = ", ".join(f"{name} = {size}" for name, size in report.sizes.items())
        yield f"estimated for {sizes or 'known sizes'}", TIME_HEADS, times
    why: list[tuple[str, ...]] = list(reasons(report))
    if why:
        yield "what is not ours", REASON_HEADS, why
