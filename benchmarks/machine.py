"""What a figure was measured on and with: chip, driver, versions, command."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import shlex
import subprocess
import sys
from pathlib import Path

PACKAGES = ("tvm_hopper", "apache-tvm", "apache-tvm-ffi", "torch", "numpy", "nvidia-cuda-nvrtc")
SMI_FIELDS = "name,driver_version,power.limit,clocks.max.sm,temperature.gpu"


def describe() -> dict[str, str]:
    """Return the machine and the software as printable fields; what is missing is left out."""
    found = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(["python", "-m", _module(sys.argv[0]), *sys.argv[1:]]),
        "python": platform.python_version(),
    }
    smi = ["nvidia-smi", f"--query-gpu={SMI_FIELDS}", "--format=csv,noheader"]
    try:
        line = subprocess.run(smi, capture_output=True, text=True, check=True).stdout.splitlines()[
            0
        ]
    except (OSError, subprocess.CalledProcessError, IndexError):
        pass
    else:
        names = ("chip", "driver", "power limit", "SM clock limit", "temperature")
        found.update(zip(names, (v.strip() for v in line.split(",")), strict=True))
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    commit = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return found | ({"commit": commit} if commit else {})


def _module(script: str) -> str:
    return f"{Path(__file__).parent.name}.{Path(script).stem}"
