"""What a figure was measured on and with: chip, driver, versions, command."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
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
    if "torch" in sys.modules and sys.modules["torch"].cuda.is_available():
        device = sys.modules["torch"].cuda.get_device_properties(0)
        found["SMs"] = str(device.multi_processor_count)
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


def save(folder: Path, name: str, title: str, columns: list[str], table: list[dict]) -> str:
    """Write a table as Markdown and as JSON, with what it was measured on; return the Markdown."""
    about = describe()
    lines = [f"# {title}", "", *(f"* {key}: {value}" for key, value in about.items()), ""]
    lines += ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(map(str, row.values())) + " |" for row in table]
    text = "\n".join(lines) + "\n"
    stamp = about["date"].replace(":", "").replace(" UTC", "").replace(" ", "_")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}_{stamp}.md").write_text(text)
    (folder / f"{name}_{stamp}.json").write_text(
        json.dumps({"machine": about, "table": table}, indent=1)
    )
    return text


def _module(script: str) -> str:
    return f"{Path(__file__).parent.name}.{Path(script).stem}"
