"""Worker without a GPU: reports the model's time, and fails on request.

To try schedules of runs, and every way to fail, where there is no GPU. All it says is marked
"fake".
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tvm_hopper.errors import HopperError

from . import artifact

REPEATS = 5


def _segfault() -> None:
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # TVM's handler looks symbols up for seconds
    os.kill(os.getpid(), signal.SIGSEGV)


def _hang() -> None:
    ctypes.PyDLL(None).sleep(1000)  # PyDLL keeps Python's lock


def _raise() -> None:
    raise HopperError("fake fault: found a request to raise; need none")


FAULTS: dict[str, Callable[[], None]] = {
    "segfault": _segfault,
    "hang": _hang,
    "exit": lambda: os._exit(7),
    "exception": _raise,
}


def answerer(settings: dict[str, Any]) -> tuple[Callable[[dict[str, Any]], dict[str, Any]], Any]:
    """Return what answers for one fake device.

    Settings: `seed`, `noise` (a share), `seconds` that a measurement takes, `fault` (one of
    `FAULTS`), `every` (which request it befalls), and `counter`, a file that outlives the process.
    """
    fault, every = settings.get("fault"), int(settings.get("every", 1))
    if fault is not None and fault not in FAULTS:
        raise HopperError(f"fault: found {fault!r}; need one of {', '.join(FAULTS)}")

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if fault is not None and _count(Path(settings["counter"])) % every == 0:
            FAULTS[fault]()
        time.sleep(float(settings.get("seconds", 0)))
        if "contest" in request:
            return fake_contest(request["contest"], settings)
        return fake_measurement(request["artifact"], settings)

    return answer, {"name": "fake GPU", "is_fake": True}


def fake_measurement(path: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model's seconds of an artifact with noise; the same for the same seed and code."""
    manifest = artifact.parse(artifact.read_files(path)[artifact.MANIFEST])
    code = "".join(sorted(manifest.digests.values()))
    key = hashlib.sha256(f"{settings.get('seed', 0)} {code}".encode()).digest()
    generator, noise = random.Random(key), float(settings.get("noise", 0.01))
    seconds = [
        manifest.predicted_seconds * max(0.1, 1 + noise * generator.gauss(0, 1))
        for _ in range(REPEATS)
    ]
    return {"seconds": seconds, "corrected": seconds, "megahertz": 0.0, "is_fake": True}


def fake_contest(paths: list[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model's seconds of several artifacts; nothing was run, so nothing was compared."""
    rows = [fake_measurement(path, settings)["seconds"] for path in paths]
    return {
        "verdicts": [["unchecked", "a fake device runs nothing"] for _ in paths],
        "sustained": rows,
        "single": rows,
        "library": "",
        "is_fake": True,
    }


def _count(path: Path) -> int:
    """Count requests to a device over the lives of its processes."""
    with path.open("ab") as file:
        file.write(b".")
    return path.stat().st_size
