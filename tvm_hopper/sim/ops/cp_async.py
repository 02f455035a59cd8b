"""cp.async of 4, 8 or 16 bytes per thread: generic proxy, asynchronous in time."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from tvm_hopper.sim.machine.lanes import as_lanes
from tvm_hopper.sim.machine.machine import PendingOp
from tvm_hopper.sim.machine.memory import POISON
from tvm_hopper.sim.ops.bulk import Groups, active
from tvm_hopper.sim.ops.mbarrier import Wait
from tvm_hopper.sim.trips.balance import ARRIVE, BarrierFlow


class CpAsyncOps:
    """The cp.async copies of one warp."""

    flow: BarrierFlow

    def init_cp_async(self) -> None:
        """Begin with no copy in flight."""
        self.cp_async = Groups()
        self.cp_async_flying: list[PendingOp] = []
        self.cp_events = 0

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
        count = np.full(len(lanes), size)
        if src_size is not None:
            count = as_lanes(src_size)[lanes].astype(np.int64)
        if ignore_src is not None:
            count = np.where(as_lanes(ignore_src)[lanes] != 0, 0, size)
        dst, first = self.region_at(targets[0])
        src, origin = self.region_at(sources[np.argmax(count > 0)])
        if dst is None or (src is None and count.any()):
            machine.at("OOB_ACCESS", self, site, "cp.async outside of memory")
            return
        into = targets - (targets[0] - first)
        taken = count > 0
        away = sources - (sources[np.argmax(taken)] - origin)
        if (into % size).any() or (away[taken] % size).any():
            machine.at("MISALIGNED", self, site, f"cp.async of {size} bytes: address")
        for num_bytes in np.unique(count[taken]):
            wanted = away[count == num_bytes]
            if not self.inside(site, src, wanted, int(num_bytes), "cp.async reads"):
                return
        op = PendingOp("cp.async", self, site)
        if machine.log is not None:
            if taken.any() and src.shadow is not None:
                source = self.access(site, False, lanes=self.lanes_of(mask))
                self.check(src, away[taken], size, source)
            written = self.access(
                site, True, event=op.write_event, op=op, lanes=self.lanes_of(mask)
            )
            self.check(dst, into, size, written)
            op.written = (written, into, size)
        bytes_of = np.arange(size)
        if machine.mode != "eager" and machine.values:
            dst.data[into[:, None] + bytes_of] = POISON

        def copy() -> None:
            if not machine.values:
                return
            data = np.zeros((len(lanes), size), np.uint8)
            if taken.any():
                wanted = away[:, None] + bytes_of
                valid = bytes_of < count[:, None]
                data[valid] = src.data[wanted[valid]]
            dst.data[into[:, None] + bytes_of] = data

        op.steps.append(copy)
        self.cp_async.open.append(op)
        op.num_bytes = size * len(lanes)
        op.addresses, op.group = (int(into.min()),), self.cp_async.number
        self.cp_async_flying = [o for o in self.cp_async_flying if not o.done] + [op]
        self.cp_events |= op.events
        machine.submit(op)

    op_cp_async_cg = op_cp_async_ca
    op_cp_async_ca_src_size = op_cp_async_ca
    op_cp_async_cg_src_size = op_cp_async_ca
    op_cp_async_ca_ignore_src = op_cp_async_ca
    op_cp_async_cg_ignore_src = op_cp_async_ca

    def op_cp_async_commit_group(self, site: int, mask: Any, mods: Any) -> None:
        """Close the open cp.async group of this warp."""
        self.cp_async.committed.append(self.cp_async.open)
        self.cp_async.open = []
        self.cp_async.number += 1

    def op_cp_async_wait_group(self, site: int, mask: Any, mods: Any, group: Any) -> Wait:
        """Wait for all but the newest cp.async groups."""
        groups = self.cp_async.committed
        covered = groups[: max(len(groups) - self.check_groups(site, group), 0)]
        yield from self._wait_cp_async(site, mask, [op for ops in covered for op in ops])
        self.cp_async.committed = groups[len(covered) :]

    def op_cp_async_wait_all(self, site: int, mask: Any, mods: Any) -> Wait:
        """Wait for every cp.async of this warp."""
        self.op_cp_async_commit_group(site, mask, mods)
        yield from self.op_cp_async_wait_group(site, mask, mods, 0)

    def _wait_cp_async(self, site: int, mask: Any, ops: list[PendingOp]) -> Wait:
        self.site, lanes = site, self.lanes_of(mask)
        for op in ops:
            while not op.done:
                self.waiting = "waits for cp.async"
                yield op
            self.told(lanes).generic.events |= op.events
            if op.written is not None:  # each thread sees its own copies (PTX, cp.async.wait_group)
                access, offsets, size = op.written
                access.epoch = self.epoch
                owners = self._owners(offsets.size, access.lanes)
                self.lane_order.place(access, offsets, size, owners)

    def op_cp_async_mbarrier_arrive(self, site: int, mask: Any, mods: Any, addr: Any) -> None:
        """Arrive on an mbarrier once all earlier cp.async of each thread are complete."""
        machine = self.machine
        for barrier, lanes, _ in self.barriers_at(site, mask, addr):
            self.fills(barrier)
            noinc = mods.get("noinc") == "noinc"
            if noinc:
                self.flow.add(ARRIVE, barrier, lanes)
            else:
                barrier.pending += lanes
            before = [op for op in self.cp_async_flying if not op.done]
            op = PendingOp("cp.async.mbarrier.arrive", self, site)
            op.before = before[-1] if before else None
            op.signals, op.phase, op.group = barrier, barrier.phase, self.cp_async.number
            self.cp_async.number += 1
            for earlier, later in itertools.pairwise(before):
                later.before = later.before or earlier

            def complete(
                barrier: Any = barrier,
                lanes: int = lanes,
                op: PendingOp = op,
                events: int = self.cp_events,
            ) -> None:
                barrier.outstanding.remove(op)
                barrier.slot.generic_events |= events
                self.arrive(site, barrier, lanes, "near", None)

            barrier.outstanding.append(op)
            op.steps.append(complete)
            machine.submit(op)
