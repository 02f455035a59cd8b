"""The entry of the simulator for one device function: `run_kernel`."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvm_hopper.facts.arch import SM_90A
from tvm_hopper.facts.registers import entry_registers
from tvm_hopper.sim import ending
from tvm_hopper.sim.findings import Finding
from tvm_hopper.sim.launch.host import Launch, run_host
from tvm_hopper.sim.launch.limits import check_launch
from tvm_hopper.sim.launch.tensors import Pointer, TensorPlacement, place
from tvm_hopper.sim.launch.tma import BoundTensorMap, TensorMapArg
from tvm_hopper.sim.machine.lanes import LANES
from tvm_hopper.sim.machine.machine import CTA, Event, Machine, check_policy
from tvm_hopper.sim.machine.memory import Region, global_base
from tvm_hopper.sim.machine.warp import WarpCore
from tvm_hopper.sim.ops.atomics import AtomicOps
from tvm_hopper.sim.ops.bulk import BulkOps
from tvm_hopper.sim.ops.collective import CollectiveOps
from tvm_hopper.sim.ops.cp_async import CpAsyncOps
from tvm_hopper.sim.ops.matrix import MatrixOps
from tvm_hopper.sim.ops.mbarrier import MBarrierOps
from tvm_hopper.sim.ops.mma import MmaOps
from tvm_hopper.sim.ops.named import NamedOps
from tvm_hopper.sim.ops.order import ClusterBarrier, OrderOps
from tvm_hopper.sim.ops.wgmma import WarpGroup, WgmmaOps
from tvm_hopper.sim.result import Result
from tvm_hopper.sim.tir import arch_of_kernel
from tvm_hopper.sim.translate.program import KernelCode
from tvm_hopper.sim.translate.translate import compile_kernel

__all__ = ["Launch", "TensorMapArg", "run_host", "run_kernel"]


MAX_BYTES = 16 << 30  # of one run: shared memory with its shadow, and warps
WARP_BYTES = 1 << 14  # about, of a warp's state and clocks


class Warp(
    WarpCore,
    AtomicOps,
    CollectiveOps,
    MBarrierOps,
    NamedOps,
    OrderOps,
    BulkOps,
    CpAsyncOps,
    MatrixOps,
    MmaOps,
    WgmmaOps,
):
    """A warp with all its instructions."""

    def exit(self) -> None:
        """End this warp; the last of a CTA ends the CTA."""
        self.finished = True
        ending.warp_exit(self)
        if all(w.finished for w in self.cta.warps):
            self.cta.exited = True
        self.leave_named()
        self._settle_cluster(self.cta.cluster_barrier)


HANDLERS = {
    name: inspect.isgeneratorfunction(getattr(Warp, name))
    for name in dir(Warp)
    if name.startswith("op_")
}


@dataclass
class Layout:
    """Where each shared allocation of a kernel lies, from the base of a CTA's shared memory."""

    size: int = 0
    offsets: dict[str, int] = field(default_factory=dict)
    parts: list[tuple[int, int, str]] = field(default_factory=list)

    @staticmethod
    def of(shared: list[tuple[str, str, int, int]], dyn_smem_bytes: int) -> Layout:
        """Place static allocations first, then the dynamic one (all dynamic ones share a base)."""
        layout = Layout()
        dynamic = 0
        for key, scope, size, align in sorted(shared, key=lambda s: s[1] != "shared"):
            if scope == "shared":
                layout.size = -(-layout.size // align) * align
            else:
                layout.size = -(-layout.size // 1024) * 1024
                size = max(size, dyn_smem_bytes) if not dynamic else size
                dynamic += 1
            layout.offsets[key] = layout.size
            layout.parts.append((layout.size, layout.size + size, key.partition("#")[0]))
            layout.size += size
        return layout


@functools.lru_cache(maxsize=32)
def compiled(func: Any) -> KernelCode:
    return compile_kernel(func, HANDLERS)


def touched_tensors(func: Any, params: Mapping[str, Any]) -> tuple[set[str], set[str]]:
    """Return the tensors that some statement of a device function stores to, and loads from."""
    program = compiled(func)
    stored, loaded = (
        {getattr(params[name], "tensor", name) for name in names if name in params}
        for names in (program.stored_params, program.loaded_params)
    )
    return stored, loaded


def launch_findings(func: Any, setup: dict[str, Any]) -> list[Finding]:
    """Return the rules that a launch of a device function breaks, whatever it computes."""
    name = str((func.attrs or {}).get("global_symbol", "kernel"))
    return check_launch(name, setup, compiled(func).shared, arch_of_kernel(func))


class KernelMachine(Machine):
    """A machine for one kernel, with its incomplete operations and end checks."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.barriers: list[Any] = []
        self.loads: list[Any] = []
        self.stores: list[Any] = []
        self.remote_ops: list[Any] = []
        # (CTA, warp, statement) -> the last epoch and iteration in which it reached into the CTA
        self.reached: dict[Any, tuple[int, Any]] = {}
        # bytes from its address that ordinary accesses of a view of shared memory have touched
        self.views: dict[str, list[int]] = {}
        self.copies_out: list[Any] = []  # (CTA that is read, copy into another CTA)
        self.bulk_waits: dict[int, dict[Any, Any]] = {}  # site -> (warp, lane) -> iteration
        self.spinners = Event("spin")
        self.entry_registers = self.padded_threads = 0
        self.arch = SM_90A
        self.args: dict[str, Any] = {}
        for what, site in self.program.unsupported:
            self.incomplete(what, site)

    def incomplete(self, what: str, site: int = 0) -> None:
        """Report an operation that nothing models."""
        self.add(
            "INCOMPLETE",
            f"unsupported: {what}; nothing is certified",
            key=what,
            statements=(self.statement(site),) if site else (),
        )

    def finish(self) -> None:
        """Run what is still in flight, then check what is owed."""
        ending.machine_end(self)
        while self.pending:
            ready = [op for op in self.pending if self.can_step(op)]
            if not ready:
                break
            self.step(ready[0])


def _clusters(grid: Sequence[int], cluster: Sequence[int], blocks: Any) -> list[list[tuple]]:
    shape = tuple(-(-g // c) for g, c in zip(grid, cluster, strict=True))
    wanted = None
    if blocks is not None:
        wanted = {
            tuple(b // c for b, c in zip(_three_from_zero(block), cluster, strict=True))
            for block in blocks
        }
    found = []
    for z in range(shape[2]):
        for y in range(shape[1]):
            for x in range(shape[0]):
                if wanted is not None and (x, y, z) not in wanted:
                    continue
                found.append(
                    [
                        (x * cluster[0] + i, y * cluster[1] + j, z * cluster[2] + k)
                        for k in range(cluster[2])
                        for j in range(cluster[1])
                        for i in range(cluster[0])
                    ]
                )
    return found


def check_blocks(blocks: Any, grid: Sequence[int]) -> Any:
    """Refuse blocks that are no list of indices inside the grid, or none at all."""
    if blocks is None:
        return None
    try:
        asked = [(tuple(block), _three_from_zero(block)) for block in blocks]
    except (TypeError, ValueError):
        raise ValueError(f"blocks: found {blocks!r}; need a list of (x, y, z)") from None
    if not asked:
        raise ValueError("blocks: found none; need at least one (x, y, z), or None for all")
    for given, at in asked:
        if not all(0 <= b < g for b, g in zip(at, grid, strict=True)):
            raise ValueError(f"blocks: found {given}; need indices inside the grid {tuple(grid)}")
    return [at for _, at in asked]


def _three_from_zero(block: Sequence[int]) -> tuple[int, ...]:
    return (*map(int, block), 0, 0)[:3]


def _three(value: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*map(int, value), 1, 1)[:3]
    return x, y, z


class _Setup:
    """Builds regions, CTAs and warps of one launch."""

    def __init__(self, machine: KernelMachine) -> None:
        self.machine = machine
        self.numbers: dict[str, int] = {}

    def tensor(self, name: str, place: TensorPlacement, written: np.ndarray | None) -> Region:
        """Copy a tensor's memory; `written`: its bytes that hold something, None: all of them."""
        number = len(self.numbers)
        region = Region(
            name,
            place.base.copy(),
            global_base(number),
            self.machine.log,
            place.array.dtype.itemsize,
            written is None,
        )
        region.outside = place.outside()
        if written is not None and region.shadow is not None:
            region.shadow.mark_written(written)
        self.machine.regions[number + 1] = region
        self.numbers[name] = number + 1
        return region

    def block(
        self,
        coords: tuple,
        rank: int,
        cluster: list[CTA],
        barrier: ClusterBarrier,
        layout: Layout,
        block: tuple,
        shape: tuple,
    ) -> CTA:
        machine = self.machine
        cta = CTA(machine, coords, rank, cluster, layout)
        machine.ctas.append(cta)
        cta.cluster_barrier = barrier
        threads = int(np.prod(block))
        spare = machine.arch.registers_per_block - machine.entry_registers * machine.padded_threads
        cta.free_registers = min(spare, 0)
        cta.warp_groups = []
        for number in range(machine.padded_threads // 32):
            tid = number * 32 + LANES
            special: dict[str, Any] = {
                "threadIdx.x": tid % block[0],
                "threadIdx.y": tid // block[0] % block[1],
                "threadIdx.z": tid // (block[0] * block[1]),
            }
            for axis, position, extent in zip("xyz", coords, shape, strict=True):
                special[f"blockIdx.{axis}"] = position
                special[f"clusterCtaIdx.{axis}"] = position % extent
                special[f"clusterIdx.{axis}"] = position // extent
            warp = Warp(machine, cta, number, special)
            mask = None if number * 32 + 32 <= threads else tid < threads
            warp.partial = mask
            cta.warps.append(warp)
            machine.warps.append(warp)
            warp.generator = machine.program.run(warp, mask)
            if number % 4 == 3:
                group = WarpGroup(cta.warps[-4:])
                cta.warp_groups.append(group)
                for member in group.warps:
                    member.warp_group = group
        return cta


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
    written: dict[str, np.ndarray] | None = None,
    budget_s: float | None = None,
) -> Result:
    """Run one device PrimFunc (as codegen prints it) on numpy data.

    Parameters
    ----------
    device_func : tvm.tirx.PrimFunc
        After SplitHostDevice and the finalisation of device functions.
    args : dict or sequence
        One entry per parameter, by name or in order: a numpy array for a data pointer (its memory
        is copied; what a view leaves out of it must not be touched), a number for a scalar, a
        `TensorMapArg` for a tensor map. With a dict, arrays that only tensor maps point into stand
        under further names.
    grid, block, cluster : sequence of int
        x, y, z; the grid counts CTAs (not clusters).
    dyn_smem_bytes : int or None
        Dynamic shared memory of the launch; None: as much as the kernel declares.
    policy : str
        "eager", "on_wait", "lifo", "random" or "starve:<role>" (role: "producer", "consumer",
        a warp group's number, or "warp<n>").
    blocks : list of (x, y, z) or None
        Which CTAs to run; whole clusters are added. None: all.
    detect_races : bool
        Keep shadow cells; without them only numerics and the synchronisation protocol are checked.
    outputs : sequence of str
        Tensors that hold nothing before the kernel: reading them first is UNINIT_READ, and a part
        that stays unwritten is OUTPUT_COVERAGE.
    written : dict or None
        For several launches in a row: the bytes of each output's memory that earlier ones wrote.
        This launch adds its own, and leaves OUTPUT_COVERAGE to the caller.
    budget_s : float or None
        Seconds after which the run ends as INCOMPLETE; None: an hour.

    Returns
    -------
    Result
        Every tensor after the run, by name, and the findings.
    """
    program = compiled(device_func)
    granule = program.min_itemsize
    if not isinstance(args, Mapping):
        args = dict(zip(program.params, args, strict=True))
    machine = KernelMachine(program, policy, seed, detect_races, granule)
    grid, block, cluster = _three(grid), _three(block), _three(cluster)
    machine.budget_s = machine.budget_s if budget_s is None else budget_s
    setup = {"grid": grid, "block": block, "cluster": cluster, "dyn_smem_bytes": dyn_smem_bytes}
    if refused := launch_findings(device_func, setup):
        machine.findings += refused
        if any(f.severity == "error" for f in refused):  # the runtime refuses it: nothing runs
            arrays = {n: v.copy() for n, v in args.items() if isinstance(v, np.ndarray)}
            return Result(arrays, tuple(machine.findings), policy, seed, stopped=True)
    check_policy(policy, -(-int(np.prod(block)) // 32))
    layout = Layout.of(program.shared, dyn_smem_bytes or 0)
    wanted = check_blocks(blocks, grid)
    num_ctas = math.prod(grid) if wanted is None else len(wanted) * math.prod(cluster)
    needed = num_ctas * (layout.size * (1 + 8 // granule) + math.prod(block) * WARP_BYTES // 32)
    if needed > MAX_BYTES:
        machine.add(
            "INCOMPLETE",
            f"not run: {num_ctas} CTAs need about {needed >> 30} GiB here, of {MAX_BYTES >> 30}; "
            "nothing is certified",
        )
        arrays = {n: v.copy() for n, v in args.items() if isinstance(v, np.ndarray)}
        return Result(arrays, tuple(machine.findings), policy, seed, stopped=True)
    clusters = _clusters(grid, cluster, wanted)
    builder = _Setup(machine)
    arrays = {name: value for name, value in args.items() if isinstance(value, np.ndarray)}
    places = {name: place(value) for name, value in arrays.items()}
    before = {
        name: (written or {}).get(name, np.zeros(places[name].base.size, bool)) for name in outputs
    }
    regions = {name: builder.tensor(name, at, before.get(name)) for name, at in places.items()}
    for name in program.params:
        if name not in args:
            raise ValueError(
                f"run_kernel args: found {sorted(args)}; need a value for parameter {name!r}"
            )
        value = args[name]
        if isinstance(value, TensorMapArg):
            if value.tensor not in regions:
                raise ValueError(
                    f"tensor map {name!r}: found no array named {value.tensor!r}; need it in args"
                )
            value = BoundTensorMap(value, regions[value.tensor])
        elif isinstance(value, Pointer):
            value = regions[value.tensor].base + value.offset
        elif name in regions:
            value = regions[name].base + places[name].offset
        machine.args[name] = value
    threads = int(np.prod(block))
    machine.padded_threads = -(-threads // 32) * 32
    machine.arch = arch_of_kernel(device_func)
    machine.entry_registers = entry_registers(machine.padded_threads, machine.arch)
    machine.num_warps = sum(map(len, clusters)) * machine.padded_threads // 32
    for coords_of in clusters:
        members: list[CTA] = []
        barrier = ClusterBarrier("cluster barrier", machine.num_warps)
        for rank, coords in enumerate(coords_of):
            members.append(builder.block(coords, rank, members, barrier, layout, block, cluster))
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
    machine.run()
    stored, _ = touched_tensors(device_func, args)
    if machine.log is not None and not (machine.stopped or machine.unknown):
        for name in outputs:
            region = regions[name]
            assert region.shadow is not None  # there is a log
            now = region.shadow.written(region.size)
            if written is not None:
                written[name] = now
            elif blocks is not None:
                continue
            elif hole := ending.uncovered(name, places[name], now, name in stored):
                machine.add("OUTPUT_COVERAGE", **hole)
    results = {name: at.among(regions[name].data) for name, at in places.items()}
    ran = tuple(coords for members in clusters for coords in members)
    lanes = {warp.lane_name: warp.label for warp in machine.warps}
    events = [e._replace(lane=lanes.get(e.lane, e.lane)) for e in machine.events]
    stopped = machine.stopped or machine.unknown
    return Result(
        results,
        tuple(machine.findings),
        policy,
        seed,
        machine.steps,
        ran,
        events,
        stopped,
        machine.out_of_budget,
    )
