"""Worker processes that take turns on one device: one loads what another one's runs leave time for.

    process 0   load   run            load   run
    process 1          load    run           load   run

Nothing of a load touches the device, so that nothing runs beside what is timed. A deadline begins
when a process has its turn.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from .process import WorkerProcess

LOAD, RUN = "load", "run"  # the steps of a measurement


class TakesTurns:
    """A worker process that has its device alone while it runs something.

    Parameters
    ----------
    process : WorkerProcess
        Its role answers requests with a `step`.
    turn : lock
        Shared by all processes of the device.
    """

    def __init__(self, process: WorkerProcess, turn: threading.Lock) -> None:
        self.name = process.name
        self._process = process
        self._turn = turn

    @property
    def about(self) -> dict[str, Any]:
        """What the process has said of its device."""
        return self._process.about

    def call(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Return the reply; raise WorkerLost where the process broke."""
        if "artifact" not in request:
            with self._turn:
                return self._process.call(request, seconds)
        reply = self._process.call({**request, "step": LOAD}, seconds)
        if "error" in reply:
            return reply
        with self._turn:
            return self._process.call({"step": RUN}, seconds)

    def stop(self) -> None:
        """End the process."""
        self._process.stop()

    def interrupt(self) -> None:
        """Make a call under way end soon; from any thread."""
        self._process.interrupt()
