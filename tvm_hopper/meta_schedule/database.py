"""Database of a work folder: functions, trials, verified winners.

    database = Database("tuned")
    database.winner(key)                    the best checked trial of a function, or None
    merge("all", "tuned_here", "tuned_there")

Beside the log lie the two files of TVM's JSONDatabase, with the checked winners alone. They are
made from the log, and made again whenever they differ from it: whoever knows TVM only can apply
them with `MetaScheduleApplyDatabase`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tvm_hopper.errors import cannot_tune

from .configurations import Configuration, from_text, kind_of
from .journal import (
    FILE,
    Journal,
    as_folder,
    check_versions,
    differing,
    read_lines,
    visible,
    writing,
)
from .search import Measured

WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"
RIGHT = ("equal", "unchecked")  # verdicts of a check with which a trial may win


@dataclass(frozen=True)
class Trial:
    """One measured configuration.

    - `seconds`: the median of its times; None: it failed.
    - `error`: why, if it did.
    - `predicted_us`: what the model expected before, in microseconds.
    """

    config: Configuration
    text: str
    kernel: str
    seconds: float | None
    error: str
    predicted_us: float

    @property
    def measured(self) -> Measured:
        """The trial as a search takes it."""
        time = None if self.seconds is None else self.seconds * 1e6
        return Measured(self.config, self.kernel, time)


class Database:
    """The records of a work folder.

    Parameters
    ----------
    work_dir : str or Path
        What `tvm_hopper.tune` was given.

    Raises
    ------
    TuningError
        There is no such folder, or a line of its log is not ours; the message names file and line.
    """

    def __init__(self, work_dir: str | Path) -> None:
        self.folder = as_folder(work_dir, "database")
        if not (self.folder / FILE).is_file():
            need = f"the work_dir of a tuning run, with {FILE}"
            raise cannot_tune(f"database {work_dir}", "no records", need, "tune first")
        self._read(read_lines(self.folder))

    @classmethod
    def of(cls, journal: Journal) -> Database:
        """Return what an open log says so far; later lines are for `add`."""
        made = cls.__new__(cls)
        made.folder = journal.folder
        made._read(journal.rows)
        return made

    def _read(self, rows: Iterable[dict[str, Any]]) -> None:
        self.header: dict[str, Any] = {}
        self.workloads: dict[str, dict[str, Any]] = {}
        self.modules: dict[str, list[str]] = {}
        self.classes: dict[str, dict[str, Any]] = {}
        self.machines: list[dict[str, Any]] = []
        self._trials: dict[str, list[Trial]] = {}
        self._checks: dict[tuple[str, str], dict[str, Any]] = {}
        self.finals: dict[str, dict[str, Any]] = {}  # the latest of each function
        self._ends: dict[str, dict[str, Any]] = {}  # the same
        for row in rows:
            self.add(row)
        for key, row in self.workloads.items():
            for trial in self.trials(key):
                _check_kind(trial, row, self.folder)

    def add(self, row: dict[str, Any]) -> None:
        """Take one line of the log into account."""
        if row["is"] == "header":
            self.header = row
        elif row["is"] == "workload":
            self.workloads.setdefault(row["key"], row)
            if not self.has_module(row["key"], row["module"]):
                self.modules.setdefault(row["key"], []).append(row["module"])
        elif row["is"] == "classes":
            self.classes[row["key"]] = row
        elif row["is"] == "machine":
            self.machines.append(row)
        elif row["is"] == "trial":
            self._trials.setdefault(row["workload"], []).append(_trial(row, self.folder))
        elif row["is"] == "end":
            self._ends[row["workload"]] = row
        elif row["is"] == "final":
            self.finals[row["workload"]] = row
        else:
            self._checks[row["workload"], row["configuration"]] = row

    def has_module(self, key: str, text: str) -> bool:
        """Tell whether a function is known by a module: in both texts its hash comes first."""
        hashes = {x.partition(",")[0] for x in self.modules.get(key, [])}
        return text.partition(",")[0] in hashes

    @property
    def other_versions(self) -> list[str]:
        """Names of packages whose versions differ between the records and this process."""
        return differing(self.header) if self.header else []  # of a log that was just begun

    def trials(self, key: str) -> list[Trial]:
        """Return the trials of a function, in the order in which they were made."""
        return list(self._trials.get(key, ()))

    def ended(self, key: str) -> str:
        """Return why a function's search ended, or an empty string."""
        row = self._ends.get(key)
        return row["why"] if row is not None and row["trials"] == len(self.trials(key)) else ""

    def verdict(self, key: str, trial: Trial) -> str:
        """Return what a check found of a trial; an empty string without a check."""
        row = self._checks.get((key, trial.text))
        return "" if row is None else str(row["verdict"])

    def ranked(self, key: str) -> list[Trial]:
        """Return the trials that ran, the fastest one first."""
        timed = [x for x in self.trials(key) if x.seconds is not None]
        return sorted(timed, key=lambda x: x.seconds or 0.0)

    def decided(self, key: str) -> Trial | None:
        """Return the trial that won when the fastest were compared; None before that."""
        text = self.finals.get(key, {}).get("winner")
        return next((x for x in self.ranked(key) if x.text == text), None)

    def winner(self, key: str) -> Trial | None:
        """Return the trial that won, or else the fastest one, whose kernel was found right."""
        decided = self.decided(key)
        ranked = [*([decided] if decided is not None else []), *self.ranked(key)]
        return next((x for x in ranked if self.verdict(key, x) in RIGHT), None)

    def write_stock(self) -> None:
        """Write the two files of TVM's JSONDatabase, if they are not there as they should be."""
        workloads: list[str] = []
        records: list[str] = []
        for key, modules in self.modules.items():
            winner = self.winner(key)
            record = self._checks[key, winner.text]["record"] if winner is not None else None
            if record is None:
                continue
            for module in modules:
                records.append(f"[{len(workloads)},{record}]\n")
                workloads.append(f"{module}\n")
        place = self.folder / WORKLOADS
        with writing(place):
            if not _holds(place, "".join(workloads)):
                _replace(self.folder / RECORDS, "")  # which name workloads by their lines
            _replace(place, "".join(workloads))
            _replace(self.folder / RECORDS, "".join(records))


def _trial(row: dict[str, Any], folder: Path) -> Trial:
    config = from_text(row["configuration"], f"{folder / FILE}, a trial")
    seconds = None if row["seconds"] is None else median(row["seconds"])
    return Trial(
        config,
        row["configuration"],
        row["kernel"],
        seconds,
        row["error"] or "",
        float(row["predicted"]),
    )


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()


def _check_kind(trial: Trial, workload: dict[str, Any], folder: Path) -> None:
    """Refuse a configuration of another kind of kernel than its function's form names."""
    if kind_of(trial.config) != workload["form"].partition(" ")[0]:
        where = f"{folder / FILE}, a trial of {visible(workload['name'])[:60]}"
        found = f"{trial.text[:80]!r} for {visible(workload['form'])[:60]!r}"
        fix = "remove the line, or begin with another work_dir"
        raise cannot_tune(where, found, "a configuration of that kind", fix)


def _replace(path: Path, text: str) -> None:
    """Put a file in the place of another one at once."""
    if _holds(path, text):
        return
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)  # of a run that was killed, or a link to a file of somebody's
    with fresh.open("x") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def merge(into: str | Path, *sources: str | Path) -> Database:
    """Add the records of other work folders to one.

    Parameters
    ----------
    into : str or Path
        A work folder; made if it is not there.
    sources : str or Path
        Work folders, which are only read. What `into` has already is not added again.

    Returns
    -------
    database : Database
        Of `into`.

    Raises
    ------
    TuningError
        A folder has no records, or such that cannot be read or mixed.
    """
    read = []
    folder = as_folder(into, "merge")
    for source in sources:
        database = Database(source)
        check_versions(database.header, database.folder)
        read.append(read_lines(database.folder))
    with Journal(folder) as journal:
        machines = _machines(journal.rows)
        known = {_content(row, machines) for row in journal.rows}
        fresh = []
        for rows in read:
            named = _machines(rows)
            for row in rows:
                content = _content(row, named)
                if row["is"] == "header" or content in known:
                    continue
                known.add(content)
                fresh.append(_renumbered(row, named, machines))
        journal.extend(fresh)
        database = Database.of(journal)
        database.write_stock()
    return database


Machines = dict[int, dict[str, Any]]  # by their numbers in one log


def _machines(rows: Iterable[dict[str, Any]]) -> Machines:
    return {x["number"]: _unnumbered(x) for x in rows if x["is"] == "machine"}


def _unnumbered(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if k != "number"}


def _content(row: dict[str, Any], machines: Machines) -> str:
    """Return a line as a text that does not depend on the numbers of its file."""
    same = _unnumbered(row)
    if row["is"] == "trial":
        same["machine"] = machines.get(row["machine"], {})
    return json.dumps(same, sort_keys=True)


def _renumbered(row: dict[str, Any], source: Machines, into: Machines) -> dict[str, Any]:
    """Return a line with the numbers of the log that it goes to, which gets to know machines."""
    if row["is"] == "machine":
        number = max(into, default=-1) + 1
        into[number] = _unnumbered(row)
        return {**row, "number": number}
    if row["is"] != "trial":
        return row
    wanted = source.get(row["machine"], {})
    return {**row, "machine": next((n for n, x in into.items() if x == wanted), 0)}
