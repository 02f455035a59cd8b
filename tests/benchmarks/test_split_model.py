"""The model of sums in parts, against the times of an H200."""

from __future__ import annotations

import json
import math
from itertools import groupby
from pathlib import Path

import pytest

from benchmarks.calibration.split_model import (
    CLUSTERS,
    choose_parts,
    estimate_split_cycles,
    num_clusters,
)

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "split_k_2026-11-22_1929.json"
CYCLES_PER_US = 1750


def measured():
    """Return problem, tile, parts and microseconds of each configuration."""
    rows = json.loads(RESULTS.read_text())["rows"]
    return [
        (
            tuple(map(int, row["size"].split("x"))),
            tuple(row["config"]["tile"]),
            row["config"].get("split_k", 1),
            row["ours"]["median_us"],
        )
        for row in rows
        if row["config"]
    ]


def test_times_are_near_what_was_measured():
    errors = [
        math.log(estimate_split_cycles(*size, tile, parts) / CYCLES_PER_US / us)
        for size, tile, parts, us in measured()
        if parts > 1
    ]
    assert len(errors) > 40
    assert math.sqrt(sum(x * x for x in errors) / len(errors)) < 0.15


@pytest.mark.parametrize(("by", "worst"), [(1, 1.04), (2, 1.06)], ids=["problem", "tile"])
def test_the_choice_among_what_was_measured(by, worst):
    """Of a problem's tiles and parts, and of the parts of each tile."""
    for _, group in groupby(measured(), key=lambda row: row[:by]):
        rows = list(group)
        size = rows[0][0]
        chosen = min(rows, key=lambda row: estimate_split_cycles(*size, row[1], row[2]))
        assert chosen[3] <= worst * min(row[3] for row in rows)


@pytest.mark.parametrize(
    ("m", "n", "k", "tile", "most", "least"),
    [
        (8192, 8192, 8192, (128, 256, 64), 1, 1),  # tiles enough
        (128, 256, 16384, (64, 64, 128), 8, 8),
        (512, 512, 8192, (128, 128, 64), 6, 4),
        (128, 256, 64, (64, 64, 64), 1, 1),  # nothing to share
    ],
)
def test_parts_of_some_problems(m, n, k, tile, most, least):
    assert least <= choose_parts(m, n, k, tile) <= most


def test_a_smaller_chip_holds_fewer_clusters():
    assert [num_clusters(parts) for parts in CLUSTERS] == list(CLUSTERS.values())
    assert num_clusters(4, 78) == 17
    assert num_clusters(8, 4) == 1
    assert choose_parts(1000, 1000, 20000, (128, 128, 64), 78) <= 2
