"""Batches under way: what builders and runners tell is kept, what they leave is removed."""

import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tests.meta_schedule.stand_ins import FormulaRunner, NoteBuilder
from tvm_hopper.errors import TuningError
from tvm_hopper.meta_schedule.flights import Flights, InterruptNoted
from tvm_hopper.meta_schedule.search import Search
from tvm_hopper.meta_schedule.tasks import find_tasks
from tvm_hopper.testing import memory_bound

H200 = Target("nvidia/nvidia-h200")
(TASK,) = find_tasks(memory_bound.copy(64, 256), H200)


@dataclass
class Told:
    """As a runner of the package tells it."""

    worker: str = "GPU 3"
    seconds: tuple = (2e-5,)
    megahertz: float = 1700.0
    device: dict = field(default_factory=lambda: {"name": "H200"})
    is_fake: bool = False
    worker_seconds: float = 0.05


@derived_object
class TellingRunner(ms.runner.PyRunner):
    def __init__(self, told, times=(1e-5,)):
        super().__init__()
        self.told, self.times, self.paths = told, times, []

    def run(self, runner_inputs):
        self.paths += [str(x.artifact_path) for x in runner_inputs]
        result = ms.runner.RunnerResult(list(self.times), None)
        return [ms.runner.RunnerFuture(lambda: True, lambda: result) for _ in runner_inputs]

    def take(self, path):
        return self.told if path in self.paths else None


def outcomes(runner, builder=None):
    flights = Flights(builder or NoteBuilder(), runner, H200)
    assert flights.is_empty
    flights.start(TASK, Search(TASK.problem).propose(2))
    assert flights.count(TASK) == flights.count() == 2
    found = list(flights.finished())
    assert flights.is_empty
    assert not list(flights.finished())
    flights.close()
    return found


def test_what_a_runner_tells_is_kept():
    runner = TellingRunner(Told())
    first, _ = outcomes(runner)
    assert first.seconds == [1e-5]
    assert first.device == {"name": "H200"}
    told = {"worker": "GPU 3", "as_measured": [2e-5], "megahertz": 1700.0, "worker_seconds": 0.05}
    assert first.details == told
    assert not any(Path(path).parent.exists() for path in runner.paths)
    assert outcomes(TellingRunner(Told(is_fake=True)))[0].device == {
        "name": "H200",
        "is_fake": True,
    }
    assert outcomes(TellingRunner(None))[0].device == {}


def test_times_that_mean_a_failure():
    for times in ((1e10,), (0.0,)):
        assert "run: found times" in outcomes(TellingRunner(None, times))[0].error


def test_where_nothing_is_built_nothing_runs():
    found = outcomes(TellingRunner(None), NoteBuilder(lambda text: True))
    assert {x.error for x in found} == {"build: ptxas: no room"}


def test_two_batches_are_full():
    flights = Flights(NoteBuilder(), FormulaRunner(), H200)
    search = Search(TASK.problem)
    flights.start(TASK, search.propose(1))
    assert not flights.is_full
    flights.start(TASK, search.propose(1))
    assert flights.is_full
    assert len(list(flights.finished())) == len(list(flights.finished())) == 1
    flights.close()


def test_waiting_can_be_ended():
    @derived_object
    class Never(ms.runner.PyRunner):
        def run(self, runner_inputs):
            return [ms.runner.RunnerFuture(lambda: False, lambda: None) for _ in runner_inputs]

    with InterruptNoted() as interrupt:
        flights = Flights(NoteBuilder(), Never(), H200, interrupt.check)
        flights.start(TASK, Search(TASK.problem).propose(1))
        interrupt.check()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            list(flights.finished())
        with pytest.raises(KeyboardInterrupt):  # the second one is at once
            signal.raise_signal(signal.SIGINT)
        flights.close()


def test_other_threads_note_nothing():
    found = []

    def work():
        with InterruptNoted() as interrupt:
            interrupt.check()
            found.append(interrupt.is_requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]


class Fewer:
    """A builder and a runner that leaves the last one out."""

    def build(self, inputs):
        return NoteBuilder().build(inputs)[:-1]

    def run(self, inputs):
        return TellingRunner(Told()).run(inputs)[:-1]


def test_who_leaves_something_out_is_named():
    with pytest.raises(TuningError, match="builder: found 1 results for 2 inputs; need one for"):
        outcomes(TellingRunner(Told()), Fewer())
    with pytest.raises(TuningError, match="runner: found 1 results for 2 inputs; need one for"):
        outcomes(Fewer())
