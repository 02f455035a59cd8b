"""The population of memory-bound programs: what is drawn, and that each is one kernel of ours."""

import json

import pytest

from benchmarks.memory_population import __main__ as command
from benchmarks.memory_population.frameworks import to_torch
from benchmarks.memory_population.problems import KINDS, Problem, population


def test_a_seed_gives_its_programs():
    some = population(5, 40)
    assert [x.name for x in some[:20]] == [x.name for x in population(5, 20)]
    assert {x.kind for x in some} == set(KINDS)
    assert population(6, 1)[0].name != population(5, 1)[0].name


def test_bytes_of_a_gather_are_those_that_are_read():
    problem = population(5, 8)[7]
    (index, _, kind), (table, _, _) = problem.inputs
    assert kind.startswith("index")
    assert problem.num_bytes(0) == 4 * index[0] + 2 * index[0] * table[1]


def test_what_the_check_finds():
    torch = pytest.importorskip("torch")
    wide, total = ("cast", {"dtype": "float32"}), ("sum", {"axis": 0, "keep": False})
    for steps, wrong in (
        ([wide, total], lambda x: x[1:].float().sum(0)),
        ([wide, total], lambda x: x.sum(0).float()),  # rounded to float16
        ([("argmax", {})], lambda x: (x.argmax(-1) + 1) % 8),
        ([("cast", {"dtype": "int8"})], lambda x: x.to(torch.int8) + 2),
    ):
        problem = Problem("1.0 other_axes")
        y = problem.take((3001, 8), "float16")
        for op, attrs in steps:
            y = problem.do(op, y, **attrs)
        problem.outputs = [y]
        runs = (to_torch(problem), lambda x, wrong=wrong: (wrong(x),))
        found = [command.check(problem, x, torch.Generator().manual_seed(1), "cpu") for x in runs]
        assert (found[0], "wrong" in found[1]) == ("", True)
        assert to_torch(problem, exact=True)(torch.zeros(3, 8).double())[0].dtype != torch.float32


def test_the_summary_names_the_worst(tmp_path, capsys):
    row = {"name": "1.0 layout pad", "kind": "layout", "functions": 1, "served": 1, "wrong": ""}
    times = {"ours_us": 10.0, "compile_us": 20.0, "copy_us": 9.0}
    slow = {
        **row,
        "name": "1.1 layout pad",
        "several_ratio": 0.8,
        "wrong": "output 0",
        "ratio": 0.5,
        "copy_share": 0.4,
    }
    slow |= {"several_us": 8.0, "several_ratio": 0.8}
    rows = [row | times | {"ratio": 2.0, "copy_share": 0.9}, slow | times]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)) + "\n")
    assert command.main(["1", "2", "--out", str(file), "--table"]) == 1
    text = capsys.readouterr().out
    assert "FAILED 1.1 layout pad: output 0" in text
    assert "geometric mean 0.866, 5th percentile 0.500, least 0.500" in text  # of 1.5 and 0.5
    assert "against several kernels: 1 programs, 1 slower, least 0.80" in text
    assert text.splitlines()[-2].strip().startswith("0.50")
    assert command.ratio(1.0, 2.0) == 1.0  # both are below the smallest kernel
