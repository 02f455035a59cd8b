"""Whole models against PyTorch and TVM's own pipeline: `python -m benchmarks.models`.

Each model is a process of its own; its row is appended to a file as it comes, so that a run that
ends early goes on where it stopped. What fails becomes a line of its row.

    python -m benchmarks.models --list
    python -m benchmarks.models --seconds 560 --out $OUT/models.jsonl     what fits, then again
    python -m benchmarks.models --only bert                               one, or some
    python -m benchmarks.models table models.jsonl                        the table of the docs
    python -m benchmarks.models save FOLDER --only bert                   small ones as JSON
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import machine

from .cases import CASES, NN, Case, chosen
from .rows import COMPILED, EAGER, MODES, OURS, Row, append, read, table

RESULTS = Path(__file__).parent.parent / "results" / "models.jsonl"
POLL_SECONDS = 0.5


def main(argv: list[str]) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.models",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "command", nargs="*", help='nothing, "table" and files of rows, or "save" and a folder'
    )
    parser.add_argument("--only", action="append", default=[], help="models whose names have this")
    parser.add_argument("--list", action="store_true", help="name the models")
    parser.add_argument("--seconds", type=float, default=5400, help="after which none is begun")
    parser.add_argument("--budget", type=float, default=0, help="seconds of a model; 0: its own")
    parser.add_argument("--jobs", type=int, default=3, help="models imported and built at once")
    parser.add_argument("--again", action="store_true", help="measure what has been measured, too")
    parser.add_argument("--tiny", action="store_true", help="small sizes: to try a machine")
    parser.add_argument("--no-stock", action="store_true", help="leave TVM's own pipeline out")
    parser.add_argument(
        "--compile-seconds", type=float, default=90, help="of a mode of torch.compile; 0: none"
    )
    parser.add_argument(
        "--compile-modes", nargs="+", default=MODES, choices=MODES, help="of torch.compile, in turn"
    )
    parser.add_argument(
        "--compile-together", action="store_true", help="torch.compile of several models at once"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="the file of rows")
    parser.add_argument("--case", help=argparse.SUPPRESS)  # of a model's own process
    parser.add_argument("--row", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--lock", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.command[:1] == ["table"]:
        print(table(read([Path(x) for x in options.command[1:]] or [options.out])), end="")
        return 0
    if options.command and (options.command[0] != "save" or len(options.command) != 2):
        parser.error(f"found {options.command[0]}; need nothing, table, or save and a folder")
    try:
        cases = chosen(options.only)
    except ValueError as error:
        parser.error(str(error))
    if options.command:
        from .imported import save_case

        for case in cases:
            if case.way != NN:
                print(save_case(case, Path(options.command[1])))
        return 0
    if options.list:
        for case in cases:
            print(f"{case.name:20s} {case.way}, {case.dtype}: {case.sizes}")
        return 0
    if options.case:
        return run_case(next(x for x in CASES if x.name == options.case), options)
    return run_all(cases, options)


def run_case(case: Case, options: argparse.Namespace) -> int:
    """Measure one case in this process; its row is written after each part."""
    import tvm_hopper  # noqa: F401  (it registers the target and the pipeline)

    from .measure import Options, measure_case

    def save(row: Row) -> None:
        row.machine = about
        part = options.row.with_suffix(".part")
        part.write_text(json.dumps(asdict(row)), encoding="utf-8")
        part.replace(options.row)

    about = machine.describe()
    given = Options(
        options.row,
        options.lock,
        options.tiny,
        not options.no_stock,
        options.compile_seconds,
        tuple(options.compile_modes),
        options.compile_together,
    )
    measure_case(case, given, save)
    return 0


def run_all(cases: list[Case], options: argparse.Namespace) -> int:
    """Run each case in a process of its own, several at once; return the exit code."""
    begin = time.monotonic()
    done = {} if options.again else read([options.out])
    waiting = [x for x in cases if x.name not in done or not done[x.name].is_done]
    print(f"{len(waiting)} of {len(cases)} models to measure, rows go to {options.out}", flush=True)
    running: list[Process] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            while waiting or running:
                late = time.monotonic() - begin > options.seconds
                while waiting and not late and len(running) < options.jobs:
                    running.append(Process(waiting.pop(0), Path(folder), options))
                for process in [x for x in running if x.has_ended(late)]:
                    running.remove(process)
                    row = process.row()
                    append(options.out, row)
                    print(_line(row), flush=True)
                if late and not running:
                    break
                time.sleep(POLL_SECONDS)
        finally:
            for process in running:
                process.end()
    if waiting:
        print(f"not begun: {', '.join(x.name for x in waiting)}; the same command goes on")
    print(table(read([options.out])), flush=True)
    return 0


class Process:
    """The process of a case."""

    def __init__(self, case: Case, folder: Path, options: argparse.Namespace) -> None:
        self.case, self.path = case, folder / f"{case.name}.json"
        # A model waits while others have the GPU; its own part ends parts that hang.
        self.limit = (options.budget or case.budget) * options.jobs
        flags = [
            flag
            for flag, is_on in (
                ("--tiny", options.tiny),
                ("--no-stock", options.no_stock),
                ("--compile-together", options.compile_together),
            )
            if is_on
        ]
        command = [
            *(sys.executable, "-m", "benchmarks.models", "--case", case.name),
            *("--row", str(self.path), "--lock", str(folder / "lock"), *flags),
            *("--compile-seconds", str(options.compile_seconds)),
            *("--compile-modes", *options.compile_modes),
        ]
        self.log = self.path.with_suffix(".log").open("w+", encoding="utf-8")
        self.begin = time.monotonic()
        self.process = subprocess.Popen(
            command, stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True
        )
        self.reason = ""

    def has_ended(self, late: bool) -> bool:
        """Tell whether the process is over; one that takes too long is ended."""
        if self.process.poll() is not None:
            return True
        spent = time.monotonic() - self.begin
        if spent > self.limit:
            self.reason = f"ended after {spent:.0f} s"
        elif late:
            self.reason = "ended: the time of the run is over"
        else:
            return False
        self.end()
        return True

    def end(self) -> None:
        """End the process and those that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def row(self) -> Row:
        """Return the row, with what ended the process where it did not end by itself."""
        known = read([self.path])
        row = known.get(self.case.name, Row(self.case.name))
        code = self.process.returncode
        if self.reason or code:
            self.log.seek(0)
            last = [x.strip() for x in self.log.read().splitlines() if x.strip()][-1:]
            row.failures["process"] = self.reason or f"exit code {code}: {' '.join(last)[:200]}"
        self.log.close()
        return row


def _line(row: Row) -> str:
    def ratio(opponent: str) -> str:
        found: Any = row.ratio(opponent)
        return "-" if found is None else f"{found:.2f}"

    failures = "; ".join(f"{part}: {why}" for part, why in row.failures.items())
    return (
        f"{row.name}: {row.times.get(OURS, '-')} us, of eager {ratio(EAGER)}, of torch.compile "
        f"{ratio(COMPILED)}, {row.seconds:.0f} s {failures}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
