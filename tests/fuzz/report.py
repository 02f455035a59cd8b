"""Tables of a run: for people on a terminal, and as markdown for docs/fuzzing.md."""

import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from rich.table import Table

from .judge import CLASSES, FAULTS
from .runner import Summary

PACKAGES = ("apache-tvm", "apache-tvm-ffi", "numpy", "nvidia-cuda-nvrtc")


def rows(summary: Summary, families: Sequence[str]) -> list[list[str]]:
    """Return the table of classes and families, with sums."""
    found = []
    for kind in CLASSES:
        numbers = [summary.counts[kind, family] for family in families]
        name = f"{kind} (fault)" if kind in FAULTS else kind
        found.append([name, *map(str, numbers), str(sum(numbers))])
    sums = [sum(summary.counts[k, f] for k in CLASSES) for f in families]
    found.append(["sum", *map(str, sums), str(sum(sums))])
    return found


def table(summary: Summary, families: Sequence[str]) -> Table:
    """Return the table for a terminal."""
    made = Table(title=f"{summary.total} cases, {summary.seconds:.0f} s", title_justify="left")
    made.add_column("class", no_wrap=True)
    for name in (*families, "sum"):
        made.add_column(name, justify="right")
    for row in rows(summary, families):
        style = "red" if "(fault)" in row[0] and row[-1] != "0" else None
        made.add_row(*row, style=style)
    return made


def markdown(summary: Summary, families: Sequence[str], command: str) -> str:
    """Return the table with what is needed to get it again."""
    lines = [
        f"`{command}`",
        "",
        f"Commit {commit()}, {', '.join(versions())}; {summary.total} cases in "
        f"{summary.seconds / 60:.0f} min; {summary.faults} with a fault, "
        f"{100 * summary.of('unclear') / max(1, summary.total):.2f}% unclear.",
        "",
        "| class | " + " | ".join((*families, "sum")) + " |",
        "|---|" + "---:|" * (len(families) + 1),
    ]
    lines += ["| " + " | ".join(row) + " |" for row in rows(summary, families)]
    return "\n".join(lines) + "\n"


def commit() -> str:
    """Return the commit of the checkout, with a mark when files differ from it."""
    root = Path(__file__).resolve().parents[2]
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def versions() -> list[str]:
    """Return the versions of what a run depends on."""
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return found


def details(summary: Summary) -> list[str]:
    """Return one line a group of faults: how many, the first case, what was read."""
    lines = []
    for group in sorted(summary.groups.values(), key=lambda g: (g.like[0], -len(g.tasks))):
        _, task, out = group.tasks[0]
        said = " ".join(out.text.split())[:160]
        lines.append(f"{out.kind:16} x{len(group.tasks):<4} {task.id:20} [{out.phase}] {said}")
        lines += [f"    {path}" for path in group.scripts]
    return lines
