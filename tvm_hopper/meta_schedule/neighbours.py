"""Start a search from trials of similar problems in the database."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from tvm_hopper.errors import HopperError

from .configurations import from_text
from .database import Database
from .memory_problems import MemoryProblem
from .problems import Problem
from .search import Measured

MOST = 4  # problems


def near_trials(database: Database, problem: Problem) -> list[tuple[Problem, list[Measured]]]:
    """Return the trials of the nearest problems of the same form and part, the nearest one first.

    - `problem`: what they are to be like.
    """
    problems: list[tuple[float, Problem, list[Measured]]] = []
    for key, row in database.workloads.items():
        if key == problem.key or row["form"] != problem.form or not _same_part(row, problem):
            continue
        trials = [x.measured for x in database.trials(key)]
        if any(x.microseconds is not None for x in trials):
            try:
                other = _rebuilt(row, problem)
            except (HopperError, KeyError, TypeError):
                continue  # written by hand: no help, and no harm
            problems.append((_distance(other.extents, problem.extents), other, trials))
    problems.sort(key=lambda x: x[0])
    return [(other, trials) for _, other, trials in problems[:MOST]]


def _same_part(row: dict[str, Any], problem: Problem) -> bool:
    return str(row["key"]).split("-")[1:] == problem.key.split("-")[1:]


def _rebuilt(row: dict[str, Any], like: Problem) -> Problem:
    """Return the problem of a row as far as estimates and features need it: without its module."""
    extents = tuple(row["extents"])
    if len(extents) != len(like.extents):
        raise TypeError("extents")
    changed: dict[str, Any] = {
        "extents": extents,
        "moved_bytes": int(row["bytes"]),
        "multiply_adds": int(row["multiply_adds"]),
    }
    if isinstance(like, MemoryProblem):
        changed["choice"] = from_text(row["choice"])
    return replace(like, **changed)


def _distance(left: tuple[int, ...], right: tuple[int, ...]) -> float:
    return sum(abs(math.log2(a / b)) for a, b in zip(left, right, strict=True))
