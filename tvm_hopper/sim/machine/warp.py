"""A warp: 32 lanes in lockstep, their knowledge, loads and stores.

The effects of instructions on memory, barriers and asynchronous engines are in `sim/ops`;
`kernel_code.Warp` inherits from all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_hopper.sim.loop_cuts.balance import BarrierFlow, cut_iterations
from tvm_hopper.sim.machine.lanes import LANES, BudgetError, as_lanes, is_lanes
from tvm_hopper.sim.machine.load_store import LoadStore, overlapping
from tvm_hopper.sim.machine.memory import Region
from tvm_hopper.sim.machine.registers import HeldRegisters, RegState
from tvm_hopper.sim.races.clocks import Bundle
from tvm_hopper.sim.races.lane_copies import LaneCopies
from tvm_hopper.sim.races.lane_order import LaneOrder, lane_bits
from tvm_hopper.sim.races.shadow import (
    ALL_LANES,
    ASYNC,
    GENERIC,
    MemoryAccess,
    Reliance,
    Shadow,
    alike,
    clock_for,
)

ITERATIONS_PER_TIME_CHECK = 1024  # iterations between two reads of the clock
NAMED_BY_FINDINGS = (
    *("machine", "cta", "number", "index", "group", "lane_name", "roles", "it", "site"),
    *("observed", "finished", "lane_order"),
)
MAX_LOCAL_BYTES = 1 << 19  # local memory of one thread (CUDA C++ Programming Guide, 512 KB)


@dataclass
class Observed:
    """The newest phase of an mbarrier that a warp has seen complete."""

    phase: int
    parity: int
    site: int
    it: tuple[int, ...]
    stale: bool


class WarpCore(LoadStore):
    """State and memory accesses of one warp."""

    partial: Any = None  # mask of existing lanes, if the block is no multiple of 32

    def __init__(self, machine: Any, cta: Any, number: int, threads: dict[str, Any]) -> None:
        self.machine, self.cta, self.number = machine, cta, number
        self.index = machine.num_warps
        self.group = number // 4
        self.threads, self.args, self.shared = threads, machine.args, cta.addresses
        self.tid = number * 32 + LANES
        self.lane_name = f"{cta.label}/wg{self.group}/warp{number}"
        self.roles: set[str] = {str(self.group), f"wg{self.group}", f"warp{number}"}
        self.it: tuple[int, ...] = ()
        self.site = 0
        self.preempt = machine.mode == "random"
        self.clock = Bundle(machine.cluster_warps)  # knowledge of every lane
        self.parts: dict[int, Bundle] = {}  # lanes -> knowledge of these lanes alone
        self.lane_order = LaneOrder(self.index, LaneCopies(machine.new_event))
        self.epoch = 0
        self.bump()
        self.own_stores = 0  # bulk stores of this warp that it has waited for, as clock bits
        self.observed: dict[int, Observed] = {}
        self.generator: Any = None
        self.finished = False
        self.waits_for: Any = None
        self.spinning: int | None = None
        self.watched: list[tuple[Region, slice, bytes]] = []  # words that it waits for
        self.looked: Any = None  # words that a loop of loads read in this iteration
        # steps: of its first one, since when it waits, and when it was woken
        self.began = self.stopped = self.woken = 0
        self.spin_states: dict[int, Any] = {}
        self.flow = BarrierFlow()
        self.split = False  # lanes of it go on in two sides of a branch
        self.others = 0  # open branches with lanes on both sides
        self.waiting = ""
        self.reg_states: dict[str, RegState] = {}
        self.init_sync()
        self.init_async()
        self.init_cp_async()
        self.init_wgmma()
        self.init_fences()
        self.init_gather()

    def retire(self) -> None:
        """Forget all but what a finding about one of its accesses may name."""
        self.lane_order.retire()
        self.__dict__ = {name: self.__dict__[name] for name in NAMED_BY_FINDINGS}

    @property
    def label(self) -> str:
        """Name for people: CTA, role (once an instruction has shown it), warp group and warp."""
        role = " (producer)" if "producer" in self.roles else ""
        role = " (consumer)" if "consumer" in self.roles else role
        return self.lane_name + role

    def bump(self) -> None:
        """Begin a new epoch: it separates later accesses from published ones."""
        self.epoch += 1
        self.clock.generic.epochs[self.index] = self.epoch

    def lanes_of(self, mask: Any) -> int:
        """Return the lanes of a mask as bits; all of them if it holds all that exist."""
        if mask is None or (self.partial is not None and (mask == self.partial).all()):
            return ALL_LANES
        return lane_bits(mask)

    def whole(self, lanes: int) -> int:
        """Return some lanes as bits; all of them if they are all that exist."""
        return lanes if ~lanes & lane_bits(self.partial) else ALL_LANES

    # -- knowledge of its lanes
    # ----------------------------------------------------------------------

    def knows(self, lanes: int = ALL_LANES) -> Bundle:
        """Return the knowledge that all of some lanes share; not to be changed."""
        if not self.parts or lanes == ALL_LANES:
            return self.clock
        found = None
        for part, bundle in self.parts.items():
            if not lanes & ~part:
                found = self.clock.copy() if found is None else found
                found.join(bundle)
        return self.clock if found is None else found

    def bundle_of(self, lanes: int) -> Bundle:
        """Return the clocks that some lanes update with new knowledge."""
        if lanes == ALL_LANES:
            return self.clock
        found = self.parts.get(lanes)
        if found is None:
            found = self.parts[lanes] = self.clock.copy()
        return found

    def parts_of(self, lanes: int) -> set[int]:
        """Return some lanes, and those of them that know more than the others, as bits."""
        return {lanes, *(part & lanes for part in self.parts if part & lanes)}

    def known_to_any(self, lanes: int = ALL_LANES) -> Bundle:
        """Return a copy of the knowledge of all of some lanes together."""
        found = self.clock.copy()
        for part, bundle in self.parts.items():
            if part & lanes:
                found.join(bundle)
        return found

    def meet(self, lanes: int, epoch: int) -> None:
        """Let some lanes share their knowledge, and their accesses up to an epoch."""
        self.lane_order.learn(lanes, epoch, lanes)
        if not self.parts:
            return
        known = self.known_to_any(lanes)
        if lanes == ALL_LANES:
            self.parts.clear()
        self.bundle_of(lanes).join(known)

    def learn_from(self, lanes: int, bundle: Bundle) -> None:
        """Let some lanes learn published knowledge, also of their own warp."""
        self.bundle_of(lanes).join(bundle)
        self.lane_order.learn(lanes, int(bundle.generic.epochs[self.index]))
        if lanes == ALL_LANES:
            self.parts = {
                w: known for w, known in self.parts.items() if not self.clock.holds(known)
            }
        self.bump()

    def bit_of(self, lane: int) -> int:
        """Return one lane as bits; all of them if no other exists."""
        bits = 1 << lane
        return ALL_LANES if self.partial is not None and bits == lane_bits(self.partial) else bits

    def bits_of(self, lanes: np.ndarray) -> int:
        """Return the lanes of these numbers as bits; all of them if no other exists."""
        if len(lanes) == 32:
            return ALL_LANES
        return self.whole(sum(1 << int(lane) for lane in lanes))

    def release(self, lanes: int = ALL_LANES) -> Bundle:
        """Return the knowledge that some lanes publish by a release; begins a new epoch."""
        snapshot = self.known_to_any(lanes) if self.parts else self.clock.copy()
        self.lane_order.limit_all(snapshot, lanes, self.machine)
        self.bump()
        return snapshot

    def plays(self, role: str) -> bool:
        """Return whether this warp has a role ("producer", "consumer", "0", "warp3")."""
        return role in self.roles

    def why(self) -> str:
        """Describe what this blocked warp waits for."""
        if self.blocked_on is not None and self.blocked_on[0] == "named":
            barrier = self.blocked_on[1]
            return f"{self.waiting} ({barrier.threads} of {barrier.count} threads arrived)"
        return self.why_mbarrier() or self.waiting or "waits"

    def spin(self, site: int, loads: bool = False) -> Any:
        """Return the event that a `while` loop waits for after an iteration.

        Nothing if the iteration changed a variable or register of the loop (it computes). Else the
        words that it read, if it only `loads`, or any change of memory or barriers.
        """
        self.site = site
        state = {
            name: value.tobytes() if isinstance(value, np.ndarray) else value
            for name, value in sys._getframe(1).f_locals.items()
            if isinstance(value, (int, float, np.ndarray, np.generic))
        }
        # Changes since the last iteration may have come before or after this iteration's loads.
        looked, self.looked = self.looked, [] if loads else None
        progress = self.machine.progress
        before, self.spin_states[site] = self.spin_states.get(site), (state, progress)
        if before is None or state != before[0] or (progress != before[1] and not looked):
            return None
        self.watched = looked or []
        if looked and not self.unchanged():
            return None
        self.waits_without(site, None)
        self.waiting = f"spins in: {self.machine.statement(site)}"
        self.spinning = progress
        return self.machine.spinners

    def look(self, region: Region, offsets: Any, size: int) -> None:
        """Note the words that an iteration of a loop of loads read."""
        for offset in np.unique(offsets).tolist():
            word = slice(offset, offset + size)
            self.looked.append((region, word, region.data[word].tobytes()))

    def until(self, site: int, mask: Any, address: Any, dtype: Any) -> Any:
        """Return the event of a `wait_until` with a false condition: a change of its words.

        Nothing came between its load and this, so that no change is missed.
        """
        self.site = site
        self.waits_without(site, mask)
        self.waiting = f"spins in: {self.machine.statement(site)}"
        self.spinning = self.machine.progress
        places = as_lanes(address) if mask is None else as_lanes(address)[mask]
        self.looked = []
        for place in {int(p) for p in places}:
            region, offset = self.region_at(place)
            if region is not None:
                self.look(region, offset, dtype.itemsize)
        self.watched, self.looked = self.looked, None
        return self.machine.spinners

    def unchanged(self) -> bool:
        """Return whether this warp waits for words that have not changed."""
        return bool(self.watched) and all(
            region.data[word].tobytes() == held for region, word, held in self.watched
        )

    def iterations(self, start: int, extent: int, site: int) -> Any:
        """Return the values of a loop variable; a run has a time in which all loops must end."""
        if (cut := self.machine.cuts.get(site)) is not None:
            return cut_iterations(self, cut, start, extent)
        stop = start + extent
        if extent <= ITERATIONS_PER_TIME_CHECK:
            self.machine.iterations += max(int(extent), 0)
            if self.machine.iterations > ITERATIONS_PER_TIME_CHECK:
                self.machine.check_time()
            return range(start, stop)
        return self._many_iterations(start, stop)

    def _many_iterations(self, start: int, stop: int) -> Iterator[int]:
        for first in range(start, stop, ITERATIONS_PER_TIME_CHECK):
            self.machine.check_time()
            yield from range(first, min(first + ITERATIONS_PER_TIME_CHECK, stop))

    def uniform(self, site: int, value: Any, mask: Any, operand: str) -> int:
        """Return an operand that all lanes of an instruction must share."""
        if is_lanes(value):
            here = value if mask is None else value[mask]
            if not alike(here):
                self.report(
                    "WARP_CONVERGENCE", site, f"{operand} differs among the lanes of a warp"
                )
            return int(here[0])
        return int(value)

    def unknown(self) -> None:
        """Pass an operation that nothing models: nothing that follows is certain."""
        self.machine.unknown = True

    def name_bytes(self, name: str, address: int, size: int) -> None:
        """Name a view of shared memory, so that findings speak of it."""
        if self.number == 0:
            region, offset = self.region_at(address)
            if region is not None and size < region.size - 2048:
                region.parts.insert(0, (offset, offset + size, name))

    # -- registers --------------------------------------------------------------------------------

    def local(self, count: int, dtype: np.dtype) -> np.ndarray:
        """Allocate registers, poisoned, shape (32, count)."""
        if count * dtype.itemsize > MAX_LOCAL_BYTES:
            raise BudgetError(f"{count * dtype.itemsize} bytes of registers and local memory")
        raw = np.full(32 * count * dtype.itemsize, 0xFF, np.uint8)
        if dtype.kind == "b":
            raw[:] = 0
        return raw.view(dtype).reshape(32, count)

    def held(self, size: int) -> HeldRegisters:
        """Return the state of a register array that holds nothing yet."""
        return HeldRegisters(size, self.partial)

    def needs(self, site: int, mask: Any, held: Any, name: str) -> None:
        """Report a use of registers in lanes where they hold nothing."""
        if held is True:
            return
        missing = ~(held if held.ndim == 1 else held.all(axis=1))
        if mask is not None:
            missing = missing & mask
        if missing.any():
            text = f"{name}: registers are used that lane {int(np.argmax(missing))} never wrote"
            self.report("UNINIT_READ", site, text, buffer=name, key=(site, "registers"))

    def registers(self, name: str, size: int) -> RegState:
        """Return the state that wgmma keeps of one register array."""
        state = self.reg_states.get(name)
        if state is None or state.busy.size != size:
            state = self.reg_states[name] = RegState(name, size)
        return state

    def touch(self, site: int, state: RegState, low: int, count: int) -> None:
        """Check an access of registers that a wgmma may still use."""
        part = slice(None) if count < 0 else slice(low, low + count)
        state.dirty[part] = state.any_dirty = True
        if state.num_busy and state.busy[part].any():
            self.report(
                "WGMMA_REG_INFLIGHT",
                site,
                f"{state.name} is touched while a wgmma that uses it may still run "
                f"({len(self.wgmma_groups)} groups not waited for)",
                buffer=state.name,
                byte_range=(low, low + max(count, 0)),
            )

    # -- accesses ---------------------------------------------------------------------------------

    def access(
        self,
        site: int,
        writes: bool,
        kind: str = GENERIC,
        event: int = -1,
        op: Any = None,
        rmw: bool = False,
        lanes: int = ALL_LANES,
    ) -> MemoryAccess | None:
        """Record an access of this warp; None if races are not looked for."""
        log = self.machine.log
        if log is None:
            return None
        access = log.add(self, self.epoch, event, kind, writes, site, self.it, op, rmw, lanes)
        if event < 0:
            self.lane_order.add(access)
        return access

    def check(
        self,
        region: Region,
        offsets: Any,
        size: int,
        access: MemoryAccess | None,
        relies: Reliance | None = None,
        together: bool = False,
        reads: bool = True,
    ) -> None:
        """Check an access of some bytes against all earlier ones, and record it.

        - `offsets` (slice or numpy.ndarray): bytes, or int64 starts of `size` bytes each.
        - `relies`: knowledge of the access, if other agents than this warp's lanes make it.
        - `together`: any lane may receive data that another one addresses (ldmatrix).
        - `reads`: the access is an atomic that also reads; a store with an order does not.
        """
        if access is None:
            return
        shadow = region.shadow
        if shadow is None:
            return
        owners = None
        if access.event < 0 and access.kind == GENERIC:
            owners = None if together else self._owners(offsets.size, access.lanes)
            self.lane_order.place(access, offsets, size, owners)
        elif access.kind == ASYNC and access.lanes != ALL_LANES:
            self.lane_order.issue(access, offsets, size)
        cells = shadow.cells(offsets, size)
        if relies is not None or owners is None or not self.parts or overlapping(offsets, size):
            self._check_cells(region, shadow, cells, access, access.lanes, relies, reads)
            return
        for lanes, some in self._by_knowledge(access.lanes, owners, cells):
            self._check_cells(region, shadow, some, access, lanes, relies, reads)

    def reads_whole(self, region: Region, site: int, lanes: int, kind: str = GENERIC) -> None:
        """Check that launches which may store to any byte of a tensor have ended."""
        for other in region.unfinished:
            clock = clock_for(self.knows(lanes), kind, False)
            if not other.known_to(clock):
                self.machine.too_early(region, other, self, site, False)

    def _by_knowledge(self, lanes: int, owners: np.ndarray, cells: Any) -> list[tuple[int, Any]]:
        """Split the cells of an access, equally many a lane, by the knowledge of their lanes."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for position, lane in enumerate(owners.tolist()):
            found = tuple(part for part in self.parts if part >> lane & 1)
            groups.setdefault(found, []).append(position)
        if len(groups) == 1:
            return [(lanes, cells)]
        if isinstance(cells, slice):
            cells = np.arange(cells.start, cells.stop)
        rows = cells.reshape(len(owners), -1)
        return [(self.bits_of(owners[p]), rows[p].ravel()) for p in groups.values()]

    def _check_cells(
        self,
        region: Region,
        shadow: Shadow,
        cells: Any,
        access: MemoryAccess,
        lanes: int,
        relies: Reliance | None,
        reads: bool,
    ) -> None:
        """Check the cells that some lanes of an access touch."""
        if relies is None:
            bundle = self.knows(lanes)
            relies = Reliance(clock_for(bundle, access.kind, region.shared), lambda: bundle)
        clock, known = relies.clock, relies.known
        if self.own_stores and access.kind == ASYNC and not region.shared:
            # copies that these lanes have waited for, directly or through another lane
            clock = clock.copy()
            clock.events |= self.own_stores & self.knows(lanes).generic.events
        machine = self.machine

        def report(
            other: MemoryAccess, mine: MemoryAccess, values: np.ndarray, number: int
        ) -> None:
            machine.conflict(region, cells, other, mine, known(), values, number)

        if access.rmw and reads and (not shadow.initialised or shadow.log.discarding):
            self._uninitialised(region, shadow, cells, access)
        if access.writes:
            shadow.write(access, cells, clock, report)
        elif not shadow.read(access, cells, clock, report):
            self._uninitialised(region, shadow, cells, access)

    def _owners(self, count: int, lanes: int) -> np.ndarray | None:
        """Return the lane of each of `count` offsets; None if they are of all lanes together."""
        if count == 32:
            return LANES
        if lanes == ALL_LANES and self.partial is not None:
            lanes = lane_bits(self.partial)
        if lanes.bit_count() != count:
            return None
        return LANES[(lanes >> LANES & 1) != 0]

    def _uninitialised(
        self, region: Region, shadow: Shadow, cells: Any, access: MemoryAccess
    ) -> None:
        where = np.nonzero(shadow.holds_nothing(cells))[0]
        if not len(where):
            return
        low = int(where[0]) + cells.start if isinstance(cells, slice) else int(cells[where[0]])
        name, inside = region.name_of(low * shadow.granule)
        self.report(
            "UNINIT_READ",
            access.site,
            f"{name} is read before any write",
            buffer=name,
            byte_range=(inside, inside + self.machine.program.min_itemsize),
        )
