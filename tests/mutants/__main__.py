"""Mutate emitted kernels: `python -m tests.mutants --count 2000 --seed 1 --jobs 2`.

Exit code 1 if a mutant survives that no rule of `equivalence.py` covers, or a judge crashes.
"""

import argparse
import sys
import time
from pathlib import Path

from .report import diff, table
from .runner import CRASH, OPERATORS, SURVIVOR, draw, examine_all, names_of


def main(argv: list[str]) -> int:
    """Draw, judge, print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="mutants; 0: all there are")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--operators", choices=OPERATORS, default=OPERATORS[0])
    parser.add_argument("--kernels", help="names, by commas and no space; else all")
    parser.add_argument("--report", type=Path, help="file for the tables")
    options = parser.parse_args(argv)
    known = names_of(options.operators)
    names = [name for name in known if options.kernels is None or name in options.kernels]
    if not names:
        parser.error(f"--kernels: found {options.kernels}; need some of {'; '.join(known)}")
    start = time.monotonic()
    mutants = draw(options.count, options.seed, names, options.operators)
    verdicts = []
    for verdict in examine_all(mutants, options.jobs):
        verdicts.append(verdict)
        if verdict.kind in (SURVIVOR, CRASH):
            print(f"\n{verdict.kind}: {verdict.kernel}: {verdict.site}\n  {verdict.why}")
            print(diff(verdict), flush=True)
        if len(verdicts) % 200 == 0:
            print(
                f"{len(verdicts)} of {len(mutants)}, {time.monotonic() - start:.0f} s", flush=True
            )
    left = [v for v in verdicts if v.kind in (SURVIVOR, CRASH)]
    command = f"python -m tests.mutants --count {options.count} --seed {options.seed}"
    if options.operators != OPERATORS[0]:
        command += f" --operators {options.operators}"
    text = f"{command}: {len(verdicts)} mutants, {len(left)} survivors and crashes\n\n"
    text += table(verdicts)
    print(f"\n{text}\n\n{time.monotonic() - start:.0f} s")
    if options.report:
        options.report.write_text(text + "\n")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
