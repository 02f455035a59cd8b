"""Run a program under one schedule after another, each with as little work as its verdict needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tvm_hopper.sim import Finding, Result, RunOptions
from tvm_hopper.sim.findings import finding
from tvm_hopper.sim.leave_out import NO_SAVINGS, Savings, plan_savings
from tvm_hopper.sim.shortcuts import Shortcuts
from tvm_hopper.verification.case import Case

WITH_VALUES: Mapping[str, Shortcuts] = {}


class Schedules:
    """The runs of one program.

    Parameters
    ----------
    case : Case
        Of its chosen CTAs, one of each kind runs after the first run, if that is known.
    fill : callable
        Makes the numbers that its values are still without; called before a run that computes.

    Attributes
    ----------
    cuts : dict
        Loops of which the middle was left out, each as one line, in the order met.
    steps : float or None
        About how many all CTAs of all launches would take, as one run went; None: none has.
    doubts : list of Finding
        What runs with fewer turns found, and the whole run had no time to confirm.
    """

    def __init__(self, case: Case, fill: Callable[[], None]) -> None:
        self.case, self.fill = case, fill
        self.chosen = self.kinds = case.chosen
        if len(case.launches) == 1:  # what one stores, a later one may read
            self.kinds = [c.kinds or b for c, b in zip(case.choices, self.chosen, strict=True)]
        self.savings = plan_savings((x.func, x.setup["params"]) for x in case.launches)
        self.cuts: dict[str, None] = {}
        self.doubts: list[Finding] = []
        self.steps: float | None = None
        self.total = sum(choice.total for choice in case.choices)
        self.begun = self.filled = False

    def run(
        self, policy: str, seed: int, left: Callable[[], float], told: Callable[[Finding], bool]
    ) -> Result:
        """Run once.

        What a run with fewer turns finds is believed of the run with all of them alone.

        Parameters
        ----------
        left : callable
            Seconds that are left of the budget.
        told : callable
            Whether a finding is known from an earlier run.
        """
        shortcuts = self.savings.others if self.begun else self.savings.first
        result = self._once(policy, seed, left, shortcuts)
        while result.shortcut_failed:
            uncut = self.savings.uncut if shortcuts is not self.savings.uncut else WITH_VALUES
            self.savings = Savings(uncut, uncut, uncut) if uncut else NO_SAVINGS
            shortcuts = uncut
            result = self._once(policy, seed, left, shortcuts)
        self.begun = True
        if not result.stopped:
            self.steps = result.steps * self.total / max(len(result.blocks), 1)
        self.cuts.update(dict.fromkeys(result.cuts))
        fresh = [one for one in result.findings if not told(one)]
        if not result.cuts or not fresh:
            return result
        whole = self._whole(policy, seed, left)
        if whole.out_of_budget:
            rules = ", ".join(sorted({one.rule for one in fresh}))
            self.doubts.append(
                finding(
                    "INCOMPLETE",
                    f"{policy}({seed}) with fewer iterations ({'; '.join(result.cuts)}) found "
                    f"{rules}; with all iterations the time ended first",
                    hint="raise budget_s, or verify a smaller shape",
                )
            )
        return whole

    def _whole(self, policy: str, seed: int, left: Callable[[], float]) -> Result:
        result = self._once(policy, seed, left, self.savings.uncut)
        if result.shortcut_failed:
            result = self._once(policy, seed, left, WITH_VALUES)
        return replace(result, cuts=())

    def _once(
        self, policy: str, seed: int, left: Callable[[], float], shortcuts: Mapping[str, Shortcuts]
    ) -> Result:
        if not shortcuts and not self.filled:
            self.fill()
            self.filled = True
        blocks = self.kinds if self.begun else self.chosen
        options = RunOptions(policy, seed, budget_s=max(left(), 0.1))
        return self.case.run(blocks, options, shortcuts)
