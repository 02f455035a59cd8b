"""`python -m tvm_hopper doctor --report FILE`: write what a bug report needs.

The file holds what `doctor` found, versions of installed packages, environment variables of this
package and of CUDA, and the options with their defaults. It holds no source and no tensor.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterable
from pathlib import Path

from tvm_hopper.requests import options

PACKAGES = (
    "tvm_hopper",
    "apache-tvm",
    "apache-tvm-ffi",
    "numpy",
    "ml_dtypes",
    "torch",
    "triton",
    "cuda-python",
    "cuda-bindings",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-runtime",
    "nvidia-cuda-cccl",
)
PREFIXES = ("TVM_HOPPER_", "CUDA_", "NVIDIA_VISIBLE")  # of environment variables


def write_report(path: Path, rows: Iterable[tuple[str, str, str]]) -> None:
    """Write versions, machine, GPU, driver, environment and options to one text file."""
    path.write_text("\n".join(report_lines(rows)) + "\n", encoding="utf-8")


def report_lines(rows: Iterable[tuple[str, str, str]]) -> list[str]:
    """Return the lines of the report; a row is a check, its state, and what was found."""
    home = str(Path.home())
    lines = ["tvm_hopper report", "", "What happened, and the smallest module that shows it:", ""]
    lines += ["## Machine", f"Python {sys.version.split()[0]}, {platform.platform()}"]
    lines += ["", "## Packages", *(f"{name} {_version(name)}" for name in PACKAGES)]
    lines += ["", "## Checks", *(": ".join(row) for row in rows)]
    named = sorted(name for name in os.environ if name.startswith(PREFIXES))
    lines += ["", "## Environment", *(f"{name}={os.environ[name]}" for name in named)]
    lines += ["", "## Options, by default"]
    lines += [f"{name} = {value!r}" for name, value in sorted(options.DEFAULTS.items())]
    return [line.replace(home, "~") for line in lines]


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
