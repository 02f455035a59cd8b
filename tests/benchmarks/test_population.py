"""Problems drawn from a seed, and the page of their distribution."""

import json
import math

import pytest

from benchmarks import gemm, population_table
from benchmarks.population import LONGEST, SHORTEST, Problem, population


def test_a_seed_gives_the_same_problems_and_a_longer_list_begins_like_a_shorter_one():
    assert population(7, 20) == population(7, 40)[:20]
    assert population(7, 20) != population(8, 20)


def test_problems_are_different_and_of_lengths_that_can_be_timed():
    found = population(1, 400)
    assert len(set(found)) == 400
    assert all(SHORTEST < problem.seconds < LONGEST for problem in found)


@pytest.mark.parametrize("seed", range(5))
def test_rows_are_multiples_of_16_bytes(seed):
    for p in population(seed, 100):
        rows = (p.m if p.layout[0] == "T" else p.k, p.k if p.layout[1] == "T" else p.n)
        assert all(size % 8 == 0 for size in rows), p.name


def test_shares_of_layouts_types_and_kinds():
    found = population(0, 2000)

    def share(belongs):
        return sum(map(belongs, found)) / len(found)

    assert share(lambda p: p.layout == "NT") == pytest.approx(0.70, abs=0.04)
    assert share(lambda p: p.dtype == "bfloat16") == pytest.approx(0.60, abs=0.04)
    assert 0.15 < share(lambda p: p.m <= 64) < 0.3
    assert 0.15 < share(lambda p: p.is_deep) < 0.35


def row(ratio, m=64, k=64):
    times = {"median_us": 2.0}
    problem = {"m": m, "n": 64, "k": k, "layout": "NT", "dtype": "float16"}
    return {
        "problem": problem,
        "ours": times,
        "cublas": times,
        "ratio": ratio,
        "error": 1e-4,
    }


def test_the_distribution_by_hand():
    rows = [row(0.5), row(2.0), row(1.0, m=4, k=1024)]
    lines = population_table.summary(rows)
    assert "| all | 3 | 1.000 | 1.000 | 0.550 | 0.500 |" in lines
    assert "| M 17 to 64 | 2 | 1.000 | 1.250 | 0.575 | 0.500 |" in lines
    assert "| deep K | 1 | 1.000 | 1.000 | 1.000 | 1.000 |" in lines
    assert not any("M above 4096" in line for line in lines)


def test_a_percentile_lies_between_two_values_in_proportion():
    assert population_table.percentile([1.0, 2.0, 4.0], 75) == 3.0
    assert population_table.percentile([5.0], 5) == 5.0


def test_the_page_names_the_worst_and_what_failed():
    failed = {"problem": row(1.0, m=99)["problem"], "message": "CompileError: C7517"}
    rows = [*(row(0.5 + i / 10, m=i + 1) for i in range(12)), failed]
    text = population_table.page(rows, {"chip": "X"})
    assert "- 99x64x64 NT float16: CompileError: C7517" in text
    assert "The 10 worst: 1x64x64 NT float16 0.50; 2x64x64 NT float16 0.60; " in text
    assert "11x64x64 NT float16 1.50" not in text.split("The 10 worst")[1].split("\n")[0]
    assert "| 12x64x64 NT float16 | 2.00 | 2.00 | 1.600 | 1.0e-04 |  |" in text


def test_the_command_takes_a_seed_and_a_count():
    assert gemm.parse(["--population", "7", "60"]).population == [7, 60]
    assert gemm.parse([]).population is None


def test_a_problem_has_its_bytes_and_its_name():
    problem = Problem(16, 1024, 24576, "NT", "bfloat16")
    num_bytes = 2 * (16 * 24576 + 1024 * 24576 + 16 * 1024)
    assert math.isclose(problem.seconds, num_bytes / 4.2e12)
    assert problem.name == "16x1024x24576 NT bfloat16"
    case = population_table.case_of(problem)
    assert (case.out_dtype, case.config) == ("bfloat16", {})


def test_what_is_chosen_stands_beside_the_time():
    text, fields = population_table.chosen_for(Problem(128, 4096, 4096, "NT", "float16"))
    assert "x".join(map(str, fields["tile"])) in text
    assert text.endswith(" us")
    assert set(fields) <= set(population_table.TILE_FIELDS)
    text, fields = population_table.chosen_for(Problem(1, 4096, 4096, "NT", "float16"))
    assert text.startswith("dot products: ")
    assert fields == {}


def test_the_distribution_goes_between_the_marks_of_a_page(tmp_path):
    about = {"chip": "H200", "date": "2026-11-23 09:52 UTC", "command": "python -m x"}
    rows = [row(0.5), row(2.0, m=128), {"problem": row(1.0)["problem"], "message": "C7517"}]
    source, page = tmp_path / "population_1.json", tmp_path / "README.md"
    source.write_text(json.dumps({"machine": about, "rows": rows}))
    begin, end = population_table.MARKS
    page.write_text(f"before\n{begin}old\n{end}after\n")
    assert population_table.main([str(source), str(page)]) == 0
    text = page.read_text()
    assert text.startswith(f"before\n{begin}[3 problems](")
    assert ", time of cuBLAS by ours; 1 failed\n(`python -m x`, 2026-11-23, H200):\n" in text
    assert "64x64x64 NT float16 0.50,\n128x64x64 NT float16 2.00.\n" in text
    assert "old" not in text
    assert text.endswith(f"{end}after\n")
    with pytest.raises(ValueError, match="no marks to put the population between"):
        population_table.insert("a page", "text")
