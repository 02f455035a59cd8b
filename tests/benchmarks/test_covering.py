"""The pairwise cover: complete, legal and small."""

import itertools

from benchmarks.covering import pairs_of, pairwise

FACTORS = {"a": (1, 2, 3), "b": ("x", "y"), "c": (0, 1, 2, 3)}


def test_every_pair_meets():
    rows = pairwise(FACTORS)
    met = set().union(*(pairs_of(row) for row in rows))
    want = {
        ((f, v), (g, w))
        for f, g in itertools.combinations(FACTORS, 2)
        for v in FACTORS[f]
        for w in FACTORS[g]
    }
    assert met == want
    assert 12 <= len(rows) < 24  # 3 x 4 is the least; 24 would be all combinations


def test_no_illegal_row_is_chosen():
    rows = pairwise(FACTORS, lambda row: row["a"] != 3 or row["c"] == 0)
    assert all(row["c"] == 0 for row in rows if row["a"] == 3)
    assert {row["b"] for row in rows if row["a"] == 3} == {"x", "y"}


def test_the_cover_is_the_same_every_time():
    assert pairwise(FACTORS) == pairwise(FACTORS)
