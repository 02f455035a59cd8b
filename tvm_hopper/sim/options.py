"""How one kernel is run in the simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_hopper.facts.devices import DEFAULT_NUM_SMS
from tvm_hopper.sim.launch.overlap import Unfinished
from tvm_hopper.sim.shortcuts import NOTHING_LEFT_OUT, Shortcuts


@dataclass(frozen=True)
class RunOptions:
    """How one run of a kernel, or of several launches, is scheduled, watched and ended.

    `run_launches` sets what differs from launch to launch: `blocks`, `outputs`, `written`,
    `shortcuts`, `num_sms`, and `unfinished`.

    Attributes
    ----------
    policy : str
        "eager", "on_wait", "lifo", "random", "in_turn" (a cluster begins when the one before has
        ended, in the order of launch) or "starve:<role>" (role: "producer", "consumer", a warp
        group's number, or "warp<n>").
    detect_races : bool
        Keep shadow cells; without them only numerics and the synchronisation protocol are checked.
    budget_s : float or None
        Seconds after which the run ends as INCOMPLETE; None: an hour.
    record_writers : bool
        Tell in `Result.writers` who wrote each element; needs `detect_races`.
    stop_after : int or None
        End the run once it has written about so many elements of tensors: `Result.ended_early`.
    progress_line : object, optional
        Its `text` says how far the run is, of clusters that are too many to be there together.
    blocks : list of (x, y, z) or None
        Which CTAs to run; whole clusters are added. None: all.
    outputs : sequence of str
        Tensors that hold nothing before the kernel: reading them first is UNINIT_READ, and a part
        that stays unwritten is OUTPUT_COVERAGE.
    written : mapping or None
        For several launches in a row: the bytes of each output's memory that earlier ones wrote.
        To a dict this launch adds its own, and it leaves OUTPUT_COVERAGE to the caller.
    shortcuts : Shortcuts
        What the run leaves out. Where a finding might depend on that, the result says so in
        `shortcut_failed`, and its findings are none.
    num_sms : int
        Multiprocessors of the device, which all CTAs of a cooperative launch have to fit on.
    unfinished : sequence of Unfinished
        Earlier launches that may still run; `griddepcontrol.wait` waits for them.
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
