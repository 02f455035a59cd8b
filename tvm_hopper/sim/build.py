"""Builds what one run needs: the machine, memory of tensors, CTAs and warps."""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvm_hopper.facts.arch import DEFAULT_ARCH
from tvm_hopper.facts.registers import entry_registers
from tvm_hopper.sim import ending
from tvm_hopper.sim.kernel_code import Warp
from tvm_hopper.sim.launch.im2col import bound_map
from tvm_hopper.sim.launch.overlap import Unfinished
from tvm_hopper.sim.launch.tensor_map_object import encode
from tvm_hopper.sim.launch.tensors import Pointer, TensorPlacement
from tvm_hopper.sim.launch.tma import BoundTensorMap, TensorMapArg
from tvm_hopper.sim.machine.lanes import LANES
from tvm_hopper.sim.machine.machine import CTA, Event, Machine
from tvm_hopper.sim.machine.memory import Region, global_base
from tvm_hopper.sim.machine.pages import sparse_copy
from tvm_hopper.sim.ops.cluster_barrier import ClusterBarrier
from tvm_hopper.sim.ops.wgmma import WarpGroup
from tvm_hopper.sim.result import Result

NOTHING_WRITTEN = np.zeros(1, bool)  # in a tensor of any size


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


# Lists of a machine, and the CTA of an entry.
CTA_OF: dict[str, Callable[[Any], CTA]] = {
    **dict.fromkeys(("warps", "barriers"), operator.attrgetter("cta")),
    "loads": operator.attrgetter("barrier.cta"),
    **dict.fromkeys(("remote_ops", "copies_out"), operator.itemgetter(0)),
}


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
        self.arch = DEFAULT_ARCH
        self.args: dict[str, Any] = {}
        self.maps_in_memory: dict[bytes, Any] = {}  # tensor maps, by their bytes
        self.item_bytes: dict[
            int, int
        ] = {}  # bytes of an element, by the number of the global tensor
        for operation, site in self.program.unsupported:
            self.incomplete(operation, site)

    def incomplete(self, operation: str, site: int = 0) -> None:
        """Report an operation that nothing models."""
        text = f"unsupported: {operation}; nothing is certified"
        self.add(
            "INCOMPLETE", text, key=operation, statements=(self.statement(site),) if site else ()
        )

    def written_elements(self) -> int:
        """Return how many elements of global tensors this kernel has written."""
        return sum(
            region.shadow.count() // self.item_bytes[number]
            for number, region in self.regions.items()
            if region.shadow is not None
        )

    def finish(self) -> None:
        """Complete operations in flight, then check the final state."""
        ending.machine_end(self, self.ctas)
        while (op := next(filter(self.can_step, self.pending), None)) is not None:
            self.step(op)

    def retire(self, clusters: Sequence[Sequence[CTA]]) -> None:
        """Check the state that ended clusters leave, and keep what findings may name."""
        ctas = [cta for cluster in clusters for cta in cluster]
        ending.machine_end(self, ctas)
        gone = set(ctas)
        self.ctas = [cta for cta in self.ctas if cta not in gone]
        for name, cta_of in CTA_OF.items():
            setattr(self, name, [x for x in getattr(self, name) if cta_of(x) not in gone])
        self.reached = {key: x for key, x in self.reached.items() if key[0] not in gone}
        for threads in self.bulk_waits.values():
            for thread in [x for x in threads if x[0].cta in gone]:
                del threads[thread]
        for cta in ctas:
            for warp in cta.warps:
                warp.retire()
            cta.retire()

    def result(self, outputs: dict[str, np.ndarray], ran: tuple[tuple[int, ...], ...]) -> Result:
        """Return the findings, tensors after the run, and the CTAs that ran."""
        if self.recorder.on:
            self.recorder.close()
        return Result(
            outputs,
            tuple(self.findings) if not self.shortcut_failed else (),
            self.policy,
            self.seed,
            self.steps,
            ran,
            self.recorder.events,
            self.stopped or self.unknown,
            self.out_of_budget,
            self.shortcut_failed,
            tuple(map(str, self.cut_loops)),
            self.ended_early,
            events_left_out=self.recorder.left_out,
            waited_for_grids=self.waited_for_grids,
            next_began=self.next_began,
        )


class MachineBuilder:
    """Builds regions, CTAs and warps of one launch."""

    def __init__(self, machine: KernelMachine) -> None:
        self.machine = machine
        self.regions: dict[str, Region] = {}

    def tensor(
        self,
        name: str,
        place: TensorPlacement,
        written: np.ndarray | None,
        stored: bool,
        shared: bool = False,
    ) -> None:
        """Give a tensor a region.

        - `written` (numpy.ndarray or None): one flag for each byte that holds something before the
          kernel; None: all do.
        - `stored`: whether a statement of the kernel stores to it: its memory is copied, and
          watched.
        - `shared`: whether an earlier launch that may still run stores to it: then it is watched
          too.
        """
        number = len(self.regions)
        values = self.machine.values
        region = Region(
            name,
            sparse_copy(place.base, written is NOTHING_WRITTEN)
            if stored and values
            else place.base,
            global_base(number),
            self.machine.log if stored or shared or written is not None else None,
            written is None,
        )
        region.constant = not stored
        region.outside = place.outside()
        if written is not None and region.shadow is not None:
            region.shadow.mark_written(written)
        self.machine.regions[number + 1] = region
        self.machine.item_bytes[number + 1] = place.array.dtype.itemsize
        self.regions[name] = region

    def unfinished(self, launches: Sequence[Unfinished]) -> None:
        """Take tensors as read and written by launches that may not have ended."""
        log = self.machine.log
        if log is None:
            return
        for launch in launches:
            bit = self.machine.new_event()
            self.machine.prerequisites |= 0 if launch.lasts else 1 << bit
            write = log.add_unfinished(launch, bit, True)
            read = log.add_unfinished(launch, bit, False)
            for name, region in self.regions.items():
                written = name in launch.stored
                if launch.whole and written:
                    region.unfinished.append(write)
                if region.shadow is not None:
                    region.shadow.mark_unfinished(
                        write if written and not launch.whole else None,
                        read if name in launch.loaded else None,
                    )

    def bind(self, args: Mapping[str, Any], places: Mapping[str, TensorPlacement]) -> None:
        """Give the kernel its parameters.

        - raises ValueError: a parameter has no value, or a tensor map points into no array.
        """
        for name in self.machine.program.params:
            if name not in args:
                raise ValueError(
                    f"run_kernel args: found {sorted(args)}; need a value for parameter {name!r}"
                )
            value = args[name]
            if isinstance(value, TensorMapArg):
                if value.tensor not in self.regions:
                    raise ValueError(
                        f"tensor map {name!r}: found no array named {value.tensor!r}; need it in "
                        "args"
                    )
                value = self._tensor_map(name, value)
            elif isinstance(value, Pointer):
                value = self.regions[value.tensor].base + value.offset
            elif name in self.regions:
                value = self.regions[name].base + places[name].offset
            self.machine.args[name] = value

    def _tensor_map(self, name: str, arg: TensorMapArg) -> BoundTensorMap:
        """Give a tensor map of the host's its place among the kernel's parameters."""
        number, region = len(self.machine.regions), self.regions[arg.tensor]
        raw = encode(arg, region.base + arg.byte_offset)
        place = Region(name, raw, global_base(number), None, True)
        place.is_parameter = place.constant = True
        self.machine.regions[number + 1] = place
        return bound_map(arg, region, place.base)

    def blocks(
        self,
        clusters: Sequence[Sequence[tuple[Any, ...]]],
        layout: Layout,
        block: tuple[Any, ...],
        cluster: tuple[Any, ...],
    ) -> None:
        """Note which CTAs run; the machine has a cluster made when it begins."""
        machine = self.machine
        machine.padded_threads = -(-int(np.prod(block)) // 32) * 32
        machine.entry_registers = entry_registers(
            machine.padded_threads, machine.arch, machine.program.min_blocks
        )
        machine.cluster_warps = math.prod(cluster) * machine.padded_threads // 32
        machine.to_start = deque(clusters)

        def begin(coords_of: Sequence[tuple[Any, ...]]) -> list[CTA]:
            members: list[CTA] = []
            barrier = ClusterBarrier(machine, members)
            for rank, coords in enumerate(coords_of):
                members.append(self._block(coords, rank, members, barrier, layout, block, cluster))
            return members

        machine.make_cluster = begin

    def _block(
        self,
        coords: tuple[Any, ...],
        rank: int,
        cluster: list[CTA],
        barrier: ClusterBarrier,
        layout: Layout,
        block: tuple[Any, ...],
        shape: tuple[Any, ...],
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
            machine.num_warps += 1
            warp.generator = machine.program.run(warp, mask)
            if number % 4 == 3:
                group = WarpGroup(cta.warps[-4:])
                cta.warp_groups.append(group)
                for member in group.warps:
                    member.warp_group = group
        return cta
