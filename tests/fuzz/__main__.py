"""`python -m tests.fuzz --seed 1 --minutes 30`: fuzz, show a table, write shrunk reproducers.

The exit code is 1 when a fault was found. `--replay matmul:1:17` and `--replay fuzz_out/FILE.py`
run one case again and show all of it.
"""

import argparse
import os
import shlex
import sys
import time
from pathlib import Path

from . import report
from .families import FAMILIES
from .judge import CLASSES, FAULTS, judge
from .reproducer import read_decisions, text
from .runner import Summary, Task, generate, plan, run, shrink_groups

PLAIN_SECONDS = 20.0  # between two lines of progress where there is no terminal


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="another seed, other cases")
    parser.add_argument("--cases", type=int, help="stop after so many")
    parser.add_argument("--minutes", type=float, help="stop after this time")
    parser.add_argument("--first", type=int, default=0, help="number of each family's first case")
    parser.add_argument("--family", default=",".join(FAMILIES), help="some of the families, a,b")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes")
    parser.add_argument("--out", type=Path, default=Path("fuzz_out"), help="folder of the scripts")
    parser.add_argument("--shrink-minutes", type=float, default=10.0, help="0: no scripts")
    parser.add_argument("--replay", help="a case (family:seed:number) or a script of the fuzzer")
    parser.add_argument(
        "--assemble",
        choices=("share", "all"),
        default="share",
        help="send all cases through the CUDA compiler, not a share of some families",
    )
    parser.add_argument("--report", type=Path, help="also write the table in markdown")
    parser.add_argument("--classes", action="store_true", help="say what the classes mean")
    return parser


class Progress:
    """A line that changes on a terminal, a line now and then elsewhere."""

    def __init__(self, cases: int | None, minutes: float | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress as Bar, TextColumn, TimeElapsedColumn

        self.minutes, self.cases, self.last = minutes, cases, 0.0
        self.console = Console(width=None if sys.stdout.isatty() else 120)
        self.bar = None
        if self.console.is_terminal:
            columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
            self.bar = Bar(*columns, console=self.console)
            self.line = self.bar.add_task("starting", total=1.0)
            self.bar.start()

    def __call__(self, summary: Summary) -> None:
        """Show how far the run is."""
        rate = summary.total / max(1e-9, summary.seconds)
        part = max(
            summary.total / self.cases if self.cases else 0.0,
            summary.seconds / 60 / self.minutes if self.minutes else 0.0,
        )
        words = f"{summary.total} cases, {rate:.1f}/s, {summary.of('right')} right"
        words += f", {summary.faults} faults in {len(summary.groups)} groups"
        if self.bar is not None:
            self.bar.update(self.line, completed=part, description=words)
        elif time.monotonic() - self.last > PLAIN_SECONDS:
            self.last = time.monotonic()
            print(f"{100 * part:3.0f}%  {words}", flush=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self.bar is not None:
            self.bar.stop()


def replay(name: str, assemble: bool = False) -> int:
    """Run one case again and print it; return the exit code."""
    if Path(name).suffix == ".py":
        family, made = read_decisions(Path(name))
        task = Task(family, 0, 0, tuple(made), assemble=assemble)
    else:
        family, seed, number = name.split(":")
        task = Task(family, int(seed), int(number), assemble=assemble)
    case, decided = generate(task)
    outcome = judge(case)
    print(text(f"{task.seed}_{task.number}", family, list(decided), case, outcome))
    print(f"# {outcome.kind} ({outcome.phase}), {outcome.seconds:.1f} s: {outcome.text}")
    return int(outcome.kind in FAULTS)


def main(argv: list[str]) -> int:
    """Fuzz; return the exit code."""
    parser = arguments()
    options = parser.parse_args(argv)
    if options.classes:
        for kind, meaning in CLASSES.items():
            print(f"{'fault' if kind in FAULTS else '':6} {kind:16} {meaning}")
        return 0
    assemble = options.assemble == "all"
    if options.replay:
        return replay(options.replay, assemble)
    families = options.family.split(",")
    if unknown := sorted(set(families) - set(FAMILIES)):
        parser.error(f"--family: found {unknown}; need some of {', '.join(FAMILIES)}")
    if options.cases is None and options.minutes is None:
        options.cases = 200
    until = time.monotonic() + 60 * (options.minutes or 1e6)
    progress = Progress(options.cases, options.minutes)
    try:
        tasks = plan(options.seed, families, options.cases, options.first, assemble)
        summary = run(tasks, options.jobs, until, progress)
    finally:
        progress.close()
    if summary.groups and options.shrink_minutes:
        shrink_groups(summary, options.out, options.jobs, 60 * options.shrink_minutes)
    progress.console.print(report.table(summary, families))
    print("\n".join(report.details(summary)))
    print(f"slowest: {summary.slowest[1]}, {summary.slowest[0]:.1f} s; {summary.faults} faults")
    if options.report:
        command = shlex.join(["python", "-m", "tests.fuzz", *argv])
        options.report.parent.mkdir(parents=True, exist_ok=True)
        options.report.write_text(report.markdown(summary, families, command))
    return int(summary.faults > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
