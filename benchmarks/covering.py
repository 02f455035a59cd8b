"""A pairwise cover: few combinations in which every legal pair of values meets at least once."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from allpairspy import AllPairs

Row = dict[str, Any]
Places = dict[str, int]  # the same row by the place of each value: values need no hash


def pairwise(
    factors: Mapping[str, Sequence[Any]], is_legal: Callable[[Row], bool] = lambda row: True
) -> list[Row]:
    """Return rows in which each pair of values stands together that some legal row holds.

    Parameters
    ----------
    factors : mapping
        The values of each name.
    is_legal : function
        Also judges a part of a row, with the first factors alone: it must accept one that can still
        become legal.

    Returns
    -------
    rows : list of dict
        The same every time.
    """

    def value_of(row: Mapping[str, int]) -> Row:
        return {name: factors[name][place] for name, place in row.items()}

    def search(places: Mapping[str, Iterable[int]]) -> Iterator[Places]:
        names = list(places)
        spaces = OrderedDict((name, list(some)) for name, some in places.items())
        for found in AllPairs(
            spaces, lambda start: is_legal(value_of(dict(zip(names, start, strict=False))))
        ):
            yield dict(zip(names, found, strict=True))

    everything = {name: range(len(values)) for name, values in factors.items()}
    rows = list(search(everything))
    held = set().union(*map(pairs_of, rows))
    # AllPairs ends at the first row that adds nothing, although a legal pair may still be missing.
    for pair in all_pairs(everything):
        if pair not in held:
            (f, i), (g, j) = pair
            for row in itertools.islice(search({**everything, f: [i], g: [j]}), 1):
                rows.append(row)
                held |= pairs_of(row)
    return [value_of(row) for row in rows]


def pairs_of(row: Mapping[str, Any]) -> set[tuple[tuple[str, Any], tuple[str, Any]]]:
    """Return the pairs of (factor, value) that stand together in a row."""
    return set(itertools.combinations(sorted(row.items(), key=lambda item: item[0]), 2))


def all_pairs(factors: Mapping[str, Iterable[Any]]) -> Iterator[tuple[Any, Any]]:
    """Yield every pair of (factor, value), also those that no legal row holds."""
    for f, g in itertools.combinations(sorted(factors), 2):
        for v, w in itertools.product(factors[f], factors[g]):
            yield (f, v), (g, w)
