"""Problems of `benchmarks.forms`: drawn from a seed, scheduled, and how ratios count."""

import itertools
import random

import pytest

from benchmarks import form_groups, forms, random_forms
from benchmarks.form_population import FORMS, GROUPS, FormProblem, problems


@pytest.mark.parametrize("form", FORMS)
def test_a_seed_gives_the_same_problems_and_a_longer_list_begins_like_a_shorter_one(form):
    assert problems(form, 7, 20) == problems(form, 7, 40)[:20]
    assert len(set(problems(form, 7, 40))) == 40
    assert problems(form, 7, 20) != problems(form, 8, 20)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("form", FORMS)
def test_problems_are_scheduled(form):
    """One drawn problem of each form, and one that marks are stated for."""
    first, *_, last = problems(form, 1, 4)
    for problem in {first, last}:
        assert forms.schedule(problem).mod["main"]


def test_formulas_say_what_a_problem_computes():
    bmm, rows = FormProblem("bmm", 3, 16, 8, 24, "NN"), FormProblem("fp8 rows", 1, 16, 16, 32)
    shapes = [[tuple(map(int, x.ty.shape)) for x in forms.module(p)["main"].params]
              for p in (bmm, rows)]  # fmt: skip
    assert shapes[0] == [(3, 16, 24), (3, 24, 8), (3, 16, 8)]
    assert shapes[1] == [(16, 32), (16, 32), (16,), (16,), (16, 16)]


def test_random_forms_are_drawn_of_every_kind():
    """From a seed, with rows of multiples of 16 bytes; `tests/gpu` builds and runs some."""
    found = [random_forms.draw(random.Random(i)) for i in range(200)]
    assert found == [random_forms.draw(random.Random(i)) for i in range(200)]
    assert {x.special for x in found} == {"", *random_forms.SPECIAL}
    assert {len(x.scales) for x in found} == {0, 1, 2}
    for case in found:
        step = 8 if case.dtypes[0] in random_forms.HALVES else 16
        rows = [x[-1] for x in case.formula.split("->")[0].split(",")]
        assert not any(case.extents[x] % step for x in rows)
        assert case.work <= 2 * random_forms.LARGEST


def test_ratios_are_clipped_before_the_mean():
    found = [
        {"problem": "fp8 1x1x1 NT", "ratio": 6.0, "error of its bound": 0.2},
        {"problem": "fp8 2x1x1 NT", "ratio": 1.5, "error of its bound": 1.2},
        {"problem": "fp8 rows 1x1x1 NT", "message": "refused"},
    ]
    first, second = forms.summary(found)
    assert (first["form"], first["geometric mean"], first["wrong"]) == ("fp8", 1.5, 1)
    assert (second["form"], second["refused or failed"]) == ("fp8 rows", 1)


def test_weights_are_told_apart_by_rows():
    found = [{"problem": f"w4a16 {m}x64x64 g32", "ratio": 2.0} for m in (1, 16, 64, 512)]
    table = {x["form"]: x for x in forms.summary(found)}
    assert [x["problems"] for x in table.values()] == [2, 1, 1]
    assert table["w4a16, 16 rows or fewer"]["geometric mean"] == 2.0, "not clipped"


def test_groups_have_all_rows():
    for problem in problems("grouped", 3, 30):
        places = form_groups.offsets(problem)
        assert (places[0], places[-1], len(places)) == (0, problem.m, problem.b + 1)
        assert places == sorted(places) == form_groups.offsets(problem)
        lengths = {b - a for a, b in itertools.pairwise(places)}
        assert (len(lengths) == 1) == (problem.layout == "equal")
    assert {x.layout for x in problems("grouped", 3, 30)} == set(GROUPS)
