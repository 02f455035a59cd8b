"""The verdict of a module, with what it rests on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tvm_hopper.errors import VerifyError
from tvm_hopper.sim import Finding, worst
from tvm_hopper.sim.cta_selection import Choice


@dataclass(frozen=True)
class Report:
    """Verdict of a module over several policies and seeds.

    Attributes
    ----------
    findings : tuple[Finding, ...]
        Each broken rule once, from the first run that met it.
    runs : tuple[tuple[str, int, str], ...]
        (policy, seed, verdict) of every run.
    choices : tuple[Choice, ...]
        Which CTAs of each launch ran, and why that is enough (or not).
    skeletons : tuple[str, ...]
        What the exploration of every interleaving of each kernel's roles covered.
    cuts : tuple[str, ...]
        Loops that ran fewer turns in some runs, whose synchronisation repeats by period.
    proven : tuple[str, ...]
        What holds of every CTA of each launch, by its indices.
    """

    findings: tuple[Finding, ...]
    runs: tuple[tuple[str, int, str], ...]
    choices: tuple[Choice, ...]
    skeletons: tuple[str, ...] = ()
    cuts: tuple[str, ...] = ()
    proven: tuple[str, ...] = ()

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
        }

    def __str__(self) -> str:
        """Print verdict, coverage and findings."""
        lines = [f"verdict: {self.verdict}"]
        lines += [f"ran {choice}" for choice in self.choices]
        lines += [f"explored {text}" for text in self.skeletons]
        lines += [f"loop {text}" for text in self.cuts]
        lines += [f"covers {text}" for text in self.proven]
        lines.append("under " + ", ".join(f"{p}({s}): {v}" for p, s, v in self.runs))
        return "\n".join([*lines, *map(str, self.findings)])
