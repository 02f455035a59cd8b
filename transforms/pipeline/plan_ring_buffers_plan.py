"""Decide which loads run ahead in which loop, and their number of ring slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.arch import Processor
from tvm_hopper.facts.programming_model import MAX_GRID_YZ, MBARRIER_MAX_TX_BYTES
from tvm_hopper.requests.keys import (
    ASYNC_COPY,
    ASYNC_OP,
    ASYNC_STAGES,
    CHANNEL,
    NUM_SLOTS,
    ORDER,
    PERSISTENT,
    STAGE,
    STORE_RING,
)
from tvm_hopper.transforms.common.channel import completes_by_group, find_loads, is_load, slot_bytes
from tvm_hopper.transforms.common.load_sites import Site, check_even, find_sites, is_open, kind_of
from tvm_hopper.transforms.common.shared_memory_size import (
    BARRIER_BYTES,
    SharedArray,
    SharedMemory,
    most_slots,
    ring_memory,
    shared_array,
)
from tvm_hopper.transforms.common.stage_annotations import read_stages
from tvm_hopper.transforms.mechanisms.dma_plan import check_queue

from .tma_store_groups_plan import StoreRing, check_memory, plan_store_rings, stores_in_flight

RINGS = (CHANNEL, STORE_RING)


@dataclass(frozen=True)
class PipelinePlan:
    """Loads that are issued together, and the loop in which they run `look_ahead` iterations ahead.

    Without a loop they are issued once, into one slot.
    """

    number: int  # of the channel
    site: Site
    num_slots: int
    stores_in_flight: int  # slots that asynchronous stores may still read while loads fill others
    processor: Processor

    def __post_init__(self) -> None:
        where = self.where
        if self.num_slots < 1:
            raise cannot_lower(where, f"{self.num_slots} stages", "at least 1")
        if not self.by_group and self.tx_bytes - self.bytes_in_parts > MBARRIER_MAX_TX_BYTES:
            raise cannot_lower(
                where,
                f"{self.tx_bytes} bytes a stage",
                f"at most {MBARRIER_MAX_TX_BYTES}, what an mbarrier can count",
            )
        memory = self.memory
        if not memory.fits_on(self.processor):
            fits = most_slots(self.slots, self.processor, not self.by_group)
            sizes = " + ".join(f"{x.name} {self.num_slots} x {x.num_bytes}" for x in self.slots)
            padding = f" + alignment {memory.padding}" if memory.padding else ""
            barriers = "" if self.by_group else f" + barriers {self.num_slots * BARRIER_BYTES}"
            kind = "shared memory" if self.processor.has_threads else "VTCM"
            raise cannot_lower(
                where,
                f"{sizes}{barriers}{padding} = {memory.num_bytes} bytes of {kind}",
                f"at most {self.processor.tile_bytes}",
                f"take {fits} stages" if fits else "choose a smaller tile",
            )

    @property
    def where(self) -> str:
        """Name the loop, or the loads, in an error message."""
        return f"loop {self.loop.loop_var.name}" if self.loop is not None else _names(self.loads)

    @property
    def by_group(self) -> bool:
        """Tell loads that complete in groups, without barriers."""
        return self.site.by_group

    @property
    def loop(self) -> ir.For | None:
        """The loop that issues the loads."""
        return self.site.loops[-1] if self.site.loops else None

    @property
    def loops(self) -> list[ir.For]:
        """The loops whose iterations are counted, the outermost first."""
        return list(self.site.loops)

    @property
    def around(self) -> tuple[ir.For, ...]:
        """The loops over `loop`."""
        return self.site.loops[:-1]

    @property
    def parts(self) -> tuple[ir.Stmt, ...]:
        """The statements of the loop's body, of which the loads are some."""
        return self.site.parts

    @property
    def loads(self) -> tuple[ir.SBlockRealize, ...]:
        """The loads that an iteration issues, in order."""
        return self.site.loads

    @property
    def tiles(self) -> tuple[ir.Var, ...]:
        """Tiles that the loads write."""
        return tuple(load.block.writes[0].source for load in self.loads)

    @property
    def others(self) -> tuple[ir.Stmt, ...]:
        """The statements that are no loads, in order."""
        return tuple(part for part in self.parts if not is_load(part))

    @property
    def tx_bytes(self) -> int:
        """Bytes that one iteration's loads bring, whole boxes."""
        return sum(slot_bytes(load.block) for load in self.loads)

    @property
    def bytes_in_parts(self) -> int:
        """Bytes of them that threads bring, each a part, and arrive for: no barrier counts them."""
        if not self.site.is_handed_over:
            return 0
        return sum(slot_bytes(x.block) for x in self.loads if completes_by_group(x.block))

    @property
    def look_ahead(self) -> int:
        """Trips that loads run ahead: one slot is in use, and some may be read by stores."""
        return self.num_slots - 1 - self.stores_in_flight

    @property
    def slots(self) -> tuple[SharedArray, ...]:
        """Bytes that one slot takes of each tile, which several loads may fill."""
        tiles = [x for n, x in enumerate(self.tiles) if not any(map(x.same_as, self.tiles[:n]))]
        return tuple(map(shared_array, tiles))

    @property
    def memory(self) -> SharedMemory:
        """Shared memory of the slots and their barriers."""
        return ring_memory(self.slots, self.num_slots, not self.by_group)

    @property
    def smem_bytes(self) -> int:
        """Its size, alignment included."""
        return self.memory.num_bytes


@dataclass(frozen=True)
class KernelPlan:
    """The threads of a kernel, and the rings that are filled and emptied in what they run."""

    threads: ir.KernelThreads
    pipelines: tuple[PipelinePlan, ...]
    store_rings: tuple[StoreRing, ...]
    is_persistent: bool  # a thread block computes several output tiles, one after another


def plan_pipelines(kernel: Any, processor: Processor) -> tuple[KernelPlan, ...]:
    """Plan what has no slots yet in a kernel; reasons to refuse are raised here."""
    loads = [x for x in find_loads(kernel) if CHANNEL not in x.block.annotations]
    threads = ir.threads_of(kernel)
    has_axis = threads.axis is not None
    first = 1 + max(
        [int(x.annotations[key]) for key in RINGS for x in ir.find_blocks(kernel, key)], default=-1
    )
    persistent = ir.has_any(kernel, ir.For, lambda x: PERSISTENT in x.annotations)
    if not has_axis and processor.has_threads:
        _check_has_threads(kernel, loads)
    if not loads:
        rings = plan_store_rings(kernel, threads.body, first) if has_axis else ()
        if not rings:
            return ()
        _check_counts(kernel, (), rings)
        check_memory(rings, (), processor)
        return (KernelPlan(threads, (), rings, persistent),)
    body = threads.body
    inside = [tag for tag in ir.thread_axes(body) if tag.startswith("threadIdx")]
    if inside:
        raise cannot_lower(
            _names(loads),
            f"threads on {', '.join(inside)} next to threadIdx.x",
            "threadIdx.x alone",
            "fuse the loops, and bind the fused one",
        )
    if not persistent:
        _check_grid(kernel)
    sites = find_sites(kernel, threads, processor)
    plans = tuple(
        _plan_site(first + n, site, body, persistent, processor) for n, site in enumerate(sites)
    )
    rings = plan_store_rings(kernel, body, first + len(plans))
    _check_counts(kernel, plans, rings)
    for plan in plans:
        _check_readers(body, plan)
    _check_annotated(body, plans)
    check_memory(rings, tuple(x.memory.arrays for x in plans), processor)
    check_queue([(x.block, p.num_slots) for p in plans for x in p.loads], processor)
    return (KernelPlan(threads, plans, rings, persistent),)


def _check_has_threads(kernel: Any, loads: Any) -> None:
    """Refuse loads and stores where no threads would read or fill their tiles, and wait."""
    if loads:
        raise cannot_lower(
            _names(loads),
            "no loop bound to threadIdx.x in their kernel",
            "threads that read what they bring",
            f"bind the loops of a plain statement, schedule a product (tvm_hopper.schedule.wgmma), "
            f"or remove {ASYNC_COPY}",
        )
    if stores := ir.find_blocks(kernel, ASYNC_OP):
        raise cannot_lower(
            f"stores {', '.join(x.name_hint for x in stores)}",
            "no loop bound to threadIdx.x in their kernel",
            "threads that fill the tiles that leave",
            f"bind the loops of what fills them, or remove {ASYNC_COPY}",
        )


def _names(loads: Any) -> str:
    return f"copies {', '.join(load.block.name_hint for load in loads)}"


def _check_grid(kernel: Any) -> None:
    """Refuse more rows of tiles than a grid has in y and z; persistent kernels have none there."""
    for tag in ("blockIdx.y", "blockIdx.z"):
        axis = ir.thread_axes(kernel).get(tag)
        if axis is None:
            continue
        extent = ir.static_int(axis.extent)
        if extent is not None and extent > MAX_GRID_YZ:
            raise cannot_lower(
                f"loop {axis.loop_var.name}, {tag}",
                f"{extent} thread blocks",
                f"at most {MAX_GRID_YZ}",
                f"let thread blocks share the tiles ({PERSISTENT})",
            )


def _check_annotated(body: ir.Stmt, plans: tuple[PipelinePlan, ...]) -> None:
    """Refuse a pipeline whose loads are in a loop inside of it."""
    planned = [plan.loop for plan in plans if plan.loop is not None]
    for loop in ir.find_all(body, ir.For, lambda x: STAGE in x.annotations):
        if any(loop.same_as(x) for x in planned):
            continue
        inner = [x for x in planned if ir.uses_node(loop.body, x)]
        if inner:
            raise cannot_lower(
                f"loop {loop.loop_var.name}",
                f"loop {inner[0].loop_var.name} inside it",
                "one loop over k around the copies and what reads them",
                "compute_at the copies at the innermost loop over k, or fuse the loops",
            )


def _check_counts(
    kernel: ir.For, plans: tuple[PipelinePlan, ...], rings: tuple[StoreRing, ...]
) -> None:
    for loops in (*(x.site.loops for x in plans), *(x.loops for x in rings)):
        check_even(kernel, loops)


def _check_readers(body: ir.Stmt, plan: PipelinePlan) -> None:
    """Refuse uses of a slot after the ring has advanced, if it has several slots."""
    if plan.num_slots == 1:
        return
    first = next(n for n, part in enumerate(plan.parts) if part.same_as(plan.loads[0]))
    behind = [part for part in plan.parts[first:] if not is_open(part)]
    stages = _stages(plan)
    first_stage = next(s for s, x in zip(stages, plan.parts, strict=True) if x is plan.loads[0])
    handed_over = plan.site.is_handed_over
    kind = kind_of(plan.loads[0], plan.parts, first_stage, handed_over)
    for load, tile in zip(plan.loads, plan.tiles, strict=True):
        found = ir.accesses([load, *behind], tile)
        alike = [
            part
            for part, stage in zip(plan.parts, stages, strict=True)
            if is_open(part) and kind_of(part, plan.parts, stage, handed_over) == kind
        ]
        others = [x for x in alike if not any(x.same_as(y) for y in plan.loads)]
        if others or len(found) != len(ir.accesses(body, tile)):
            raise cannot_lower(
                f"{plan.where}, copy {load.block.name_hint}",
                f"copies that stand apart in it: {_names(others)}"
                if others
                else f"uses of {tile.name} that do not follow the copy in the loop",
                f"copies before all that touches their tiles, with {plan.num_slots} stages",
                f"move them there, or remove {STAGE}: with one slot order is the program's",
            )


def _plan_site(
    number: int, site: Site, body: ir.Stmt, is_persistent: bool, processor: Processor
) -> PipelinePlan:
    for loop in site.loops:
        inner = loop.same_as(site.loops[-1])
        kinds = [ir.ForKind.SERIAL] if inner else [ir.ForKind.SERIAL, ir.ForKind.UNROLLED]
        if loop.kind not in kinds or (inner and not ir.is_const(loop.min, 0)):
            raise cannot_lower(
                f"loop {loop.loop_var.name}",
                f"a loop of kind {ir.ForKind(loop.kind).name.lower()} from {loop.min}",
                "a serial loop from 0",
            )
    num_slots = _num_slots(site.loops[-1], site) if site.loops else 1
    tiles = tuple(load.block.writes[0].source for load in site.loads)
    in_flight = stores_in_flight(body, tiles, site.loops, is_persistent, num_slots)
    return PipelinePlan(number, site, num_slots, in_flight, processor)


def _stages(plan: PipelinePlan) -> list[int]:
    """Return the stage of each statement of a loop, 0 where it is not pipelined."""
    found = plan.loop.annotations.get(STAGE) if plan.loop is not None else None
    return [int(x) for x in found] if found is not None else [0] * len(plan.parts)


def _num_slots(loop: ir.For, site: Site) -> int:
    """Read the number of slots off TVM's pipeline annotations; 1 without them."""
    if STAGE in loop.annotations:
        return read_stages(loop, site.parts).slots_of_loads(site.loads)
    for key in (ORDER, ASYNC_STAGES):
        if key in loop.annotations:
            raise cannot_lower(f"loop {loop.loop_var.name}", f"{key} without {STAGE}", "both")
    return 1


def pipelined_loops(root: Any) -> list[ir.For]:
    """Return the loops whose loads have a channel, outermost first."""
    return ir.find_all(root, ir.For, lambda loop: NUM_SLOTS in loop.annotations)
