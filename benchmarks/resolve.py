"""Resolve this package beside releases of PyTorch, by pip alone: `python -m benchmarks.resolve`.

    make resolve
    python -m benchmarks.resolve --torch 2.8.0 2.11.0 --python python3.10 python3.12

Nothing is installed: pip reads what packages require. Of PyTorch's requirements those count that
share a package with ours: its large libraries (cuDNN, cuBLAS) are left out. Prints a table; exit
code 1 if a release of PyTorch that has wheels for a Python does not resolve there.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest brings it
    import tomli as tomllib

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
RELEASES = ("2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
SHOWN = (
    "cuda-python",
    "cuda-bindings",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-nvrtc-cu12",
    "nvidia-cuda-runtime",
    "nvidia-cuda-cccl",
)


SHARED = re.compile(
    r"cuda-(python|bindings|core|pathfinder|toolkit)|nvidia-cuda-(nvrtc|runtime|cccl)"
)


def report(python: str, words: list[str]) -> tuple[str, list[dict[str, Any]]]:
    """Return "yes" or why not, and the metadata of what pip would install."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "report.json")
        command = [python, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed"]
        command += ["--only-binary=:all:", "--report", str(path), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return reason(done.stderr), []
        return "yes", [item["metadata"] for item in json.loads(path.read_text())["install"]]


def shared(torch: dict[str, Any], ours: list[str], environment: dict[str, str]) -> list[str]:
    """Return PyTorch's requirements that name a package which ours bring, too."""
    names = {Requirement(text).name for text in ours}
    found = []
    for text in torch.get("requires_dist", []):
        requirement = Requirement(text)
        marker, requirement.marker = requirement.marker, None
        if marker is not None and not marker.evaluate({**environment, "extra": ""}):
            continue
        requirement.extras &= {"cudart", "nvrtc"}  # of cuda-toolkit
        bare = requirement.name.removesuffix("-cu12")
        if requirement.name in names or SHARED.fullmatch(bare):
            found.append(str(requirement))
    return found


def resolve(python: str, version: str, torch: str) -> tuple[str, dict[str, str]]:
    """Return "yes" or why not, and the versions that pip would install."""
    ours = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
    more: list[str] = []
    if torch:  # "===": not the wheel for CPUs that is called 2.13.0+cpu
        answer, found = report(python, ["--no-deps", f"torch==={torch}"])
        if not found:
            return answer, {}
        short = ".".join(version.split(".")[:2])
        more = shared(found[0], ours, {"python_version": short, "python_full_version": version})
    answer, found = report(python, [*ours, *more])
    return answer, {item["name"].lower(): item["version"] for item in found}


def reason(stderr: str) -> str:
    """Return what pip said, in a line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if any("No matching distribution found for torch" in line for line in lines):
        return "PyTorch has no wheel"
    conflicts = [line for line in lines if "depends on" in line or "conflict" in line.lower()]
    return "no: " + " | ".join(conflicts or lines[-1:])[:200]


def main(argv: list[str]) -> int:
    """Print the table; 1 if something does not resolve."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", nargs="+", default=["", *RELEASES], help="releases; '': none")
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters")
    options = parser.parse_args(argv)
    columns = ["torch", "python", "resolves", *SHOWN]
    print("| " + " | ".join(columns) + " |", "|" + "---|" * len(columns), sep="\n")
    failed = 0
    for python in options.python:
        code = "import platform; print(platform.python_version())"
        version = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
        for torch in options.torch:
            answer, found = resolve(python, version.stdout.strip(), torch)
            failed += answer.startswith("no")
            row = [torch or "none", version.stdout.strip(), answer]
            print("| " + " | ".join([*row, *(found.get(x, "") for x in SHOWN)]) + " |", flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
