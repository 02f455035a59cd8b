"""Findings as a table: for a terminal, and as HTML for notebooks and pages.

The text of a finding contains names from the module that ran: it is escaped for HTML, and printed
on terminals without markup or control characters.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from html import escape

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tvm_hopper.sim.findings import Finding

WIDTH = 118  # characters, by default
COLOURS = {"error": "red", "incomplete": "yellow", "review": "cyan"}
STYLE = """
.tvm-hopper { border-collapse: collapse; font-size: 90%; }
.tvm-hopper th, .tvm-hopper td { border: 1px solid #bbb; padding: 0.3em 0.6em; text-align: left;
  vertical-align: top; color: #111; background: #fff; }
.tvm-hopper td:nth-child(5), .tvm-hopper td:nth-child(6) { min-width: 15em; }
.tvm-hopper th { background: #eee; }
.tvm-hopper td.error { border-left: 0.5em solid #c00000; }
.tvm-hopper td.incomplete { border-left: 0.5em dashed #b07000; }
.tvm-hopper td.review { border-left: 0.5em dotted #0072b2; }
.tvm-hopper code { white-space: pre-wrap; }
"""
HEADS = ("", "severity", "rule", "what and where", "missing, and how to fix it", "replay")


def findings_text(findings: Sequence[Finding], width: int | None = None, ink: bool = False) -> str:
    """Return the findings as a table of text, one row each; empty if there are none.

    - `width`: characters of a line; None: 118.
    - `ink`: whether severities are coloured, by the escape sequences of terminals.
    """
    if not findings:
        return ""
    table = Table("", "rule", "", "finding", box=box.ASCII2)
    for column in table.columns[:3]:
        column.no_wrap = True
    table.columns[3].overflow = "fold"  # a call or a name is never cut off
    for number, one in enumerate(findings, 1):
        first = [Text(str(number)), Text(one.rule, style=COLOURS[one.severity])]
        left = [first, [Text(""), Text(one.severity, style=COLOURS[one.severity])]]
        lines = [("what", one.message), ("where", _where(one))]
        lines += [("at", text) for text in one.statements]
        lines += [("missing", one.missing), ("fix", one.hint), ("PTX", one.ptx_section)]
        lines = [line for line in (*lines, ("replay", one.replay)) if line[1]]
        left += [[Text(""), Text("")]] * len(lines)
        for begun, (name, text) in zip(left, lines, strict=False):
            table.add_row(*begun, Text(name), _plain(text))
        table.add_section()
    out = io.StringIO()
    console = Console(
        file=out,
        width=width or WIDTH,
        force_terminal=ink,
        color_system="standard" if ink else None,
        highlight=False,
        legacy_windows=False,
    )
    console.print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip("\n").split("\n"))


def findings_html(findings: Sequence[Finding]) -> str:
    """Return the findings as an HTML table without its style; empty if there are none."""
    if not findings:
        return ""
    head = "".join(f"<th>{text}</th>" for text in HEADS)
    rows = "".join(_row(number, one) for number, one in enumerate(findings, 1))
    return f'<table class="tvm-hopper"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def verdict_html(title: str, lines: Sequence[str], findings: Sequence[Finding]) -> str:
    """Return a verdict with its grounds and findings, for a notebook."""
    said = "".join(f"<div>{escape(line)}</div>" for line in lines)
    table = findings_html(findings)
    return f"<style>{STYLE}</style><div><b>{escape(title)}</b></div>{said}{table}"


def _where(one: Finding) -> str:
    if one.byte_range == (0, 0):
        return one.buffer
    return f"{one.buffer}[{one.byte_range[0]}:{one.byte_range[1]})"


def _plain(text: str) -> Text:
    """Return text that is no markup, and moves no cursor."""
    return Text("".join(c if c.isprintable() or c == "\n" else "?" for c in text))


def _row(number: int, one: Finding) -> str:
    where = _where(one)
    cell = f"<b>{escape(where)}</b><br>" if where else ""
    cell += escape(one.message)
    cell += "".join(f"<br><code>{escape(text)}</code>" for text in one.statements)
    fix = f"missing: {escape(one.missing)}<br>" if one.missing else ""
    fix += f"fix: {escape(one.hint)}<br><small>PTX {escape(one.ptx_section)}</small>"
    return (
        f'<tr><td class="{escape(one.severity)}">{number}</td><td>{escape(one.severity)}</td>'
        f"<td>{escape(one.rule)}</td><td>{cell}</td><td>{fix}</td>"
        f"<td><code>{escape(one.replay)}</code></td></tr>"
    )
