"""One refusal: a script, what to change in it, the passes that run, and the message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.transforms.scripts import parse, run


@dataclass(frozen=True)
class Case:
    """A script, what to change in it, the passes that run, and the message."""

    name: str
    script: str
    changes: tuple[tuple[str, str], ...]
    passes: tuple[Any, ...]
    match: str

    def __call__(self) -> None:
        """Lower; raises the refusal."""
        run(parse(self.script, *self.changes), *(make() for make in self.passes))


def case(name, script, passes, match, *changes):
    return Case(name, script, changes, passes, match)
