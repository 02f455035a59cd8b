"""Instructions on mbarriers: init, arrive, expect, wait.

Every handler is `op_<instruction>(site, mask, ...)`; a generator yields the event that it waits
for.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_hopper.sim.loop_cuts.balance import ARRIVE, WAIT, BarrierFlow
from tvm_hopper.sim.machine.lanes import LANES, as_lanes, is_lanes, mand
from tvm_hopper.sim.machine.mbarrier import MAX_COUNT, MBarrier
from tvm_hopper.sim.machine.warp import Observed
from tvm_hopper.sim.ops.fences import narrower
from tvm_hopper.sim.races.clocks import Bundle

Wait = Generator[Any, None, Any]


@dataclass(slots=True)
class LaneWait:
    """A wait for `phase` by several lanes; the lanes `late` may not have arrived yet."""

    phase: int
    lanes: int
    late: int
    site: int
    it: tuple[int, ...]


def sum_of(value: Any, lanes: np.ndarray) -> int:
    """Return the sum of an operand over some lanes."""
    return sum(int(v) for v in value[lanes]) if is_lanes(value) else int(value) * len(lanes)


class MBarrierOps:
    """The mbarrier instructions of one warp."""

    flow: BarrierFlow

    def init_sync(self) -> None:
        """Begin with nothing waited for."""
        self.setmaxnregs: list[tuple[str, int]] = []
        self.num_registers = self.machine.entry_registers
        self.cluster_generation: int | None = None
        self.blocked_on: tuple[str, Any, int, int] | None = None
        self.lane_waits: dict[MBarrier, LaneWait] = {}
        self.last_use: dict[MBarrier, tuple[int, int]] = {}  # epoch and site

    # -- roles ------------------------------------------------------------------------------------

    def fills(self, barrier: MBarrier) -> None:
        """Take part as a producer: copies of this warp complete on a barrier."""
        self.roles.add("producer")
        if not barrier.filled:
            barrier.filled = True
            for warp in barrier.cta.warps:
                if warp.blocked_on is not None and warp.blocked_on[1] is barrier:
                    warp.consumes(barrier)

    def consumes(self, barrier: MBarrier) -> None:
        """Take part as a consumer: this warp waits for copies, and issues none."""
        if barrier.filled and "producer" not in self.roles:
            self.roles.add("consumer")

    # -- mbarrier ---------------------------------------------------------------------------------

    def barriers_at(self, site: int, mask: Any, addr: Any) -> Iterator[tuple[MBarrier, np.ndarray]]:
        """Yield each barrier that an instruction names, and the numbers of the lanes that do."""
        lanes = LANES if mask is None else np.nonzero(mask)[0]
        if not is_lanes(addr):
            barrier = self.barrier_at(site, int(addr), self.lanes_of(mask))
            if barrier is not None:
                yield barrier, lanes
            return
        for address in np.unique(addr[lanes]):
            lanes_here = lanes[addr[lanes] == address]
            barrier = self.barrier_at(site, int(address), self.bits_of(lanes_here))
            if barrier is not None:
                yield barrier, lanes_here

    def barrier_at(self, site: int, address: int, lanes: int) -> MBarrier | None:
        """Return the live mbarrier that some lanes name, or report that there is none."""
        region, offset = self.region_at(address)
        if region is None or not region.shared:
            text = f"no mbarrier can lie at address {address:#x}: it is not in shared memory"
            self.report("OOB_ACCESS", site, text)
            return None
        cta = region.cta
        if not self.inside(site, region, offset, 8, "an mbarrier in"):
            return None
        if offset % 8:
            text = f"no mbarrier can lie at address {address:#x}: need a multiple of 8"
            self.report("MISALIGNED", site, text)
            return None
        barrier = cta.mbarriers.get(offset)
        name, inside = region.name_of(offset)
        if barrier is None:
            self.report(
                "MBAR_USE_BEFORE_INIT",
                site,
                f"{name}+{inside} of {cta.label} is used, but was never initialised",
                buffer=name,
                byte_range=(inside, inside + 8),
                key=(site, name, inside),
            )
            return None
        self.last_use[barrier] = self.epoch, site
        if cta.exited:
            self.report(
                "CLUSTER_TARGET_EXITED", site, f"{cta.label} has exited", buffer=barrier.name
            )
        self._check_published(site, barrier, cta, lanes)
        return barrier

    def _check_published(self, site: int, barrier: MBarrier, cta: Any, lanes: int) -> None:
        access = barrier.init_access
        if access is None:
            return
        if access.warp is self:
            ordered = access.bit >= 0 and self.knows(lanes).generic.events >> access.bit & 1
            if (
                lanes & ~access.lanes
                and not ordered
                and not self.lane_order.met_since(access, lanes)
            ):
                self.report(
                    "MBAR_INIT_UNPUBLISHED",
                    site,
                    f"{barrier.name}: its init by one lane of {self.label} does not happen before "
                    "this use by others, which have not met it",
                    buffer=barrier.name,
                    key=(site, "init"),
                    missing="bar.warp.sync or __syncthreads",
                )
            return
        remote = cta is not self.cta
        clock = self.known_to_any() if self.parts else self.clock
        known = access.known_to(clock.generic) or access.known_to(clock.narrow)
        if known and (barrier.fenced or not remote):
            return
        fence = "fence.mbarrier_init and a cluster barrier" if remote else "__syncthreads"
        self.report(
            "MBAR_INIT_UNPUBLISHED",
            site,
            f"{barrier.name}: its init by {access.warp.label} does not happen before this use; "
            f"missing {fence}",
            buffer=barrier.name,
            key=(site, "init"),
            missing=fence,
        )

    def op_mbarrier_init(self, site: int, mask: Any, mods: Any, addr: Any, count: Any) -> None:
        """Make an mbarrier object; it is named after the buffer in the statement, in order."""
        addresses, counts = as_lanes(addr), as_lanes(count)
        for lane in LANES if mask is None else np.nonzero(mask)[0]:  # each thread makes one
            address, expected = int(addresses[lane]), int(counts[lane])
            region, offset = self.region_at(address)
            if region is not self.cta.shared:
                text = f"mbarrier at address {address:#x}, which is not in shared memory of its CTA"
                self.report("OOB_ACCESS", site, text)
                continue
            if not self.inside(site, region, offset, 8, "an mbarrier in"):
                continue
            if offset % 8:
                self.report("MISALIGNED", site, f"mbarrier at address {address:#x}")
                continue
            whole, inside = region.name_of(offset)
            name = self.machine.buffer_of(site) or whole
            number = sum(b.stem == name for b in self.cta.mbarriers.values())
            place = f"{name}+{inside}" if name == whole else f"{name}[{number}]"
            label = f"{place} of {self.cta.label}"
            old = self.cta.mbarriers.get(offset)
            if old is not None:
                text = (
                    f"{label}: mbarrier.init on a live object (phase {old.phase}, pending "
                    f"{old.pending})"
                )
                self.report("MBAR_REINIT_LIVE", site, text, buffer=old.name)
            if not 1 <= expected <= MAX_COUNT:
                self.report(
                    "MBAR_ARRIVE_OVERFLOW", site, f"{label}: init count {expected}", buffer=label
                )
            barrier = MBarrier(label, self.cta, offset, expected)
            barrier.stem, barrier.number = name, number
            region.live[offset : offset + 8] = False
            barrier.init_access = self.access(site, True, lanes=self.bit_of(int(lane)))
            self.check(region, np.asarray([offset]), 8, barrier.init_access)
            region.live[offset : offset + 8] = True
            self.cta.mbarriers[offset] = barrier
            self.machine.barriers.append(barrier)
            self.unfenced.append(barrier)

    def op_mbarrier_inval(self, site: int, mask: Any, mods: Any, addr: Any) -> None:
        """End an mbarrier object; its bytes may be reused."""
        for barrier, _ in self.barriers_at(site, mask, addr):
            if barrier.outstanding:
                text = f"{barrier.name}: inval while copies still signal it"
                self.report("MBAR_REINIT_LIVE", site, text, buffer=barrier.name)
            known = self.known_to_any() if self.parts else self.clock
            for warp in barrier.cta.warps:
                epoch, where = warp.last_use.get(barrier, (0, 0))
                if warp is not self and epoch > int(known.generic.epochs[warp.index]):
                    self.report(
                        "MBAR_REINIT_LIVE",
                        site,
                        f"{barrier.name}: inval is not ordered after its use by {warp.label}",
                        buffer=barrier.name,
                        key=(site, where),
                        missing="__syncthreads",
                    )
            region = barrier.cta.shared
            region.live[barrier.offset : barrier.offset + 8] = False
            del barrier.cta.mbarriers[barrier.offset]
            self.machine.barriers.remove(barrier)

    def arrive(
        self, site: int, barrier: MBarrier, count: int, place: str, bundle: Bundle | None
    ) -> None:
        """Take `count` arrivals; None publishes nothing."""
        machine = self.machine
        machine.progress += 1
        if barrier.phase >= 1 and barrier.observed < barrier.phase - 1:
            self.report(
                "MBAR_MISSING_WAIT",
                site,
                f"{barrier.name}: phase {barrier.phase - 1} completed but no thread observed it "
                f"before this arrival in phase {barrier.phase}",
                buffer=barrier.name,
                key=(site, barrier.name),
            )
        if bundle is not None:
            barrier.slot.publish(place, bundle)
        if count > barrier.pending:
            self.report(
                "MBAR_ARRIVE_OVERFLOW",
                site,
                f"{barrier.name}: arrive count {count} exceeds pending {barrier.pending} in phase "
                f"{barrier.phase}; init({barrier.expected})",
                buffer=barrier.name,
                key=(site, barrier.name),
            )
            count = barrier.pending
        barrier.pending -= count
        barrier.arrivals.append(f"{self.label} x{count}")
        self.settle(barrier)

    def settle(self, barrier: MBarrier) -> None:
        """Complete the phase if it is complete, and wake the waiters."""
        left = [op for op in barrier.outstanding if op.num_bytes]
        if not barrier.try_complete():
            return
        for warp in barrier.cta.warps:
            if warp.lane_waits:
                warp.check_late_lanes(barrier)
        if left:
            op = left[0]
            text = (
                f"{barrier.name}: phase {barrier.phase - 1} completed while a {op.kind} of "
                f"{op.num_bytes} bytes that signals it is still in flight: fewer bytes were "
                "expected than the copies deliver"
            )
            self.machine.of_op("MBAR_TX_MISMATCH", op, text, "early", buffer=barrier.name)
        self.machine.wake(barrier)

    # -- lanes that wait one by one ---------------------------------------------------------------

    def lanes_met(self, lanes: int) -> None:
        """Note that some lanes executed an instruction together: none is late for a wait before."""
        lanes = self.whole(lanes)
        self.lane_waits = {b: w for b, w in self.lane_waits.items() if w.lanes & ~lanes}

    def lanes_came(self, lanes: int, barrier: MBarrier | None = None) -> None:
        """Note that some lanes went on, each for itself: they are not late for a wait before.

        Waits that do not know of it may have been earlier: arrivals count once their phase is
        waited for.
        """
        waits = list(self.lane_waits.values())
        if barrier is not None:
            recent = [x for x in barrier.came if x[0] >= barrier.phase - 2]
            barrier.came = [*recent, (barrier.phase, lanes, waits)]
            return
        for wait in waits:
            wait.late &= ~lanes

    def check_late_lanes(self, barrier: MBarrier) -> None:
        """Report lanes that may wait for a phase only when the next one has completed.

        A warp runs its lanes in lockstep here, but each thread waits for itself, and a parity names
        the phase in progress or the one before. A lane that comes later waits for another phase.
        """
        wait = self.lane_waits.get(barrier)
        if wait is None or wait.phase != barrier.phase - 2:
            return
        for phase, lanes, waits in barrier.came:  # these arrivals complete the next phase
            if phase == barrier.phase - 1 and any(wait is x for x in waits):
                wait.late &= ~lanes
        if not wait.late:
            return
        del self.lane_waits[barrier]
        self.report(
            "MBAR_PHASE_ALIAS",
            wait.site,
            f"{barrier.name}: phase {barrier.phase - 1} completes before lanes {wait.late:#x} of "
            f"{self.label} are sure to have waited for phase {wait.phase}: they have not met the "
            "lane that went on",
            it=wait.it,
            key=(wait.site, barrier.name, "lanes"),
            buffer=barrier.name,
            missing="bar.warp.sync after the wait",
        )

    def _arrive_all(
        self, site: int, mask: Any, mods: Any, addr: Any, count: Any, tx: Any = None
    ) -> None:
        """Arrive on the barriers that lanes name; with `tx` expect bytes there before."""
        targets = list(self.barriers_at(site, mask, addr))
        relaxed = mods.get("sem") == "relaxed"
        for barrier, lanes in targets:
            if self.lane_waits:
                self.lanes_came(self.bits_of(lanes), barrier)
            bundle = None if relaxed else self.release(self.bits_of(lanes))
            place = "near"
            if barrier.cta is not self.cta:
                place = "cluster" if mods.get("scope") == "cluster" else "narrow"
                self.machine.remote_ops.append(
                    (barrier.cta, self, self.epoch - 1, -1, site, self.it)
                )
            if tx is not None:
                self._expect(barrier, sum_of(tx, lanes))
            self._check_counts(site, barrier, count, lanes)
            total = sum_of(count, lanes)
            self.flow.add(ARRIVE, barrier, total)
            if "drop" in mods["ptx_name"]:
                barrier.expected -= total
            if relaxed:
                self.publish_relaxed(barrier, mods.get("scope") or "cta", self.lanes_of(mask))
            self.arrive(site, barrier, total, place, bundle)

    def _check_counts(self, site: int, barrier: MBarrier, count: Any, lanes: np.ndarray) -> None:
        """Check the count of each lane: 1 to 2^20 - 1 (PTX ISA, contents of the mbarrier)."""
        if not is_lanes(count) and 1 <= count <= MAX_COUNT:
            return
        found = as_lanes(count)[lanes]
        if ((found < 1) | (found > MAX_COUNT)).any():
            wrong = int(found[(found < 1) | (found > MAX_COUNT)][0])
            text = f"{barrier.name}: arrive count {wrong}; need 1 to {MAX_COUNT}"
            self.report("ILLEGAL_OPERAND", site, text, buffer=barrier.name)

    def _expect(self, barrier: MBarrier, num_bytes: int) -> None:
        barrier.tx += num_bytes
        barrier.expected_bytes += num_bytes
        barrier.carry()
        self.fills(barrier)

    def observe(
        self, site: int, barrier: MBarrier, parity: int, scope: str, lanes: int, sem: str = ""
    ) -> None:
        """Acquire the knowledge of the completed phase, for the lanes that waited."""
        phase = barrier.phase - 1
        before = self.observed.get(id(barrier))
        fresh = phase < 0 and site not in self.machine.program.acquire_sites
        repeated = before is not None and before.phase >= phase >= 0
        self.flow.add(WAIT, barrier)
        for arrived, came, waits in barrier.came:
            for wait in waits if arrived <= phase else ():
                wait.late &= ~came
        barrier.came = [x for x in barrier.came if x[0] > phase]
        self.observed[id(barrier)] = Observed(phase, parity, site, self.it, fresh or repeated)
        if lanes & (lanes - 1):
            self.lane_waits[barrier] = LaneWait(phase, lanes, lanes, site, self.it)
        if phase < 0:
            return
        if barrier.filled and self.machine.recorder.on:
            self.machine.recorder.acquire(self, site, barrier, phase)
        barrier.observed = max(barrier.observed, phase)
        slot, accesses = barrier.slots.get(phase), self.machine.access_events
        if (
            slot is not None and sem == "relaxed"
        ):  # it orders nothing until a fence (PTX, test_wait)
            for fence, pending in self.pending_reads(lanes):
                slot.acquire(pending, narrower(scope, fence) != "cta", accesses)
        elif slot is not None:
            slot.acquire(self.bundle_of(lanes), scope == "cluster", accesses)
            if slot.near is not None:
                self.lane_order.learn(lanes, int(slot.near.generic.epochs[self.index]))
            self.bump()

    def wait_parity(self, site: int, mask: Any, addr: Any, phase: Any, scope: str) -> Wait:
        """Wait until the phase with the given parity has completed."""
        self.site = site
        for parity, part in self._by_parity(site, mask, phase):
            yield from self._wait_one(site, part, addr, parity, scope)

    def _by_parity(self, site: int, mask: Any, phase: Any) -> list[tuple[int, Any]]:
        """Split the lanes by the parity that they wait for; PTX allows 0 and 1."""
        self.waits_without(site, mask)
        parities = as_lanes(phase) if mask is None else as_lanes(phase)[mask]
        if ((parities < 0) | (parities > 1)).any():
            wrong = parities[(parities < 0) | (parities > 1)][0]
            self.report("ILLEGAL_OPERAND", site, f"parity {wrong}: need 0 or 1")
        if not is_lanes(phase):
            return [(int(phase) & 1, mask)]
        odd = (phase & 1) != 0
        parts = [(0, mand(mask, ~odd)), (1, mand(mask, odd))]
        return [(parity, part) for parity, part in parts if part is not False]

    def _wait_one(self, site: int, mask: Any, addr: Any, parity: int, scope: str) -> Wait:
        for barrier, lanes in list(self.barriers_at(site, mask, addr)):
            if barrier.cta is not self.cta:
                text = f"{barrier.name}: only threads of its own CTA may wait"
                self.report("MBAR_SCOPE_TOO_NARROW", site, text, buffer=barrier.name)
            self.consumes(barrier)
            while not barrier.passes(parity):
                self.blocked_on = ("mbarrier", barrier, parity, site)
                self.waiting = (
                    f"waits {barrier.name} for parity {parity} (phase {barrier.phase}, pending "
                    f"{barrier.pending} of {barrier.expected}, tx {barrier.tx})"
                )
                yield barrier
            self.blocked_on = None
            self.observe(site, barrier, parity, scope, self.bits_of(lanes))

    def op_cuda_mbarrier_wait(self, site: int, mask: Any, addr: Any, phase: Any) -> Wait:
        """Loop over try_wait until it returns true."""
        yield from self.wait_parity(site, mask, addr, phase, "cta")

    def op_cuda_mbarrier_wait_acquire_cluster(
        self, site: int, mask: Any, addr: Any, phase: Any
    ) -> Wait:
        """Loop over try_wait.acquire.cluster until it returns true."""
        yield from self.wait_parity(site, mask, addr, phase, "cluster")

    def op_mbarrier_try_wait(
        self,
        site: int,
        mask: Any,
        mods: Any,
        addr: Any,
        phase: Any = None,
        state: Any = None,
        time_hint: Any = None,
    ) -> Any:
        """Look once for the phase of a parity, or of a state token; the loop around it waits."""
        self.site = site
        if phase is None:
            phase = as_lanes(state).astype(np.int64) & 1
        scope, sem = mods.get("scope") or "cta", mods.get("sem") or "acquire"
        passed = np.zeros(32, bool)
        self.blocked_on = None
        for parity, part in self._by_parity(site, mask, phase):
            for barrier, lanes in self.barriers_at(site, part, addr):
                self.consumes(barrier)
                if not barrier.passes(parity):
                    self.blocked_on = ("mbarrier", barrier, parity, site)
                    continue
                passed[lanes] = True
                self.observe(site, barrier, parity, scope, self.bits_of(lanes), sem)
        return passed
