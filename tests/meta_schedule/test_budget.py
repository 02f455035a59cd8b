"""Who gets the next trials, and when enough is enough."""

import math

from tvm.target import Target

from tvm_hopper.meta_schedule.budget import FEWEST, Account, choose, share, why_enough
from tvm_hopper.meta_schedule.memory_problems import as_memory_bound
from tvm_hopper.meta_schedule.progress import Progress, describe
from tvm_hopper.meta_schedule.search import Measured
from tvm_hopper.meta_schedule.tasks import Task
from tvm_hopper.schedule import PointwiseConfig
from tvm_hopper.testing import memory_bound

PROBLEM = as_memory_bound(memory_bound.copy(64, 256)["main"], Target("nvidia/nvidia-h200"))


class Told:
    """A search that says what it is told."""

    problem = PROBLEM
    first_us = 20.0

    def __init__(self, gain=0.1, best=10.0, exhausted=False):
        self.gain, self.is_exhausted = gain, exhausted
        self.best = None if best is None else Measured(PointwiseConfig(), "x", best)

    def expected_gain(self):
        return self.gain


def account(weight=1, trials=8, under_way=0, **given):
    return Account(Task("f[0]", PROBLEM, weight), Told(**given), trials, under_way)


def test_what_saves_most_of_the_module_comes_next():
    small = account(gain=0.2, best=10.0)
    heavy = account(gain=0.1, best=10.0, weight=3)
    fresh = account(gain=math.inf, best=None)
    assert choose([small, heavy]) is heavy
    assert choose([small, heavy, fresh]) is fresh


def test_a_batch_under_way_is_waited_for_while_others_have_something():
    first, second = account(gain=0.5, under_way=8), account(gain=0.01)
    assert choose([first, second]) is second
    assert choose([first]) is first
    second.stopped = "at the bound"
    assert choose([first, second]) is first
    first.stopped = "too"
    assert choose([first, second]) is None


def test_before_all_had_some_none_gets_more_than_its_part():
    fresh = [account(trials=0) for _ in range(4)]
    assert share(fresh[0], fresh, 20, 8) == 5
    assert share(fresh[0], fresh, 2, 8) == 1
    assert share(account(), fresh, 20, 8) == 8
    assert share(account(), fresh, 3, 8) == 3


def test_when_it_is_enough():
    assert why_enough(account()) == ""
    assert why_enough(account(best=None)) == ""
    assert why_enough(account(exhausted=True)) == "every configuration was tried"
    assert why_enough(account(best=PROBLEM.bound_us)) == "at the bound"
    assert why_enough(account(gain=1e-6)) == ""
    assert why_enough(account(gain=1e-6, trials=FEWEST)) == "nothing more to gain, by the model"


def test_what_a_line_says():
    shown = account()
    shown.failed, shown.stopped = 2, "at the bound"
    assert describe(shown) == "10.0 us, 2.00x, 2 failed, at the bound"
    assert describe(account(best=None)) == ""


def test_names_with_brackets_are_shown_as_they_are(capsys):
    one = account()
    with Progress([one], 8, shown=True) as progress:
        progress.update(one, 8)
        progress.say("checking")
    assert "f[0]" in capsys.readouterr().err


def test_nothing_is_shown_where_nobody_looks(capsys):
    with Progress([account()], 8, shown=False):
        pass
    assert capsys.readouterr().err == ""
