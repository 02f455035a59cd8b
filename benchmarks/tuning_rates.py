"""Trials a second of a run by its log, and which processes its time went into."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def busy_seconds() -> dict[str, float]:
    """Return the processor seconds of this process, and of its workers by their role."""
    own = os.times()
    found = {"search": own.user + own.system}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().decode().split("\0")
            fields = (place / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if "tvm_hopper.meta_schedule.worker" in words[:3] and words[4] == str(os.getpid()):
            ticks = sum(int(x) for x in fields[11:15])  # of what it has waited for, too
            found[words[3]] = found.get(words[3], 0.0) + ticks / os.sysconf("SC_CLK_TCK")
    return found


def rate_of(folder: Path) -> dict[str, Any]:
    """Return trials a second from the first result of a run to its last, and who measured."""
    from tvm_hopper.meta_schedule.journal import read_lines

    rows = read_lines(folder)
    trials = [x for x in rows if x["is"] == "trial"]
    times = sorted(x["at"] for x in trials)
    workers: dict[str, int] = {}
    for row in trials:
        workers[row.get("worker", "-")] = workers.get(row.get("worker", "-"), 0) + 1
    machines = [{k: x.get(k) for k in ("name", "uuid")} for x in rows if x["is"] == "machine"]
    seconds = times[-1] - times[0] if len(times) > 1 else 0.0
    return {
        "trials": len(trials),
        "seconds": round(seconds, 2),
        "trials_per_second": round((len(times) - 1) / seconds, 2) if seconds else None,
        "workers": workers,
        "machines": machines,
    }
