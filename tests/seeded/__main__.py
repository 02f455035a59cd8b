"""The table of seeded bugs: `python -m tests.seeded [M04 ...] [--families published]`.

The exit code is 1 if one is missed.

Each mutation must be found with its diagnostic class by every judge that its row names, and each
golden kernel and control must give no finding.  The end sums up by family.  Published bugs and
their fixed forms are given to `verify` too, and counted by source.  `--assembler` also shows what
ptxas says (it needs nvcc); `--families` takes words that the names of families begin with.
"""

import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from .catalogue import FAMILIES, GOLDEN, MUTATIONS, Family
from .judging import ASSEMBLER_REPAIRS, JUDGES, assembler_log, false_alarms, judge, misses, verdict
from .lowering import lower
from .rows import Golden, Mutation

CHEAPEST = "SXVN"  # the judges, by what they cost


def _line(*cells: str) -> str:
    widths = (5, 28, 40, 52, 8)
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=False)).rstrip()


@dataclass
class Score:
    """What came out for one family."""

    right: int = 0
    clean: int = 0
    bugs: int = 0
    found: int = 0
    first: Counter[str] = field(default_factory=Counter)  # by the cheapest judge that found it

    def row(self, name: str) -> str:
        """Print a row of Markdown."""
        judges = " | ".join(str(self.first[letter]) for letter in CHEAPEST)
        return f"| {name} | {self.clean} of {self.right} | {self.found} of {self.bugs} | {judges} |"


class Table:
    """Prints rows as they are judged; keeps failures and scores."""

    def __init__(self, assembler: bool) -> None:
        self.assembler = assembler
        self.failures: list[str] = []
        self.published: dict[str, list[bool]] = {}  # by source: which wrong forms are found
        self.scores: dict[str, Score] = {}

    def mutation(self, mutation: Mutation, score: Score) -> None:
        """Judge one wrong kernel."""
        kernel = mutation.build()
        judgement = judge(kernel)
        wanted = frozenset().union(*mutation.expected)
        found = "".join(letter for letter in JUDGES if judgement.found[letter] & wanted)
        score.bugs += 1
        score.first[next((letter for letter in CHEAPEST if letter in found), "")] += 1
        if "P" in mutation.layers and self.assembler:
            log = assembler_log(lower(kernel.func, kernel.arch))
            found += "P" if log and ASSEMBLER_REPAIRS.search(log) else ""
        expected = " + ".join("/".join(sorted(group)) for group in mutation.expected)
        missing = misses(mutation, judgement)
        if mutation.source:
            said = verdict(kernel)
            missing += [f"verify says {said}"] * (said not in ("error", "review"))
            self.published.setdefault(mutation.source, []).append(not missing)
        score.found += not missing
        self.failures += [f"{mutation.id}: {text}" for text in missing]
        change = f"{mutation.source}: {mutation.change}" if mutation.source else mutation.change
        print(
            _line(
                mutation.id,
                mutation.golden.name,
                change,
                expected,
                "MISSED" if missing else found,
            )
        )

    def right(self, name: str, what: str, golden: Golden, score: Score, verified: bool) -> None:
        """Judge one right kernel."""
        kernel = golden.build()
        judgement = judge(kernel)
        alarms = false_alarms(judgement) + sorted(judgement.found["N"])
        if verified and (said := verdict(kernel)) != "clean":
            alarms.append(f"verify says {said}")
        score.right += 1
        score.clean += not alarms
        self.failures += [f"{name}: {text}" for text in alarms]
        print(_line(name, golden.name, what, "nothing", "ALARM" if alarms else "clean"))

    def family(self, family: Family, chosen: set[str]) -> None:
        """Judge what is chosen of one family; nothing chosen: all of it."""
        score = Score()
        for mutation in family.mutations:
            if not chosen or mutation.id in chosen:
                self.mutation(mutation, score)
        rights = [(g.name, "golden kernel", g) for g in family.golden]
        rights += [(c.id, c.what, c.golden) for c in family.controls]
        for name, what, golden in rights:
            if not chosen or name in chosen:
                self.right(name, what, golden, score, any(m.source for m in family.mutations))
        if score.bugs or score.right:
            self.scores[family.name] = score

    def summary(self) -> None:
        """Print the scores by family."""
        columns = ("family", "right kernels clean", "bugs found", *map(JUDGES.get, CHEAPEST))
        print(f"\n| {' | '.join(map(str, columns))} |")
        print("|---" * len(columns) + "|")
        for name, score in self.scores.items():
            print(score.row(name))
        print("the last columns: the cheapest judge that finds the bug")
        if self.published:
            forms = [found for forms in self.published.values() for found in forms]
            bugs = sum(all(forms) for forms in self.published.values())
            score = self.scores["published bugs"]
            print(
                f"published bugs found {bugs} of {len(self.published)} (in {sum(forms)} of "
                f"{len(forms)} wrong forms), false alarms on their fixed forms "
                f"{score.right - score.clean} of {score.right}"
            )


def main(argv: list[str]) -> int:
    """Print the table; return the exit code."""
    words, _, prefixes = " ".join(argv).partition("--families")
    chosen = {word for word in words.split() if not word.startswith("-")}
    prefix = tuple(prefixes.split())
    families = [f for f in FAMILIES if f.name.startswith(prefix)] if prefix else FAMILIES
    controls = [control for family in FAMILIES for control in family.controls]
    unknown = chosen - {row.id for row in (*MUTATIONS, *controls)} - {g.name for g in GOLDEN}
    if unknown:
        print(f"python -m tests.seeded: found {sorted(unknown)}; need ids such as M04 or N16")
        return 2
    start, table = time.monotonic(), Table("--assembler" in argv)
    print(_line("id", "kernel", "what is changed", "expected", "found by"))
    for family in families:
        table.family(family, chosen)
    table.summary()
    print(f"\n{len(table.failures)} failures, {time.monotonic() - start:.1f} s")
    print("found by: S static check, V simulator, X skeleton exploration, N numbers, P ptxas log")
    for text in table.failures:
        print(f"  {text}")
    return 1 if table.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
