"""Divide the trial budget between functions, and decide when to stop.

Every function has its choice of the package measured first. Then the one comes next at which a
trial is expected to save most of the module's time: the model's expected improvement, times the
time of the function, times how often the module has it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from .search import Search
from .tasks import Task

CLOSE = 1.02  # times the bound: nothing is left to gain
LEAST_GAIN = 5e-4  # of the time, that a trial must be expected to save
MOST_UNDER_WAY = 16  # trials of a task
FEWEST = 64  # trials before the model's word on that is taken: it is too sure of tiles unlike those


@dataclass(eq=False)
class Account:
    """One task, its search, and how many of its trials there are."""

    task: Task
    search: Search
    trials: int = 0
    under_way: int = 0
    failed: int = 0
    stopped: str = field(default="")

    @property
    def worth(self) -> float:
        """The microseconds of the module that the next trial is expected to save."""
        best = self.search.best
        time = math.inf if best is None or best.microseconds is None else best.microseconds
        gain = self.search.expected_gain()
        return math.inf if math.isinf(gain) else self.task.weight * time * gain


def why_enough(account: Account, each: int | None = None) -> str:
    """Say why no more trials of a task are worth it; an empty string while they are.

    - `each`: trials that a task gets at most.
    """
    search = account.search
    if each is not None and account.trials >= each:
        return f"{each} trials"
    if search.is_exhausted:
        return "every configuration was tried"
    best = search.best
    if best is None or best.microseconds is None:
        return ""
    if best.microseconds <= CLOSE * search.problem.bound_us:
        return "at the bound"
    if account.trials >= FEWEST and search.expected_gain() < LEAST_GAIN:
        return "nothing more to gain, by the model"
    return ""


def choose(
    accounts: Sequence[Account], most: int = MOST_UNDER_WAY, each: int | None = None
) -> Account | None:
    """Return the account whose trials come next, None if none is worth any.

    One of which a batch is under way waits for it, as long as another one has something to try.

    - `most`: trials of one that may be under way: it learns nothing of them.
    - `each`: trials that one gets at most.
    """
    open_ = [x for x in accounts if not x.stopped and x.under_way < most]
    if each is not None:
        open_ = [x for x in open_ if x.trials + x.under_way < each]
    idle = [x for x in open_ if not x.under_way]
    return max(idle or open_, key=lambda x: x.worth, default=None)


def share(
    account: Account, accounts: Sequence[Account], left: int, batch: int, each: int | None = None
) -> int:
    """Return how many trials a task gets at once.

    Before every task has had some, none gets more than its part of the rest.
    """
    if each is not None:
        batch = min(batch, each - account.trials - account.under_way)
    fresh = [x for x in accounts if not x.trials and not x.under_way and not x.stopped]
    if account in fresh:
        return max(1, min(batch, left // len(fresh)))
    return min(batch, left)
