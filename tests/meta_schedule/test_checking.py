"""A winner is run in the simulator and compared with the function that was tuned."""

import dataclasses

import pytest

from tvm_hopper import schedule as hs
from tvm_hopper.errors import TuningError
from tvm_hopper.meta_schedule.checking import (
    EQUAL,
    UNCHECKED,
    WRONG,
    Simulated,
    Verdict,
    no_check,
    run_check,
)
from tvm_hopper.meta_schedule.scheduling import canonical
from tvm_hopper.meta_schedule.tasks import find_tasks
from tvm_hopper.testing import memory_bound

TARGET = "nvidia/nvidia-h200"


@pytest.fixture
def problem():
    return find_tasks(memory_bound.softmax(64, 64), TARGET)[0].problem


def test_a_right_kernel_is_equal(problem):
    verdict = Simulated(60)(problem, problem.built_in())
    assert verdict.verdict == EQUAL
    assert "bit for bit" in verdict.detail


def test_a_kernel_that_computes_something_else_is_wrong(problem):
    class Other(type(problem)):
        def schedule(self, config):
            other = memory_bound.log_softmax(64, 64)["main"]
            return find_tasks(other, TARGET)[0].problem.schedule(config)

    fields = {x.name: getattr(problem, x.name) for x in dataclasses.fields(problem)}
    verdict = Simulated(60)(Other(**fields), problem.built_in())
    assert verdict.verdict == WRONG
    assert verdict.detail


def test_a_configuration_that_does_not_fit_is_wrong(problem):
    verdict = Simulated(60)(problem, hs.PointwiseConfig())
    assert verdict.verdict == WRONG
    assert "need" in verdict.detail


def test_without_time_it_stays_unchecked(problem):
    assert Simulated(1e-6)(problem, problem.built_in()).verdict == UNCHECKED
    assert no_check(problem, problem.built_in()).verdict == UNCHECKED


def test_an_illegal_time():
    with pytest.raises(TuningError, match="seconds=0"):
        Simulated(0)


def test_problems_keep_the_plain_program(problem):
    assert canonical(problem.mod["main"])["main"] is not None


@pytest.mark.parametrize("told", [None, "equal", Verdict("fine", "me")])
def test_what_is_no_verdict_is_refused(problem, told):
    with pytest.raises(TuningError, match=r"check: found .*; need a checking\.Verdict of"):
        run_check(lambda *_: told, problem, problem.built_in())
