"""Parts of a comparison in processes of their own, and the table of what they found."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import machine

Row = dict[str, Any]
RESULTS = Path(__file__).parents[1] / "results"
ROOT = Path(__file__).resolve().parents[2]


def run_apart(module: str, arguments: list[str], what: str, limit: float) -> list[Row] | str:
    """Run a module that prints its rows as JSON in its last line.

    Returns
    -------
    list of dict, or str
        The rows; how the process ended if it did not print them: a fault or a hang.
    """
    command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
    started = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return f"killed after {limit:g} s"
    print(f"{what}: {time.monotonic() - started:.0f} s", flush=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return f"exit code {done.returncode}: {last}"
    rows: list[Row] = json.loads(done.stdout.splitlines()[-1])
    return rows


def write_table(
    name: str,
    command: str,
    found: list[Row],
    table: Callable[[list[Row], dict[str, str]], str],
    folder: Path,
) -> list[Row]:
    """Write `<name>_<date>.md` and `.json`, print the table; return the rows.

    Parameters
    ----------
    command : str
        What was run, as the table has it.
    found : list of dict
        Rows; those with a key "machine" describe the machine.
    table : callable
        (rows, about) -> the document.
    """
    about = machine.describe()
    about["command"] = command
    for row in found:
        about |= row.get("machine", {})
    rows = [row for row in found if "machine" not in row]
    stamp = about["date"][:16].replace(":", "").replace(" ", "_")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}_{stamp}.md"
    text = table(rows, about)
    path.write_text(text)
    path.with_suffix(".json").write_text(json.dumps({"machine": about, "rows": rows}, indent=1))
    print(text)
    print(f"-> {path}")
    return rows
