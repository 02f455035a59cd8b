"""Decide the ring of a pipelined loop: stages, barriers, roles, registers."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower, found_and_need
from tvm_hopper.facts import arrivals, registers
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.hopper import (
    MAX_GRID_YZ,
    MBARRIER_MAX_TX_BYTES,
    SMEM_PER_BLOCK,
    WARP_GROUP_THREADS,
)
from tvm_hopper.keys import (
    ASYNC_COPY,
    ASYNC_OP,
    CONSUMERS,
    PERSISTENT,
    REGISTERS,
    WGMMA,
    WGMMA_PENDING,
)

STAGE = "software_pipeline_stage"
ORDER = "software_pipeline_order"
ASYNC_STAGES = "software_pipeline_async_stages"
MBARRIER_BYTES = 8


@dataclass(frozen=True)
class RingPlan:
    """One loop whose asynchronous loads run `stages - 1` iterations ahead of what they feed.

    `loads` and `computes` are the statements of the loop's body, `before` and `after` those of the
    kernel around it. `pending` iterations may still be multiplying when the next one starts.
    """

    axis: ir.For  # the loop bound to threadIdx.x, over the consumers' threads
    kernel: ir.SBlock
    loop: ir.For
    before: tuple[ir.Stmt, ...]
    loads: tuple[ir.Stmt, ...]
    computes: tuple[ir.Stmt, ...]
    after: tuple[ir.Stmt, ...]
    tiles: tuple[ir.Var, ...]
    stages: int
    consumers: int
    pending: int
    producer_registers: int
    consumer_registers: int
    persistent: bool = False  # a thread block computes several output tiles, one after another

    def __post_init__(self) -> None:
        where = self.where
        if self.stages < 1:
            raise cannot_lower(where, f"{self.stages} stages", "at least 1")
        if not 0 <= self.pending < self.stages:
            raise cannot_lower(
                where,
                f"{WGMMA_PENDING} = {self.pending} with {self.stages} stages",
                f"at most {self.stages - 1}: a slot is released {self.pending} iterations late, "
                "and the producer would wait for it for ever",
                "take more stages or fewer pending groups",
            )
        if broken := registers.check(
            self.producer_registers, self.consumer_registers, self.consumers
        ):
            usual = registers.DEFAULT_SPLIT.get(self.consumers)
            fix = f"take {list(usual)}, or leave the annotation out" if usual else ""
            raise cannot_lower(f"{where}, {REGISTERS}", *found_and_need(broken), fix)
        if self.tx_bytes > MBARRIER_MAX_TX_BYTES:
            raise cannot_lower(
                where,
                f"{self.tx_bytes} bytes a stage",
                f"at most {MBARRIER_MAX_TX_BYTES}, what an mbarrier can count",
            )
        if self.smem_bytes > SMEM_PER_BLOCK:
            fits = (SMEM_PER_BLOCK - 1024) // (self.tx_bytes + 2 * MBARRIER_BYTES)
            sizes = " + ".join(f"{t.name} {self.stages} x {tile_bytes(t)}" for t in self.tiles)
            raise cannot_lower(
                where,
                f"{sizes} + barriers {2 * self.stages * MBARRIER_BYTES} = {self.smem_bytes} bytes "
                "of shared memory",
                f"at most {SMEM_PER_BLOCK}",
                f"take {fits} stages" if fits else "choose a smaller tile",
            )

    @property
    def where(self) -> str:
        """Name the loop in an error message."""
        return f"loop {self.loop.loop_var.name}"

    @property
    def tx_bytes(self) -> int:
        """Bytes that one stage's copies complete on its `full` barrier, whole boxes."""
        return sum(map(tile_bytes, self.tiles))

    @property
    def smem_bytes(self) -> int:
        """Shared memory of the ring and its barriers."""
        return self.stages * (self.tx_bytes + 2 * MBARRIER_BYTES)

    @property
    def full_count(self) -> int:
        """Arrivals of a `full` barrier."""
        return arrivals.full_arrive_count()

    @property
    def empty_count(self) -> int:
        """Arrivals of an `empty` barrier."""
        return arrivals.empty_arrive_count(self.consumers)

    @property
    def threads(self) -> int:
        """Threads of a block, the producer's warp group included."""
        return registers.threads(self.consumers)


def tile_bytes(tile: ir.Var) -> int:
    """Return the bytes of one stage's tile."""
    return prod(int(extent) for extent in tile.shape) * dtype_bytes(ir.dtype_of(tile))


def plan_ring(kernel: ir.For, default_pending: int = 0) -> tuple[RingPlan, ...]:
    """Plan the pipelined loop of a kernel; every reason to refuse is raised here.

    `default_pending` is the option's value, which gives way where the ring has too few stages
    for it; an annotation does not.
    """
    loads = [b for b in ir.find_blocks(kernel, ASYNC_OP) if _op(b) == "tma_load"]
    if not loads:
        return ()
    axis = ir.thread_axes(kernel).get("threadIdx.x")
    names = ", ".join(block.name_hint for block in loads)
    products = [b for b in ir.find_blocks(kernel, ASYNC_OP) if _op(b) == "wgmma"]
    if axis is None or not products:
        raise cannot_lower(
            f"copies {names}",
            f"no block with {WGMMA} in their kernel",
            f"one that reads what they bring: only kernels whose copies feed a {WGMMA} block can "
            "be lowered so far",
            f"take {ASYNC_COPY} away, or schedule the product with it (tvm_hopper.schedule.wgmma)",
        )
    if not isinstance(axis.body, ir.SBlockRealize):
        inner = axis.body.loop_var.name if isinstance(axis.body, ir.For) else "a statement"
        raise cannot_lower(
            f"copies {names}",
            f"{inner} between the thread axes and the accumulator",
            "every loop around the accumulator bound to blockIdx or threadIdx.y",
            "bind it (warp groups to threadIdx.y, output tiles to blockIdx)",
        )
    block = axis.body.block
    parts = ir.statements(block.body)
    holders = [part for part in parts if any(ir.uses_node(part, load) for load in loads)]
    if len(holders) != 1 or not isinstance(holders[0], ir.For):
        raise cannot_lower(
            f"copies {names}",
            f"{len(holders)} statements that hold them",
            "one loop over k around all copies and the multiplication",
            "compute_at the copies at the k loop",
        )
    loop = holders[0]
    at = parts.index(loop)
    persistent = bool(ir.find_all(kernel, ir.For, lambda x: PERSISTENT in x.annotations))
    if persistent:
        _check_even(kernel, loop)
    else:
        _check_grid(kernel)
    around = (tuple(parts[:at]), tuple(parts[at + 1 :]))
    return (_plan_loop(axis, block, loop, around, default_pending, persistent),)


def _check_grid(kernel: ir.For) -> None:
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


def _check_even(kernel: ir.For, loop: ir.For) -> None:
    """Refuse tiles of different depth: slots are counted through all of them."""
    axes = [axis.loop_var for axis in ir.thread_axes(kernel).values()]
    if ir.find_all(loop.extent, ir.TensorLoad) or ir.depends_on(loop.extent, axes):
        raise cannot_lower(
            f"loop {loop.loop_var.name}, {PERSISTENT}",
            f"{loop.extent} iterations, which differ from tile to tile",
            "the same number for each output tile",
            "take persistent away",
        )


def _op(block: ir.SBlock) -> str:
    return str(block.annotations[ASYNC_OP])


def _plan_loop(
    axis: ir.For,
    kernel: ir.SBlock,
    loop: ir.For,
    around: tuple[tuple[ir.Stmt, ...], tuple[ir.Stmt, ...]],
    default_pending: int,
    persistent: bool,
) -> RingPlan:
    where = f"loop {loop.loop_var.name}"
    if loop.kind != ir.ForKind.SERIAL or not ir.is_const(loop.min, 0):
        raise cannot_lower(
            where,
            f"a loop of kind {ir.ForKind(loop.kind).name.lower()} from {loop.min}",
            "a serial loop from 0",
        )
    if not isinstance(loop.body, ir.SBlockRealize):
        inner = (
            f"loop {loop.body.loop_var.name} inside it"
            if isinstance(loop.body, ir.For)
            else f"a {type(loop.body).__name__} without a block of tiles"
        )
        raise cannot_lower(
            where,
            inner,
            "one loop over k around the copies and the multiplication",
            "compute_at the copies at the innermost loop over k, or fuse the loops",
        )
    body = loop.body.block
    parts = ir.statements(body.body)
    loads = [part for part in parts if _is_load(part)]
    computes = [part for part in parts if not _is_load(part)]
    for part in computes:
        if not any(_op(b) == "wgmma" for b in ir.find_blocks(part, ASYNC_OP)):
            name = next((b.name_hint for b in ir.find_all(part, ir.SBlock)), type(part).__name__)
            raise cannot_lower(
                where,
                f"statement {name}, neither an asynchronous copy nor a multiplication",
                "copies and multiplications alone in a pipelined loop",
                "annotate the copy with async_copy, or move the statement out of the loop",
            )
    tiles = [t for t in body.alloc_buffers if ir.is_shared(t)]
    consumers = int(axis.extent) // WARP_GROUP_THREADS
    asked = loop.annotations.get(CONSUMERS)
    if asked is not None and int(asked) != consumers:
        raise cannot_lower(
            f"{where}, {CONSUMERS}",
            f"{int(asked)} with {consumers} warp groups on threadIdx.y",
            "the same number",
            "split the tile by the number of consumers and bind that loop",
        )
    if REGISTERS in loop.annotations:
        producer, consumer = (int(x) for x in loop.annotations[REGISTERS])
    else:
        try:
            producer, consumer = registers.default_split(consumers)
        except ValueError as error:
            raise cannot_lower(where, f"{consumers} consumer warp groups", "1, 2 or 3") from error
    stages = _stages(loop, parts, where)
    if WGMMA_PENDING in loop.annotations:
        pending = int(loop.annotations[WGMMA_PENDING])
    else:
        pending = min(default_pending, stages - 1)
    return RingPlan(
        axis,
        kernel,
        loop,
        around[0],
        tuple(loads),
        tuple(computes),
        around[1],
        tuple(tiles),
        stages,
        consumers,
        pending,
        producer,
        consumer,
        persistent,
    )


def _is_load(part: ir.Stmt) -> bool:
    return isinstance(part, ir.SBlockRealize) and part.block.annotations.get(ASYNC_OP) == "tma_load"


def _stages(loop: ir.For, parts: list[ir.Stmt], where: str) -> int:
    """Read the number of ring slots off TVM's pipeline annotations; 1 without them."""
    if STAGE not in loop.annotations:
        for key in (ORDER, ASYNC_STAGES):
            if key in loop.annotations:
                raise cannot_lower(where, f"{key} without {STAGE}", "both")
        return 1
    stage = [int(x) for x in loop.annotations[STAGE]]
    order = [int(x) for x in loop.annotations.get(ORDER, range(len(parts)))]
    names = [b.name_hint for part in parts for b in ir.find_blocks(part, ASYNC_OP)]
    if len(stage) != len(parts) or sorted(order) != list(range(len(parts))):
        raise cannot_lower(
            where,
            f"{STAGE} = {stage} and {ORDER} = {order}",
            f"one entry for each of the {len(parts)} statements {names}, and a permutation",
        )
    loads = {s for s, part in zip(stage, parts, strict=True) if _is_load(part)}
    computes = {s for s, part in zip(stage, parts, strict=True) if not _is_load(part)}
    if len(loads) != 1 or len(computes) != 1 or min(computes) < min(loads) or min(loads) < 0:
        raise cannot_lower(
            where,
            f"{STAGE} = {stage}",
            "one stage for all copies and one, not earlier, for what reads them",
            f"e.g. {[0] * len(loads) + [3]} for a ring of four slots",
        )
    asynchronous = [int(x) for x in loop.annotations.get(ASYNC_STAGES, [])]
    if min(loads) not in asynchronous and max(computes) > min(loads):
        raise cannot_lower(
            where,
            f"{ASYNC_STAGES} = {asynchronous}",
            f"stage {min(loads)}, where the asynchronous copies are, in it",
        )
    return max(computes) - min(loads) + 1
