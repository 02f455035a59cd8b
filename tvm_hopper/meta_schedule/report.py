"""Tuning report as a table: for terminals, as HTML, and as JSON.

report = TuningReport(Database("tuned"))
print(report)
report.html("tuned.html")
"""

from __future__ import annotations

import argparse
import io
import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tvm_hopper.errors import cannot_tune

from .configurations import from_text, is_built_in, say
from .database import Database, Trial
from .journal import visible

WIDTH = 140  # characters of a table that goes into a file
MOST_WORDS = 160  # characters of a line of an error
NAMES = 16  # characters of the names of kernels, at least
LEAST_WIDTH = 120  # of one where no terminal says how wide it is, or a narrow one


@dataclass(frozen=True)
class TunedRow:
    """One tuned function.

    - `built_in_us`, `best_us`: times of the package's own choice, and of the best configuration
      that was not found wrong.
    - `tflops`, `terabytes`: a second, of the best one: of products, and of bytes of all tensors.
    - `bound_share`: the bound as a part of the best time: 1 is as fast as can be.
    - `verdict`: of the check of the best one: "equal", "unchecked", or nothing yet; "wrong" where
      all that ran were found wrong.
    - `is_compared`: whether both times were measured alternately on one GPU at full load; else by
      the search.
    - `library`, `library_us`: what else computes the same, and its time then.
    - `ended`: why there were no more trials, where the search said so.
    - `failure`: why the last trial failed, where none ran.
    """

    name: str
    key: str
    trials: int
    failed: int
    wrong: int
    built_in_us: float | None
    best_us: float | None
    gain: float | None
    tflops: float | None
    terabytes: float | None
    bound_share: float | None
    configuration: str
    verdict: str
    is_compared: bool = False
    library: str = ""
    library_us: float | None = None
    ended: str = ""
    failure: str = ""


class TuningReport:
    """The rows of a database.

    Parameters
    ----------
    database : Database, str or Path
        What is reported, or the work_dir of a tuning run; later trials are not in it.

    Raises
    ------
    TuningError
        There are no records, or they cannot be read.
    """

    def __init__(self, database: Database | str | Path) -> None:
        database = database if isinstance(database, Database) else Database(database)
        self.folder = database.folder
        self.machines = database.machines
        times = Counter(row["name"] for row in database.workloads.values())
        self.rows = [
            _row(database, key, with_extents=times[row["name"]] > 1)
            for key, row in database.workloads.items()
        ]

    @property
    def is_fake(self) -> bool:
        """Whether times came from a runner that says of itself that it measures nothing."""
        return any(machine.get("is_fake") for machine in self.machines)

    def table(self) -> Table:
        """Return the table for a terminal."""
        fake = ", of a FAKE runner: nothing was measured" * self.is_fake
        title = f"{escape(str(self.folder))}: {sum(x.trials for x in self.rows)} trials{fake}"
        table = Table(title=title, title_justify="left")
        libraries = sorted({row.library for row in self.rows if row.library})
        columns = [f"of {' or '.join(libraries)}"] if libraries else []
        names = ("kernel", "trials", "failed", "built-in us", "best us", "gain", *columns, "rate")
        for name in names:
            is_text = name == "kernel"
            least = NAMES if is_text else None
            side: Any = "left" if is_text else "right"
            table.add_column(name, justify=side, no_wrap=not is_text, min_width=least)
        table.add_column("configuration")
        table.add_column("checked", no_wrap=True)
        for row in self.rows:
            failed = f"{row.failed}" + (f" + {row.wrong} wrong" if row.wrong else "")
            table.add_row(
                escape(visible(row.name)),
                str(row.trials),
                failed,
                _number(row.built_in_us),
                _number(row.best_us),
                "-" if row.gain is None else f"{row.gain:.2f}x",
                *([_of_library(row)] if libraries else []),
                _rate(row),
                escape(row.configuration) or "-",
                row.verdict or ("-" if row.failure else "not yet"),
            )
        captions = [
            f"{visible(x.name)}: {x.trials} trials, {visible(x.ended)}"
            for x in self.rows
            if _is_early(x)
        ]
        captions += [
            f"{visible(x.name)}: no trial ran; {_short(x.failure)}" for x in self.rows if x.failure
        ]
        if captions:
            table.caption, table.caption_justify = escape("\n".join(captions)), "left"
        return table

    def html(self, path: str | Path) -> None:
        """Write the table as a page of its own."""
        console = Console(record=True, file=io.StringIO(), width=WIDTH)
        console.print(self.table())
        for machine in self.machines:
            known = {k: v for k, v in machine.items() if k not in ("is", "number")}
            console.print(escape(", ".join(f"{k} {v}" for k, v in known.items())))
        Path(path).write_text(console.export_html(inline_styles=True), encoding="utf-8")

    def to_json(self) -> dict[str, Any]:
        """Return the rows and the machines as plain data."""
        return {"rows": [asdict(row) for row in self.rows], "machines": self.machines}

    def __str__(self) -> str:
        console = Console(record=True, file=io.StringIO(), width=WIDTH)
        console.print(self.table())
        return console.export_text()


def wide_console(stderr: bool = False) -> Console:
    """Return where a table is printed: lines of a narrow terminal wrap, but no column is lost."""
    console = Console(stderr=stderr)
    return console if console.width >= LEAST_WIDTH else Console(stderr=stderr, width=LEAST_WIDTH)


def _row(database: Database, key: str, with_extents: bool) -> TunedRow:
    workload = database.workloads[key]
    extents = (
        f" {'x'.join(map(str, workload['extents']))}" * with_extents
    )  # of functions of one name
    trials = database.trials(key)
    right = [x for x in database.ranked(key) if database.verdict(key, x) != "wrong"]
    best = database.winner(key) or (right[0] if right else None)
    first = next((x for x in trials if is_built_in(x.config)), None)
    final = database.finals.get(key, {})
    is_final, choice, time, library = _times(final, first, best)
    amount, moved = float(workload.get("multiply_adds", 0)), float(workload.get("bytes", 0))
    bound = float(workload.get("bound_us", 0))
    return TunedRow(
        workload["name"] + extents,
        key,
        len(trials),
        sum(x.seconds is None for x in trials),
        sum(database.verdict(key, x) == "wrong" for x in trials),
        _us(choice),
        _us(time),
        choice / time if choice and time else None,
        2 * amount / time / 1e12 if time and amount else None,
        moved / time / 1e12 if time else None,
        bound / (time * 1e6) if time else None,
        _configuration_text(workload, best),
        database.verdict(key, best) if best is not None else "wrong" * bool(database.ranked(key)),
        is_final,
        str(final.get("library", "")) if library else "",
        _us(library),
        database.ended(key),
        trials[-1].error if trials and not database.ranked(key) else "",
    )


def _times(
    final: dict[str, Any], first: Trial | None, best: Trial | None
) -> tuple[bool, float | None, float | None, float | None]:
    """Return whether trials were compared on one GPU, and seconds: choice, best and library.

    Times of that comparison go before those of a search.
    """
    finalists, sustained = final.get("finalists", ()), final.get("sustained_us") or ()
    compared = dict(zip(finalists, sustained, strict=False))

    def of_final(trial: Trial | None) -> float | None:
        return None if trial is None else _seconds(compared.get(trial.text))

    if of_final(best) is not None:
        return True, of_final(first), of_final(best), _seconds(final.get("library_us"))
    choice = None if first is None else first.seconds
    return False, choice, None if best is None else best.seconds, None


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e6


def _short(text: str) -> str:
    """Return the first and the last line of an error, cut where they are long."""
    lines = [visible(x.strip())[:MOST_WORDS] for x in text.splitlines() if x.strip()]
    return " ... ".join([lines[0], lines[-1]] if len(lines) > 1 else lines)


def _is_early(row: TunedRow) -> bool:
    """Tell whether a search ended before its number of trials was used up."""
    return bool(row.ended) and row.ended != f"{row.trials} trials"


def _seconds(microseconds: Any) -> float | None:
    is_time = isinstance(microseconds, (int, float)) and microseconds > 0
    return microseconds * 1e-6 if is_time else None


def _configuration_text(workload: dict[str, Any], best: Any) -> str:
    if best is None:
        return ""
    if is_built_in(best.config):
        choice = workload.get("choice")
        return f"built-in choice: {say(from_text(choice)) if isinstance(choice, str) else ''}"
    return say(best.config)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}" if value < 100 else f"{value:.1f}"


def _of_library(row: TunedRow) -> str:
    if row.library_us is None or row.best_us is None:
        return "-"
    return f"{row.library_us / row.best_us:.2f}x"


def _rate(row: TunedRow) -> str:
    if row.tflops is not None:
        return f"{row.tflops:.0f} TFLOP/s"
    return "-" if row.terabytes is None else f"{row.terabytes:.2f} TB/s"


def report_command(arguments: argparse.Namespace) -> int:
    """Print what a work folder holds; with a path also as HTML, or drawn."""
    database = Database(arguments.work_dir)
    report = TuningReport(database)
    try:
        if arguments.html is not None:
            report.html(arguments.html)
        if arguments.picture is not None:
            from .drawing import draw

            draw(database).savefig(arguments.picture)
    except OSError as error:
        found = f"no place to write at ({error.strerror})"
        raise cannot_tune(f"report {error.filename}", found, "a path in a folder") from error
    if arguments.json:
        print(json.dumps(report.to_json(), indent=1))
    else:
        wide_console().print(report.table())
    return 0
