"""Every decision of a generator, recorded in order: a case is the list of its decisions.

    draw = Draw(random.Random("matmul:0:17"))     # a fresh case
    draw = Draw([0, 3, 1])                        # the same generator, these decisions again

A generator asks for one decision at a time and lists the simplest option first. A list of smaller
numbers is then a simpler case, so that one shrinker serves every generator (`shrink`). That, and
the processes that die or hang on a case, is why the cases are not drawn by hypothesis: a case here
has a number, belongs to no process, and is replayed from a few integers.
"""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """Source of decisions: random ones, or a list; `made` is what was decided."""

    def __init__(self, source: random.Random | Sequence[int]) -> None:
        self._random = source if isinstance(source, random.Random) else None
        self._given = iter(()) if isinstance(source, random.Random) else iter(source)
        self.made: list[int] = []

    def index(self, count: int, weights: Sequence[float] | None = None) -> int:
        """Decide on a number below `count`; a list that has ended decides on 0."""
        if self._random is not None:
            value = self._random.choices(range(count), weights)[0]
        else:
            value = max(0, min(next(self._given, 0), count - 1))
        self.made.append(value)
        return value

    def choose(self, options: Sequence[T], weights: Sequence[float] | None = None) -> T:
        """Decide on one option; the first is the simplest."""
        return options[self.index(len(options), weights)]

    def chance(self, percent: float) -> bool:
        """Decide on yes or no; no is the simpler answer."""
        return bool(self.index(2, (100 - percent, percent)))

    def maybe(self, options: Sequence[T], percent: float) -> T | None:
        """Decide on one option with a chance, else on None, which is the simplest: one decision."""
        weights = (100 - percent, *[percent / len(options)] * len(options))
        place = self.index(len(options) + 1, weights)
        return options[place - 1] if place else None

    def some(self, options: Sequence[T], percent: float, most: int) -> list[T]:
        """Decide on up to `most` options; each further one comes with a chance."""
        found: list[T] = []
        while len(found) < most and self.chance(percent):
            found.append(self.choose(options))
        return found


def fresh(family: str, seed: int, number: int) -> Draw:
    """Return the decisions of one case; a string seeds `random` alike in every Python."""
    return Draw(random.Random(f"{family}:{seed}:{number}"))
