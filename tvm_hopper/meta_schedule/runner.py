"""Measure on the GPUs of this machine: a process each, with deadlines; crashes lose nothing."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.runner import PyRunner, RunnerFuture, RunnerInput

from tvm_hopper.errors import HopperError

from .measurement import Contested, Measurement
from .pool_runner import Measuring
from .workers.pool import WorkerPool
from .workers.process import WorkerProcess

VISIBLE = "CUDA_VISIBLE_DEVICES"
SECONDS = 20.0


@derived_object
class GpuRunner(PyRunner):
    """Measures on GPUs of this machine, one worker process for each.

    A worker that crashes, exits, or passes the deadline is replaced, and what it was measuring is
    tried on another GPU. A GPU that breaks several times in a row is retired; the rest goes on.
    `docs/tuning_at_scale.md` has a table of failures.

    Parameters
    ----------
    gpus : "all" or sequence of int or str
        Which: "all" that this process may use, or what CUDA_VISIBLE_DEVICES takes.
    seconds : float
        Deadline of one measurement.
    retire_after : int
        Times in a row that a GPU may break.
    repeats : int, optional
        Of each kernel; None: by its duration.
    correct : bool
        Whether results are seconds at the highest clock of the GPU; both are in `take()`.
    keep_artifacts : bool
        Whether artifacts are left where they are.

    Raises
    ------
    HopperError
        There is no GPU, or one that does not exist is asked for.
    """

    def __init__(
        self,
        gpus: str | Sequence[int | str] = "all",
        *,
        seconds: float = SECONDS,
        retire_after: int = 3,
        repeats: int | None = None,
        correct: bool = True,
        keep_artifacts: bool = False,
        _workers: Mapping[str, WorkerProcess] | None = None,
    ) -> None:
        super().__init__()
        self._workers = dict(_workers or gpu_workers(gpus))
        pool = WorkerPool(list(self._workers.values()), seconds=seconds, retire_after=retire_after)

        def request(path: str, arguments: list[Any]) -> dict[str, Any]:
            return {"artifact": path, "arguments": arguments, "repeats": repeats}

        def about(name: str) -> Mapping[str, Any]:
            return self._workers[name].about if name in self._workers else {}

        self._measuring = Measuring(pool, about, correct, keep_artifacts, request)

    def run(self, runner_inputs: list[RunnerInput]) -> list[RunnerFuture]:
        """Queue measurements; the futures are there at once."""
        return self._measuring.run(runner_inputs)

    def take(self, path: str) -> Measurement | None:
        """Return all that is known of a measured artifact, once: both times, clock, GPU."""
        return self._measuring.take(path)

    def contest(
        self,
        paths: Sequence[str],
        reference: str | None = None,
        library: Mapping[str, Any] | None = None,
    ) -> Callable[[], Contested | str]:
        """Compare artifacts of one function in turn, on one GPU.

        Parameters
        ----------
        paths : sequence of str
            Of artifacts.
        reference : str, optional
            An artifact that is known to be right: results are compared with its.
        library : mapping, optional
            `majors` of a product, which a library computes for comparison where there is one.

        Returns
        -------
        result : callable
            Waits, and returns what came of it, or an error as a text.
        """
        return self._measuring.contest(paths, reference, library)

    @property
    def gpus(self) -> list[str]:
        """Names of the GPUs that are left."""
        return self._measuring.pool.names

    @property
    def retired(self) -> dict[str, str]:
        """GPUs that were retired, and what happened there last."""
        return dict(self._measuring.pool.retired)

    def close(self) -> None:
        """Stop the workers; what waits fails."""
        self._measuring.close()


def gpu_workers(gpus: str | Sequence[int | str]) -> dict[str, WorkerProcess]:
    """Return a worker for each GPU, not started yet, by its name."""
    return {
        f"GPU {x}": WorkerProcess(f"GPU {x}", "measure", environment={VISIBLE: x})
        for x in wanted_gpus(gpus)
    }


def wanted_gpus(gpus: str | Sequence[int | str]) -> list[str]:
    """Return the GPUs that are meant, as CUDA_VISIBLE_DEVICES names them.

    Raises
    ------
    HopperError
        There is none, or not the one that is meant.
    """
    visible = visible_gpus()
    if isinstance(gpus, str):
        wanted = visible if gpus == "all" else gpus.split(",")
    else:
        wanted = [str(x) for x in gpus]
    if not visible:
        raise HopperError(
            "gpus: found no GPU that this process can use; need an NVIDIA GPU and its driver, or "
            "a tracker's servers (RpcRunner), or FakeRunner to try without"
        )
    unknown = [x for x in wanted if x not in visible and not x.startswith(("GPU-", "MIG-"))]
    if unknown or not wanted or len(set(wanted)) < len(wanted):
        raise HopperError(f'gpus: found {gpus!r}; need "all" or some of {", ".join(visible)}')
    return wanted


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if VISIBLE in os.environ:
        return [x.strip() for x in os.environ[VISIBLE].split(",") if x.strip() not in ("", "-1")]
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return []
    return [str(i) for i in range(count.value)]
