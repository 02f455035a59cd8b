"""The rows of a run as markdown: a line an instruction, and each form that is not as simulated."""

from __future__ import annotations

import json
from typing import Any


def is_right(row: dict[str, Any]) -> bool:
    """Tell whether all results of a form are as simulated, or within PTX's bound."""
    return "failed" not in row and row["tried"] == row["as simulated"]


def table(rows: list[dict[str, Any]], about: dict[str, str]) -> str:
    """Return the document."""
    lines = ["# Register instructions of a Hopper GPU, against the simulator's functions", ""]
    lines += [f"- {name}: {value}" for name, value in about.items()]
    exact = [row for row in rows if "failed" not in row and "worst" not in row]
    rough = [row for row in rows if "worst" in row]
    lines += ["", "## Bit for bit", ""]
    lines += ["| instruction | forms | forms as simulated | results | as simulated | other NaN |"]
    lines += ["|---|---|---|---|---|---|"]
    for name in dict.fromkeys(row["name"] for row in exact):
        mine = [row for row in exact if row["name"] == name]
        sums = [sum(row[key] for row in mine) for key in ("tried", "as simulated", "other NaN")]
        right = sum(map(is_right, mine))
        cells = [name, len(mine), right, *sums]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    if rough:
        lines += ["", "## Approximations, against the bounds of PTX", ""]
        lines += ["| form | results | within | worst, as a part of the bound | without a bound |"]
        lines += ["|---|---|---|---|---|"]
        lines += [
            f"| {row['form']} | {row['tried']} | {row['as simulated']} | {row['worst']:.3f} | "
            f"{row['without bound']} |"
            for row in rough
        ]
    wrong = [row for row in rows if not is_right(row)]
    if wrong:
        lines += ["", "## Not as simulated", ""]
        for row in wrong:
            what = row.get("failed") or f"{row['tried'] - row['as simulated']} of {row['tried']}"
            lines.append(f"- `{row['form']}`: {what}")
            lines += [f"  - {json.dumps(first)}" for first in row.get("first", [])]
    return "\n".join(lines) + "\n"
