"""A pairwise cover: few combinations in which every legal pair of values meets at least once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]


def pairs_of(row: Row) -> set[tuple[tuple[str, Any], tuple[str, Any]]]:
    """Return the pairs of (factor, value) that stand together in a row."""
    return set(itertools.combinations(sorted(row.items(), key=lambda item: item[0]), 2))


def pairwise(
    factors: Mapping[str, Sequence[Any]], is_legal: Callable[[Row], bool] = lambda row: True
) -> list[Row]:
    """Return rows such that each pair that some legal row holds stands in one of them.

    Greedy and without chance: always the legal row with most missing pairs, the first of equals.
    """
    names = list(factors)
    legal = [
        row
        for values in itertools.product(*factors.values())
        if is_legal(row := dict(zip(names, values, strict=True)))
    ]
    pairs = [pairs_of(row) for row in legal]
    missing = set().union(*pairs)
    chosen = []
    while missing:
        gains = [len(p & missing) for p in pairs]
        best = gains.index(max(gains))
        chosen.append(legal[best])
        missing -= pairs[best]
    return chosen
