"""The rows of a run as markdown: a line a type, a column a swizzle."""

from __future__ import annotations

import json
from typing import Any

from ..warp_products import judge, movement
from .descriptors import SPANS
from .probes import AS_DECODED, OTHER, WITHOUT_OFFSET

_COUNTS = ("equal", "of any size")
_FIRST = ("first, whole", "first")


def table(rows: list[dict[str, Any]], about: dict[str, str]) -> str:
    """Return the document."""
    lines = ["# Where a Hopper GPU reads and writes, against the simulator's decoders", ""]
    lines += [f"- {name}: {value}" for name, value in about.items()]
    lines += _layouts(rows) + _open(rows) + _products(rows) + _copies(rows)
    lines += _movement(rows) + _warp_products(rows) + _failures(rows)
    return "\n".join(lines) + "\n"


def _layouts(rows: list[dict[str, Any]]) -> list[str]:
    mine = [row for row in rows if row["part"] == "canonical layouts"]
    keys = dict.fromkeys((r["type"], r["operand"], r["major"]) for r in mine)
    cells = [
        [*key, *(_share(mine, AS_DECODED, span=span, **_named(key)) for span in SPANS)]
        for key in keys
    ]
    return _section(
        "Canonical layouts: descriptors whose every address is the decoder's",
        ["type", "operand", "major", *(f"swizzle {span}" for span in SPANS)],
        cells,
    )


def _named(key: tuple[str, str, str]) -> dict[str, str]:
    return dict(zip(("type", "operand", "major"), key, strict=True))


def _open(rows: list[dict[str, Any]]) -> list[str]:
    mine = [row for row in rows if row["part"] == "open"]
    keys = dict.fromkeys((row["kind"], row["major"], row["span"]) for row in mine)
    cells = []
    for kind, major, span in keys:
        chosen = {"kind": kind, "major": major, "span": span}
        shares = [_share(mine, name, **chosen) for name in (AS_DECODED, WITHOUT_OFFSET, OTHER)]
        cells.append([kind, major, str(span), *shares])
    return _section(
        "What no tile of ours has, over all types",
        ["descriptor", "major", "swizzle", AS_DECODED, WITHOUT_OFFSET, OTHER],
        cells,
    )


def _products(rows: list[dict[str, Any]]) -> list[str]:
    mine = [row for row in rows if row["part"] == "products"]
    cells = [[r["kind"], r["a"], r["b"], f"{r['exact']} of {r['tried']}"] for r in mine]
    heads = ["instruction", "A", "B", "exact, of all pairs of swizzles"]
    return _section("Products of integers", heads, cells)


def _copies(rows: list[dict[str, Any]]) -> list[str]:
    mine = [row for row in rows if row["part"].startswith("TMA")]
    keys = dict.fromkeys((row["part"], row["type"], row["inner"]) for row in mine)
    cells = [
        [
            *(part, kind, str(inner)),
            *(_share(mine, AS_DECODED, part=part, type=kind, inner=inner, span=s) for s in SPANS),
        ]
        for part, kind, inner in keys
    ]
    heads = ["copy", "type", "bytes of a row", *(f"swizzle {span}" for span in SPANS)]
    return _section("Boxes of which every byte is where the simulator has it", heads, cells)


def _movement(rows: list[dict[str, Any]]) -> list[str]:
    mine = [row for row in rows if row["part"] == movement.PART]
    cells = [[row["kind"], f"{row[AS_DECODED]} of {row['tried']}"] for row in mine]
    heads = ["instruction", "warps with every register and byte as simulated"]
    return _section("Matrices between registers and shared memory", heads, cells)


def _warp_products(rows: list[dict[str, Any]]) -> list[str]:
    """Selectors of one form are a line."""
    mine = [row for row in rows if row["part"] == judge.PART]
    cells = []
    for kind in dict.fromkeys(row["kind"].partition(" ")[0] for row in mine):
        same = [row for row in mine if row["kind"].partition(" ")[0] == kind]
        sums = {key: sum(row[key] for row in same) for key in (*_COUNTS, "tried", AS_DECODED)}
        worst = max(row["worst"] for row in same)
        cells.append(
            [
                kind,
                f"{sums[AS_DECODED]} of {sums['tried']}",
                f"{sums['equal']} of {sums['of any size']}",
                f"{worst:.4f}" if worst else "",
            ]
        )
    heads = ["instruction", "right", "equal, of numbers of any size", "worst, part of the bound"]
    lines = _section("Products of a warp", heads, cells)
    wrong = [row for row in mine if not is_right(row)]
    for row in wrong:
        lines += ["", f"`{row['kind']}`, the first that is not as simulated:"]
        lines += [f"- {key}: {json.dumps(row[key])}" for key in _FIRST if key in row]
    return lines


def _failures(rows: list[dict[str, Any]]) -> list[str]:
    mine = [row for row in rows if row["part"] == "failed"]
    return _section("Failed", ["what", "how"], [[r["kind"], r["end"]] for r in mine])


def _section(title: str, heads: list[str], cells: list[list[str]]) -> list[str]:
    if not cells:
        return []
    lines = ["", f"## {title}", "", f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    return lines + [f"| {' | '.join(line)} |" for line in cells]


def _share(rows: list[dict[str, Any]], name: str, **chosen: Any) -> str:
    """Return "x of y" over the rows with these values, "" where there are none."""
    found = [row for row in rows if all(row[key] == value for key, value in chosen.items())]
    if not found:
        return ""
    return f"{sum(row[name] for row in found)} of {sum(row['tried'] for row in found)}"


def is_right(row: dict[str, Any]) -> bool:
    """Tell whether a row has nothing but what the decoders say; what is open is never wrong."""
    if row["part"] == "failed":
        return False
    if row["part"] == "open":
        return True
    return bool(row["tried"] == row["exact" if row["part"] == "products" else AS_DECODED])
