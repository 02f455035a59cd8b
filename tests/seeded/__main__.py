"""The table of seeded bugs: `python -m tests.seeded [M04 ...]`; exit code 1 if one is missed.

Each mutation must be found with its diagnostic class by every judge that its row names, and each
golden kernel and control must give no finding.  `--assembler` also shows what ptxas says (it needs
nvcc).
"""

from __future__ import annotations

import sys
import time

from .catalogue import CONTROLS, GOLDEN, MUTATIONS
from .judging import ASSEMBLER_REPAIRS, JUDGES, assembler_log, false_alarms, judge, misses
from .lowering import lower


def _line(*cells: str) -> str:
    widths = (5, 28, 40, 52, 8)
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=False)).rstrip()


def main(argv: list[str]) -> int:
    """Print the table; return the exit code."""
    chosen = {word for word in argv if not word.startswith("-")}
    unknown = chosen - {row.id for row in (*MUTATIONS, *CONTROLS)} - {g.name for g in GOLDEN}
    if unknown:
        print(f"python -m tests.seeded: found {sorted(unknown)}; need ids such as M04 or N16")
        return 2
    start, failures = time.monotonic(), []
    print(_line("id", "kernel", "what is changed", "expected", "found by"))
    for mutation in MUTATIONS:
        if chosen and mutation.id not in chosen:
            continue
        kernel = mutation.build()
        judgement = judge(kernel)
        wanted = frozenset().union(*mutation.expected)
        found = "".join(letter for letter in JUDGES if judgement.found[letter] & wanted)
        if "P" in mutation.layers and "--assembler" in argv:
            log = assembler_log(lower(kernel.func, kernel.arch))
            found += "P" if log and ASSEMBLER_REPAIRS.search(log) else ""
        expected = " + ".join("/".join(sorted(group)) for group in mutation.expected)
        missing = misses(mutation, judgement)
        failures += [f"{mutation.id}: {text}" for text in missing]
        verdict = "MISSED" if missing else found
        print(_line(mutation.id, mutation.golden.name, mutation.change, expected, verdict))
    rights = [(g.name, "golden kernel", g) for g in GOLDEN]
    rights += [(c.id, c.what, c.golden) for c in CONTROLS]
    for name, what, golden in rights:
        if chosen and name not in chosen:
            continue
        judgement = judge(golden.build())
        alarms = false_alarms(judgement) + sorted(judgement.found["N"])
        failures += [f"{name}: {text}" for text in alarms]
        print(_line(name, golden.name, what, "nothing", "ALARM" if alarms else "clean"))
    print(f"\n{len(failures)} failures, {time.monotonic() - start:.1f} s")
    print("found by: S static check, V simulator, X skeleton exploration, N numbers, P ptxas log")
    for text in failures:
        print(f"  {text}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
