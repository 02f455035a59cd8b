"""Find the blocks of a function that are to be one kernel, and leave the others alone.

  S[i] += X[i, k]                      hs.row_reduction(sch, blocks=["S", "Y"])
  Y[i, j] = X[i, j] / S[i]
  Z[i, j] = Y[j, i] + 1                hs.pointwise(sch, blocks=["Z"]), or TVM's primitives

The kernel stores what blocks outside of it read. It stands where the last of its blocks was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tvm import s_tir

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.schedule import origins
from tvm_hopper.schedule.arguments import as_block, check_program, check_type
from tvm_hopper.schedule.reasons import as_refusal
from tvm_hopper.schedule.trial import as_one_step, rehearse, twin

from .program import MemoryProgram, Part, all_blocks, block_names


def parse_blocks(sch: s_tir.Schedule, helper: str, blocks: Any = None) -> MemoryProgram:
    """Read blocks of the function that a schedule works on, in a copy of the schedule.

    - `sch`: left as it is.
    - `helper`: names the schedule helper in an error message.
    - `blocks` (sequence of SBlockRV or str): the blocks; None: all of the function.
    - raises ScheduleError: they are none of the function, are scheduled already, or cannot be one
      kernel between the other ones.
    """
    copy, same = twin(sch)
    if blocks is None:
        return MemoryProgram.parse(copy, helper)
    if isinstance(blocks, str) or not isinstance(blocks, Iterable) or not (given := list(blocks)):
        need = "blocks of the function, or their names: blocks=['C', 'D']"
        fix = "set occupancy in config=" if isinstance(blocks, int) else ""
        raise cannot_schedule(helper, f"blocks={blocks!r}", need, fix)
    names = set()
    for block in given:
        found = as_block(copy, block) if isinstance(block, str) else same(as_block(sch, block))
        names.add(str(copy.get(found).name_hint))
    known = [str(copy.get(x).name_hint) for x in all_blocks(copy)]
    for name in sorted(names):
        if known.count(name) != 1:
            found = f"{known.count(name)} blocks of that name that are in no other block"
            raise cannot_schedule(f"block {name}", found, "one, a block of the function itself")
    program = MemoryProgram.parse(copy, helper, block_names(copy) - names)
    _check_place(copy, program.parts)
    return program


def _check_place(sch: s_tir.Schedule, parts: list[Part]) -> None:
    """Refuse blocks between others that need them earlier than where the last one is."""
    own, before = {p.name for p in parts}, []
    for node in map(sch.get, all_blocks(sch)):
        name = str(node.name_hint)
        if name in own:
            before.append(node)
            continue
        first = next((x for x in before if _depends(node, x)), None)
        if first is not None and len(before) < len(own):
            last = parts[-1].name
            raise cannot_schedule(
                f"block {name}",
                f"it after block {first.name_hint}, on which it depends, and before {last}",
                f"nothing that needs the kernel in front of {last}, where the kernel will be",
                f"add {name} to blocks=, write it after {last}, or let two calls schedule these",
            )


def _depends(node: Any, before: Any) -> bool:
    """Tell a block that reads what an earlier one writes, or writes what that one touches."""
    read, written = ([x.source for x in regions] for regions in (node.reads, node.writes))
    stored = [x.source for x in before.writes]
    touched = [*stored, *(x.source for x in before.reads)]
    return any(x.same_as(y) for x in read for y in stored) or any(
        x.same_as(y) for x in written for y in touched
    )


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
