"""`python -m tvm_hopper serve`: an RPC server for each GPU, restarted when it ends."""

from __future__ import annotations

import argparse
import functools
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tvm_hopper.errors import HopperError, require_packages
from tvm_hopper.meta_schedule.workers import parent
from tvm_hopper.meta_schedule.workers.process import ROOT, remove_stale

from .session import PREFIX, SERVED, served
from .tracker import TrackerAddress, TrackerClient

LOCAL = ("127.0.0.1", "localhost", "::1")
ANY = ("0.0.0.0", "::")  # every interface of this machine
FIRST_PORT, LAST_PORT = 9090, 9999
PERIOD = 0.5


def serve_command(arguments: argparse.Namespace) -> int:
    """Serve until this process is terminated."""
    address = TrackerAddress.parse(arguments.tracker, needs_key=False)
    if arguments.host in LOCAL and address.host not in LOCAL:
        raise HopperError(
            f"serve: found servers on {arguments.host} for a tracker on {address.host}; need an "
            "address that its clients can reach: --host ADDRESS, in a network of your own, since "
            "TVM's RPC knows no authentication"
        )
    TrackerClient(address).close()
    devices = fake_devices(arguments.fake) if arguments.fake else gpu_devices(arguments.gpus)
    group = ServerGroup(address, arguments.key, arguments.host, devices)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: group.stop())
    print(
        f"{len(devices)} server(s) for {address}, key {arguments.key}: {', '.join(devices)}; "
        "no authentication: whoever reaches them runs code here",
        flush=True,
    )
    group.run()
    return 0


def gpu_devices(gpus: str) -> dict[str, str]:
    """Return the device of each server, by GPU name."""
    from tvm_hopper.meta_schedule.runner import wanted_gpus

    return {f"GPU {x}": served(f"GPU {x}", "measure", {}, x) for x in wanted_gpus(gpus)}


def fake_devices(count: int, settings: Any = None) -> dict[str, str]:
    """Return the same for fake GPUs; `settings` are those of their worker, by number."""
    return {
        f"fake GPU {i}": served(f"fake GPU {i}", "fake", (settings or {}).get(i, {}), None)
        for i in range(count)
    }


class ServerGroup:
    """Servers of TVM's, one for each device.

    - `address`: where they say that they are there.
    - `key`: under which name.
    - `host`: address that they listen on.
    - `devices`: settings of each, by name.
    """

    def __init__(
        self, address: TrackerAddress, key: str, host: str, devices: dict[str, str]
    ) -> None:
        self._address = (address.host, address.port)
        self._key, self._host, self._devices = key, host, devices
        self._stopped = threading.Event()
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # of TVM's servers, our children
        self._servers = {name: self._start(device) for name, device in devices.items()}

    def _start(self, device: str) -> Any:
        require_packages("serve", "cloudpickle", "psutil", "tornado")  # of TVM's servers
        from tvm import rpc

        return rpc.Server(
            host=self._host,
            port=FIRST_PORT,
            port_end=LAST_PORT,
            tracker_addr=self._address,
            key=self._key,
            custom_addr=None if self._host in ANY else self._host,
            silent=True,
            server_init_callback=functools.partial(prepare_server, device, os.getpid()),
        )

    @property
    def processes(self) -> list[int]:
        """Process ids of the servers, but for one that is being started again."""
        workers = [server.proc for server in self._servers.values()]
        running = [worker._proc for worker in workers if worker is not None]
        return [process.pid for process in running if process is not None]

    def run(self) -> None:
        """Replace servers that end, until `stop`."""
        while not self._stopped.wait(PERIOD):
            for name, server in list(self._servers.items()):
                if not server.proc.is_alive():
                    print(f"{name}: its server ended and is started again", flush=True)
                    server.terminate()
                    self._servers[name] = self._start(self._devices[name])
        for server in self._servers.values():
            server.terminate()

    def stop(self) -> None:
        """Make `run` end all servers and return."""
        self._stopped.set()


def prepare_server(device: str, starter: int) -> None:
    """Set a server's process up, before it listens."""
    from tvm_hopper.integration import autoload

    os.environ[SERVED] = device
    parent.die_with_parent(starter)
    parent.watch_parent(starter)
    autoload.register()
    remove_stale(Path(tempfile.gettempdir()), PREFIX)  # of sessions that were killed
    threading.Thread(target=_watch_listener, name="listener watch", daemon=True).start()


def _watch_listener() -> None:
    """End a server that listens no more: TVM's goes on without a word when a session crashed."""
    from tvm.rpc import server

    while True:
        time.sleep(PERIOD)
        state = server.PopenRPCServerState.current
        if state is not None and not state.thread.is_alive():
            sys.stderr.flush()
            os._exit(1)
