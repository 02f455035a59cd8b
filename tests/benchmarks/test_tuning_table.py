"""The benchmark of tuning: what it tunes, and how it prints a result."""

from benchmarks import tuning


def test_programs_are_those_of_the_population_and_norms():
    found = tuning.modules(2, 1)
    assert list(found)[-1] == "rms_norm 4096x4096"
    assert found["rms_norm 4096x4096"][1] is None
    problems = [p for _, p in found.values() if p is not None]
    assert [p.name for p in problems] == list(found)[:2]


def test_a_line_has_a_cell_for_each_column():
    result = tuning.Result("64x64x64", 24, 1, 6.0, 4.0, 10.0, 8.0, 1.25, "matmul", swept=7)
    assert tuning.line(result).count("|") == tuning.COLUMNS.count("|")
    assert "| 1.250 |" in tuning.line(result)
    failed = tuning.Result("64x64x64", 0, 0, 0, 0, 0, 0, 0, "", note="ValueError: no")
    assert tuning.line(failed) == "| 64x64x64 | ValueError: no |"
