"""Runner that measures on the servers of an RPC tracker."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any

from tvm.ir.utils import derived_object

from tvm_hopper.errors import HopperError

from .pool_runner import PooledRunner
from .remote.station import RemoteStation
from .remote.tracker import TrackerAddress, TrackerClient
from .workers.pool import WorkerPool

logger = logging.getLogger("tvm_hopper.meta_schedule")
PERIOD = 0.2  # seconds between looks at the tracker
IDLE_SECONDS = 2.0  # after which a server is given back
SECONDS = 20.0
PATIENCE = 60.0
CONNECT_SECONDS = 10.0  # after which a server that does not answer is not waited for: a host is


@derived_object
class RpcRunner(PooledRunner):
    """Measures on servers that `python -m tvm_hopper serve` has started, found by TVM's tracker.

    Servers may come and go: those that are free are used while there is work, and given back. What
    a server was measuring when it went away is measured on another one.

    TVM's RPC knows no authentication: whoever reaches a server runs code there. Keep tracker and
    servers on 127.0.0.1 (through ssh tunnels) or in a network of your own.

    - `tracker`: "host:port/key".
    - `seconds`: deadline of one measurement, from when its server has begun.
    - `patience`: seconds that trials wait while there is no server; then they fail.
    - `retire_after`: times in a row that a server's GPU may break.
    - `repeats`, `correct`, `keep_artifacts`: as of GpuRunner.
    - raises HopperError: there is no tracker at that address; within a few seconds.
    """

    def __init__(
        self,
        tracker: str,
        *,
        seconds: float = SECONDS,
        patience: float = PATIENCE,
        retire_after: int = 3,
        repeats: int | None = None,
        correct: bool = True,
        keep_artifacts: bool = False,
    ) -> None:
        address = TrackerAddress.parse(tracker)
        pool = WorkerPool(seconds=seconds, retire_after=retire_after, waits=True)

        def about(_name: str) -> Mapping[str, Any]:
            return {}  # replies say themselves

        self._finder = ServerFinder(TrackerClient(address), pool, patience)
        super().__init__(pool, about, correct, keep_artifacts, repeats)
        weakref.finalize(self, self._finder.stop)

    @property
    def servers(self) -> list[str]:
        """Names of the servers in use."""
        return self.pool.names

    def close(self) -> None:
        """Give all servers back; what waits fails."""
        self._finder.stop()
        super().close()


class ServerFinder:
    """Brings servers to a pool while it has work.

    A retired server is kept, idle: given back, it would be handed out again at once.
    """

    def __init__(self, client: TrackerClient, pool: WorkerPool, patience: float) -> None:
        self._client: TrackerClient | None = client
        self._address = client.address
        self._pool = pool
        self._patience = patience
        self._kept: list[RemoteStation] = []
        self._problem = ""
        self._connecting: dict[str, float] = {}  # since when, by the server's match key
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="servers", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look for no more."""
        self._stopped.set()
        for station in self._kept:
            station.stop()
        self._kept.clear()

    def _run(self) -> None:
        served = time.monotonic()  # when there last was a server, or no work
        while not self._stopped.wait(PERIOD):
            if self._pool.names or not self._pool.waiting:
                served = time.monotonic()
            elif time.monotonic() - served > self._patience:
                self._pool.fail_waiting(
                    f"tracker {self._address}: found no server for {self._patience:g} s"
                    f"{f' ({self._problem})' if self._problem else ''}; need some; start them with "
                    f"`python -m tvm_hopper serve --tracker {self._address.host}:"
                    f"{self._address.port} --key {self._address.key} --gpus all`"
                )
            try:
                self._look()
            except Exception as error:  # whatever answers there: this thread has to go on
                self._problem = f"{error}" or type(error).__name__
                if self._client is not None:
                    self._client.close()
                self._client = None  # the next look connects a new one
            self._pool.release_idle(IDLE_SECONDS)
        if self._client is not None:
            self._client.close()

    def _look(self) -> None:
        if not self._pool.waiting:
            return
        if self._client is None:
            self._client = TrackerClient(self._address)
        late = time.monotonic() - CONNECT_SECONDS
        connecting = sum(begin > late for begin in list(self._connecting.values()))
        for _ in range(min(self._client.free(), self._pool.waiting) - connecting):
            host, port, match = self._client.request()
            self._connecting[match] = time.monotonic()
            threading.Thread(target=self._connect, args=(host, port, match), daemon=True).start()

    def _connect(self, host: str, port: int, match: str) -> None:
        try:
            station = RemoteStation(host, port, match)
        except HopperError as error:
            self._problem = str(error)
            logger.warning("%s", error)
            return
        finally:
            self._connecting.pop(match, None)
        if self._stopped.is_set():
            station.stop()
        elif station.name in self._pool.retired:
            self._kept.append(station)
        else:
            logger.info("%s: in use", station.name)
            self._pool.add(station)
