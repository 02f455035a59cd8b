"""Kernels of ours in the simulator: right bits and no finding, over a pairwise cover of choices."""

import pytest

from benchmarks.covering import pairwise
from tests.sim_kernels.kernels import check
from tvm_hopper import schedule as hs

FACTORS = {
    "tile": ((64, 64, 64), (64, 48, 32), (64, 32, 64), (64, 24, 16), (64, 8, 16)),
    "stages": (1, 2, 3, 4),
    "consumers": (1, 2, 3),
    "dtype": ("float16", "bfloat16"),
    "out_dtype": ("float32", "float16", "bfloat16"),
    "layout": ("NT", "NN", "TN", "TT"),
    "wgmma_pending": (None, 0, 1),
    # rows, columns and depth that do and do not divide; every depth suits every layout
    "rows": (64, 1, 72, 136),
    "columns": (64, 8, 40, 136),
    "depth": (64, 8, 72, 200),
    "swizzle": (None, 0, 32),
    "order": (
        {},
        {"raster": 2},
        {"persistent": 2},
        {"persistent": 3, "raster": 4},
        {"persistent": 3, "raster": hs.Raster(2, "hilbert")},
    ),
    "form": (
        {},
        {"index": "int64"},
        {"swap": True, "cast": "after"},
        {"cast_stage": True},
        {"batch": True},
    ),
}
PROBLEM = ("dtype", "out_dtype", "layout")


def is_legal(row):
    """Tell whether the rules of `MatmulConfig` and of TMA allow a row, or what is known of it."""
    tile, consumers = row.get("tile"), row.get("consumers")
    if tile and consumers and tile[1] % (8 * consumers):
        return False
    if row.get("wgmma_pending") and row.get("stages", 2) == 1:
        return False
    layout = row.get("layout", "NT")
    if layout[0] == "T" and row.get("rows", 8) % 8:  # rows of A^T are 16 bytes apart
        return False
    if row.get("swizzle") == 32 and tile:  # both operands' rows have to be multiples of 32 bytes
        if tile[2] % 16:
            return False
        if layout[1] == "N" and (tile[1] // (consumers or 1)) % 16:
            return False
    return True


def split(row):
    problem = {name: row[name] for name in PROBLEM}
    problem |= {"m": row["rows"], "n": row["columns"], "k": row["depth"], **row["form"]}
    config = {name: row[name] for name in ("stages", "consumers", "wgmma_pending", "swizzle")}
    return problem, row["tile"], {**config, **row["order"]}


def name_of(row):
    return "-".join(
        "x".join(map(str, v))
        if isinstance(v, tuple)
        else "+".join(v)
        if isinstance(v, dict)
        else str(v)
        for v in row.values()
    )


ROWS = pairwise(FACTORS, is_legal)


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_cover(row):
    problem, tile, config = split(row)
    check(problem, tile, **config)


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy", ["eager", "lifo", "random", "starve:producer", "starve:consumer"]
)
@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_cover_under_other_schedules(row, policy):
    problem, tile, config = split(row)
    check(problem, tile, policy=policy, seed=7, **config)


def test_cover_holds_every_legal_pair():
    """What no row holds is what the rules forbid."""
    names = list(FACTORS)
    held = {(a, str(row[a]), b, str(row[b])) for row in ROWS for a in names for b in names if a < b}
    absent = {
        (a, x, b, y)
        for a in names
        for b in names
        if a < b
        for x in map(str, FACTORS[a])
        for y in map(str, FACTORS[b])
        if (a, x, b, y) not in held
    }
    assert {(a, b) for a, _, b, _ in absent} <= {
        ("consumers", "tile"),
        ("stages", "wgmma_pending"),
        ("layout", "rows"),
        ("swizzle", "tile"),
        ("layout", "swizzle"),
        ("consumers", "swizzle"),
    }
