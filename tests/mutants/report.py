"""Tables of a run: class by verdict and first judge."""

import difflib
from collections import Counter

from .judging import JUDGES
from .kernels import subject
from .runner import CRASH, EQUIVALENT, KILLED, NO_PROGRAM, REVIEW, SURVIVOR, Verdict, build


def table(verdicts: list[Verdict]) -> str:
    """Return the table of classes, that of rules and that of kernels, as markdown."""
    heads = ["class", "mutants", *JUDGES, REVIEW, EQUIVALENT, SURVIVOR, CRASH]
    lines = [_row(heads), "|" + "---|" * len(heads)]
    judged = [v for v in verdicts if v.kind != NO_PROGRAM]
    kinds = sorted({v.site.kind for v in judged})
    lines += [_row(_counts(kind, [v for v in judged if v.site.kind == kind])) for kind in kinds]
    lines.append(_row(_counts("all", judged)))
    lines += ["", "| equivalent by | mutants |", "|---|---|"]
    rules = Counter(v.why for v in judged if v.kind == EQUIVALENT)
    lines += [_row([rule, count]) for rule, count in rules.most_common()]
    lines += ["", _row(["kernel", *heads[1:]]), "|" + "---|" * len(heads)]
    names = dict.fromkeys(v.kernel for v in judged)
    lines += [_row(_counts(name, [v for v in judged if v.kernel == name])) for name in names]
    return "\n".join(lines)


def _counts(name: str, verdicts: list[Verdict]) -> list[object]:
    killed = Counter(v.judge for v in verdicts if v.kind == KILLED)
    kinds = Counter(v.kind for v in verdicts)
    rest = [kinds[kind] for kind in (REVIEW, EQUIVALENT, SURVIVOR, CRASH)]
    return [name, len(verdicts), *(killed[judge] for judge in JUDGES), *rest]


def _row(cells: list[object]) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def diff(verdict: Verdict) -> str:
    """Return what a mutant changes, line by line."""
    kernel = subject(verdict.kernel)
    program = build(kernel, verdict.site)
    if program is None:
        return ""
    func = program.kernels[kernel.kernel]
    pairs = ((kernel.device, func), (kernel.program.host, program.host))
    lines: list[str] = []
    for old, new in pairs:
        texts = [str(x.script()).splitlines() for x in (old, new)]
        lines += [
            line
            for line in difflib.unified_diff(*texts, lineterm="", n=0)
            if line[:1] in "+-" and line[:3] not in ("+++", "---")
        ]
    return "\n".join(lines[:12])
