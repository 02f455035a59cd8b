"""Makes a faulty case smaller while the fault stays.

A case is a list of decisions, and a smaller number is a simpler decision. So: set spans to 0, leave
spans out, set one to 0 and leave out what hung on it, lower single numbers; keep what still fails
alike and has fewer decisions other than 0. Nothing here knows what a decision means.
"""

import time
from collections.abc import Callable, Iterator, Sequence

from .case import Case
from .draw import Draw
from .messages import signature

Verdict = tuple[str, str, str]  # class, phase, what messages of one cause have in common
BY_NUMBERS = ("wrong", "hang")  # classes whose text says nothing of the cause


def verdict(kind: str, phase: str, text: str) -> Verdict:
    """Return what two cases of one fault have in common."""
    if kind in ("simulator-alarm", "silent"):
        return kind, phase, signature(text.split(": ")[0])  # the rule, or why: not the statement
    return kind, phase, "" if kind in BY_NUMBERS else signature(text)


def size(case: Case) -> int:
    """Return how much there is to read in a case."""
    steps = sum(len(step.text) for step in (*case.steps, *case.after))
    extras = 40 * (case.verify + case.cubin + (case.policy != "on_wait"))
    return len(case.program.text) + steps + extras


def cost(made: Sequence[int], case: Case) -> tuple[int, int, int]:
    """Return what a smaller case has less of, the most important first."""
    return sum(map(bool, made)), sum(made), size(case)


def shrink(
    made: Sequence[int],
    make: Callable[[Draw], Case],
    is_same: Callable[[Case], bool],
    attempts: int = 150,
    seconds: float = 45.0,
) -> list[int]:
    """Return the decisions of a smaller case with the same fault.

    Parameters
    ----------
    made : sequence of int
        Decisions of a case that has the fault.
    make : callable
        The generator.
    is_same : callable
        Runs a case and tells whether it has the fault; called at most `attempts` times.
    """
    end = time.monotonic() + seconds
    best, best_case = list(made), make(Draw(made))
    seen = {repr(best_case)}
    improved = True
    while improved:
        improved = False
        for candidate in _simpler(best):
            draw = Draw(candidate)
            case = make(draw)
            if cost(draw.made, case) >= cost(best, best_case) or repr(case) in seen:
                continue
            if attempts <= 0 or time.monotonic() > end:
                return best
            attempts -= 1
            seen.add(repr(case))
            if is_same(case):
                best, best_case, improved = draw.made, case, True
                break
    return best


def _simpler(made: list[int]) -> Iterator[list[int]]:
    """Yield simpler lists, the boldest first."""
    length = len(made)
    span = max(1, length // 2)
    while span:
        for start in range(0, length, span):
            if any(made[start : start + span]):
                yield [*made[:start], *[0] * len(made[start : start + span]), *made[start + span :]]
        for start in range(0, length, span):
            yield [*made[:start], *made[start + span :]]
        span //= 2
    for place, value in enumerate(made):
        for others in (1, 2, 3) if value else ():
            yield [*made[:place], 0, *made[place + 1 + others :]]
    for place, value in enumerate(made):
        for lower in sorted({1, value // 2, value - 1}):
            if 0 < lower < value:
                yield [*made[:place], lower, *made[place + 1 :]]
