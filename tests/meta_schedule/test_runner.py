"""Runs over several fake GPUs of which some break: they end by themselves, with the right best."""

import logging
import time
from pathlib import Path

import pytest
from tvm.s_tir import meta_schedule as ms

from tvm_hopper import meta_schedule
from tvm_hopper.errors import HopperError
from tvm_hopper.meta_schedule import runner as runners
from tvm_hopper.meta_schedule.measurement import Measurement
from tvm_hopper.meta_schedule.pool_runner import PooledRunner
from tvm_hopper.meta_schedule.workers.pool import NOT_TRIED, QueuedTask

ARGUMENTS = [ms.arg_info.TensorInfo("float16", [4, 8])]


def inputs(paths):
    return [ms.runner.RunnerInput(path, "cuda", ARGUMENTS) for path in paths]


def best(paths, futures):
    results = [future.result() for future in futures]
    assert not [str(x.error_msg) for x in results if x.error_msg]
    medians = [sorted(float(s) for s in x.run_secs)[len(x.run_secs) // 2] for x in results]
    return paths[medians.index(min(medians))]


def seconds_of(futures):
    return [[float(x) for x in future.result().run_secs] for future in futures]


def model_seconds(i):
    return 1e-4 * (1 + abs(i - 17) / 10)  # the 17th is the fastest by far


def test_a_run_ends_by_itself_with_the_right_best(make_artifact, caplog):
    """Of three GPUs one segfaults on every third kernel, one hangs with Python's lock in hand."""
    paths = [make_artifact(f"k{i}", model_seconds(i)) for i in range(30)]
    faults = {1: ("segfault", 3), 2: ("hang", 1)}
    caplog.set_level(logging.INFO)
    runner = meta_schedule.fake_gpus(3, faults, seconds=1.0, measuring_seconds=0.1)
    begin = time.monotonic()
    futures = runner.run(inputs(paths))
    assert time.monotonic() - begin < 0.5  # the search goes on
    assert not all(future.done() for future in futures)
    assert best(paths, futures) == paths[17]
    assert time.monotonic() - begin < 30
    assert {"fake GPU 0", "fake GPU 1"} <= set(runner.gpus)
    assert "fake GPU 1: the process ended by signal SIGSEGV" in caplog.text
    assert "fake GPU 2: no answer after 1 s; the process was killed" in caplog.text
    # both times, and who measured
    found = runner.take(paths[17])
    assert isinstance(found, Measurement)
    assert found.is_fake
    assert found.worker in ("fake GPU 0", "fake GPU 1")
    assert found.device == {"name": "fake GPU", "is_fake": True}
    assert found.spread < 0.05
    assert runner.take(paths[17]) is None
    # nothing is left to measure with or of
    assert not any(Path(path).exists() for path in paths)
    runner.close()
    assert runner.gpus == []
    (after,) = runner.run(inputs(paths[:1]))
    assert after.result().error_msg == "not tried: the runner was closed"


def test_none_left_is_one_clear_error_for_every_job(make_artifact):
    paths = [make_artifact(f"k{i}") for i in range(12)]
    faults = {0: ("exit", 1), 1: ("exit", 1)}
    runner = meta_schedule.fake_gpus(2, faults, retire_after=1, keep_artifacts=True)
    errors = [str(future.result().error_msg) for future in runner.run(inputs(paths))]
    assert all("the process ended by exit code 7" in x for x in errors)
    last = errors[-1]
    assert last.startswith("not tried: no worker is left: fake GPU ")
    assert {"fake GPU 0", "fake GPU 1"} == set(runner.retired)
    (after,) = runner.run(inputs(paths[:1]))
    assert after.done()
    assert after.result().error_msg == last
    assert Path(paths[0]).exists()
    runner.close()


def test_what_no_kernel_is_to_blame_for_names_the_gpu_too():
    task = QueuedTask({})
    task.finish({"error": f"{NOT_TRIED}no room"}, "GPU 0")
    assert PooledRunner._named(task) == f"{NOT_TRIED}GPU 0: no room"


def test_an_error_names_the_gpu(make_artifact):
    runner = meta_schedule.fake_gpus(1, {0: ("exception", 1)})
    (future,) = runner.run(inputs([make_artifact("one")]))
    assert str(future.result().error_msg).startswith("fake GPU 0: fake fault: found a request")
    (future,) = runner.run(inputs(["/no/such/manifest.json"]))
    assert str(future.result().error_msg).startswith("fake GPU 0: ")
    runner.close()


def test_a_fake_runner_says_so_and_repeats_itself(make_artifact, caplog):
    paths = [make_artifact(f"k{i}", model_seconds(i)) for i in range(3)]
    with caplog.at_level(logging.WARNING):
        runner = meta_schedule.FakeRunner(seed=1, keep_artifacts=True)
    assert "FAKE: nothing is measured" in caplog.text
    assert "FAKE: nothing is measured" in repr(runner)
    first, again = (seconds_of(runner.run(inputs(paths))) for _ in "ab")
    assert first == again
    assert runner.take(paths[0]).is_fake
    other = meta_schedule.FakeRunner(seed=2).run(inputs(paths))
    assert seconds_of(other) != first
    assert not Path(paths[0]).exists()
    (gone,) = runner.run(inputs(paths[:1]))
    assert "need one that our builder wrote" in str(gone.result().error_msg)
    runner.close()


def test_tvms_own_callback_may_remove_what_was_measured(make_artifact):
    path = make_artifact("one")
    (future,) = meta_schedule.FakeRunner().run(inputs([path]))
    assert future.result().error_msg is None
    ms.utils.remove_build_dir(path)
    assert not Path(path).parent.exists()


@pytest.mark.parametrize(
    ("gpus", "match"),
    [
        ([0, 5], r"gpus: found \[0, 5\]; need \"all\" or some of 0, 2"),
        ("0,0", "found '0,0'"),
        ([], r"found \[\]"),
        (0, r'found 0; need "all", or a list of numbers'),
        (None, "found None; need"),
        ("none", "found 'none'"),
    ],
)
def test_gpus_that_do_not_exist_are_refused(monkeypatch, gpus, match):
    monkeypatch.setenv(runners.VISIBLE, "0, 2,-1")
    assert [x.name for x in runners.gpu_workers("all", 2)] == ["GPU 0"] * 2 + ["GPU 2"] * 2
    assert [x.name for x in runners.gpu_workers([2])] == ["GPU 2"]
    assert [x.name for x in runners.gpu_workers("GPU-1234")] == ["GPU GPU-1234"]
    with pytest.raises(HopperError, match=match):
        runners.gpu_workers(gpus)


def test_no_gpu_is_one_clear_error(monkeypatch):
    monkeypatch.setenv(runners.VISIBLE, "")
    with pytest.raises(HopperError, match="gpus: found no GPU that this process can use; need"):
        meta_schedule.GpuRunner()


def test_without_a_driver_there_is_no_gpu(monkeypatch):
    monkeypatch.delenv(runners.VISIBLE, raising=False)

    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(runners.ctypes, "CDLL", missing)
    assert runners.visible_gpus() == []
