"""Bulk copies: what each does once its bytes are known; 1-D copies; commit groups.

An operation is checked when it is issued (its bytes belong to it from then on) and acts later, in
steps that the policy orders: source read, destination write and completion in pieces.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from tvm_hopper.sim.launch.tma import landed_bytes
from tvm_hopper.sim.machine.lanes import LANES
from tvm_hopper.sim.machine.machine import PendingOp
from tvm_hopper.sim.machine.memory import POISON, Region, shared_base, shared_offset
from tvm_hopper.sim.ops.mbarrier import Wait
from tvm_hopper.sim.ops.ptx_types import DTYPE_OF
from tvm_hopper.sim.ops.reductions import reduced
from tvm_hopper.sim.races.shadow import ASYNC
from tvm_hopper.sim.tir import numpy_dtype


@dataclass
class Groups:
    """Commit groups of one thread: what is not committed, and what is."""

    open: list[PendingOp] = field(default_factory=list)
    committed: list[list[PendingOp]] = field(default_factory=list)
    ever_committed: bool = False
    number: int = 0  # of the open group, among all so far


def active(mask: Any) -> Any:
    """Return the numbers of the active lanes."""
    return LANES if mask is None else np.nonzero(mask)[0]


def lane_value(value: Any, lane: int) -> int:
    """Return one lane's value as an int."""
    return int(value[lane]) if isinstance(value, np.ndarray) and value.ndim else int(value)


class BulkOps:
    """The bulk copies of one warp."""

    def init_async(self) -> None:
        """Begin with no copy in flight."""
        self.bulk: dict[int, Groups] = {}

    # -- global to shared -------------------------------------------------------------------------

    def op_cp_async_bulk_g2s_cluster(
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
            count, target = lane_value(size, lane), lane_value(dst_mem, lane)
            region, offset = self.region_at(lane_value(src_mem, lane))
            if not self._bulk_legal(site, region, offset, count, target, "reads"):
                continue
            source = (region, np.arange(offset, offset + count), None, np.dtype(np.uint8), 0)
            masks = None if cta_mask is None else lane_value(cta_mask, lane)
            self._load(
                *(site, lane, "bulk load", source),
                *(np.arange(count), target, lane_value(mbar, lane), masks),
            )

    op_cp_async_bulk_g2s_cta = op_cp_async_bulk_g2s_cluster
    op_cp_async_bulk_g2s_cluster_multicast16 = op_cp_async_bulk_g2s_cluster

    def op_cp_async_bulk_s2c(
        self, site: int, mask: Any, mods: Any, dst_mem: Any, src_mem: Any, size: Any, mbar: Any
    ) -> None:
        """Copy (or reduce) contiguous bytes into another CTA's shared memory, and signal there."""
        reduce = mods.get("redop", "")
        dtype = numpy_dtype(DTYPE_OF[mods["type"]]) if reduce else np.dtype(np.uint8)
        kind = f"bulk reduce ({reduce})" if reduce else "bulk copy"
        for lane in active(mask):
            count, target = lane_value(size, lane), lane_value(dst_mem, lane)
            region, offset = self.region_at(lane_value(src_mem, lane))
            if not self._bulk_legal(site, region, offset, count, target, "reads"):
                continue
            elements = np.arange(count // dtype.itemsize)
            source = (region, offset + elements * dtype.itemsize, None, dtype, 0)
            op = self._load_into(
                site, lane, kind, source, elements, target, lane_value(mbar, lane), reduce
            )
            if op is not None:
                self.machine.copies_out.append((self.cta, op))

    op_cp_reduce_async_bulk_s2c = op_cp_async_bulk_s2c

    def _bulk_legal(
        self, site: int, region: Region | None, offset: int, count: int, other: int, verb: str
    ) -> bool:
        if region is not None and (count % 16 or (region.base + offset) % 16 or other % 16):
            self.machine.at(
                "MISALIGNED",
                self,
                site,
                f"bulk size {count} or an address is not a multiple of 16",
                buffer=region.name,
            )
        return self.inside(site, region, np.asarray([offset]), count, f"bulk copy {verb}")

    def _in_shared(self, site: int, region: Region | None, start: int, end: int, verb: str) -> bool:
        """Check that the bytes of a copy's side in shared memory lie there."""
        if region is not None and not region.shared:
            text = f"{verb} {region.name}, which is not in shared memory"
            self.machine.at("OOB_ACCESS", self, site, text, buffer=region.name)
            return False
        return self.inside(site, region, start, end - start, verb)

    def _load(
        self,
        site: int,
        lane: int,
        kind: str,
        source: Any,
        landing: np.ndarray,
        target: int,
        barrier_address: int,
        cta_mask: int | None,
    ) -> list[PendingOp]:
        """Copy into one CTA, or into those of a mask; return what was put in flight."""
        found = []
        ranks = [-1]
        if cta_mask is not None:
            ranks = [r for r in range(16) if cta_mask >> r & 1]
            start, barrier_start = shared_offset(target), shared_offset(barrier_address)
        for rank in ranks:
            if rank >= len(self.cta.cluster):
                self.machine.at("OOB_ACCESS", self, site, f"{kind} into rank {rank}")
                continue
            place, address = target, barrier_address
            if cta_mask is not None:
                place, address = (shared_base(rank) + x for x in (start, barrier_start))
            op = self._load_into(site, lane, kind, source, landing, place, address)
            found += [] if op is None else [op]
        return found

    def _load_into(
        self,
        site: int,
        lane: int,
        kind: str,
        source: Any,
        landing: np.ndarray,
        target: int,
        barrier_address: int,
        reduce: str = "",
    ) -> PendingOp | None:
        machine = self.machine
        region, offsets, inside, dtype, _ = source
        dst, start = self.region_at(target)
        barrier = self.barrier_at(site, barrier_address, self.bit_of(int(lane)))
        num_bytes = len(landing) * dtype.itemsize
        read = offsets if inside is None else offsets[inside]
        touched, unit, end = landed_bytes(start, landing, dtype.itemsize)
        if not self._in_shared(site, dst, start, end, f"{kind} writes") or barrier is None:
            return None
        if len(read) and not self.inside(site, region, read, dtype.itemsize, f"{kind} reads"):
            return None
        op = PendingOp(kind, self, site)
        op.barrier, op.num_bytes = barrier, num_bytes
        op.phase, op.addresses = barrier.phase, (start,)
        machine.loads.append(op)
        barrier.carry()
        self.fills(barrier)
        barrier.outstanding.append(op)
        if barrier.cta is not self.cta:
            machine.remote_ops.append((barrier.cta, self, 0, op.write_event, site, self.it))
        if dst.live[touched].any():
            name, where = dst.name_of(start)
            machine.at(
                "OOB_ACCESS",
                self,
                site,
                f"{kind} over a live mbarrier",
                buffer=name,
                byte_range=(where, where + num_bytes),
            )
        if machine.log is not None:
            lanes = self.bit_of(int(lane))
            self.reads_whole(region, site, lanes, ASYNC)
            if region.shadow is not None:
                source_read = self.access(site, False, ASYNC, op.read_event, op, lanes=lanes)
                self.check(region, read, dtype.itemsize, source_read)
            written = self.access(site, True, ASYNC, op.write_event, op, bool(reduce), lanes)
            self.check(dst, touched, unit, written)
        if machine.mode != "eager" and machine.values and not reduce:
            for byte in range(unit):
                dst.data[touched if unit == 1 else touched + byte] = POISON
        self._load_steps(op, source, landing, dst, start, barrier, reduce)
        machine.submit(op)
        return op

    def _load_steps(
        self,
        op: PendingOp,
        source: Any,
        landing: np.ndarray,
        dst: Region,
        start: int,
        barrier: Any,
        reduce: str,
    ) -> None:
        region, offsets, inside, dtype, fill = source
        holder: list[np.ndarray] = []
        size, with_values = dtype.itemsize, self.machine.values

        def read() -> None:
            op.read_done = True
            if not with_values:
                return
            if inside is None:
                values = self.gather(region, offsets, dtype, 1).ravel()
            else:
                values = np.full(len(offsets), fill).astype(dtype)
                values[inside] = self.gather(region, offsets[inside], dtype, 1).ravel()
            holder.append(values)

        def write(part: slice, last: bool) -> None:
            if with_values:
                where, values = start + landing[part] * size, holder[0][part, None]
                if reduce:
                    values = reduced(reduce, self.gather(dst, where, dtype, 1), values)
                self.scatter(dst, where, values, dtype, 1)
            num_bytes = (part.stop - part.start) * size
            barrier.tx -= num_bytes
            barrier.delivered_bytes += num_bytes
            if last:
                barrier.outstanding.remove(op)
                barrier.slot.events |= op.events
            op.warp.settle(barrier)

        chunks = self.machine.chunks if len(landing) * size >= 32 else 1
        edges = [len(landing) * i // chunks for i in range(chunks + 1)]
        op.steps.append(read)
        for i in range(chunks):
            part, last = slice(edges[i], edges[i + 1]), i == chunks - 1
            op.steps.append(partial(write, part, last))

    # -- shared to global -------------------------------------------------------------------------

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
        reduce = mods.get("redop", "")
        dtype = numpy_dtype(DTYPE_OF[mods["type"]]) if reduce else np.dtype(np.uint8)
        if byte_mask is not None:
            self.machine.incomplete("cp.async.bulk with cp_mask", site)
            return
        for lane in active(mask):
            count, source = lane_value(size, lane), lane_value(src_mem, lane)
            region, offset = self.region_at(lane_value(dst_mem, lane))
            if not self._bulk_legal(site, region, offset, count, source, "writes"):
                continue
            elements = np.arange(count // dtype.itemsize)
            kind = f"bulk reduce ({reduce})" if reduce else "bulk store"
            self._store(
                site,
                lane,
                kind,
                source,
                elements,
                region,
                offset + elements * dtype.itemsize,
                None,
                dtype,
                reduce,
            )

    op_cp_reduce_async_bulk_s2g = op_cp_async_bulk_s2g
    op_cp_reduce_async_bulk_s2g_f32_noftz = op_cp_async_bulk_s2g

    def _store(
        self,
        site: int,
        lane: int,
        kind: str,
        source: int,
        landing: np.ndarray,
        region: Region,
        offsets: np.ndarray,
        inside: Any,
        dtype: np.dtype,
        reduce: str,
    ) -> PendingOp | None:
        machine = self.machine
        src, start = self.region_at(source)
        num_bytes = len(landing) * dtype.itemsize
        touched, unit, end = landed_bytes(start, landing, dtype.itemsize)
        if not self._in_shared(site, src, start, end, f"{kind} reads"):
            return None
        if inside is not None:
            landing, offsets = landing[inside], offsets[inside]
        if len(offsets) and not self.inside(
            site, region, offsets, dtype.itemsize, f"{kind} writes"
        ):
            return None
        region.begin_store()
        op = PendingOp(kind, self, site)
        op.num_bytes = num_bytes
        if machine.log is not None:
            lanes = self.bit_of(int(lane))
            self.check(
                src,
                touched if inside is None else start + landing * dtype.itemsize,
                unit if inside is None else dtype.itemsize,
                self.access(site, False, ASYNC, op.read_event, op, lanes=lanes),
            )
            written = self.access(site, True, ASYNC, op.write_event, op, bool(reduce), lanes)
            self.check(region, offsets, dtype.itemsize, written)
        holder: list[np.ndarray] = []

        def read() -> None:
            op.read_done = True
            if machine.values:
                holder.append(self.gather(src, start + landing * dtype.itemsize, dtype, 1))

        def write() -> None:
            if not machine.values:
                return
            values = holder[0]
            if reduce:
                values = reduced(reduce, self.gather(region, offsets, dtype, 1), values)
            self.scatter(region, offsets, values, dtype, 1)

        op.steps.extend((read, write))
        groups = self.bulk.setdefault(int(lane), Groups())
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
        clock = self.told(lanes)
        clock.join_events(1 << op.read_event)
        if not only_read:  # written, and visible to this thread: others' TMA needs a proxy fence
            clock.generic.events |= 1 << op.write_event
            self.own_stores |= 1 << op.write_event
