"""Which cases of a test are its sample (`sampled(every=n)`, see `conftest.py`)."""

from __future__ import annotations

from collections.abc import Sequence


def spread(cases: Sequence[Sequence[str]], every: int) -> set[int]:
    """Choose one case in `every`, so that as many values of parameters as possible occur.

    A case is the values of its parameters. Among cases that add as many new values, each n-th goes
    first: taken alone, these would miss values of a parameter that repeat as often.
    """
    values = [{*enumerate(case)} for case in cases]
    order = sorted(range(len(cases)), key=lambda i: (i % every, i))
    chosen: set[int] = set()
    seen: set[tuple[int, str]] = set()
    for _ in cases[::every]:
        best = max(order, key=lambda i: len(values[i] - seen))
        order.remove(best)
        chosen.add(best)
        seen |= values[best]
    return chosen
