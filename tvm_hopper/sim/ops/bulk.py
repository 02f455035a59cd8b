"""Bulk copies: the transfer of known bytes, 1-D copies, and commit groups.

An operation is checked when it is issued (its bytes belong to it from then on) and acts later, in
steps that the policy orders: source read, destination write and completion in pieces.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from tvm_hopper.sim.launch.tma import landed_bytes
from tvm_hopper.sim.machine.lanes import LANES
from tvm_hopper.sim.machine.machine import PendingOp
from tvm_hopper.sim.machine.memory import POISON, Region, shared_base, shared_offset
from tvm_hopper.sim.ops.mbarrier import Wait
from tvm_hopper.sim.ops.reductions import reduced
from tvm_hopper.sim.races.shadow import ASYNC
from tvm_hopper.sim.tir import DTYPE_OF, numpy_dtype

BYTES = np.dtype(np.uint8)


@dataclass
class Groups:
    """Commit groups of one thread: uncommitted and committed copies."""

    open: list[PendingOp] = field(default_factory=list)
    committed: list[list[PendingOp]] = field(default_factory=list)
    ever_committed: bool = False
    number: int = 0  # number of the open group


@dataclass(frozen=True)
class BulkCopy:
    """The elements that one lane copies by one instruction.

    - `region`, `offsets` (Region, numpy.ndarray): memory and byte of each element: of a load the
      source, of a store the destination.
    - `landing` (numpy.ndarray): place of each element on the other side, in elements from an
      address of shared memory.
    - `inside` (numpy.ndarray or None): which elements the tensor has; None: all.
    - `fill` (number): data that a load writes for the others.
    - `reduce`: operation of a reduction, or empty.
    """

    site: int
    lane: int
    kind: str
    region: Any
    offsets: np.ndarray
    landing: np.ndarray
    dtype: np.dtype = BYTES
    inside: np.ndarray | None = None
    fill: Any = 0
    reduce: str = ""

    @property
    def num_bytes(self) -> int:
        """Bytes of all elements."""
        return len(self.landing) * self.dtype.itemsize

    @property
    def reached(self) -> np.ndarray:
        """Offsets of the elements that the tensor has."""
        return self.offsets if self.inside is None else self.offsets[self.inside]


def active(mask: Any) -> Any:
    """Return the numbers of the active lanes."""
    return LANES if mask is None else np.nonzero(mask)[0]


def lane_value(value: Any, lane: int) -> int:
    """Return one lane's value as an int."""
    return int(value[lane]) if isinstance(value, np.ndarray) and value.ndim else int(value)


def in_pieces(count: int, pieces: int) -> list[slice]:
    """Divide `count` elements into consecutive parts."""
    edges = [count * i // pieces for i in range(pieces + 1)]
    return [slice(*ends) for ends in itertools.pairwise(edges)]


class BulkOps:
    """The bulk copies of one warp."""

    def init_async(self) -> None:
        """Begin with no copy in flight."""
        self.bulk: dict[int, Groups] = {}

    # -- contiguous bytes -------------------------------------------------------------------------

    def op_cp_async_bulk_g2s(
        self,
        site: int,
        mask: Any,
        mods: Any,
        dst_mem: Any,
        src_mem: Any,
        size: Any,
        mbar: Any,
        cta_mask: Any = None,
        cache_policy: Any = None,
    ) -> None:
        """Load contiguous bytes."""
        for lane in active(mask):
            copy = self._contiguous(site, lane, mods, "load", src_mem, size, dst_mem)
            if copy is not None:
                masks = None if cta_mask is None else lane_value(cta_mask, lane)
                self._load(copy, lane_value(dst_mem, lane), lane_value(mbar, lane), masks)

    def op_cp_async_bulk_s2c(
        self, site: int, mask: Any, mods: Any, dst_mem: Any, src_mem: Any, size: Any, mbar: Any
    ) -> None:
        """Copy (or reduce) contiguous bytes into another CTA's shared memory, and signal there."""
        for lane in active(mask):
            copy = self._contiguous(site, lane, mods, "copy", src_mem, size, dst_mem)
            if copy is not None:
                op = self._load_into(copy, lane_value(dst_mem, lane), lane_value(mbar, lane))
                self.machine.copies_out += [] if op is None else [(self.cta, op)]

    def op_cp_async_bulk_s2g(
        self,
        site: int,
        mask: Any,
        mods: Any,
        dst_mem: Any,
        src_mem: Any,
        size: Any,
        cache_policy: Any = None,
        byte_mask: Any = None,
    ) -> None:
        """Store (or reduce) contiguous bytes."""
        if byte_mask is not None:
            self.machine.incomplete("cp.async.bulk with cp_mask", site)
            return
        for lane in active(mask):
            copy = self._contiguous(site, lane, mods, "store", dst_mem, size, src_mem)
            if copy is not None:
                self._store(copy, lane_value(src_mem, lane))

    def _contiguous(
        self, site: int, lane: int, mods: Any, noun: str, memory: Any, size: Any, other: Any
    ) -> BulkCopy | None:
        """Return the copy of contiguous bytes at an address; None if they are in no memory."""
        reduce, count = mods.get("redop", ""), lane_value(size, lane)
        dtype = numpy_dtype(DTYPE_OF[mods["type"]]) if reduce else BYTES
        region, offset = self.region_at(lane_value(memory, lane))
        if region is not None and (
            count % 16 or (region.base + offset) % 16 or lane_value(other, lane) % 16
        ):
            text = f"bulk size {count} or an address is not a multiple of 16"
            self.report("MISALIGNED", site, text, buffer=region.name)
        verb = "writes" if noun == "store" else "reads"
        if not self.inside(site, region, np.asarray([offset]), count, f"bulk copy {verb}"):
            return None
        landing = np.arange(count // dtype.itemsize)
        offsets = offset + landing * dtype.itemsize
        kind = f"bulk reduce ({reduce})" if reduce else f"bulk {noun}"
        return BulkCopy(site, int(lane), kind, region, offsets, landing, dtype, reduce=reduce)

    # -- into shared memory -----------------------------------------------------------------------

    def _in_shared(self, site: int, region: Region | None, start: int, end: int, verb: str) -> bool:
        """Check that the bytes of a copy's side in shared memory lie there."""
        if region is not None and not region.shared:
            text = f"{verb} {region.name}, which is not in shared memory"
            self.report("OOB_ACCESS", site, text, buffer=region.name)
            return False
        return self.inside(site, region, start, end - start, verb)

    def _load(
        self, copy: BulkCopy, target: int, barrier_address: int, cta_mask: int | None
    ) -> list[PendingOp]:
        """Copy into one CTA, or into those of a mask; return the operations in flight."""
        places = [(target, barrier_address)]
        if cta_mask is not None:
            offsets = shared_offset(target), shared_offset(barrier_address)
            places = []
            for rank in (r for r in range(16) if cta_mask >> r & 1):
                if rank < len(self.cta.cluster):
                    places.append((shared_base(rank) + offsets[0], shared_base(rank) + offsets[1]))
                else:
                    self.report("OOB_ACCESS", copy.site, f"{copy.kind} into rank {rank}")
        found = [self._load_into(copy, *place) for place in places]
        return [op for op in found if op is not None]

    def _load_into(self, copy: BulkCopy, target: int, barrier_address: int) -> PendingOp | None:
        machine, site, size = self.machine, copy.site, copy.dtype.itemsize
        dst, start = self.region_at(target)
        lanes, read = self.bit_of(copy.lane), copy.reached
        barrier = self.barrier_at(site, barrier_address, lanes)
        touched, unit, end = landed_bytes(start, copy.landing, size)
        if not self._in_shared(site, dst, start, end, f"{copy.kind} writes") or barrier is None:
            return None
        if len(read) and not self.inside(site, copy.region, read, size, f"{copy.kind} reads"):
            return None
        op = PendingOp(copy.kind, self, site)
        op.phase, op.addresses = barrier.phase, (start,)
        self.completes_on(op, barrier, copy.num_bytes)
        if dst.live[touched].any():
            name, where = dst.name_of(start)
            text = f"{copy.kind} over a live mbarrier"
            self.report(
                "OOB_ACCESS", site, text, buffer=name, byte_range=(where, where + copy.num_bytes)
            )
        if machine.log is not None:
            self.reads_whole(copy.region, site, lanes, ASYNC)
            if copy.region.shadow is not None:
                source_read = self.access(site, False, ASYNC, op.read_event, op, lanes=lanes)
                self.check(copy.region, read, size, source_read)
            rmw = bool(copy.reduce)
            written = self.access(site, True, ASYNC, op.write_event, op, rmw, lanes)
            self.check(dst, touched, unit, written)
        if machine.mode != "eager" and machine.values and not copy.reduce:
            for byte in range(unit):
                dst.data[touched if unit == 1 else touched + byte] = POISON
        self._load_steps(op, copy, dst, start)
        machine.submit(op)
        return op

    def completes_on(self, op: PendingOp, barrier: Any, num_bytes: int) -> None:
        """Let an operation complete some bytes on an mbarrier."""
        op.barrier, op.num_bytes = barrier, num_bytes
        self.machine.loads.append(op)
        barrier.carry()
        self.fills(barrier)
        barrier.outstanding.append(op)
        if barrier.cta is not self.cta:
            self.machine.remote_ops.append((barrier.cta, self, 0, op.write_event, op.site, self.it))

    def _load_steps(self, op: PendingOp, copy: BulkCopy, dst: Region, start: int) -> None:
        region, inside, dtype, barrier = copy.region, copy.inside, copy.dtype, op.barrier
        holder: list[np.ndarray] = []
        size, with_values = dtype.itemsize, self.machine.values

        def read() -> None:
            op.read_done = True
            if not with_values:
                return
            values = self.gather(region, copy.reached, dtype, 1).ravel()
            if inside is not None:
                values, found = np.full(len(inside), copy.fill).astype(dtype), values
                values[inside] = found
            holder.append(values)

        def write(part: slice, last: bool) -> None:
            if with_values:
                where, values = start + copy.landing[part] * size, holder[0][part, None]
                if copy.reduce:
                    values = reduced(copy.reduce, self.gather(dst, where, dtype, 1), values)
                self.scatter(dst, where, values, dtype, 1)
            barrier.deliver(op, (part.stop - part.start) * size, last)
            op.warp.settle(barrier)

        op.steps.append(read)
        parts = in_pieces(len(copy.landing), self.machine.chunks if copy.num_bytes >= 32 else 1)
        op.steps.extend(partial(write, part, part is parts[-1]) for part in parts)

    # -- shared to global -------------------------------------------------------------------------

    def _store(self, copy: BulkCopy, source: int) -> PendingOp | None:
        machine, site, size = self.machine, copy.site, copy.dtype.itemsize
        region, offsets, landing = copy.region, copy.reached, copy.landing
        src, start = self.region_at(source)
        touched, unit, end = landed_bytes(start, landing, size)
        if not self._in_shared(site, src, start, end, f"{copy.kind} reads"):
            return None
        if copy.inside is not None:
            landing = landing[copy.inside]
            touched, unit = start + landing * size, size
        if len(offsets) and not self.inside(site, region, offsets, size, f"{copy.kind} writes"):
            return None
        region.begin_store()
        op = PendingOp(copy.kind, self, site)
        op.num_bytes = copy.num_bytes
        if machine.log is not None:
            lanes, rmw = self.bit_of(copy.lane), bool(copy.reduce)
            source_read = self.access(site, False, ASYNC, op.read_event, op, lanes=lanes)
            self.check(src, touched, unit, source_read)
            written = self.access(site, True, ASYNC, op.write_event, op, rmw, lanes)
            self.check(region, offsets, size, written)
        holder: list[np.ndarray] = []

        def read() -> None:
            op.read_done = True
            if machine.values:
                holder.append(self.gather(src, start + landing * size, copy.dtype, 1))

        def write() -> None:
            if not machine.values:
                return
            values = holder[0]
            if copy.reduce:
                values = reduced(copy.reduce, self.gather(region, offsets, copy.dtype, 1), values)
            self.scatter(region, offsets, values, copy.dtype, 1)

        op.steps.extend((read, write))
        groups = self.bulk.setdefault(copy.lane, Groups())
        groups.open.append(op)
        op.addresses, op.group = (start,), groups.number
        machine.stores.append(op)
        machine.submit(op)
        return op

    # -- bulk groups ------------------------------------------------------------------------------

    def op_cp_async_bulk_commit_group(self, site: int, mask: Any, mods: Any) -> None:
        """Close each thread's open group."""
        for lane in active(mask):
            groups = self.bulk.setdefault(int(lane), Groups())
            groups.ever_committed = groups.ever_committed or bool(groups.open)
            groups.committed.append(groups.open)
            groups.open = []
            groups.number += 1

    def op_cp_async_bulk_wait_group(self, site: int, mask: Any, mods: Any, group: Any) -> Wait:
        """Wait for all but the newest groups of each thread; `.read`: only for their sources."""
        self.site = site
        only_read, pending = mods.get("read") == "read", self.check_groups(site, group)
        for lane in active(mask):
            groups = self.bulk.setdefault(int(lane), Groups())
            self.machine.bulk_waits.setdefault(site, {})[self, int(lane)] = self.it
            covered = groups.committed[: max(len(groups.committed) - pending, 0)]
            for ops in covered:
                for op in ops:
                    while not (op.read_done if only_read else op.done):
                        self.waiting = f"waits for a {op.kind} (wait_group {pending})"
                        yield op
                    self._observe_store(op, only_read, self.bit_of(int(lane)))
            if not only_read:
                groups.committed = groups.committed[len(covered) :]

    def _observe_store(self, op: PendingOp, only_read: bool, lanes: int) -> None:
        clock = self.bundle_of(lanes)
        clock.join_events(1 << op.read_event)
        if not only_read:  # written, and visible to this thread: others' TMA needs a proxy fence
            clock.generic.events |= 1 << op.write_event
            self.own_stores |= 1 << op.write_event
