"""Run every launch of a program once, under one policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_hopper.errors import VerifyError
from tvm_hopper.sim import Finding, Result, run_host, run_kernel
from tvm_hopper.sim.ending import uncovered
from tvm_hopper.sim.findings import finding
from tvm_hopper.sim.launch.host import Launch
from tvm_hopper.sim.launch.tensors import Pointer, place
from tvm_hopper.sim.launch.tma import TensorMapArg
from tvm_hopper.sim.run import touched_tensors
from tvm_hopper.verification.program import Program


@dataclass(frozen=True)
class BoundLaunch:
    """One launch of the host function with the kernel that it names.

    Attributes
    ----------
    func : tvm.tirx.PrimFunc
        The device function.
    setup : dict
        params, grid, block, cluster, dyn_smem_bytes: see `Launch.bind`.
    """

    func: Any
    setup: dict[str, Any]

    @property
    def tensors(self) -> set[str]:
        """Names of the tensors that the launch is given."""
        params = self.setup["params"].values()
        return {v.tensor for v in params if isinstance(v, (Pointer, TensorMapArg))}


def bound_launches(program: Program, values: Mapping[str, Any], num_sms: int) -> list[BoundLaunch]:
    """Run the host function on arguments in order, and bind what it launches."""
    launches = run_host(program.host, values, num_sms, program.arch)
    return [_bind(program, launch) for launch in launches]


def _bind(program: Program, launch: Launch) -> BoundLaunch:
    func = program.kernels.get(launch.kernel)
    if func is None:
        raise VerifyError(
            f"launch of {launch.kernel}: found kernels {sorted(program.kernels)}; need its TIR"
        )
    return BoundLaunch(func, launch.bind(func))


def run_program(
    program: Program,
    values: dict[str, Any],
    outputs: Sequence[str],
    policy: str,
    seed: int,
    blocks: Any,
    detect_races: bool,
    num_sms: int,
    budget_s: float | None = None,
) -> Result:
    """Run all launches in order, each on what the ones before left.

    Parameters
    ----------
    values : dict
        Every argument of the entry, in order.
    outputs : sequence of str
        Arrays that hold nothing before the run.
    blocks : list of (x, y, z) or None
        CTAs to run of each launch; None: all.

    Returns
    -------
    Result
        Arrays after the last launch; findings and steps of all.
    """
    launches = bound_launches(program, values, num_sms)
    arrays = {name: v for name, v in values.items() if isinstance(v, np.ndarray)}
    findings: list[Finding] = []
    steps = 0
    ran: list[tuple[int, ...]] = []
    events: list[Any] = []
    written: dict[str, np.ndarray] = {}
    stopped = out_of_budget = False
    stored: set[str] = set()
    loaded: set[str] = set()
    for launch in launches:
        func, setup, used = launch.func, launch.setup, launch.tensors
        for names, more in zip(
            (stored, loaded), touched_tensors(func, setup["params"]), strict=True
        ):
            names |= more
        result = run_kernel(
            func,
            {**{n: arrays[n] for n in used}, **setup["params"]},
            setup["grid"],
            setup["block"],
            setup["cluster"],
            setup["dyn_smem_bytes"],
            policy,
            seed,
            blocks,
            detect_races,
            sorted(used.intersection(outputs)),
            written,
            budget_s,
        )
        arrays.update(result.outputs)
        findings += result.findings
        steps += result.steps
        ran += result.blocks
        events += result.events
        stopped, out_of_budget = result.stopped, result.out_of_budget
        if stopped:  # what later launches would read is not what the program computes
            break
    if not stopped:
        holes = [uncovered(n, place(arrays[n]), flags, n in stored) for n, flags in written.items()]
        holes += [
            {"message": f"{n}: no statement stores to it, or loads from it", "buffer": n}
            for n in outputs
            if launches and n not in stored | loaded and n in arrays and arrays[n].size
        ]
        findings += [
            finding("OUTPUT_COVERAGE", policy=policy, seed=seed, **hole) for hole in holes if hole
        ]
    return Result(
        arrays, tuple(findings), policy, seed, steps, tuple(ran), events, stopped, out_of_budget
    )
