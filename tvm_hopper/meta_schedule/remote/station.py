"""An RPC server as a worker of our pool; keeps its session while there is work."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Mapping
from typing import Any

from tvm import rpc

from tvm_hopper.errors import HopperError
from tvm_hopper.meta_schedule.measuring import artifact
from tvm_hopper.meta_schedule.workers.process import WorkerGone, WorkerLost, WorkerNotStarted

MEASURE = "tvm_hopper.rpc.measure"
PATHS = ("artifact", "contest", "reference")  # of a request: their files are sent
MORE_SECONDS = 10.0  # beyond a measurement's deadline: the way there and back
START_SECONDS = 130.0  # of the first: the server starts its worker


class RemoteStation:
    """A session with one server. TVM's calls have no timeout: a thread makes them.

    - `host`, `port`, `match`: as the tracker gave them.
    - raises HopperError: it cannot be reached, or does not know our function.
    """

    def __init__(self, host: str, port: int, match: str) -> None:
        self.name = f"server {host}:{port}"
        self._calls: queue.Queue[tuple[tuple[Any, ...], queue.Queue[Any]] | None] = queue.Queue()
        self._is_warm = False
        self._interrupted = threading.Event()
        try:
            self._session = rpc.connect(host, port, match)
            self._measure = self._session.get_function(MEASURE)
        except Exception as error:  # whatever TVM raises: its own errors have no class in common
            raise HopperError(
                f"{self.name}: found no session with {MEASURE} ({_last_line(error)}); need a "
                "server that `python -m tvm_hopper serve` has started"
            ) from None
        threading.Thread(target=self._run, name=self.name, daemon=True).start()

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            arguments, answer = item
            try:
                answer.put(str(self._measure(*arguments)))
            except Exception as error:
                answer.put(error)
        del self._measure, self._session  # the last reference ends the session

    def call(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Send an artifact and have it measured."""
        settings = {k: v for k, v in request.items() if k not in PATHS} | {"seconds": seconds}
        paths = [request["artifact"]] if "artifact" in request else list(request["contest"])
        if "contest" in request:
            settings["contest"] = len(paths)
            paths += [request["reference"]] if request.get("reference") else []
        sent = []
        for files in map(artifact.read_files, paths):
            names = (artifact.MANIFEST, artifact.HOST, artifact.DEVICE)
            sent += [bytearray(files.get(x, b"")) for x in names]
        arguments = (json.dumps(settings), *sent)
        answer: queue.Queue[Any] = queue.Queue()
        self._calls.put((arguments, answer))
        most = seconds + MORE_SECONDS + (0 if self._is_warm else START_SECONDS)
        reply = self._wait(answer, most)
        if isinstance(reply, Exception):
            raise WorkerGone(f"the session ended: {_last_line(reply)}")
        self._is_warm = True
        result = dict(json.loads(reply))
        if "not_started" in result:
            raise WorkerNotStarted(str(result["not_started"]))
        if "lost" in result:
            raise WorkerLost(f"{result['worker']}: {result['lost']}")
        return result

    def _wait(self, answer: queue.Queue[Any], seconds: float) -> Any:
        waited = 0.0
        while waited < seconds and not self._interrupted.is_set():
            try:
                return answer.get(timeout=0.5)
            except queue.Empty:
                waited += 0.5
        raise WorkerGone(f"no answer after {waited:g} s")

    def stop(self) -> None:
        """End the session, when the call under way is over."""
        self._calls.put(None)

    def interrupt(self) -> None:
        """Wait no longer for the call under way."""
        self._interrupted.set()


def _last_line(error: Exception) -> str:
    """Return what TVM's errors say after their traces."""
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else repr(error)
