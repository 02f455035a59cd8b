"""Schedule blocks by one helper: what `pointwise` and `column_reduction` share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tvm import s_tir

from tvm_hopper.schedule import origins
from tvm_hopper.schedule.arguments import as_block, check_program, check_type
from tvm_hopper.schedule.reasons import as_refusal
from tvm_hopper.schedule.trial import as_one_step, rehearse

from .blocks import parse_blocks
from .program import MemoryProgram

Config = TypeVar("Config")


@dataclass(frozen=True)
class WholeFunction(Generic[Config]):
    """A helper, and how it schedules the program of a function."""

    name: str
    config: type[Config]
    need: str  # of a function, for TVM's primitives
    apply: Callable[[MemoryProgram, Config], Config]  # returns what was chosen

    def schedule(
        self, sch: s_tir.Schedule, block: Any, config: Config | None, blocks: Any = None
    ) -> None:
        """Check what the helper was given, try it on a copy, and schedule the function."""
        check_program(self.name, sch)
        check_type(self.name, "config", config, self.config, f"an hs.{self.config.__name__}")
        if block is not None:
            as_block(sch.copy(), block)  # a look-up would stay in the trace
        given = config or self.config()
        program = parse_blocks(sch, self.name, blocks)
        rehearse(sch, lambda copy, _same: self._run(program.on(copy), given))
        with origins.noted(sch), as_one_step():
            self._run(program.on(sch), given)

    def chosen(self, sch: s_tir.Schedule, config: Config | None) -> Config:
        """Return the configuration with nothing left open; the schedule is left as it is."""
        with as_one_step():
            program = parse_blocks(sch, self.name)
            return self._run(program, config or self.config())

    def _run(self, program: MemoryProgram, given: Config) -> Config:
        with as_refusal(self.name, self.need):
            return self.apply(program, given)
