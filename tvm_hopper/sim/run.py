"""The entry of the simulator for one device function: `run_kernel`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tvm_hopper.facts.devices import DEFAULT_NUM_SMS
from tvm_hopper.sim import ending
from tvm_hopper.sim.build import NOTHING_WRITTEN, KernelMachine, Layout, MachineBuilder
from tvm_hopper.sim.grid import check_blocks, clusters_of, three
from tvm_hopper.sim.kernel_code import compiled, launch_findings, touched_tensors
from tvm_hopper.sim.launch.host import Launch, run_host
from tvm_hopper.sim.launch.overlap import Unfinished
from tvm_hopper.sim.launch.tensors import place
from tvm_hopper.sim.launch.tma import TensorMapArg
from tvm_hopper.sim.machine.machine import MOST_WARPS, check_policy
from tvm_hopper.sim.machine.pages import available_bytes
from tvm_hopper.sim.races.writers import element_writers
from tvm_hopper.sim.result import Result
from tvm_hopper.sim.shortcuts import EVERYTHING_WATCHED, NOTHING_LEFT_OUT, Shortcuts
from tvm_hopper.sim.tir import COOPERATIVE, arch_of_kernel, launch_tags

__all__ = [
    "Launch",
    "TensorMapArg",
    "check_blocks",
    "compiled",
    "launch_findings",
    "run_host",
    "run_kernel",
    "touched_tensors",
]

MAX_BYTES = 16 << 30  # of one run: shared memory with its shadow, and warps
WARP_BYTES = 1 << 14  # about, of a warp's state and clocks
ENDED_WARP_BYTES = 1 << 11  # about, of what findings may name of a warp that has ended


def run_kernel(
    device_func: Any,
    args: Mapping[str, Any] | Sequence[Any],
    grid: Sequence[int],
    block: Sequence[int],
    cluster: Sequence[int] = (1, 1, 1),
    dyn_smem_bytes: int | None = None,
    policy: str = "eager",
    seed: int = 0,
    blocks: Sequence[tuple[int, ...]] | None = None,
    detect_races: bool = True,
    outputs: Sequence[str] = (),
    written: Mapping[str, np.ndarray] | None = None,
    budget_s: float | None = None,
    shortcuts: Shortcuts = NOTHING_LEFT_OUT,
    record_writers: bool = False,
    stop_after: int | None = None,
    num_sms: int = DEFAULT_NUM_SMS,
    unfinished: Sequence[Unfinished] = (),
    progress_line: Any = None,
) -> Result:
    """Run one device PrimFunc (as codegen prints it) on numpy data.

    Parameters
    ----------
    device_func : tvm.tirx.PrimFunc
        After SplitHostDevice and the finalisation of device functions.
    args : dict or sequence
        One entry per parameter, by name or in order: a numpy array for a data pointer (its memory
        is copied if the kernel stores to it; what a view leaves out of it must not be touched), a
        number for a scalar, a `TensorMapArg` for a tensor map. With a dict, arrays that only tensor
        maps point into are under further names.
    grid, block, cluster : sequence of int
        x, y, z; the grid counts CTAs (not clusters).
    dyn_smem_bytes : int or None
        Dynamic shared memory of the launch; None: as much as the kernel declares.
    policy : str
        "eager", "on_wait", "lifo", "random", "in_turn" (a cluster begins when the one before has
        ended, in the order of launch) or "starve:<role>" (role: "producer", "consumer", a warp
        group's number, or "warp<n>").
    blocks : list of (x, y, z) or None
        Which CTAs to run; whole clusters are added. None: all.
    detect_races : bool
        Keep shadow cells; without them only numerics and the synchronisation protocol are checked.
    outputs : sequence of str
        Tensors that hold nothing before the kernel: reading them first is UNINIT_READ, and a part
        that stays unwritten is OUTPUT_COVERAGE.
    written : mapping or None
        For several launches in a row: the bytes of each output's memory that earlier ones wrote.
        To a dict this launch adds its own, and it leaves OUTPUT_COVERAGE to the caller.
    budget_s : float or None
        Seconds after which the run ends as INCOMPLETE; None: an hour.
    shortcuts : Shortcuts
        What the run leaves out. Where a finding might depend on that, the result says so in
        `shortcut_failed`, and its findings are none.
    record_writers : bool
        Tell in `Result.writers` who wrote each element; needs `detect_races`.
    stop_after : int or None
        End the run once it has written about so many elements of tensors: `Result.ended_early`.
    num_sms : int
        Multiprocessors of the device, which all CTAs of a cooperative launch have to fit on.
    unfinished : sequence of Unfinished
        Earlier launches that may still run; `griddepcontrol.wait` waits for them.
    progress_line : object, optional
        Its `text` says how far the run is, of clusters that are too many to be there together.

    Returns
    -------
    Result
        Every tensor after the run, by name, and the findings.
    """
    program = compiled(device_func)
    if not isinstance(args, Mapping):
        args = dict(zip(program.params, args, strict=True))
    machine = KernelMachine(program, policy, seed, detect_races, shortcuts)
    grid, block, cluster = three(grid), three(block), three(cluster)
    machine.budget_s = machine.budget_s if budget_s is None else budget_s
    machine.stop_after, machine.progress_line = stop_after, progress_line
    machine.cooperative = COOPERATIVE in launch_tags(device_func)
    setup = {"grid": grid, "block": block, "cluster": cluster, "dyn_smem_bytes": dyn_smem_bytes}
    arrays = {name: value for name, value in args.items() if isinstance(value, np.ndarray)}
    if refused := launch_findings(device_func, setup, num_sms):
        machine.findings += refused
        if any(f.severity == "error" for f in refused):  # the runtime refuses it: nothing runs
            return _not_run(machine, arrays)
    check_policy(policy, -(-int(np.prod(block)) // 32))
    layout = Layout.of(program.shared, dyn_smem_bytes or 0)
    wanted = check_blocks(blocks, grid)
    stored = set(arrays) if shortcuts.watch_all else touched_tensors(device_func, args)[0]
    num_bytes = sum(array.nbytes for name, array in arrays.items() if name in stored)
    if _too_large(machine, grid, wanted, cluster, block, layout, num_bytes):
        return _not_run(machine, arrays)
    clusters = clusters_of(grid, cluster, wanted)
    builder = MachineBuilder(machine)
    places = {name: place(value) for name, value in arrays.items()}
    for name, at in places.items():
        flags = (written or {}).get(name, NOTHING_WRITTEN) if name in outputs else None
        shared = any(name in launch.stored and not launch.whole for launch in unfinished)
        builder.tensor(name, at, flags, name in stored, shared)
    builder.unfinished(unfinished)
    builder.bind(args, places)
    machine.arch = arch_of_kernel(device_func)
    builder.blocks(clusters, layout, block, cluster)
    _remarks(machine)
    machine.run()
    if machine.shortcut_failed and not (shortcuts.any or shortcuts.watch_all):
        return run_kernel(
            device_func, args, grid, block, cluster, dyn_smem_bytes, policy, seed, blocks,
            detect_races, outputs, written, budget_s, EVERYTHING_WATCHED, record_writers,
            stop_after, num_sms, unfinished, progress_line,
        )  # fmt: skip
    if machine.log is not None and not (machine.stopped or machine.unknown):
        keeps = isinstance(written, dict)
        for name in outputs if keeps or (written is None and blocks is None) else ():
            region = builder.regions[name]
            assert region.shadow is not None  # it is watched, since it holds nothing before
            now = region.shadow.written(region.size)
            if machine.stores_left_out:  # by this run, not by the kernel
                now = np.ones_like(now)
            if isinstance(written, dict):
                written[name] = now
            elif hole := ending.uncovered(name, places[name], now, name in stored):
                machine.add("OUTPUT_COVERAGE", **hole)
    results = {name: at.among(builder.regions[name].data) for name, at in places.items()}
    ran = tuple(coords for members in clusters for coords in members)
    result = machine.result(results, ran)
    if blocks is not None:
        result.findings = tuple(replace(one, blocks=ran) for one in result.findings)
    if record_writers:
        for name in stored & builder.regions.keys():
            if (shadow := builder.regions[name].shadow) is not None:
                result.writers[name] = (element_writers(shadow, places[name], machine),)
    return result


def _not_run(machine: KernelMachine, arrays: Mapping[str, np.ndarray]) -> Result:
    machine.stopped = True
    return machine.result({name: array.copy() for name, array in arrays.items()}, ())


def _too_large(
    machine: KernelMachine,
    grid: tuple[int, int, int],
    wanted: Any,
    cluster: tuple[int, int, int],
    block: tuple[int, int, int],
    layout: Layout,
    stored: int,
) -> bool:
    """Report CTAs that would need more memory than a run may take.

    `stored` are the bytes of the tensors that the kernel stores to.
    """
    num_ctas = math.prod(grid) if wanted is None else len(wanted) * math.prod(cluster)
    warps = -(-math.prod(block) // 32)
    together = num_ctas if machine.cooperative else min(num_ctas, MOST_WARPS // warps + 1)
    shadow = 8 // machine.program.min_itemsize  # bytes of cells for a byte
    needed = together * (layout.size * (1 + shadow) + warps * WARP_BYTES)
    needed += num_ctas * warps * ENDED_WARP_BYTES
    if wanted is None:  # of few CTAs, few pages of these are touched
        needed += stored * (2 if machine.log is None else 2 + shadow // 2)
    limit = min(MAX_BYTES, available_bytes())
    if needed <= limit:
        return False
    machine.add(
        "INCOMPLETE",
        f"not run: {num_ctas} CTAs need about {needed / 2**30:.1f} GiB here, of "
        f"{limit / 2**30:.1f}; nothing is certified: run some of them, "
        f"blocks=[(0, 0, 0), {tuple(g - 1 for g in grid)}]",
    )
    return True


def _remarks(machine: KernelMachine) -> None:
    """Report what the kernel's text alone shows."""
    program = machine.program
    if program.setmaxnreg_site and not program.bounds_known:
        machine.add(
            "SETMAXNREG_IGNORED",
            "setmaxnreg without launch bounds that fix the registers at entry: ptxas ignores it "
            "(C7508), unless the kernel happens to use all that its threads may have",
            statements=(machine.statement(program.setmaxnreg_site),),
        )
    for site in program.lone_try_waits:
        machine.add(
            "TRY_WAIT_NOT_LOOPED",
            "a single try_wait may return false after its time limit",
            key=site,
            statements=(machine.statement(site),),
        )
