"""Server side of an RPC session: the measuring function and its process.

TVM serves each client in a separate process. Kernels do not run in it: it hands artifacts on to a
worker process with a deadline, so that what a kernel breaks is neither the session nor the server.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

from tvm_hopper.errors import HopperError
from tvm_hopper.meta_schedule.measuring import artifact
from tvm_hopper.meta_schedule.workers import parent
from tvm_hopper.meta_schedule.workers.process import WorkerLost, WorkerNotStarted, WorkerProcess

SERVED = "TVM_HOPPER_SERVED"  # environment: what `serve` has this server measure on, as JSON

PREFIX = "tvm_hopper_rpc_"  # of the folders that hold what clients send

_worker: WorkerProcess | None = None


def served(name: str, role: str, settings: dict[str, Any], visible: str | None) -> str:
    """Return the device that a server gets by its environment."""
    known = {"name": name, "role": role, "settings": settings, "visible": visible}
    return json.dumps(known)


def measure(request: str, *sent: Any) -> str:
    """Measure an artifact, or compare several: what clients call as `tvm_hopper.rpc.measure`.

    - `request`: JSON: `arguments`, `repeats`, and `seconds`, the deadline; or `contest`, how many
      are compared, `library`, and `seconds`.
    - `*sent` (bytes): three files of each artifact: manifest, host, device; the last one empty if
      there are no kernels. Behind the contenders comes their reference, if there is one.
    - returns: JSON: the measurement, or `error`; `lost` where the worker broke over it.
    """
    worker = _session_worker()
    settings = json.loads(request)
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}_") as folder:
        try:
            paths = [
                _written(Path(folder, str(i)), *sent[i : i + 3]) for i in range(0, len(sent), 3)
            ]
        except HopperError as error:
            return json.dumps({"error": str(error)})
        seconds, count = float(settings.pop("seconds")), settings.pop("contest", None)
        if count is None:
            settings["artifact"] = paths[0]
        else:
            reference = paths[count] if len(paths) > count else None
            settings |= {"contest": paths[:count], "reference": reference}
        try:
            reply = worker.call(settings, seconds)
        except WorkerNotStarted as error:
            reply = {"not_started": str(error)}
        except WorkerLost as error:
            reply = {"lost": str(error)}
    reply |= {"worker": f"{platform.node()} {worker.name}", "device": worker.about}
    return json.dumps(reply)


def _written(folder: Path, manifest: Any, host: Any, device: Any) -> str:
    """Write what a client has sent, once it is what its manifest says; return the path."""
    files = {artifact.MANIFEST: bytes(manifest), artifact.HOST: bytes(host)}
    if len(device):
        files[artifact.DEVICE] = bytes(device)
    known = artifact.check("of a client", files)
    del files[artifact.MANIFEST]
    return str(artifact.write(folder, known, files))


def _session_worker() -> WorkerProcess:
    """Return the worker of this session, which ends with it."""
    global _worker
    if _worker is None:
        if SERVED not in os.environ:
            raise HopperError(
                "measuring for a client: found a server without a device; need one "
                "that `python -m tvm_hopper serve` has started"
            )
        device = json.loads(os.environ[SERVED])
        server = os.getppid()
        parent.die_with_parent(server)
        parent.watch_parent(server)
        visible = {} if device["visible"] is None else {"CUDA_VISIBLE_DEVICES": device["visible"]}
        _worker = WorkerProcess(device["name"], device["role"], device["settings"], visible)
    return _worker
