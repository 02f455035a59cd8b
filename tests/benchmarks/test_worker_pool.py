"""Processes that hang or die lose their own task and no other."""

import os
import time

import pytest

from benchmarks.worker_pool import WorkerError, run_tasks


def behave(task):
    if task == "hang":
        time.sleep(600)
    if task == "die":
        os._exit(3)
    return f"did {task}"


@pytest.fixture(scope="module")
def results():
    tasks = ["a", "hang", "b", "die", "c", "poison", "d"]
    forever = time.monotonic() + 600
    pairs = run_tasks(behave, tasks, 2, 4.0, forever, lambda result: result == "did poison")
    return dict(pairs)


def test_every_task_has_a_result(results):
    assert set(results) == {"a", "hang", "b", "die", "c", "poison", "d"}
    assert results["d"] == "did d"


def test_a_hanging_task_is_given_up(results):
    assert isinstance(results["hang"], WorkerError)
    assert "no result after 4 s" in str(results["hang"])


def test_a_dead_process_says_how_it_ended(results):
    assert "process died with exit code 3" in str(results["die"])


def test_no_task_is_started_after_the_end():
    assert list(run_tasks(behave, ["a"], 1, 4.0, until=time.monotonic() - 1)) == []
