"""What a figure was measured on and with: chip, driver, versions, command."""

from __future__ import annotations

import datetime
import importlib.metadata
import itertools
import json
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

PACKAGES = ("tvm_hopper", "apache-tvm", "apache-tvm-ffi", "torch", "numpy", "nvidia-cuda-nvrtc")
OUTPUTS = ("--out", "--output")  # options that name a folder of this machine
SMI_FIELDS = "name,driver_version,power.limit,clocks.max.sm,temperature.gpu"


def describe() -> dict[str, str]:
    """Return the machine and the software as printable fields; what is missing is left out."""
    found = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "command": command(sys.argv),
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
    write(folder, name, text, {"machine": about, "table": table})
    return text


def write(folder: Path, name: str, page: str, values: dict[str, Any]) -> Path:
    """Write a page and the figures behind it, dated; return the page's path.

    Results are never written over: of two runs in one minute the second is called `..._2`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d_%H%M")
    for number in itertools.count(1):
        stem = folder / (f"{name}_{stamp}" if number == 1 else f"{name}_{stamp}_{number}")
        try:
            with stem.with_suffix(".md").open("x") as file:
                file.write(page)
        except FileExistsError:
            continue
        break
    stem.with_suffix(".json").write_text(json.dumps(values, indent=1))
    return stem.with_suffix(".md")


def command(arguments: list[str]) -> str:
    """Return the command line to repeat a run by; where its results went is no part of it."""
    script, *rest = arguments
    words: list[str] = []
    for before, word in zip(["", *rest], rest, strict=False):
        if not {before, word} & set(OUTPUTS):
            words.append(word)
    return shlex.join(["python", "-m", _module(script), *words])


def _module(script: str) -> str:
    return f"{Path(__file__).parent.name}.{Path(script).stem}"
