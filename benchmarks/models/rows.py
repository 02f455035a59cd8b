"""Rows of the benchmark: JSON lines as they come, ratios, and the table for the docs."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from .cases import CASES, Case

OURS, EAGER, COMPILED, STOCK = "tvm_hopper", "eager", "torch.compile", "stock TVM"
MODES = ("max-autotune-no-cudagraphs", "default")  # of torch.compile, in this order
LEAST_US = 3.0  # shorter times count as this
MOST_RATIO = 1.5  # before a geometric mean
WORST_RATIO = 1.0  # of torch.compile: below it the table says why


@dataclass
class Row:
    """Results of one case; `failures` has the reason of each part that failed.

    Attributes
    ----------
    times : dict of str to float
        Microseconds of each contender.
    errors : dict of str to float
        Relative error of each contender against float64.
    served : dict of str to float or None
        Shares of FLOPs, bytes, and of PyTorch's time for the same operators.
    kernels : list of (str, int, float)
        The ten costliest: name, calls, microseconds of a pass.
    others : list of (str, str)
        The most expensive functions that are not ours, with the reason.
    notes : list of str
        How it was measured, where that differs.
    failures : dict of str to str
        By part: one line each.
    compiled_by : str
        The mode of torch.compile; "" if none.
    """

    name: str
    times: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    served: dict[str, float | None] = field(default_factory=dict)
    kernels: list[tuple[str, int, float]] = field(default_factory=list)
    others: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    compiled_by: str = ""
    seconds: float = 0.0
    machine: dict[str, str] = field(default_factory=dict)

    def ratio(self, opponent: str) -> float | None:
        """Return the opponent's time over ours: above 1 ours is faster."""
        if OURS not in self.times or opponent not in self.times:
            return None
        return max(self.times[opponent], LEAST_US) / max(self.times[OURS], LEAST_US)

    @property
    def is_done(self) -> bool:
        """Whether another run would tell no more."""
        return not self.failures


def append(path: Path, row: Row) -> None:
    """Add a row to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(row)) + "\n")


def read(paths: Iterable[Path]) -> dict[str, Row]:
    """Return the last row of each case in some files; a line that was cut off is left out."""
    known = {x.name for x in fields(Row)}
    found: dict[str, Row] = {}
    for path in paths:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for line in lines:
            try:
                said = json.loads(line)
            except ValueError:
                continue
            row = Row(**{name: value for name, value in said.items() if name in known})
            before = found.get(row.name)
            # A row with times is not replaced by one whose machine failed.
            if before is None or row.times or not before.times:
                found[row.name] = row
    return found


def geometric_mean(ratios: Sequence[float]) -> float:
    """Return the mean of ratios, each clipped so that a few outliers cannot carry it."""
    return math.exp(statistics.fmean(math.log(min(x, MOST_RATIO)) for x in ratios))


def weighted_share(
    torch_times: Mapping[str, float],
    work: Iterable[tuple[str, float, bool]],
) -> float | None:
    """Return the share of PyTorch's time whose operators kernels of ours compute.

    Parameters
    ----------
    torch_times : mapping of str to float
        PyTorch's time by class of operators.
    work : iterable of (str, float, bool)
        Class, work and whether ours computes it, for each function of the model.
    """
    ours: dict[str, float] = {}
    total: dict[str, float] = {}
    for kind, amount, is_ours in work:
        total[kind] = total.get(kind, 0.0) + amount
        ours[kind] = ours.get(kind, 0.0) + amount * is_ours
    whole = sum(torch_times.values())
    if not whole or not any(total.values()):
        return None
    # An importer may make an operator of one class that of another: then all classes tell.
    overall = sum(ours.values()) / sum(total.values())
    share = sum(
        time * (ours[kind] / total[kind] if total.get(kind) else overall)
        for kind, time in torch_times.items()
    )
    return share / whole


ABOUT = ("chip", "driver", "torch", "apache-tvm", "commit")  # of the machine
HEADS = (
    "model", "sizes", "way, type", "us", "of eager", "of torch.compile", "of stock TVM",
    "served: FLOPs, bytes, PyTorch's time", "error; PyTorch's",
)  # fmt: skip


def table(rows: Mapping[str, Row], cases: Sequence[Case] = CASES) -> str:
    """Return the table of the docs, with reasons for what is slower than torch.compile."""
    lines = ["| " + " | ".join(HEADS) + " |", "|" + "---|" * len(HEADS)]
    known = [(x, rows[x.name]) for x in cases if x.name in rows]
    lines += ["| " + " | ".join(_cells(case, row)) + " |" for case, row in known]
    slow = [
        (case, row) for case, row in known if (row.ratio(COMPILED) or WORST_RATIO) < WORST_RATIO
    ]
    failed = [(case, row) for case, row in known if row.failures]
    text = "\n".join(lines) + "\n" + _about([row for _, row in known])
    if any(row.compiled_by == MODES[-1] for _, row in known):
        text += f"\n\\* in its default mode: {MODES[0]} failed or was left out.\n"
    for opponent in (EAGER, COMPILED):
        ratios = [x for _, row in known if (x := row.ratio(opponent)) is not None]
        if ratios:
            mean, least = geometric_mean(ratios), min(ratios)
            text += f"\nOf {opponent}: geometric mean {mean:.2f}, least {least:.2f}, {len(ratios)} "
            text += "models.\n"
    if slow:
        text += (
            "\nBelow torch.compile: what costs most and is not ours, and the costliest kernels\n\n"
        )
        text += "".join(f"- {case.name}: {_why(row)}\n" for case, row in slow)
    if failed:
        text += "\nNot measured\n\n"
        for case, row in failed:
            parts = "; ".join(f"{part}: {why}" for part, why in row.failures.items())
            text += f"- {case.name}: {_plain(parts)}\n"
    missing = [x.name for x in cases if x.name not in rows]
    if missing:
        text += f"\nNot run: {', '.join(missing)}.\n"
    return text


def _about(rows: Sequence[Row]) -> str:
    """Say what the rows were measured with; a field that differs has all its values."""
    found = []
    for name in ABOUT:
        values = dict.fromkeys(x.machine[name] for x in rows if name in x.machine)
        if values:
            found.append(f"{name} {' or '.join(values)}")
    return f"\nMeasured with: {', '.join(found)}.\n" if found else ""


def _cells(case: Case, row: Row) -> list[str]:
    def ratio(opponent: str) -> str:
        found = row.ratio(opponent)
        return "-" if found is None else f"{found:.2f}"

    shares = [row.served.get(x) for x in ("flops", "num_bytes", "torch_time")]
    served = ", ".join("-" if x is None else f"{100 * x:.0f}%" for x in shares)
    errors = [row.errors.get(x) for x in (OURS, EAGER)]
    time = row.times.get(OURS)
    return [
        case.name,
        case.sizes,
        f"{case.way}, {case.dtype}",
        "-" if time is None else f"{time:.0f}",
        ratio(EAGER),
        ratio(COMPILED) + ("*" if row.compiled_by == MODES[-1] else ""),
        ratio(STOCK),
        served,
        "; ".join("-" if x is None else f"{x:.1e}" for x in errors),
    ]


def _why(row: Row) -> str:
    whole = row.times[OURS]
    kernels = ", ".join(f"{name} {100 * us / whole:.0f}%" for name, _, us in row.kernels[:3])
    others = "; ".join(f"{name} ({why})" for name, why in row.others[:2])
    return _plain(f"{kernels or 'no profile'}{'; ' * bool(others)}{others}")


def _plain(text: str) -> str:
    return " ".join(text.replace("|", "/").replace("<", "").replace(">", "").split())
