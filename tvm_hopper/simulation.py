"""Public functions `simulate` and `verify`: run and check a module without a GPU.

result = tvm_hopper.simulate(ex, {"A": a, "B": b})      # numpy in, numpy out
report = tvm_hopper.verify(sch)                         # policies, seeds, chosen CTAs, values:
report = tvm_hopper.verify(ex, against=plain_module)    # one verdict
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from tvm_hopper.facts.devices import DEFAULT_NUM_SMS
from tvm_hopper.requests.kernel_file import load_kernel
from tvm_hopper.sim import Result, RunOptions
from tvm_hopper.sim.launch.arguments import complete
from tvm_hopper.sim.machine.machine import check_policy
from tvm_hopper.sim.tables import WIDTH
from tvm_hopper.verification.launches import bound_launches, run_launches
from tvm_hopper.verification.program import Program, load
from tvm_hopper.verification.progress import ProgressLine
from tvm_hopper.verification.report import EXIT_CODES, Report
from tvm_hopper.verification.verifier import RUNS, verify

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["RUNS", "Program", "Report", "load", "simulate", "verify", "verify_command"]

MIN_WIDTH = 80  # characters that a table of findings needs


@dataclass(frozen=True)
class SimulateOptions:
    """Parameters of `simulate` for the device and the run, and their defaults."""

    detect_races: bool = True
    num_sms: int = DEFAULT_NUM_SMS
    allocator: bool = False
    progress: bool | None = None


class SimulateKeywords(TypedDict, total=False):
    """Types of the fields of `SimulateOptions` as keywords."""

    detect_races: bool
    num_sms: int
    allocator: bool
    progress: bool | None


def simulate(
    ex_or_mod: Any,
    inputs: Mapping[str, Any],
    policy: str = "on_wait",
    seed: int = 0,
    blocks: Sequence[tuple[int, ...]] | None = None,
    target: Any = None,
    entry: str | None = None,
    **options: Unpack[SimulateKeywords],
) -> Result:
    """Run a module on numpy inputs, without a GPU.

    Parameters
    ----------
    ex_or_mod : Schedule, IRModule, PrimFunc, or what `tvm.compile` returned in this process
        A module is lowered for `target` (default: the target in scope, else sm_90a).
    inputs : dict
        numpy arrays and scalars by argument name. A view is passed as a view, and the other bytes
        of its base array must not be accessed (OUT_OF_VIEW). Missing arguments are outputs, which
        are uninitialised before the run; those with strides or an offset are made as views.
    policy, seed : str, int
        How asynchronous operations are scheduled; see `tvm_hopper.sim.run_kernel`.
    blocks : list of (x, y, z) or None
        CTAs to run; None: all.
    target : Target, str or dict, optional
        For a module that is not lowered yet.
    entry : str, optional
        Name of the function to run; None: the only one.
    detect_races : bool
        Check for races; if False, only values are computed.
    num_sms : int
        Multiprocessors of the assumed device.
    allocator : bool
        Whether the call has an allocator, as one with PyTorch's tensors does.
    progress : bool, optional
        Whether to show progress on stderr; None: if it is a terminal.

    Returns
    -------
    Result
        `outputs` holds every array argument after the run.

    Raises
    ------
    ValueError
        An argument of this function or of the module's own is illegal.
    """
    check_policy(policy)
    asked = SimulateOptions(**options)
    program = load(ex_or_mod, target, entry)
    values, missing = complete(program.arguments, inputs)
    launches = bound_launches(program, values, asked.num_sms, asked.allocator)
    with ProgressLine(asked.progress, name="simulate") as line:
        run = RunOptions(policy, seed, asked.detect_races, progress_line=line)
        return run_launches(launches, values, missing, [blocks] * len(launches), run)


def verify_command(arguments: argparse.Namespace) -> int:
    """Verify the kernel that a Python file makes; the exit code is the verdict."""
    report = verify(
        load_kernel(*arguments.kernel),
        target=arguments.target,
        entry=arguments.entry,
        max_ctas=arguments.max_ctas,
        budget_s=arguments.budget,
        against=load_kernel(*arguments.against) if arguments.against is not None else None,
    )
    if arguments.json:
        print(json.dumps(report.to_json(), indent=1))
    else:
        ink = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        width = max(shutil.get_terminal_size((WIDTH, 24)).columns, MIN_WIDTH)
        print(report.table(width, ink))
    return EXIT_CODES[report.verdict]
