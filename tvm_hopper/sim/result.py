"""Result of a simulation: outputs, findings, verdict, timeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvm_hopper.errors import VerifyError
from tvm_hopper.sim.findings import Finding, worst
from tvm_hopper.sim.races.writers import ElementWriters
from tvm_hopper.sim.tables import findings_text, verdict_html
from tvm_hopper.sim.timeline import Timeline
from tvm_hopper.sim.timeline.events import TimelineEvent


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
        The run ended before the kernel did, or reached an operation that is not modelled; a finding
        has the reason.
    out_of_budget : bool
        The run used up its time budget.
    shortcut_failed : str
        Why the kernel must run once more in full; empty if it need not.
    cuts : tuple[str, ...]
        Loops whose middle iterations were left out.
    ended_early : bool
        The run ended after writing as many elements as were requested (`run_kernel`).
    writers : dict[str, tuple[ElementWriters, ...]]
        Writer of each element of the tensors that were stored to, if requested: one entry for each
        launch that stores to the tensor, in order.
    waited_for_grids : bool
        Some thread executed `griddepcontrol.wait`.
    next_began : bool
        A CTA let the next launch begin before it had waited for those before this one.
    events, events_left_out : list, int
        Events that `timeline` draws, and the number of events beyond the limit.
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
    events_left_out: int = 0
    waited_for_grids: bool = False
    next_began: bool = False

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

    def table(self, width: int | None = None) -> str:
        """Return the verdict and the findings as text, a row each; `width` in characters."""
        table = findings_text(self.findings, width)
        return "\n".join([self._title, *([table] if table else [])])

    def __str__(self) -> str:
        """Print the verdict and the findings, and no arrays."""
        return self.table()

    @property
    def _title(self) -> str:
        ran = f"policy {self.policy!r}, seed {self.seed}, {len(self.blocks)} CTAs"
        return f"verdict: {self.verdict} ({ran}, {self.steps} steps)"

    def _repr_html_(self) -> str:
        """Return the verdict and a table of the findings, for notebooks."""
        return verdict_html(self._title, self.cuts, self.findings)

    def timeline(self, cta: Any = None, launch: int | None = None) -> Timeline:
        """Return the run as a `Timeline`: a figure, an HTML page, a Chrome trace.

        - `cta` (tuple of int, list of these, "all", or None): block indices of the CTAs to show;
          None: the one of the first finding, else the first.
        - `launch`: which launch of the host function, from 0; None: the one of the first finding,
          else 0.
        - raises ValueError: that CTA did not run, or the run kept no events.
        """
        return Timeline(self, cta, launch)
