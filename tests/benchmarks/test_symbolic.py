"""`benchmarks.symbolic`: names of classes, builds, and the command line."""

from __future__ import annotations

import pytest

from benchmarks import symbolic
from benchmarks.matmul_case import Case


@pytest.mark.parametrize(
    ("rows", "name"),
    [(1, "to 64"), (64, "to 64"), (65, "to 512"), (512, "to 512"), (513, "above 512"),
     (9000, "above 512")],
)  # fmt: skip
def test_which_class_computes_so_many_rows(rows, name):
    assert symbolic.class_of(rows, (64, 512, 8192)) == name


def test_the_classes_of_a_build_are_told_with_it(tmp_path):
    case = Case(None, 64, 64, classes=(16, 64))
    path, bounds, seconds = symbolic.build_library(case, str(tmp_path / "one.so"))
    assert bounds == (16, 64)
    assert seconds > 0
    assert (tmp_path / "one.so").exists()
    assert path == str(tmp_path / "one.so")


def test_the_mean_of_ratios():
    assert symbolic.geometric_mean([0.5, 2.0]) == pytest.approx(1.0)


def test_the_rows_that_are_promised_are_the_default():
    options = symbolic.parse([])
    assert options.rows == symbolic.ROWS
    assert len(options.rows) == 17
