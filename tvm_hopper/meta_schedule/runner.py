"""Runner for the GPUs of this machine: one process each, with deadlines."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from typing import Any

from tvm.ir.utils import derived_object

from tvm_hopper.errors import HopperError

from .arguments import MOST_PROCESSES, check_number, check_seconds
from .pool_runner import PooledRunner
from .workers.pool import WorkerPool
from .workers.process import WorkerProcess
from .workers.turns import Device

VISIBLE = "CUDA_VISIBLE_DEVICES"
SECONDS = 20.0
PROCESSES = 2  # of a GPU: a load takes the host longer than a kernel takes the device


@derived_object
class GpuRunner(PooledRunner):
    """Runner that measures on the GPUs of this machine, with one worker process each.

    A worker that crashes, exits or exceeds its deadline is replaced, and its trial is retried on
    another GPU. A GPU that fails several times in a row is retired. `docs/tuning_at_scale.md` lists
    all failures.

    - `gpus` ("all" or sequence of int or str): "all" that this process may use, or entries of
      CUDA_VISIBLE_DEVICES.
    - `seconds`: deadline of one measurement.
    - `retire_after`: failures in a row before a GPU is retired.
    - `repeats`: repeats of each kernel; None: by its duration.
    - `correct`: whether results are seconds at the highest clock of the GPU; both are in `take()`.
    - `keep_artifacts`: whether to keep artifacts.
    - `processes`: of each GPU: one loads while another one measures.
    - raises HopperError: there is no GPU, or one that does not exist is requested; or a number is
      none.
    """

    def __init__(
        self,
        gpus: Any = "all",
        *,
        seconds: float = SECONDS,
        retire_after: int = 3,
        repeats: int | None = None,
        correct: bool = True,
        keep_artifacts: bool = False,
        processes: int = PROCESSES,
    ) -> None:
        check_seconds("GpuRunner", seconds)
        check_number("GpuRunner", "retire_after", retire_after, MOST_PROCESSES)
        check_number("GpuRunner", "processes", processes, MOST_PROCESSES)
        if repeats is not None:
            check_number("GpuRunner", "repeats", repeats, MOST_PROCESSES)
        stations = gpu_workers(gpus, processes)
        pool = WorkerPool(stations, seconds=seconds, retire_after=retire_after)

        def about(name: str) -> Mapping[str, Any]:
            return next((x.about for x in stations if x.name == name and x.about), {})

        super().__init__(pool, about, correct, keep_artifacts, repeats)

    def start(self) -> None:
        """Let the workers start, which takes seconds; without it the first trials wait for them."""
        self.pool.start()

    @property
    def gpus(self) -> list[str]:
        """Names of the GPUs that are left."""
        return list(dict.fromkeys(self.pool.names))


def gpu_workers(gpus: Any, processes: int = 1) -> list[Any]:
    """Return so many workers of each GPU, not started yet; those of one have its name.

    Workers in place of GPUs are returned as they are (`fake_gpus`).
    """
    if isinstance(gpus, list) and gpus and all(isinstance(x, WorkerProcess) for x in gpus):
        return gpus
    stations: list[Any] = []
    for gpu in wanted_gpus(gpus):
        name = f"GPU {gpu}"
        workers = [
            WorkerProcess(name, "measure", environment={VISIBLE: gpu}) for _ in range(processes)
        ]
        stations += workers if processes == 1 else Device(workers).stations
    return stations


def wanted_gpus(gpus: str | Sequence[int | str]) -> list[str]:
    """Return the GPUs that are meant, as CUDA_VISIBLE_DEVICES names them.

    - raises HopperError: there is none, or not the one that is meant.
    """
    visible = visible_gpus()
    if not isinstance(gpus, Sequence):
        raise HopperError(f'gpus: found {gpus!r}; need "all", or a list of numbers, e.g. [0, 1]')
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
