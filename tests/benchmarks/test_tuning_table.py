"""The benchmark of tuning: what it tunes, how it resumes a sweep, and how it prints a result."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from benchmarks import tuning, tuning_sweeps
from benchmarks.tuning_programs import norms, others, products
from tvm_hopper.meta_schedule.journal import Journal


def test_programs_are_those_of_the_population_and_norms():
    found = {**products(2), **norms(1)}
    assert list(found)[-1] == "rms_norm 4096x4096"
    assert found["rms_norm 4096x4096"][1] is None
    problems = [p for _, p in found.values() if p is not None]
    assert [p.name for p in problems] == list(found)[:2]
    assert set(tuning_sweeps.SWEPT) <= {x.split(" ")[0] for x in products(10)}
    assert len(others(5)) == 5
    assert len(tuning.part_of(found, "0/2")) == 2
    assert list(tuning.part_of(found, "1/2")) == list(found)[1:2]
    functions = tuning.joined(found).functions
    assert [x.name_hint for x in functions] == ["f00", "f01", "f02"]


def test_a_line_has_a_cell_for_each_column():
    final = {"finalists": ["matmul"], "sustained_us": [8.0], "gain": 1.25, "certain": [1.2, 1.3]}
    result = tuning.Result("64x64x64", 24, 1, first_us=10.0, best_us=8.0, configuration="matmul")
    result.final = {**final, "library_us": 10.0, "worker": "GPU 1"}
    assert tuning.line(result).count("|") == tuning.COLUMNS.count("|")
    assert "| 1.250 | 1.200-1.300 |" in tuning.line(result)
    assert "| GPU 1 |" in tuning.line(result)
    assert "| 24 |" in tuning.line(replace(result, stopped="24 trials"))
    assert "| 24, at the bound |" in tuning.line(replace(result, stopped="at the bound"))
    failed = tuning.Result("64x64x64", note="ValueError: no")
    assert tuning.line(failed) == "| 64x64x64 | ValueError: no |"
    said = {"parts": ["products"], "command": "x", "machine": "m", "is_fake": True}
    text = tuning.table({**said, "rates": [{"trials": 3}], "sweeps": []}, [result, failed])
    assert "FAKE" in text
    assert "- trials 3" in text


def test_what_was_swept_is_read_back(tmp_path):
    problem = SimpleNamespace(key="k")
    rows = [{"configuration": "a", "seconds": 1.0}, {"configuration": "b", "seconds": None}]
    for part, row in enumerate(rows):
        path = tuning_sweeps.swept_file(tmp_path / "new", problem, part)
        path.write_text(json.dumps(row) + '\n{"configur')
    assert tuning_sweeps.read_sweep(tmp_path / "new", problem) == {"a": 1.0, "b": None}


def test_problems_are_swept_in_the_order_in_which_they_are_named():
    given = SimpleNamespace(problems=10, swept=["softmax", "1x24576x28672", "nobody"])
    found = [x.split(" ")[0] for x in tuning_sweeps.swept_modules(given)]
    assert found == ["softmax", "1x24576x28672"]


def test_a_sweep_begins_near_the_best_of_each_and_has_all():
    def problem(*times):
        times = np.array(times, float)
        return SimpleNamespace(
            configurations=lambda: [f"c{i}" for i in range(len(times))], estimates=lambda _: times
        )

    problems = {"a": problem(3, 1, 2, *range(4, 14)), "b": problem(1.1, 1.0)}
    close, samples, rest = tuning_sweeps.staged(problems["a"], 2.5)
    assert (close, samples) == (["c1", "c2"], ["c0", "c10"])
    assert len(close + samples + rest) == len({*close, *samples, *rest}) == 13
    order = tuning_sweeps.in_order(problems, 2.5, None)
    assert order[:4] == [("a", "c1"), ("a", "c2"), ("b", "c1"), ("b", "c0")]
    assert len(order) == 15
    assert tuning_sweeps.in_order(problems, None, 1) == [("a", "c1"), ("b", "c1")]


def test_building_begins_with_the_last_round(tmp_path):
    assert not tuning_sweeps.is_last_round(tmp_path)
    with Journal(tmp_path) as journal:
        assert not tuning_sweeps.is_last_round(tmp_path)
        journal.append({"is": "final", "workload": "k", "finalists": ["a"], "winner": "a"})
    assert tuning_sweeps.is_last_round(tmp_path)
