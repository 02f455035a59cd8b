"""Run one schedule of a program again, and keep what its timeline needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm_hopper.sim import Result, RunOptions
from tvm_hopper.sim.launch.arguments import complete
from tvm_hopper.sim.leave_out import plan_savings
from tvm_hopper.sim.shortcuts import Shortcuts
from tvm_hopper.verification.case import Case
from tvm_hopper.verification.inputs import blank_memory, fill_random
from tvm_hopper.verification.launches import bound_launches, run_launches


@dataclass(frozen=True)
class Replay:
    """Runs a program under one schedule with all turns of its loops, without values if it may.

    Attributes
    ----------
    case : Case
        Whose `inputs` are taken; the other arguments are made again.
    chosen : sequence
        The CTAs of each launch, or None for all.
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
