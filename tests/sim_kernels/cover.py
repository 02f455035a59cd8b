"""A pairwise cover built row by row, for spaces too large to list."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]


def pairwise(
    factors: Mapping[str, Sequence[Any]], is_legal: Callable[[Row], bool] = lambda row: True
) -> list[Row]:
    """Return rows in which each pair of values stands together that a row can be found for.

    `is_legal` also judges parts of a row: it must accept one that can still become legal. Each row
    starts from a pair that is missing; every other factor takes the legal value that adds most.
    """
    names = list(factors)
    missing = {
        frozenset({(a, i), (b, j)})
        for a, b in itertools.combinations(names, 2)
        for i, j in itertools.product(range(len(factors[a])), range(len(factors[b])))
    }
    rows = []
    order = {name: place for place, name in enumerate(names)}
    for seed in sorted(missing, key=lambda pair: sorted((order[n], i) for n, i in pair)):
        if seed in missing:
            places = _fill(dict(seed), factors, missing, is_legal)
            if places is None:
                continue
            missing -= {frozenset(pair) for pair in itertools.combinations(places.items(), 2)}
            rows.append({name: factors[name][places[name]] for name in names})
    return rows


def _fill(places: dict[str, int], factors: Any, missing: Any, is_legal: Any) -> Any:
    """Complete a row, most useful value first, with a step back where that turns out illegal."""

    def legal(row: dict[str, int]) -> bool:
        return is_legal({name: factors[name][place] for name, place in row.items()})

    if not legal(places):
        return None
    open_names = [name for name in factors if name not in places]
    if not open_names:
        return places
    name = open_names[0]

    def gain(place: int) -> int:
        return sum(frozenset({(name, place), item}) in missing for item in places.items())

    for place in sorted(range(len(factors[name])), key=lambda p: (-gain(p), p)):
        done = _fill({**places, name: place}, factors, missing, is_legal)
        if done is not None:
            return done
    return None
