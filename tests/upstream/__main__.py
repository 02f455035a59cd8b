"""Print the table: `python -m tests.upstream > docs/async_schedules.md`."""

from __future__ import annotations

import sys

from .catalogue import SCHEDULES
from .report import document, judge_all


def main() -> int:
    """Judge every schedule; return 1 if one that TVM builds is wrong on a target."""
    rows = {}
    for schedule in SCHEDULES:
        rows[schedule.name] = judge_all(schedule)
        print(
            f"{schedule.name}: {', '.join(map(str, rows[schedule.name].values()))}", file=sys.stderr
        )
    print(document(rows), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
