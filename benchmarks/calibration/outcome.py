"""Outcomes of runs: read a program's JSON lines, merge repeats, print a table."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from .experiments import EXPERIMENTS, Experiment

_OWN = ("point", "variant", "end")
_MERGE = {"n": sum, "min": min, "max": max}  # by the word before the first underscore


def read(
    experiment: Experiment, arguments: tuple[str, ...], output: str, ended: str
) -> list[dict[str, Any]]:
    """Return the outcomes a process printed, and one more if it did not end by itself.

    Parameters
    ----------
    experiment : Experiment
    arguments : tuple of str
        Arguments of the process; they name an outcome that was never printed.
    output : str
        Standard output; lines that are no JSON object are left out.
    ended : str
        "" if the process ended by itself with code 0, else how it ended.
    """
    found = []
    for line in output.splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(row, dict) and all(key in row for key in _OWN):
            found.append(row)
    if ended or not found:
        variant = " ".join(arguments) or "rest of the run"
        found.append(
            {"point": experiment.point, "variant": variant, "end": ended or "printed nothing"}
        )
    return found


def merge(outcomes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row a variant: counts added, extremes kept, other values listed if they differ."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome["point"], outcome["variant"]), []).append(outcome)
    rows = []
    for (point, variant), group in groups.items():
        ends = Counter(outcome["end"] for outcome in group)
        row: dict[str, Any] = {"point": point, "variant": variant, "runs": len(group)}
        for name in dict.fromkeys(key for outcome in group for key in outcome if key not in _OWN):
            values = [outcome[name] for outcome in group if name in outcome]
            reduce = _MERGE.get(name.split("_")[0])
            if reduce:
                row[name] = reduce(values)
            else:
                distinct = list(dict.fromkeys(values))
                row[name] = distinct[0] if len(distinct) == 1 else " / ".join(map(str, distinct))
        row["end"] = ", ".join(f"{n} {end}" if len(ends) > 1 else end for end, n in ends.items())
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]], about: dict[str, str]) -> str:
    """Return merged rows as markdown, one table a point."""
    lines = ["# Calibration of the simulator's assumptions", ""]
    lines += [f"- {name}: {value}" for name, value in about.items()]
    for experiment in sorted(EXPERIMENTS, key=lambda e: e.point):
        mine = [row for row in rows if row["point"] == experiment.point]
        if not mine:
            continue
        names = list(dict.fromkeys(k for row in mine for k in row if k not in (*_OWN, "runs")))
        heads = ["variant", "runs", *(_heading(name) for name in names), "end"]
        lines += ["", f"## ({experiment.point}) {experiment.question}", ""]
        lines += [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
        for row in mine:
            cells = [row["variant"], row["runs"], *(row.get(n, "") for n in names), row["end"]]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def _heading(name: str) -> str:
    return name.removeprefix("n_").replace("_", " ")
