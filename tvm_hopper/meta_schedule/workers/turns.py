"""Workers that share a device: one loads its kernel while another measures.

    process 0   load   run            load   run
    process 1          load    run           load   run

Nothing of a load touches the device, so that nothing runs next to what is timed. A deadline begins
when a process has its turn.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from .process import WorkerProcess

LOAD, RUN = "load", "run"  # the steps of a measurement


class Device:
    """Processes of one device; the first one compares, too: it loads a library for that.

    - `processes`: their role answers requests with a `step`.
    """

    def __init__(self, processes: Sequence[WorkerProcess]) -> None:
        self._gpu_lock = threading.Lock()
        self._speaking = [threading.Lock() for _ in processes]  # each answers one at a time
        self._processes = list(processes)

    @property
    def stations(self) -> list[TakesTurns]:
        """The workers: one for each process."""
        return [TakesTurns(self, number) for number in range(len(self._processes))]

    def call(self, number: int, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Have a process load and, when it has its turn, run; the first one does all the rest."""
        if not request:  # it is to start: nothing runs
            return self._ask(number, request, seconds)
        if "artifact" not in request:
            with self._gpu_lock:
                return self._ask(0, request, seconds)
        reply = self._ask(number, {**request, "step": LOAD}, seconds)
        if "error" in reply:
            return reply
        with self._gpu_lock:
            return self._ask(number, {"step": RUN}, seconds)

    def _ask(self, number: int, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        with self._speaking[number]:
            return self._processes[number].call(request, seconds)

    def process(self, number: int) -> WorkerProcess:
        """Return one of the processes."""
        return self._processes[number]


class TakesTurns:
    """A worker process that has its device alone while it runs something."""

    def __init__(self, device: Device, number: int) -> None:
        self.name = device.process(number).name
        self._device, self._number = device, number

    @property
    def about(self) -> dict[str, Any]:
        """The device that the process reported."""
        return self._device.process(self._number).about

    def call(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Return the reply; raise WorkerLost where a process broke."""
        return self._device.call(self._number, request, seconds)

    def stop(self) -> None:
        """End the process."""
        self._device.process(self._number).stop()

    def interrupt(self) -> None:
        """Make a call under way end soon; from any thread."""
        self._device.process(self._number).interrupt()
