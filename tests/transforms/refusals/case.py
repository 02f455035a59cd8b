"""One refusal: a script, what to change in it, the passes that run, and the message."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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


def on(script: str, passes: tuple[Any, ...]) -> Callable[..., Case]:
    """Return what makes cases of a script and passes, of a name, a message and changes."""
    return partial(_case_on, script, passes)


def _case_on(script, passes, name, match, *changes):
    return Case(name, script, changes, passes, match)


def rows(make: Callable[..., Case], **named: Any) -> Callable[[str], list[Case]]:
    """Return what makes cases of a table.

    A line at its left margin names a case. Below it stand its changes, `old => new` or `+ NAME`
    of one or (`+ *NAME`) several that are named, then its message, in which `...` is any text.
    """
    return partial(_cases, make, named)


def _cases(make: Callable[..., Case], named: dict[str, Any], text: str) -> list[Case]:
    found: list[tuple[str, list[Any], list[str]]] = []
    for line in filter(str.strip, text.splitlines()):
        word = line.strip()
        if line == word:
            found.append((line, [], []))
        elif word.startswith("+ *"):
            found[-1][1].extend(named[word[3:]])
        elif word.startswith("+ "):
            found[-1][1].append(named[word[2:]])
        elif " =>" in word:
            old, new = word.replace(r"\n", "\n").split(" =>")
            found[-1][1].append((old, new[1:]))
        else:
            found[-1][2].append(word)
    return [make(name, _match(" ".join(said)), *changes) for name, changes, said in found]


def _match(said: str) -> str:
    """Return the pattern of a message; `^` and `$` at its ends are what they are in patterns."""
    start, end = "^" * said.startswith("^"), "$" * said.endswith("$")
    return start + re.escape(said.strip("^$")).replace(r"\.\.\.", ".*") + end
