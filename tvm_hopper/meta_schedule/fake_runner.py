"""Runners that measure nothing, to try tuning without a GPU."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.runner import PyRunner, RunnerFuture, RunnerInput, RunnerResult

from tvm_hopper.errors import HopperError, cannot_tune

from .arguments import MOST_PROCESSES, check_number
from .measurement import Contested, Measurement, as_contested, as_measurement
from .measuring import artifact
from .measuring.fake import FAULTS, fake_contest, fake_measurement
from .runner import GpuRunner
from .workers.process import WorkerProcess, remove_stale

logger = logging.getLogger("tvm_hopper.meta_schedule")
MOST_EVERY = 1_000_000
PREFIX = "tvm_hopper_fake_"  # of folders that count the requests of fake GPUs
WARNING = "FAKE: nothing is measured; the times are those of the written model, with noise"


@derived_object
class FakeRunner(PyRunner):
    """Reports the written model's times with noise, the same ones for the same seed.

    - `seed`: of the noise.
    - `noise`: its standard deviation, as a share of the time.
    - `keep_artifacts`: whether artifacts are left where they are.
    """

    def __init__(self, seed: int = 0, noise: float = 0.01, keep_artifacts: bool = False) -> None:
        super().__init__()
        self._settings = {"seed": seed, "noise": noise}
        self._keep_artifacts = keep_artifacts
        self._measurements: dict[str, Measurement] = {}
        logger.warning("FakeRunner: %s", WARNING)

    def run(self, runner_inputs: list[RunnerInput]) -> list[RunnerFuture]:
        """Return futures that are done."""
        return [self._report(str(item.artifact_path)) for item in runner_inputs]

    def _report(self, path: str) -> RunnerFuture:
        try:
            reply = fake_measurement(path, self._settings)
            self._measurements[path] = as_measurement(reply, "fake GPU", {"name": "fake GPU"})
            result = RunnerResult(reply["seconds"], None)
        except HopperError as error:
            result = RunnerResult(None, str(error))
        if not self._keep_artifacts:
            artifact.remove(path)
        return RunnerFuture(lambda: True, lambda: result)

    def take(self, path: str) -> Measurement | None:
        """Return all that is said of an artifact, once; it is marked as fake."""
        return self._measurements.pop(path, None)

    def contest(
        self,
        paths: Sequence[str],
        reference: str | None = None,
        library: Mapping[str, Any] | None = None,
    ) -> Callable[[], Contested | str]:
        """Report the model's times of some artifacts, as GpuRunner does measured ones."""
        try:
            reply = fake_contest(list(paths), self._settings)
            result: Contested | str = as_contested(reply, "fake GPU", {"name": "fake GPU"})
        except HopperError as error:
            result = str(error)
        if not self._keep_artifacts:
            for path in [*paths, *([reference] if reference else [])]:
                artifact.remove(path)
        return lambda: result

    def close(self) -> None:
        """Do nothing: there is no worker to stop."""


def _say_fake(self: Any) -> str:
    return f"FakeRunner({WARNING}; {self._settings})"


setattr(FakeRunner, "__repr__", _say_fake)  # noqa: B010  (TVM's class stands before ours)


def fake_gpus(
    count: int,
    faults: Mapping[int, tuple[str, int]] | None = None,
    *,
    seed: int = 0,
    noise: float = 0.01,
    measuring_seconds: float = 0.0,
    **options: Any,
) -> Any:
    """Return a GpuRunner whose workers measure nothing and fail on request.

    - `count`: fake GPUs.
    - `faults`: GPU -> what befalls it ("segfault", "hang", with Python's lock in hand, "exit" or
      "exception") and which of its measurements: 3 is every third one.
    - `seed`, `noise`: as of FakeRunner.
    - `measuring_seconds`: that a measurement takes.
    - `**options`: of GpuRunner.
    - raises TuningError: `count` is no number from 1 on, or a fault is none, or befalls a GPU that
      there is not.
    """
    check_number("fake_gpus", "count", count, MOST_PROCESSES)
    for gpu, fault in (faults or {}).items():
        _check_fault(gpu, fault, count)
    remove_stale(Path(tempfile.gettempdir()), PREFIX)
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}_"))
    worker_settings = fake_settings(count, faults, folder, seed, noise, measuring_seconds)
    names = [f"fake GPU {i}" for i in range(count)]
    workers = [
        WorkerProcess(name, "fake", settings)
        for name, settings in zip(names, worker_settings, strict=True)
    ]
    logger.warning("fake_gpus: %s", WARNING)
    runner = GpuRunner(workers, **options)
    weakref.finalize(runner, shutil.rmtree, folder, ignore_errors=True)
    return runner


def _check_fault(gpu: Any, fault: Any, count: int) -> None:
    is_pair = isinstance(fault, (tuple, list)) and len(fault) == 2
    if gpu not in range(count) or not is_pair or fault[0] not in FAULTS:
        need = f"a number below {count}, with one of {', '.join(FAULTS)} and every how manyth time"
        raise cannot_tune("fake_gpus", f"faults={ {gpu: fault}!r}", need)
    check_number("fake_gpus", f"fault {fault[0]!r} every", fault[1], MOST_EVERY)


def fake_settings(
    count: int,
    faults: Mapping[int, tuple[str, int]] | None,
    folder: Path,
    seed: int,
    noise: float,
    measuring_seconds: float,
) -> list[dict[str, Any]]:
    """Return the settings of each fake worker; a folder holds their request counters."""
    all_settings = []
    for i in range(count):
        settings: dict[str, Any] = {"seed": seed, "noise": noise, "seconds": measuring_seconds}
        if faults and i in faults:
            settings["fault"], settings["every"] = faults[i]
            settings["counter"] = str(folder / f"requests_{i}")
        all_settings.append(settings)
    return all_settings
