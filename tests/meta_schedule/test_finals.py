"""The last round: who wins, what is checked, and what is written of it."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

import tvm_hopper
from tests.meta_schedule.stand_ins import FormulaRunner, NoteBuilder, formula
from tvm_hopper.meta_schedule import finals
from tvm_hopper.meta_schedule.checking import EQUAL, UNCHECKED, WRONG, Verdict
from tvm_hopper.meta_schedule.database import Database, Trial
from tvm_hopper.meta_schedule.finals import decide, gain_of
from tvm_hopper.meta_schedule.measurement import Contested
from tvm_hopper.meta_schedule.tasks import find_tasks
from tvm_hopper.schedule import PointwiseConfig
from tvm_hopper.testing import memory_bound, workloads

TARGET = "nvidia/nvidia-h200"
COPY = memory_bound.copy(64, 256)
KEY = find_tasks(COPY, TARGET)[0].problem.key
CHOICE = "pointwise"


@derived_object
class ContestRunner(ms.runner.PyRunner):
    """Compares by another formula than it measures by."""

    def __init__(self, seconds, verdicts=lambda text: EQUAL):
        super().__init__()
        self.inner, self.seconds, self.verdicts = FormulaRunner(), seconds, verdicts
        self.held = []

    def run(self, runner_inputs):
        return self.inner.run(runner_inputs)

    def contest(self, paths, reference=None, library=None):
        texts = [Path(x).read_text() for x in paths]
        self.held.append((texts, reference, library))
        times = tuple(tuple([self.seconds(x)] * 20) for x in texts)
        verdicts = tuple((self.verdicts(x), "told to") for x in texts)
        found = Contested(verdicts, times, times, "", "GPU 3")
        return lambda: found


def tune(work_dir, runner, trials=8, **given):
    given = {"builder": NoteBuilder(), "mod": COPY, **given}
    mod = given.pop("mod")
    return tvm_hopper.tune(
        mod, TARGET, trials=trials, work_dir=work_dir, runner=runner, progress=False, **given
    )


@pytest.fixture(autouse=True)
def no_reference(monkeypatch):
    monkeypatch.setattr(finals, "as_tvm_has_it", lambda problem: None)


@pytest.mark.parametrize(
    ("times", "winner"),
    [
        ([[1.0] * 20, [0.9] * 20, [0.8] * 20], 2),
        ([[1.0] * 20, [0.999] * 20], 0),  # no certain gain
        ([[1.0] * 20, [0.993] * 20], 0),  # as much as another day changes
        ([[1.0] * 20, [0.993] * 20, [0.988] * 20], 2),
        ([[1.0] * 20, [0.9, 1.1] * 10], 0),
        ([[1.0] * 20, []], 0),
        ([[1.0] * 20], 0),
    ],
)
def test_the_choice_stays_unless_another_is_surely_faster(times, winner):
    place, gain = decide(times, times)
    assert place == winner
    assert gain.middle >= 1


def test_what_is_slower_alone_does_not_win():
    sustained, single = [[1.0] * 20, [0.9] * 20], [[1.0] * 20, [1.02] * 20]
    assert decide(sustained, single)[0] == 0
    assert decide(sustained, sustained)[0] == 1
    assert decide(sustained, [[1.0] * 20, [1.003] * 20])[0] == 0
    assert decide(sustained, [[1.0] * 20, [1.0] * 20])[0] == 1


def test_a_gain_has_bounds():
    gain = gain_of([1.0] * 100, [0.5 + i / 100 for i in range(100)])
    assert gain.low < gain.middle < gain.high
    assert gain.middle == pytest.approx(1, rel=0.01)


def test_a_lucky_time_does_not_win(tmp_path):
    runner = ContestRunner(lambda text: 1e-5 if text == CHOICE else 1.1e-5)
    database = tune(tmp_path, runner)
    assert database.ranked(KEY)[0].text != CHOICE
    assert database.winner(KEY).text == CHOICE
    assert Database(tmp_path).winner(KEY).text == CHOICE
    row = database.finals[KEY]
    assert row["finalists"][0] == CHOICE
    assert len(row["finalists"]) == 1 + finals.FINALISTS
    assert row["gain"] == 1
    assert row["sustained_us"][0] == 10
    check = database._checks[KEY, CHOICE]
    assert (check["verdict"], check["by"]) == (EQUAL, "GPU 3")
    assert check["record"]


def test_relatives_leave_room_for_others():
    times = [(1, "a"), (2, "a"), (3, "a"), (4, "b"), (5, "a"), (6, "c"), (7, "d"), (8, "e")]
    trials = [Trial(shape, f"{shape}{us}", "", us, "", us) for us, shape in times]
    database = SimpleNamespace(ranked=lambda key: trials, verdict=lambda key, trial: "")
    problem = SimpleNamespace(key="", built_in=PointwiseConfig, shape_of=lambda config: config)
    found = [x.text for x in finals.finalists(database, problem)]
    assert found == ["a1", "a2", "b4", "c6", "d7", "e8"]
    trials[3:] = []
    assert [x.text for x in finals.finalists(database, problem)] == ["a1", "a2", "a3"]


def test_what_was_compared_is_not_compared_again(tmp_path):
    runner = ContestRunner(formula)
    tune(tmp_path, runner)
    tune(tmp_path, runner)
    assert len(runner.held) == 1
    tune(tmp_path, runner, trials=30)
    assert len(runner.held) == 2


def test_a_run_that_was_killed_before_it_is_decided_later(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(finals.Finals, "hold", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tune(tmp_path, ContestRunner(formula))
    assert Database(tmp_path).winner(KEY) is None
    runner = ContestRunner(formula)
    assert tune(tmp_path, runner).winner(KEY) is not None
    assert runner.inner.texts == []
    assert len(runner.held) == 1


def test_a_wrong_one_is_out_and_the_next_ones_are_compared(tmp_path):
    bad = []

    def verdict(text):
        if text != CHOICE and not bad:
            bad.append(text)
        return WRONG if text in bad else EQUAL

    runner = ContestRunner(formula, verdict)
    database = tune(tmp_path, runner)
    (wrong,) = [x for x in database.trials(KEY) if database.verdict(KEY, x) == WRONG]
    assert wrong.text == bad[0] != database.winner(KEY).text


def test_all_wrong_is_no_winner(tmp_path):
    runner = ContestRunner(formula, lambda text: WRONG)
    assert tune(tmp_path, runner, trials=3).winner(KEY) is None


def test_ones_own_check_has_the_last_word(tmp_path):
    asked = []

    def check(problem, config):
        asked.append(config)
        return Verdict(WRONG if len(asked) == 1 else UNCHECKED, "mine")

    database = tune(tmp_path, ContestRunner(formula), check=check)
    assert len(asked) == 2
    assert database._checks[KEY, database.winner(KEY).text]["by"] == "mine"


def test_the_choice_stays_where_comparing_failed_and_the_next_run_tries_again(tmp_path):
    counts = {}

    def second_time(text):
        counts[text] = counts.get(text, 0) + 1
        return counts[text] > 1

    runner = ContestRunner(formula)
    database = tune(tmp_path, runner, builder=NoteBuilder(second_time))
    row = database.finals[KEY]
    assert row["why"] == "not built: ptxas: no room"
    assert database.winner(KEY).text == CHOICE != database.ranked(KEY)[0].text
    again = tune(tmp_path, runner)
    assert len(runner.held) == 1
    assert again.finals[KEY]["gain"] >= 1


def test_a_plain_product_has_a_library():
    target = Target(TARGET)
    (task,) = find_tasks(workloads.matmul(256, 256, 128, "TN", "bfloat16", "bfloat16"), target)
    assert finals._as_library(task.problem) == {"majors": list(task.problem.majors)}
    relu = workloads.matmul(256, 256, 128, out_dtype="float16", epilogue=("relu",))
    (task,) = find_tasks(relu, target)
    assert finals._as_library(task.problem) is None
    (task,) = find_tasks(COPY, target)
    assert finals._as_library(task.problem) is None
