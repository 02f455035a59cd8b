"""The pairwise cover: complete, legal and small."""

import itertools

import pytest

from benchmarks import correctness
from benchmarks.covering import all_pairs, pairs_of, pairwise

FACTORS = {"a": (1, 2, 3), "b": ("x", "y"), "c": (0, 1, 2, 3)}


def test_every_pair_meets():
    rows = pairwise(FACTORS)
    met = set().union(*(pairs_of(row) for row in rows))
    assert met == set(all_pairs(FACTORS))
    assert len(met) == 3 * 2 + 3 * 4 + 2 * 4
    assert 12 <= len(rows) < 24  # 3 x 4 is the least; 24 would be all combinations


def test_no_illegal_row_is_chosen():
    rows = pairwise(FACTORS, lambda row: row["a"] != 3 or row.get("c", 0) == 0)
    assert all(row["c"] == 0 for row in rows if row["a"] == 3)
    assert {row["b"] for row in rows if row["a"] == 3} == {"x", "y"}


def test_the_cover_is_the_same_every_time():
    assert pairwise(FACTORS) == pairwise(FACTORS)


def test_values_need_no_hash():
    rows = pairwise({"a": ({}, {"x": 1}), "b": ([], [1])})
    assert len(rows) == 4
    assert {"a": {"x": 1}, "b": [1]} in rows


@pytest.mark.parametrize(
    ("factors", "is_legal"),
    [
        (correctness.FACTORS, correctness.is_legal),
        (correctness.OPTIONS, correctness.swizzle_fits),
    ],
    ids=["cover", "options"],
)
def test_the_covers_hold_every_pair_of_every_legal_row(factors, is_legal):
    """Rules leave gaps between factors: AllPairs alone missed 6 and 10 of these pairs."""
    every = (
        dict(zip(factors, values, strict=True)) for values in itertools.product(*factors.values())
    )
    legal = set().union(*(pairs_of(row) for row in every if is_legal(row)))
    rows = pairwise(factors, is_legal)
    assert all(is_legal(row) for row in rows)
    assert set().union(*map(pairs_of, rows)) == legal
    assert len(rows) <= 26
