"""`benchmarks.symbolic`: which kernel runs, builds, and the command line."""

import pytest

from benchmarks import symbolic
from benchmarks.matmul_case import Case


@pytest.mark.parametrize(
    ("rows", "kernel"), [(1, 64), (64, 64), (65, 512), (600, 64), (641, 4096), (9000, 4096)]
)
def test_which_kernel_computes_so_many_rows(rows, kernel):
    assert symbolic.kernel_of(rows, {64: 64, 512: 512, 640: 64, 8192: 4096}) == kernel


def test_the_ranges_of_a_build_are_told_with_it(tmp_path):
    case = Case(None, 64, 64, classes=(16, 64))
    path, ranges, seconds = symbolic.build_library(case, str(tmp_path / "one.so"))
    assert ranges == {16: 16, 64: 64}
    assert seconds > 0
    assert (tmp_path / "one.so").exists()
    assert path == str(tmp_path / "one.so")


def test_the_mean_of_ratios():
    assert symbolic.geometric_mean([0.5, 2.0]) == pytest.approx(1.0)


def test_the_rows_that_are_promised_are_the_default():
    options = symbolic.parse([])
    assert options.rows == symbolic.ROWS
    assert len(options.rows) == 17
