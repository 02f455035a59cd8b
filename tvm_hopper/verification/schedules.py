"""Run a program under one schedule after another, and one of them again for its timeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm_hopper.sim import Finding, Result, RunOptions
from tvm_hopper.sim.findings import finding
from tvm_hopper.sim.launch.arguments import complete
from tvm_hopper.sim.leave_out import NO_SAVINGS, Savings, plan_savings
from tvm_hopper.sim.options import Shortcuts
from tvm_hopper.verification.case import Case
from tvm_hopper.verification.launches import bound_launches, run_launches
from tvm_hopper.verification.numbers import blank_memory, fill_random

WITH_VALUES: Mapping[str, Shortcuts] = {}


class Schedules:
    """The runs of one program.

    - `case`: of its chosen CTAs, one of each kind runs after the first run, if that is known.
    - `fill`: makes the numbers that its values are still without; called before a run that
      computes.
    - `cuts` (dict): loops whose middle iterations were left out: one line each, in the order met.
    - `steps` (float or None): estimated steps of all CTAs of all launches, from one run; None: no
      run yet.
    - `doubts` (list of Finding): findings of runs with fewer iterations that no full run had time
      to confirm.
    """

    def __init__(self, case: Case, fill: Callable[[], None]) -> None:
        self.case, self.fill = case, fill
        self.chosen = self.kinds = case.chosen
        if len(case.launches) == 1:  # later launches may read the output of earlier ones
            self.kinds = [c.kinds or b for c, b in zip(case.choices, self.chosen, strict=True)]
        self.savings = plan_savings((x.func, x.setup["params"]) for x in case.launches)
        self.cuts: dict[str, None] = {}
        self.doubts: list[Finding] = []
        self.steps: float | None = None
        self.total = sum(choice.total for choice in case.choices)
        self.begun = self.filled = False

    def run(
        self, policy: str, seed: int, left: Callable[[], float], known: Callable[[Finding], bool]
    ) -> Result:
        """Run once.

        A finding of a run with fewer iterations counts only if a full run confirms it.

        - `left`: seconds that are left of the budget.
        - `known`: whether a finding is known from an earlier run.
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
        fresh = [one for one in result.findings if not known(one)]
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


@dataclass(frozen=True)
class Replay:
    """Runs a program under one schedule with all iterations of its loops, without values if it may.

    - `case`: the case; its `inputs` are kept, other arguments are made anew.
    - `chosen` (sequence): the CTAs of each launch, or None for all.
    """

    case: Case
    chosen: Sequence[Any]

    def __call__(self, policy: str, seed: int, blocks: tuple[tuple[int, ...], ...]) -> Result:
        """Run once; `blocks` are the CTAs of a program's only launch, or empty."""
        case = self.case
        arguments, outputs = case.program.arguments, case.outputs
        values, missing = complete(arguments, case.inputs, blank_memory)
        launches = bound_launches(case.program, values, case.num_sms, case.allocator)
        chosen = [blocks] if blocks and len(launches) == 1 else self.chosen
        plan = plan_savings((launch.func, launch.setup["params"]) for launch in launches)
        shortcuts: Mapping[str, Shortcuts] = {
            name: replace(one, recorded=True) for name, one in plan.uncut.items()
        }
        options = RunOptions(policy, seed)
        result = None
        if shortcuts:
            result = run_launches(launches, values, outputs, chosen, options, shortcuts)
        if result is None or result.shortcut_failed:
            fill_random(values, arguments, set(missing) - set(outputs))
            result = run_launches(launches, values, outputs, chosen, options)
        return result
