"""What of the benchmark needs no GPU: its command line, its cases and its table."""

import pytest

from benchmarks import correctness, gemm
from benchmarks.matmul_case import Case, shapes


def test_a_variant_is_read_as_a_configuration():
    got = gemm.read_variant("tile=128x256x64,stages=4,consumers=2")
    assert got == {"tile": (128, 256, 64), "stages": 4, "consumers": 2}
    assert gemm.read_variant("") == {}
    assert gemm.read_variant("store=tma,stages=3") == {"store": "tma", "stages": 3}


def test_fewer_than_fifty_repeats_are_refused(capsys):
    with pytest.raises(SystemExit):
        gemm.parse(["--repeats", "49"])
    assert "a median of fewer than 50 is no figure" in capsys.readouterr().err


def test_the_table_has_a_row_a_variant():
    times = {"median_us": 200.0, "p10_us": 199.0, "p90_us": 203.0, "method": "events"}
    row = {
        "size": "4096x4096x4096",
        "layout": "TN",
        "dtype": "float16",
        "config": {"stages": 4},
        "ours": times,
        "cublas": times,
        "ours_tflops": 687.2,
        "cublas_tflops": 687.2,
        "ratio": 1.0,
        "error": 2.1e-4,
    }
    broken = {k: row[k] for k in ("size", "layout", "dtype", "config")} | {
        "message": "AssertionError: x"
    }
    *_, good, bad = gemm.table([row, broken], {"chip": "X"}).splitlines()
    assert good == (
        "| 4096 x 4096 x 4096 | TN | float16 | stages=4 | 200.0 (199.0-203.0) | 687 | 200.0 | 687 "
        "| **1.000** | events | 2.1e-04 |"
    )
    assert "AssertionError: x" in bad


def test_defaults_of_several_layouts_have_a_mean_for_each_size():
    row = {"size": "64x64x64", "config": {}}
    rows = [row | {"ratio": 1.21}, row | {"ratio": 1.0}, row | {"message": "x"}]
    other = {"size": "8x8x8", "config": {}, "ratio": 0.5}
    (line,) = gemm.means([*rows, other, row | {"config": {"stages": 4}, "ratio": 9.0}])
    assert line == "64x64x64: geometric mean 1.100, least 1.000 of 2"


def test_names_of_cases_are_unique():
    cases = [case for make in correctness.SETS.values() for case in make()]
    assert len({case.name for case in cases}) == len(cases)


@pytest.mark.parametrize(
    ("case", "breaks"),
    [
        (Case(100, 8, 72, "NT"), False),
        (Case(100, 8, 72, "TN"), True),  # a row of A is 100 x 2 = 200 bytes
        (Case(128, 128, 100, "NT"), True),
        (Case(128, 1001, 128, "NN"), True),
        (Case(128, 1001, 128, "NT"), False),
        (Case(None, 128, 128, "NT"), False),
    ],
)
def test_the_16_byte_rule(case, breaks):
    assert correctness.breaks_16_byte_rule(case) is breaks


def test_shapes_follow_the_layout():
    assert shapes(Case(2, 3, 5, "NT"), 2) == ((2, 5), (3, 5))
    assert shapes(Case(2, 3, 5, "TN"), 2) == ((5, 2), (5, 3))


def test_the_cover_has_every_tile_with_every_legal_number_of_consumers():
    met = {(c.config["tile"], c.config["consumers"]) for c in correctness.cover_cases()}
    assert ((192, 128, 64), 3) in met
    assert ((128, 256, 64), 1) not in met  # 256 accumulators a thread
    assert {tile for tile, _ in met} == set(correctness.FACTORS["tile"])
