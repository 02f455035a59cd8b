"""How one kernel is run in the simulator, and work that synchronisation-only runs may skip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvm_hopper.facts.devices import DEFAULT_NUM_SMS
from tvm_hopper.sim.launch.overlap import Unfinished


class ShortcutError(Exception):
    """A finding may depend on parts that this run leaves out; the text gives the reason."""


@dataclass(frozen=True)
class LoopCut:
    """A loop whose iterations repeat; see `tvm_hopper.sim.loop_cuts`.

    - `name`: name of the loop variable.
    - `period`: iterations after which everything that synchronises repeats.
    - `conditions` (tuple of Threshold): conditions that do not repeat but change in few iterations,
      of this loop and of the loops that are cut with it.
    - `known` (dict): values of parameters, and thread tags of block indices, by variable.
    - `stores`: whether it stores to tensors: then iterations left out leave elements unwritten.
    """

    name: str
    period: int
    conditions: tuple[Any, ...] = ()
    known: Mapping[Any, int | str] = field(default_factory=dict)
    stores: bool = False


@dataclass(frozen=True)
class Shortcuts:
    """Parts that one run leaves out.

    - `values`: whether data is moved and computed with. Without values a run records which thread
      touches which bytes and when; the kernel's tensors are neither read nor copied.
    - `cuts`: loops whose middle iterations are left out, by statement number.
    - `watch_all`: also watch tensors that no statement names as the place of a store: an address
      may come from memory.
    - `recorded`: whether events are kept for a timeline although values are not computed.
    """

    values: bool = True
    cuts: Mapping[int, LoopCut] = field(default_factory=dict)
    watch_all: bool = False
    recorded: bool = False

    @property
    def any(self) -> bool:
        """Return whether anything is left out."""
        return not self.values or bool(self.cuts)


NOTHING_LEFT_OUT = Shortcuts()
EVERYTHING_WATCHED = Shortcuts(watch_all=True)


def no_values(machine: Any, reason: str) -> None:
    """End a run without values where a finding would depend on one.

    - raises ShortcutError: the run has no values.
    """
    if not machine.values:
        raise ShortcutError(reason)


@dataclass(frozen=True)
class RunOptions:
    """How one run of a kernel, or of several launches, is scheduled, watched and ended.

    `run_launches` sets the options that differ between launches: `blocks`, `outputs`, `written`,
    `shortcuts`, `num_sms`, and `unfinished`.

    - `policy`: "eager", "on_wait", "lifo", "random", "in_turn" (a cluster begins when the one
      before has ended, in the order of launch) or "starve:<role>" (role: "producer", "consumer", a
      warp group's number, or "warp<n>").
    - `detect_races`: keep shadow cells; without them only numerics and the synchronisation protocol
      are checked.
    - `budget_s`: seconds after which the run ends as INCOMPLETE; None: an hour.
    - `record_writers`: record the writer of each element in `Result.writers`; needs `detect_races`.
    - `stop_after`: end the run once it has written about so many elements of tensors:
      `Result.ended_early`.
    - `progress_line` (object): its `text` is set to the progress of runs whose clusters do not all
      fit at once.
    - `blocks`: which CTAs to run; whole clusters are added. None: all.
    - `outputs`: tensors that hold nothing before the kernel: reading them first is UNINIT_READ, and
      a part that stays unwritten is OUTPUT_COVERAGE.
    - `written` (mapping or None): for several launches in a row: the bytes of each output's memory
      that earlier ones wrote. To a dict this launch adds its own, and it leaves OUTPUT_COVERAGE to
      the caller.
    - `shortcuts`: parts that the run leaves out. If a finding might depend on them, the result has
      a reason in `shortcut_failed` and no findings.
    - `num_sms`: multiprocessors of the device: all CTAs of a cooperative launch must fit on them at
      once.
    - `unfinished`: earlier launches that may still run; `griddepcontrol.wait` waits for them.
    """

    policy: str = "eager"
    seed: int = 0
    detect_races: bool = True
    budget_s: float | None = None
    record_writers: bool = False
    stop_after: int | None = None
    progress_line: Any = None
    blocks: Sequence[tuple[int, ...]] | None = None
    outputs: Sequence[str] = ()
    written: Mapping[str, np.ndarray] | None = None
    shortcuts: Shortcuts = NOTHING_LEFT_OUT
    num_sms: int = DEFAULT_NUM_SMS
    unfinished: Sequence[Unfinished] = ()


DEFAULT_OPTIONS = RunOptions()
