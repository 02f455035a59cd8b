"""The entry of the simulator for one device function: `run_kernel`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tvm_hopper.sim import ending
from tvm_hopper.sim.build import NOTHING_WRITTEN, KernelMachine, Layout, MachineBuilder
from tvm_hopper.sim.grid import check_blocks, clusters_of, three
from tvm_hopper.sim.kernel_code import compiled, launch_findings, touched_tensors
from tvm_hopper.sim.launch.tensors import TensorPlacement, place
from tvm_hopper.sim.machine.machine import MOST_WARPS, check_policy
from tvm_hopper.sim.machine.pages import available_bytes
from tvm_hopper.sim.options import DEFAULT_OPTIONS, EVERYTHING_WATCHED, RunOptions
from tvm_hopper.sim.races.writers import element_writers
from tvm_hopper.sim.result import Result
from tvm_hopper.sim.tir import COOPERATIVE, arch_of_kernel, launch_tags
from tvm_hopper.sim.translate.scope import KernelCode

MAX_BYTES = 16 << 30  # memory of one run: shared memory with its shadow, and warps
WARP_BYTES = 1 << 14  # about, of a warp's state and clocks
ENDED_WARP_BYTES = 1 << 11  # estimate for the state of an ended warp that findings may name


def run_kernel(
    device_func: Any,
    args: Mapping[str, Any] | Sequence[Any],
    grid: Sequence[int],
    block: Sequence[int],
    cluster: Sequence[int] = (1, 1, 1),
    dyn_smem_bytes: int | None = None,
    options: RunOptions = DEFAULT_OPTIONS,
) -> Result:
    """Run one device PrimFunc (as codegen prints it) on numpy data.

    - `device_func` (tvm.tirx.PrimFunc): after SplitHostDevice and the finalisation of device
      functions.
    - `args` (dict or sequence): one entry per parameter, by name or in order: a numpy array for a
      data pointer (its memory is copied if the kernel stores to it; the kernel must not touch its
      bytes outside of a view), a number for a scalar, a `TensorMapArg` for a tensor map. With a
      dict, arrays that only tensor maps point into are under further names.
    - `grid`, `block`, `cluster`: x, y, z; the grid counts CTAs (not clusters).
    - `dyn_smem_bytes`: dynamic shared memory of the launch; None: as much as the kernel declares.
    - `options`: scheduling, race detection, and limits of the run.
    - returns: every tensor after the run, by name, and the findings.
    """
    program = compiled(device_func)
    if not isinstance(args, Mapping):
        args = dict(zip(program.params, args, strict=True))
    launch = _Launch(device_func, args, three(grid), three(block), three(cluster), dyn_smem_bytes)
    result = _run(program, launch, options)
    shortcuts = options.shortcuts
    if result.shortcut_failed and not (shortcuts.any or shortcuts.watch_all):
        return _run(program, launch, replace(options, shortcuts=EVERYTHING_WATCHED))
    return result


@dataclass(frozen=True)
class _Launch:
    """One kernel with its arguments and the shape of its launch."""

    func: Any
    args: Mapping[str, Any]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    dyn_smem_bytes: int | None

    @property
    def shape(self) -> dict[str, Any]:
        names = ("grid", "block", "cluster", "dyn_smem_bytes")
        return {name: getattr(self, name) for name in names}

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return {name: x for name, x in self.args.items() if isinstance(x, np.ndarray)}


def _run(program: KernelCode, launch: _Launch, options: RunOptions) -> Result:
    """Run one launch once."""
    machine = _machine(program, launch, options)
    refused = launch_findings(launch.func, launch.shape, options.num_sms)
    machine.findings += refused
    if any(f.severity == "error" for f in refused):  # the runtime refuses it: nothing runs
        return _not_run(machine, launch.arrays)
    check_policy(options.policy, -(-math.prod(launch.block) // 32))
    wanted = check_blocks(options.blocks, launch.grid)
    arrays = launch.arrays
    watch_all = options.shortcuts.watch_all
    stored = {*arrays} if watch_all else touched_tensors(launch.func, launch.args)[0]
    num_bytes = sum(array.nbytes for name, array in arrays.items() if name in stored)
    layout = Layout.of(program.shared, launch.dyn_smem_bytes or 0)
    if _too_large(machine, launch, wanted, layout.size, num_bytes):
        return _not_run(machine, arrays)
    places = {name: place(value) for name, value in arrays.items()}
    builder = _with_tensors(machine, launch, options, places, stored)
    clusters = clusters_of(launch.grid, launch.cluster, wanted)
    builder.blocks(clusters, layout, launch.block, launch.cluster)
    _remarks(machine)
    machine.run()
    if machine.log is not None and not (machine.stopped or machine.unknown):
        _note_written(builder, options, places, stored)
    results = {name: at.among(builder.regions[name].data) for name, at in places.items()}
    ran = tuple(coords for members in clusters for coords in members)
    result = machine.result(results, ran)
    if options.blocks is not None:
        result.findings = tuple(replace(one, blocks=ran) for one in result.findings)
    if options.record_writers:
        for name in stored & builder.regions.keys():
            if (shadow := builder.regions[name].shadow) is not None:
                result.writers[name] = (element_writers(shadow, places[name], machine),)
    return result


def _machine(program: KernelCode, launch: _Launch, options: RunOptions) -> KernelMachine:
    """Return a machine that has neither tensors nor CTAs yet."""
    machine = KernelMachine(
        program, options.policy, options.seed, options.detect_races, options.shortcuts
    )
    if options.budget_s is not None:
        machine.budget_s = options.budget_s
    machine.stop_after, machine.progress_line = options.stop_after, options.progress_line
    machine.cooperative = COOPERATIVE in launch_tags(launch.func)
    machine.arch = arch_of_kernel(launch.func)
    return machine


def _with_tensors(
    machine: KernelMachine,
    launch: _Launch,
    options: RunOptions,
    places: Mapping[str, TensorPlacement],
    stored: set[str],
) -> MachineBuilder:
    """Give the machine its tensors and the kernel its parameters."""
    builder = MachineBuilder(machine)
    written = options.written or {}
    for name, at in places.items():
        flags = written.get(name, NOTHING_WRITTEN) if name in options.outputs else None
        shared = any(name in one.stored and not one.whole for one in options.unfinished)
        builder.tensor(name, at, flags, name in stored, shared)
    builder.unfinished(options.unfinished)
    builder.bind(launch.args, places)
    return builder


def _note_written(
    builder: MachineBuilder,
    options: RunOptions,
    places: Mapping[str, TensorPlacement],
    stored: set[str],
) -> None:
    """Tell the caller which bytes of outputs were written, or report those that were not."""
    written, machine = options.written, builder.machine
    if not isinstance(written, dict) and (written is not None or options.blocks is not None):
        return
    for name in options.outputs:
        region = builder.regions[name]
        assert region.shadow is not None  # outputs are watched
        now = region.shadow.written(region.size)
        if machine.stores_left_out:  # the run left stores out, not the kernel
            now = np.ones_like(now)
        if isinstance(written, dict):
            written[name] = now
        elif hole := ending.uncovered(name, places[name], now, name in stored):
            machine.add("OUTPUT_COVERAGE", **hole)


def _not_run(machine: KernelMachine, arrays: Mapping[str, np.ndarray]) -> Result:
    machine.stopped = True
    return machine.result({name: array.copy() for name, array in arrays.items()}, ())


def _too_large(
    machine: KernelMachine, launch: _Launch, wanted: Sequence[Any] | None, shared: int, stored: int
) -> bool:
    """Report CTAs that would need more memory than a run may take.

    `shared` are the bytes of a CTA's shared memory, `stored` those of the tensors that the kernel
    stores to.
    """
    num_ctas = math.prod(launch.grid)
    if wanted is not None:
        num_ctas = len(wanted) * math.prod(launch.cluster)
    warps = -(-math.prod(launch.block) // 32)
    together = num_ctas if machine.cooperative else min(num_ctas, MOST_WARPS // warps + 1)
    shadow = 8 // machine.program.min_itemsize  # bytes of cells for a byte
    needed = together * (shared * (1 + shadow) + warps * WARP_BYTES)
    needed += num_ctas * warps * ENDED_WARP_BYTES
    if wanted is None:  # few CTAs touch few pages of these
        needed += stored * (2 if machine.log is None else 2 + shadow // 2)
    limit = min(MAX_BYTES, available_bytes())
    if needed <= limit:
        return False
    machine.add(
        "INCOMPLETE",
        f"not run: {num_ctas} CTAs need about {needed / 2**30:.1f} GiB here, of "
        f"{limit / 2**30:.1f}; nothing is certified",
        hint=f"run some of them, blocks=[(0, 0, 0), {tuple(g - 1 for g in launch.grid)}]",
    )
    return True


def _remarks(machine: KernelMachine) -> None:
    """Report errors that the kernel's text shows without a run."""
    program = machine.program
    if program.setmaxnreg_site and not program.bounds_known:
        machine.add(
            "SETMAXNREG_IGNORED",
            "setmaxnreg without launch bounds that fix the registers at entry: ptxas ignores it "
            "(C7508), unless the kernel happens to use all that its threads may have",
            statements=(machine.statement(program.setmaxnreg_site),),
        )
    for site in program.lone_try_waits:
        text = "a single try_wait may return false after its time limit"
        machine.add("TRY_WAIT_NOT_LOOPED", text, key=site, statements=(machine.statement(site),))
