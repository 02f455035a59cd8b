"""Progress display of a tuning run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress as Bars,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from .budget import Account

MOST_LINES = 24  # of functions; of more, those with the latest trials


class Progress:
    """Lines on a terminal; nothing where there is none.

    - `total`: trials in all.
    - `shown`: none: if stderr is a terminal.
    """

    def __init__(self, accounts: Sequence[Account], total: int, shown: bool | None = None) -> None:
        shown = sys.stderr.isatty() if shown is None else shown
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not shown,
            refresh_per_second=4,
        )
        self._lines: dict[int, Any] = {}
        self._all = self._bars.add_task("all", total=total, text="")
        for account in accounts[:MOST_LINES]:
            name = escape(account.task.name)
            line = self._bars.add_task(name, total=None, text="")
            self._lines[id(account)] = line

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def update(self, account: Account, done: int) -> None:
        """Show what is known of a function, and how many trials there were in all."""
        self._bars.update(self._all, completed=done)
        line = self._lines.get(id(account))
        if line is not None:
            self._bars.update(line, completed=account.trials, text=escape(describe(account)))

    def say(self, text: str) -> None:
        """Show what is done now."""
        self._bars.update(self._all, text=escape(text))


def describe(account: Account) -> str:
    """Return the best time so far, what it gained, failures, and why no more is tried."""
    best = account.search.best
    words = []
    if best is not None and best.microseconds is not None:
        words.append(f"{best.microseconds:.1f} us")
        first = account.search.first_us
        if first is not None:
            words.append(f"{first / best.microseconds:.2f}x")
    if account.failed:
        words.append(f"{account.failed} failed")
    if account.stopped:
        words.append(account.stopped)
    return ", ".join(words)
