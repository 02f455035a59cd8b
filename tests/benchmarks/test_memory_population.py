"""The population of memory-bound programs: what is drawn, and that each is one kernel of ours."""

import json

import pytest

from benchmarks.memory_population import __main__ as command
from benchmarks.memory_population.frameworks import draw, to_relax, to_torch
from benchmarks.memory_population.problems import KINDS, Problem, population
from tests.relax import models

# of each kind one whose parts TVM leaves apart
ONE_KERNEL = {"5.4": "elementwise", "5.43": "row_reduction", "5.39": "other_axes", "5.7": "layout"}


def test_a_seed_gives_its_programs():
    some = population(5, 40)
    assert [x.name for x in some[:20]] == [x.name for x in population(5, 20)]
    assert {x.kind for x in some} == set(KINDS)
    assert population(6, 1)[0].name != population(5, 1)[0].name


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_function(name):
    problem = population(5, 44)[int(name.split(".")[1])]
    assert problem.kind == ONE_KERNEL[name]
    assert len(models.plain_functions(to_relax(problem))) == 1


def test_bytes_of_a_gather_are_those_that_are_read():
    problem = population(5, 8)[7]
    (index, _, kind), (table, _, _) = problem.inputs
    assert kind.startswith("index")
    assert problem.num_bytes(0) == 4 * index[0] + 2 * index[0] * table[1]


def test_the_check_is_against_float64():
    """A sum in float32 of numbers that are cast to float32, and one that leaves out a row."""
    torch = pytest.importorskip("torch")
    problem = Problem("1.0 other_axes", outputs=["t1"])
    wide = problem.do("cast", problem.take((3001, 8), "float16"), dtype="float32")
    problem.do("sum", wide, axis=0, keep=False)
    given = draw(problem, torch.Generator().manual_seed(1), "cpu")
    (exact,) = to_torch(problem, exact=True)(*[x.double() for x in given])
    assert exact.dtype == torch.float64
    assert torch.equal(exact, given[0].double().sum(0))

    def checked(run):
        return command.check(problem, run, torch.Generator().manual_seed(1), "cpu")

    assert checked(to_torch(problem)) == ""
    assert "8 wrong" in checked(lambda x: (x[1:].float().sum(0),))
    assert "wrong" in checked(lambda x: (x.sum(0).float(),))  # rounded to float16


def test_the_check_of_a_place_and_of_an_integer():
    torch = pytest.importorskip("torch")
    places = Problem("1.0 row_reduction", outputs=["t0"])
    places.do("argmax", places.take((4, 300), "float16"))
    whole = Problem("1.1 row_reduction", outputs=["t0"])
    whole.do("cast", whole.take((4, 300), "float32"), dtype="int8")
    cases = ((places, lambda i: (i + 1) % 300), (whole, lambda x: x + 2))
    for problem, off in cases:
        right = to_torch(problem)
        runs = (right, lambda *x, right=right, off=off: (off(*right(*x)),))
        found = [command.check(problem, x, torch.Generator().manual_seed(1), "cpu") for x in runs]
        assert found[0] == "", problem.name
        assert "wrong" in found[1], problem.name


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
