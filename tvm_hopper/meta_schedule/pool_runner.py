"""Base class of our runners: a pool of workers that return futures."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm.s_tir.meta_schedule.runner import PyRunner, RunnerFuture, RunnerInput, RunnerResult

from .measurement import Contested, Measurement, as_contested, as_measurement
from .measuring import artifact
from .workers.pool import NOT_TRIED, QueuedTask, WorkerPool, close_at_exit

CONTEST = 3  # times the deadline of a measurement: a library is loaded, too
KEPT = 4096  # measurements, until they are taken


class PooledRunner(PyRunner):
    """Base class of runners that measure artifacts by a pool of workers.

    - `about` (function): returns what is known of a worker's device, by the worker's name.
    - `correct`: whether the seconds that MetaSchedule gets are those at the highest clock.
    - `keep_artifacts`: whether an artifact stays where it is when it has been measured.
    - `repeats`: of each kernel; None: by its duration.
    """

    def __init__(
        self,
        pool: WorkerPool,
        about: Callable[[str], Mapping[str, Any]],
        correct: bool,
        keep_artifacts: bool,
        repeats: int | None,
    ) -> None:
        super().__init__()
        self.pool = pool
        self._about = about
        self._correct = correct
        self._keep_artifacts = keep_artifacts
        self._repeats = repeats
        self._measurements: OrderedDict[str, Measurement] = OrderedDict()
        close_at_exit(self)

    def run(self, runner_inputs: list[RunnerInput]) -> list[RunnerFuture]:
        """Queue measurements; the futures are there at once."""
        return [self._start(item) for item in runner_inputs]

    def _start(self, item: RunnerInput) -> RunnerFuture:
        path = str(item.artifact_path)
        arguments = [info.as_json() for info in item.args_info]
        request = {"artifact": path, "arguments": arguments, "repeats": self._repeats}
        task = self.pool.submit(request)
        answer: list[RunnerResult] = []

        def result() -> RunnerResult:
            task.wait()
            if not answer:  # TVM asks once; others may ask again
                answer.append(self._finish(path, task))
            return answer[0]

        return RunnerFuture(task.done, result)

    def contest(
        self,
        paths: Sequence[str],
        reference: str | None = None,
        library: Mapping[str, Any] | None = None,
    ) -> Callable[[], Contested | str]:
        """Compare artifacts of one function on one GPU, alternating.

        - `reference`: an artifact that is known to be right: results are compared with its.
        - `library` (mapping): `majors` of a product, which a library computes for comparison where
          there is one.
        - returns: waits, and returns what came of it, or an error as a text.
        """
        request = {"contest": list(paths), "reference": reference, "library": library}
        task = self.pool.submit(request, CONTEST * self.pool.seconds)

        def result() -> Contested | str:
            task.wait()
            if not self._keep_artifacts:
                for path in [*paths, *([reference] if reference else [])]:
                    artifact.remove(path)
            if "error" in task.reply:
                return self._named(task)
            worker = str(task.reply.get("worker", task.worker))
            device = task.reply.get("device") or self._about(task.worker)
            return as_contested(task.reply, worker, device)

        return result

    @staticmethod
    def _named(task: QueuedTask) -> str:
        text, name = str(task.reply["error"]), task.worker
        if name and text.startswith(NOT_TRIED):
            return f"{NOT_TRIED}{name}: {text.removeprefix(NOT_TRIED)}"
        return text if not name or text.startswith(name) else f"{name}: {text}"

    def _finish(self, path: str, task: QueuedTask) -> RunnerResult:
        if not self._keep_artifacts:
            artifact.remove(path)
        reply = task.reply
        if "error" in reply:
            return RunnerResult(None, self._named(task))
        worker = str(reply.get("worker", task.worker))
        measurement = as_measurement(reply, worker, reply.get("device") or self._about(task.worker))
        self._measurements[path] = measurement
        while len(self._measurements) > KEPT:
            self._measurements.popitem(last=False)
        seconds = measurement.corrected if self._correct else measurement.seconds
        return RunnerResult(list(seconds), None)

    def take(self, path: str) -> Measurement | None:
        """Return all that is known of a measured artifact, once: both times, clock, GPU, host."""
        return self._measurements.pop(str(path), None)

    @property
    def retired(self) -> dict[str, str]:
        """GPUs or servers that were retired, and what happened there last."""
        return dict(self.pool.retired)

    def close(self) -> None:
        """Stop the workers, or give servers back; what waits fails."""
        self.pool.close()
