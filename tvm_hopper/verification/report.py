"""The verdict of a module, with its grounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tvm_hopper.errors import VerifyError
from tvm_hopper.sim import Finding, Result, worst
from tvm_hopper.sim.cta_selection import Choice
from tvm_hopper.sim.findings import NOT_RUN
from tvm_hopper.sim.tables import findings_text, verdict_html
from tvm_hopper.sim.timeline import Timeline
from tvm_hopper.verification.values import NOTHING_LAUNCHED, ValueReport

EXIT_CODES = {"clean": 0, "review": 3, "incomplete": 4, "error": 5}  # of shell commands


@dataclass(frozen=True)
class Report:
    """Verdict of a module over several policies and seeds.

    Attributes
    ----------
    findings : tuple[Finding, ...]
        Each broken rule once, from the first run that met it; causes before consequences.
    runs : tuple[tuple[str, int, str], ...]
        (policy, seed, verdict) of every run.
    choices : tuple[Choice, ...]
        Which CTAs of each launch ran, and why that is enough (or not).
    skeletons : tuple[str, ...]
        Coverage of the exploration of every interleaving of each kernel's roles.
    cuts : tuple[str, ...]
        Loops that ran fewer iterations in some runs, whose synchronisation repeats by period.
    proven : tuple[str, ...]
        Facts about every CTA of each launch, proven by its indices.
    values : ValueReport
        The comparison with the plain program. Without one, nothing was: a clean verdict is then
        of the synchronisation alone.
    replay : callable or None
        Runs (policy, seed, CTAs) again and keeps what a timeline needs; no CTAs: those of the first
        run.
    """

    findings: tuple[Finding, ...]
    runs: tuple[tuple[str, int, str], ...]
    choices: tuple[Choice, ...]
    skeletons: tuple[str, ...] = ()
    cuts: tuple[str, ...] = ()
    proven: tuple[str, ...] = ()
    values: ValueReport = NOTHING_LAUNCHED
    replay: Callable[[str, int, tuple[tuple[int, ...], ...]], Result] | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def verdict(self) -> str:
        """One of clean < review < incomplete < error."""
        return worst(self.findings)

    def require_clean(self) -> Report:
        """Return self, or raise `VerifyError` with every finding."""
        if self.verdict != "clean":
            raise VerifyError(f"verification is {self.verdict}, need clean:\n{self}")
        return self

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "verdict": self.verdict,
            "findings": [asdict(f) for f in self.findings],
            "runs": [list(run) for run in self.runs],
            "ctas": [str(choice) for choice in self.choices],
            "skeletons": list(self.skeletons),
            "cuts": list(self.cuts),
            "covers": list(self.proven),
            "values": asdict(self.values),
        }

    def timeline(self, cta: Any = None, launch: int | None = None) -> Timeline:
        """Run the schedule of the first finding again, or the first one, and return its timeline.

        - `cta`, `launch`: as for `Result.timeline`.
        - raises ValueError: nothing was launched, or as `Result.timeline`.
        """
        if self.replay is None or not self.runs:
            raise ValueError("timeline: found no schedule that ran; need a kernel that is launched")
        found = [one for one in self.findings if one.policy not in NOT_RUN]
        if not found:
            policy, seed, _ = self.runs[0]
            return self.replay(policy, seed, ()).timeline(cta, launch)
        first = found[0]
        return self.replay(first.policy, first.seed, first.blocks).timeline(cta, launch)

    def table(self, width: int | None = None, ink: bool = False) -> str:
        """Return the report as text, with the findings as a table.

        - `width`: characters of a line; None: 118.
        - `ink`: whether severities are coloured, by the escape sequences of terminals.
        """
        table = findings_text(self.findings, width, ink)
        return "\n".join([*self._rests_on(), *([table] if table else [])])

    def _repr_html_(self) -> str:
        """Return verdict, coverage and a table of the findings, for notebooks."""
        first, *lines = self._rests_on()
        return verdict_html(first, lines, self.findings)

    def __str__(self) -> str:
        """Print verdict, coverage and findings; for possible consequences a line each."""
        causes, others = split_by_cause(self.findings)
        lines = ["what may follow from that:"] if others else []
        lines += [f"    {one.severity}: {one.rule}: {one.message}" for one in others]
        return "\n".join([*self._rests_on(), *map(str, causes), *lines])

    def _rests_on(self) -> list[str]:
        """Return the verdict, and the runs, explorations and comparisons."""
        lines = [f"verdict: {self.verdict}"]
        lines += [f"ran {choice}" for choice in self.choices]
        lines += [f"explored {text}" for text in self.skeletons]
        lines += [f"loop {text}" for text in self.cuts]
        lines += [f"covers {text}" for text in self.proven]
        lines.append("under " + ", ".join(f"{p}({s}): {v}" for p, s, v in self.runs))
        lines.append(f"values {self.values.text}")
        return lines


def joined(reports: Sequence[Report]) -> Report:
    """Join the reports of several ways to call a program into one."""
    first, *others = reports
    for other in others:
        found = {(x.rule, x.message, x.buffer, x.statements): x for x in first.findings}
        more = [
            x for x in other.findings if (x.rule, x.message, x.buffer, x.statements) not in found
        ]
        texts = dict.fromkeys((first.values.text, other.values.text))
        first = Report(
            arranged((*first.findings, *more)),
            (*first.runs, *other.runs),
            (*first.choices, *other.choices),
            tuple(dict.fromkeys((*first.skeletons, *other.skeletons))),
            tuple(dict.fromkeys((*first.cuts, *other.cuts))),
            tuple(dict.fromkeys((*first.proven, *other.proven))),
            ValueReport(first.values.checked and other.values.checked, "; ".join(texts)),
            first.replay if first.findings or not other.findings else other.replay,
        )
    return first


# Consequences of a wrong address or a race: findings of the cause are listed first.
CONSEQUENCES = (
    "MBAR_TX_MISMATCH",
    "EXIT_PENDING_ASYNC",
    "DEADLOCK",
    "UNINIT_READ",
    "OUTPUT_COVERAGE",
    "WRONG_VALUE",
)


def arranged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Put causes before consequences, and tell a deadlock once: as a run met it."""
    found = list(findings)
    if any(one.rule == "DEADLOCK" and one.policy != "skeleton" for one in found):
        found = [one for one in found if one.rule != "DEADLOCK" or one.policy != "skeleton"]
    return tuple(sorted(found, key=_rank))


def split_by_cause(findings: Sequence[Finding]) -> tuple[list[Finding], list[Finding]]:
    """Return causes and possible consequences: all are causes if none is an error."""
    first = min((_rank(one) for one in findings), default=0)
    if first > len(CONSEQUENCES):
        return list(findings), []
    causes = [one for one in findings if one.severity == "review" or _rank(one) == first]
    return causes, [one for one in findings if one not in causes]


def _rank(one: Finding) -> int:
    if one.severity != "error":
        return len(CONSEQUENCES) + 1
    return CONSEQUENCES.index(one.rule) + 1 if one.rule in CONSEQUENCES else 0
