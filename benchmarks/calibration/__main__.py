"""Try on a Hopper GPU what the simulator assumes about it; write a dated table.

    python -m benchmarks.calibration [--repeats 5] [--points abcdefgh] [--output FOLDER]

Needs nvcc. Each run is a process with a time limit, so that a fault or a hang is an outcome. What
the outcomes mean for the simulator is in docs/calibration.md.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .. import machine
from . import outcome
from .experiments import EXPERIMENTS, Experiment

# `code=sm_90a`, not the shorthand -arch: that may also build for sm_90, which has no setmaxnreg
NVCC = ("nvcc", "-std=c++17", "-O3", "-gencode=arch=compute_90a,code=sm_90a")
RUN_SECONDS = 10.0


def compile_all(experiments: list[Experiment], folder: Path) -> None:
    """Build every experiment into the folder, in parallel; raise with nvcc's words if one fails."""

    def build(experiment: Experiment) -> None:
        command = [*NVCC, str(experiment.source), "-o", str(folder / experiment.stem)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{experiment.source.name}: nvcc failed\n{done.stderr}")

    with ThreadPoolExecutor() as pool:
        list(pool.map(build, experiments))


def run_once(
    experiment: Experiment, program: Path, arguments: tuple[str, ...], limit: float = RUN_SECONDS
) -> list[dict[str, Any]]:
    """Run a program; a process that is killed or fails is an outcome too."""
    ended = ""
    try:
        done = subprocess.run(
            [str(program), *arguments], capture_output=True, text=True, timeout=limit, check=False
        )
        output = done.stdout
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [""])[-1]
            ended = f"exit code {done.returncode} {last}".strip()
    except subprocess.TimeoutExpired as late:
        output = (late.stdout or b"").decode()
        ended = f"killed after {limit:g} s"
    return outcome.read(experiment, arguments, output, ended)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="processes of each run")
    parser.add_argument("--points", default="abcdefgh", help="letters of the points to try")
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1] / "results")
    options = parser.parse_args(arguments)
    known = {experiment.point for experiment in EXPERIMENTS}
    if unknown := set(options.points) - known:
        parser.error(f"--points: found {''.join(sorted(unknown))!r}; need letters of a to h")
    if options.repeats < 1:
        parser.error(f"--repeats: found {options.repeats}; need at least 1")
    return options


def main(arguments: list[str]) -> int:
    """Compile, run, write `calibration_<date>.md` and `.json`."""
    options = parse(arguments)
    if shutil.which("nvcc") is None:
        print("calibration: found no nvcc on PATH; need a CUDA toolkit of 12.8 or later")
        return 2
    chosen = [e for e in EXPERIMENTS if e.point in options.points]
    outcomes: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        compile_all(chosen, Path(folder))
        for experiment in chosen:
            for _ in range(options.repeats):
                for run in experiment.runs:
                    outcomes += run_once(experiment, Path(folder) / experiment.stem, run)
    rows = outcome.merge(outcomes)
    about = machine.describe()
    command = ["python", "-m", "benchmarks.calibration"]
    command += ["--repeats", str(options.repeats), "--points", options.points]
    about["command"] = shlex.join(command)
    stamp = about["date"][:16].replace(":", "").replace(" ", "_")
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"calibration_{stamp}.md"
    text = outcome.table(rows, about)
    path.write_text(text)
    path.with_suffix(".json").write_text(json.dumps({"machine": about, "rows": rows}, indent=1))
    print(text)
    print(f"-> {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
