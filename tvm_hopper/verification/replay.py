"""Run one schedule of a program again, and keep what its timeline needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm_hopper.sim import Result
from tvm_hopper.sim.launch.arguments import complete
from tvm_hopper.sim.leave_out import plan_savings
from tvm_hopper.sim.shortcuts import Shortcuts
from tvm_hopper.verification.inputs import blank_memory, fill_random
from tvm_hopper.verification.launches import bound_launches, run_launches
from tvm_hopper.verification.program import Program


@dataclass(frozen=True)
class Replay:
    """Runs a program under one schedule with all turns of its loops, without values if it may.

    Attributes
    ----------
    inputs : dict
        As they were given to `verify`; the rest is made again.
    chosen : sequence
        The CTAs of each launch, or None for all.
    outputs : sequence of str
        Arrays that hold nothing before the run.
    allocator : bool
        Whether the call comes with one.
    """

    program: Program
    inputs: Mapping[str, Any]
    num_sms: int
    chosen: Sequence[Any]
    outputs: Sequence[str]
    allocator: bool = False

    def __call__(self, policy: str, seed: int, blocks: tuple[tuple[int, ...], ...]) -> Result:
        """Run once; `blocks` are the CTAs of a program's only launch, or empty."""
        values, missing = complete(self.program.arguments, self.inputs, blank_memory)
        launches = bound_launches(self.program, values, self.num_sms, self.allocator)
        chosen = [blocks] if blocks and len(launches) == 1 else self.chosen
        plan = plan_savings((launch.func, launch.setup["params"]) for launch in launches)
        shortcuts: Mapping[str, Shortcuts] = {
            name: replace(one, recorded=True) for name, one in plan.uncut.items()
        }
        result = None
        if shortcuts:
            result = run_launches(
                launches, values, self.outputs, policy, seed, chosen, shortcuts=shortcuts
            )
        if result is None or result.shortcut_failed:
            fill_random(values, self.program.arguments, set(missing) - set(self.outputs))
            result = run_launches(launches, values, self.outputs, policy, seed, chosen)
        return result
