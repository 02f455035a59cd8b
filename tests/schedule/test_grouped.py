"""Grouped products: each group of rows has the matrix that a table names."""

import numpy as np
import pytest
from tvm import s_tir

from tests.schedule.refuse import refuse
from tvm_hopper import schedule as hs
from tvm_hopper.simulation import simulate, verify
from tvm_hopper.testing.contractions import grouped

SMALL = {"tile": (64, 32, 64), "stages": 2, "consumers": 1}


@pytest.mark.parametrize(
    ("group", "columns", "config"),
    [
        (64, 32, {}),
        (128, 40, {"persistent": 2}),  # two tiles a group, columns off tiles
        (32, 32, {}),  # tiles are half empty
    ],
)
def test_values(group, columns, config):
    mod = grouped(256, group, columns, 72, 4)
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig(**(SMALL | config)))
    drawn = np.random.default_rng(0)
    a = drawn.integers(-2, 3, (256, 72)).astype("float16")
    b = drawn.integers(-2, 3, (4, columns, 72)).astype("float16")
    e = np.array([2, 0, 3, 3, 1, 1, 0, 2][: 256 // group], "int32")
    result = simulate(sch, {"A": a, "B": b, "E": e})
    result.require_clean()
    matrices = b[np.repeat(e, group)].astype("float64")
    want = np.einsum("ik,ijk->ij", a.astype("float64"), matrices)
    np.testing.assert_array_equal(result.outputs["C"], want)


def test_a_table_is_part_of_what_is_verified():
    mod = grouped(128, 64, 32, 64, 3)
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig(**SMALL))
    report = verify(sch, {"E": np.array([2, 0], "int32")}, against=mod)
    assert report.verdict == "clean"


def test_groups_that_are_not_whole_are_refused():
    refuse(
        grouped(100, 64, 32, 64, 3),
        r"block C: found 100 rows in groups of 64, .*; need whole groups; pad the rows, or write",
    )
