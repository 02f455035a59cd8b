"""Versions that a record depends on: packages, pass list, machine."""

from __future__ import annotations

import functools
import hashlib
import importlib
import shutil
import subprocess
from typing import Any

from tvm.target import Target

from tvm_hopper.requests import pins
from tvm_hopper.requests.targets import named_part, num_sms, target_arch

FORMAT = 2  # of the work folder, and of the texts of configurations in it
QUERY = {  # name in a record -> field of nvidia-smi
    "gpu": "name",
    "driver": "driver_version",
    "power_limit": "power.limit",
    "max_clock": "clocks.max.sm",
}


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions that kernels, and so their times, depend on."""
    package = importlib.import_module("tvm_hopper")  # is there already, above this in the layers
    return {"package": package.__version__, "passes": pass_list(), "tvm": pins.TVM}


def pass_list() -> str:
    """Return a hash of the names of all passes of a build, in order."""
    from tvm_hopper.pipeline.passes import full_list, names

    return hashlib.sha256("\n".join(names(full_list())).encode()).hexdigest()[:16]


def part(target: Target) -> dict[str, Any]:
    """Return what distinguishes targets whose times must not be mixed."""
    named = named_part(target)
    fields = {"arch": target_arch(target), "num_sms": num_sms(target)}
    return {**fields, "part": named} if named else fields


def machine() -> dict[str, Any]:
    """Return the GPUs of this machine as the driver names them; an empty list without any."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {"gpus": []}
    command = [program, f"--query-gpu={','.join(QUERY.values())}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {"gpus": []}
    rows = [line.split(", ") for line in done.stdout.splitlines()] if not done.returncode else []
    return {"gpus": [dict(zip(QUERY, row, strict=False)) for row in rows if len(row) == len(QUERY)]}
