"""What a simulation returns: outputs, findings, one verdict, and a timeline."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tvm_hopper.errors import VerifyError
from tvm_hopper.sim.findings import Finding, worst
from tvm_hopper.sim.races.writers import ElementWriters
from tvm_hopper.sim.timeline import Timeline, TimelineEvent


@dataclass
class Result:
    """Outcome of running one kernel (or one host function) once, under one policy.

    Attributes
    ----------
    outputs : dict[str, numpy.ndarray]
        Every tensor argument after the run, by name.
    findings : tuple[Finding, ...]
        Broken rules, in the order met.
    steps : int
        Steps that the scheduler took.
    stopped : bool
        The run ended before the kernel did, or met an operation that nothing models, with a
        finding that says why.
    out_of_budget : bool
        It ended since it had taken its time.
    shortcut_failed : str
        Why it has to be run again with nothing left out; empty if it need not.
    cuts : tuple[str, ...]
        Loops of which the middle was left out.
    ended_early : bool
        It ended since it had written as many elements as were asked for (`run_kernel`).
    writers : dict[str, tuple[ElementWriters, ...]]
        Who wrote each element, of the tensors that were stored to, where that was asked for: one
        entry for each launch that stores to it, in order.
    """

    outputs: dict[str, np.ndarray]
    findings: tuple[Finding, ...] = ()
    policy: str = "eager"
    seed: int = 0
    steps: int = 0
    blocks: tuple[tuple[int, ...], ...] = ()
    events: list[TimelineEvent] = field(default_factory=list, repr=False)
    stopped: bool = False
    out_of_budget: bool = False
    shortcut_failed: str = ""
    cuts: tuple[str, ...] = ()
    ended_early: bool = False
    writers: dict[str, tuple[ElementWriters, ...]] = field(default_factory=dict, repr=False)

    @property
    def verdict(self) -> str:
        """One of clean < review < incomplete < error."""
        return worst(self.findings)

    @property
    def rules(self) -> set[str]:
        """Names of the rules that were broken."""
        return {finding.rule for finding in self.findings}

    def require_clean(self) -> Result:
        """Return self, or raise `VerifyError` with every finding."""
        if self.verdict != "clean":
            text = "\n".join(str(finding) for finding in self.findings)
            raise VerifyError(f"simulation is {self.verdict}, need clean:\n{text}")
        return self

    def timeline(self) -> Timeline:
        """Return the run as a `Timeline` (figure and Chrome trace)."""
        return Timeline(self)
