"""cp.async of 4, 8 or 16 bytes per thread: generic proxy, asynchronous in time."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from tvm_hopper.sim.loop_cuts.balance import ARRIVE, BarrierFlow
from tvm_hopper.sim.machine.lanes import LANES, as_lanes
from tvm_hopper.sim.machine.machine import PendingOp
from tvm_hopper.sim.machine.memory import POISON
from tvm_hopper.sim.ops.bulk import active
from tvm_hopper.sim.ops.mbarrier import Wait
from tvm_hopper.sim.options import no_values
from tvm_hopper.sim.races.lane_copies import CopyPart, CopyTarget
from tvm_hopper.sim.races.shadow import alike


class CpAsyncOps:
    """The cp.async copies of one warp."""

    flow: BarrierFlow

    def init_cp_async(self) -> None:
        """Begin with no copy in flight."""
        self.copies = self.lane_order.copies
        self.cp_async_flying: list[PendingOp] = []

    def op_cp_async_ca(
        self,
        site: int,
        mask: Any,
        mods: Any,
        dst_mem: Any,
        src_mem: Any,
        cp_size: Any,
        src_size: Any = None,
        ignore_src: Any = None,
        cache_policy: Any = None,
    ) -> None:
        """Copy 4, 8 or 16 bytes per thread."""
        self.roles.add("producer")
        machine, lanes, size = self.machine, active(mask), int(cp_size)
        targets = as_lanes(dst_mem)[lanes].astype(np.int64)
        sources = as_lanes(src_mem)[lanes].astype(np.int64)
        count = self._bytes_taken(site, lanes, size, src_size, ignore_src)
        dst, first = self.region_at(targets[0])
        src, origin = self.region_at(sources[np.argmax(count > 0)])
        if dst is None or not dst.shared or (count.any() and (src is None or src.shared)):
            text = "cp.async: need shared memory to write to, and a tensor to read from"
            self.report("OOB_ACCESS", site, text)
            return
        into = targets - (targets[0] - first)
        if not self.inside(site, dst, into, size, "cp.async writes"):
            return
        taken = count > 0
        away = sources - (sources[np.argmax(taken)] - origin)
        if (into % size).any() or (away[taken] % size).any():
            self.report("MISALIGNED", site, f"cp.async of {size} bytes: address")
        if not all(
            self.inside(site, src, away[count == number], int(number), "cp.async reads")
            for number in np.unique(count[taken])
        ):
            return
        op, target = PendingOp("cp.async", self, site), None
        if machine.log is not None:
            self._note_source(site, mask, src, away[taken], size)
            written = self.access(
                site, True, event=op.write_event, op=op, lanes=self.lanes_of(mask)
            )
            assert written is not None
            self.check(dst, into, size, written)
            target = CopyTarget(machine.log, written, dst, into, size, lanes)
        bytes_of = np.arange(size)

        def copied() -> np.ndarray:
            data = np.zeros((len(lanes), size), np.uint8)
            if taken.any():
                wanted = away[:, None] + bytes_of
                valid = bytes_of < count[:, None]
                data[valid] = src.data[wanted[valid]]
            return data

        if len(np.unique(into)) < len(into):
            no_values(machine, "lanes of one store write to one place")
            self.check_one_place(site, into, copied())
        if machine.mode != "eager" and machine.values:
            dst.data[into[:, None] + bytes_of] = POISON

        def copy() -> None:
            if machine.values:
                dst.data[into[:, None] + bytes_of] = copied()

        op.steps.append(copy)
        self.copies.add(CopyPart(op, self.lanes_of(mask), op.events, target))
        op.num_bytes = size * len(lanes)
        op.addresses, op.group = (int(into.min()),), self.copies.number
        self.cp_async_flying = [o for o in self.cp_async_flying if not o.done] + [op]
        machine.submit(op)

    def _note_source(self, site: int, mask: Any, src: Any, offsets: np.ndarray, size: int) -> None:
        """Record the bytes that a copy reads."""
        lanes = self.lanes_of(mask)
        if not offsets.size:
            return
        if src.unfinished:
            self.reads_whole(src, site, lanes)
        if src.shadow is not None:
            self.check(src, offsets, size, self.access(site, False, lanes=lanes))

    def _bytes_taken(
        self, site: int, lanes: np.ndarray, size: int, src_size: Any, ignore_src: Any
    ) -> np.ndarray:
        """Return how many bytes each lane reads; zeros are written after them."""
        count = np.full(len(lanes), size)
        if src_size is not None:
            count = as_lanes(src_size)[lanes].astype(np.int64)
        if ignore_src is not None:
            count = np.where(as_lanes(ignore_src)[lanes] != 0, 0, size)
        if (count > size).any():
            text = f"cp.async of {size} bytes from {int(count.max())}: need at most {size}"
            self.report("ILLEGAL_OPERAND", site, text)
            count = np.minimum(count, size)
        return count

    def op_cp_async_commit_group(self, site: int, mask: Any, mods: Any) -> None:
        """Close the open cp.async group of each thread."""
        self.copies.commit(self.lanes_of(mask))

    def op_cp_async_wait_group(self, site: int, mask: Any, mods: Any, group: Any) -> Wait:
        """Wait for all but the newest cp.async groups of each thread."""
        self.site, lanes = site, self.lanes_of(mask)
        pending = max(self.check_groups(site, group), 0)
        for part in self.copies.covered(lanes, pending):
            while not part.op.done:
                self.waiting = "waits for cp.async"
                yield part.op
            self.bundle_of(lanes).generic.events |= part.events
            self.copies.finish(part)
            if (target := part.target) is not None:  # each thread sees its own copies
                target.access.epoch = self.epoch
                owners = LANES if target.offsets.size == 32 else target.lanes
                self.lane_order.place(target.access, target.offsets, target.size, owners)

    def op_cp_async_wait_all(self, site: int, mask: Any, mods: Any) -> Wait:
        """Wait for every cp.async of each thread."""
        self.op_cp_async_commit_group(site, mask, mods)
        yield from self.op_cp_async_wait_group(site, mask, mods, 0)

    def op_cp_async_mbarrier_arrive(self, site: int, mask: Any, mods: Any, addr: Any) -> None:
        """Arrive on an mbarrier once all earlier cp.async of each thread are complete."""
        addresses = as_lanes(addr)
        for address in np.unique(addresses[active(mask)]):
            here = mask
            if not alike(addresses[active(mask)]):
                here = (addresses == address) & (True if mask is None else mask)
            self._arrive_after_copies(site, here, mods, int(address))

    def _arrive_after_copies(self, site: int, mask: Any, mods: Any, address: int) -> None:
        machine = self.machine
        for barrier, members in self.barriers_at(site, mask, address):
            lanes = len(members)
            if self.lane_waits:
                self.lanes_came(self.bits_of(members), barrier)
            self.fills(barrier)
            noinc = mods.get("noinc") == "noinc"
            if noinc:
                self.flow.add(ARRIVE, barrier, lanes)
            else:
                barrier.pending += lanes
            before = [op for op in self.cp_async_flying if not op.done]
            op = PendingOp("cp.async.mbarrier.arrive", self, site)
            op.before = before[-1] if before else None
            op.signals, op.phase, op.group = barrier, barrier.phase, self.copies.number
            self.copies.number += 1
            for earlier, later in itertools.pairwise(before):
                later.before = later.before or earlier

            def complete(
                barrier: Any = barrier,
                lanes: int = lanes,
                op: PendingOp = op,
                events: int = self.copies.events_of(self.lanes_of(mask)),
            ) -> None:
                barrier.outstanding.remove(op)
                barrier.slot.generic_events |= events
                self.arrive(site, barrier, lanes, "near", None)

            barrier.outstanding.append(op)
            op.steps.append(complete)
            machine.submit(op)
