"""Look up a function's configuration in a database.

    lookup("tuned", func, target)      hs.MatmulConfig(...), of a static function
                                       [(16, hs.MatmulConfig(...)), ...], of one with symbolic rows
                                       None, where nothing was tuned

`schedule_with(func, found)` makes a schedule of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tvm import tirx

from tvm_hopper.errors import cannot_tune, warn
from tvm_hopper.schedule import MatmulConfig

from .configurations import Configuration, from_text
from .database import Database
from .problems import key_of
from .scheduling import canonical
from .tasks import as_target, symbols_of

Found = Configuration | list[tuple[int, MatmulConfig]]


def open_database(database: Database | str | Path) -> Database | None:
    """Return a database, None with a warning if other versions wrote it: times would mislead.

    - raises TuningError: there are no records, or they cannot be read.
    """
    made = database if isinstance(database, Database) else Database(database)
    if different := made.other_versions:
        versions = ", ".join(f"{name} {made.header.get(name)}" for name in different)
        warn(
            f"database {made.folder}: found records of {versions}; need those of this process; "
            "they are ignored, tune again",
            stacklevel=3,
        )
        return None
    return made


def lookup(
    database: Database | str | Path, func: tirx.PrimFunc, target: Any = None
) -> Found | None:
    """Return the best checked configuration of a function.

    Parameters
    ----------
    database : Database, str or Path
        Records, or the work_dir of a tuning run. Open it once for many functions.
    func : PrimFunc
        Plain loops: what was tuned. Its name and attributes do not matter.
    target : Target, str or dict, optional
        What it is built for; left out, the target in scope. Records of other parts do not count.

    Returns
    -------
    found : configuration, list of (int, MatmulConfig), or None
        For a product with symbolic rows a configuration for each size class that was tuned, by the
        rows up to which it is for, ascending. None: the package's own choice is all that is known.

    Raises
    ------
    TuningError
        There are no records, or they cannot be read, or the target is no Hopper GPU, or `func` is
        no PrimFunc.
    """
    if not isinstance(func, tirx.PrimFunc):
        need = 'a PrimFunc in plain loops, e.g. mod["main"]'
        raise cannot_tune("lookup", type(func).__name__, need)
    made = open_database(database)
    if made is None:
        return None
    key = key_of(canonical(func), as_target(target))
    if not symbols_of(func):
        winner = made.winner(key)
        return None if winner is None else winner.config
    row = made.classes.get(key)
    if row is None:
        return None
    if len(row["bounds"]) == 1:
        ((_, workload),) = row["bounds"]
        winner = made.winner(workload)
        if winner is not None and not isinstance(winner.config, MatmulConfig):
            return _for_any_rows(made, workload, winner.config)
    classes: list[tuple[int, MatmulConfig]] = []
    for rows, workload in row["bounds"]:
        winner = made.winner(workload)
        if winner is None or not isinstance(winner.config, MatmulConfig):
            continue
        if classes and classes[-1][1] == winner.config and winner.config.tile is not None:
            classes.pop()  # one kernel is as good for both
        classes.append((rows, winner.config))
    return classes or None


def _for_any_rows(database: Database, workload: str, config: Configuration) -> Configuration:
    """Return the winner of one number of rows for any: with what the package chose for that."""
    if config != type(config)():
        return config
    return from_text(database.workloads[workload].get("choice"), f"{database.folder}, a choice")
