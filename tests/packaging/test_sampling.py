"""A sample of cases has the values of each parameter, however they repeat."""

import itertools

from tests.sampling import spread


def test_cases_of_one_parameter_are_each_nth():
    assert spread([(x,) for x in "abcdefgh"], 3) == {0, 3, 6}


def test_values_that_repeat_as_often_as_the_sample_is_taken():
    cases = list(itertools.product("abc", ("held", "streamed", "shared")))
    found = [cases[i] for i in spread(cases, 3)]
    assert len(found) == 3
    assert {x for x, _ in found} == {*"abc"}
    assert {x for _, x in found} == {"held", "streamed", "shared"}


def test_one_case_at_least():
    assert spread([("a", "b")], 10) == {0}
