"""One way to call a program: its arguments, its launches, and the CTAs of them that run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_hopper.sim import Result, RunOptions
from tvm_hopper.sim.cta_selection import Choice
from tvm_hopper.sim.options import Shortcuts
from tvm_hopper.verification.launches import BoundLaunch, run_launches
from tvm_hopper.verification.program import Program
from tvm_hopper.verification.related import Related


@dataclass(frozen=True)
class Case:
    """The kernel, inputs and limits that the stages of `verify` share.

    - `inputs` (dict): arguments as they were given to `verify`.
    - `values` (dict): every argument of the entry, in order.
    - `outputs`: arguments that hold nothing before the run.
    - `choices`: the CTAs that run of each launch.
    - `related`: which CTAs of several launches need each other; None if unknown.
    - `allocator`: whether the call passes an allocator.
    """

    program: Program
    inputs: Mapping[str, Any]
    values: Mapping[str, Any]
    outputs: Sequence[str]
    launches: Sequence[BoundLaunch]
    choices: Sequence[Choice]
    related: Related | None
    num_sms: int
    allocator: bool

    @property
    def chosen(self) -> list[Any]:
        """Return the CTAs that run of each launch; None: all."""
        return [None if choice.everything else choice.blocks for choice in self.choices]

    def run(
        self,
        blocks: Sequence[Any],
        options: RunOptions,
        shortcuts: Mapping[str, Shortcuts] | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> Result:
        """Run some CTAs of each launch once, on these values or others."""
        rest = None if self.related is None else self.related.rest(blocks)
        values = self.values if values is None else values
        return run_launches(self.launches, values, self.outputs, blocks, options, shortcuts, rest)
