"""One warp: 32 lanes in lockstep, its clocks, and its loads, stores, atomics and shuffles.

What instructions do to barriers and asynchronous engines stands in `ops_*.py`; `run.Warp` is put
together from all of them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_hopper.sim.machine.addresses import Addresses
from tvm_hopper.sim.machine.lanes import LANES, as_lanes, first_lane, is_lanes
from tvm_hopper.sim.machine.memory import Region
from tvm_hopper.sim.machine.registers import RegState
from tvm_hopper.sim.races.clocks import Bundle, Releases
from tvm_hopper.sim.races.lane_order import LaneOrder, lane_bits
from tvm_hopper.sim.races.shadow import ALL_LANES, ASYNC, GENERIC, MemoryAccess, Shadow, clock_for


@dataclass
class Observed:
    """The newest phase of an mbarrier that a warp has seen complete."""

    phase: int
    parity: int
    site: int
    it: tuple[int, ...]
    stale: bool


class WarpCore(Addresses):
    """State and memory accesses of one warp."""

    partial: Any = None  # mask of existing lanes, if the block is no multiple of 32

    def __init__(self, machine: Any, cta: Any, number: int, threads: dict[str, Any]) -> None:
        self.machine, self.cta, self.number = machine, cta, number
        self.index = len(machine.warps)
        self.group = number // 4
        self.threads, self.args, self.shared = threads, machine.args, cta.addresses
        self.tid = number * 32 + LANES
        self.lane_name = f"{cta.label}/wg{self.group}/warp{number}"
        self.roles: set[str] = {str(self.group), f"wg{self.group}", f"warp{number}"}
        self.it: tuple[int, ...] = ()
        self.site = 0
        self.preempt = machine.mode == "random"
        self.clock = Bundle(machine.num_warps)
        self.lane_order = LaneOrder(self.index)
        self.epoch = 0
        self.bump()
        self.own_stores = 0  # bulk stores of this warp that it has waited for, as clock bits
        self.observed: dict[int, Observed] = {}
        self.generator: Any = None
        self.finished = False
        self.waits_for: Any = None
        self.spinning: int | None = None
        self.resumed = self.stopped = 0
        self.spin_states: dict[int, Any] = {}
        self.waiting = ""
        self.reg_states: dict[str, RegState] = {}
        self.init_sync()
        self.init_async()
        self.init_cp_async()
        self.init_wgmma()

    @property
    def label(self) -> str:
        """Name for people: CTA, role (once an instruction has shown it), warp group and warp."""
        role = " (producer)" if "producer" in self.roles else ""
        role = " (consumer)" if "consumer" in self.roles else role
        return self.lane_name + role

    def bump(self) -> None:
        """Begin a new epoch: later accesses are told from those already published."""
        self.epoch += 1
        self.clock.generic.epochs[self.index] = self.epoch

    def lanes_of(self, mask: Any) -> int:
        """Return the lanes of a mask as bits; all of them if it holds all that exist."""
        if mask is None or (self.partial is not None and (mask == self.partial).all()):
            return ALL_LANES
        return lane_bits(mask)

    def release(self, lanes: int = ALL_LANES) -> Bundle:
        """Return what some lanes of this warp publish by a release, and begin a new epoch."""
        snapshot = self.clock.copy()
        self.lane_order.limit_all(snapshot, lanes, self.machine)
        self.bump()
        return snapshot

    def plays(self, role: str) -> bool:
        """Tell whether this warp has a role ("producer", "consumer", "0", "warp3")."""
        return role in self.roles

    def why(self) -> str:
        """Say what this blocked warp waits for."""
        if self.blocked_on is not None and self.blocked_on[0] == "named":
            barrier = self.blocked_on[1]
            return f"{self.waiting} ({barrier.threads} of {barrier.count} threads arrived)"
        return self.waiting or "waits"

    def spin(self, site: int) -> Any:
        """Return what a `while` loop waits for after an iteration.

        Nothing if the iteration changed a variable or register of the loop (it computes); else any
        change of memory or barriers, since only that can end it.
        """
        self.site = site
        state = {
            name: value.tobytes() if isinstance(value, np.ndarray) else value
            for name, value in sys._getframe(1).f_locals.items()
            if isinstance(value, (int, float, np.ndarray, np.generic))
        }
        before, self.spin_states[site] = self.spin_states.get(site), state
        if state != before:
            return None
        self.waiting = f"spins in: {self.machine.statement(site)}"
        self.spinning = self.machine.progress
        return self.machine.spinners

    def name_bytes(self, name: str, address: int, size: int) -> None:
        """Name a view of shared memory, so that findings speak of it."""
        if self.number == 0:
            region, offset = self.region_at(address)
            if region is not None and size < region.size - 2048:
                region.parts.insert(0, (offset, offset + size, name))

    # -- registers --------------------------------------------------------------------------------

    def local(self, count: int, dtype: np.dtype) -> np.ndarray:
        """Allocate registers, poisoned, shape (32, count)."""
        raw = np.full(32 * count * dtype.itemsize, 0xFF, np.uint8)
        if dtype.kind == "b":
            raw[:] = 0
        return raw.view(dtype).reshape(32, count)

    def registers(self, name: str, size: int) -> RegState:
        """Return the state that wgmma keeps of one register array."""
        state = self.reg_states.get(name)
        if state is None or state.busy.size != size:
            state = self.reg_states[name] = RegState(name, size)
        return state

    def touch(self, site: int, state: RegState, low: int, count: int) -> None:
        """Check an access of registers that a wgmma may still use."""
        part = slice(None) if count < 0 else slice(low, low + count)
        state.dirty[part] = True
        if state.num_busy and state.busy[part].any():
            self.machine.at(
                "WGMMA_REG_INFLIGHT",
                self,
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
        bundle: Bundle | None = None,
    ) -> None:
        """Check an access of some bytes against all earlier ones, and record it."""
        shadow = region.shadow
        if shadow is None or access is None:
            return
        bundle = self.clock if bundle is None else bundle
        cells = shadow.cells(offsets, size)
        clock = clock_for(bundle, access.kind, region.shared)
        if self.own_stores and access.kind == ASYNC and not region.shared:
            clock = clock.copy()
            clock.events |= self.own_stores
        machine = self.machine

        def report(
            other: MemoryAccess, mine: MemoryAccess, values: np.ndarray, number: int
        ) -> None:
            machine.conflict(region, cells, other, mine, bundle, values, number)

        if access.rmw and not shadow.initialised:
            self._uninitialised(region, shadow, cells, access)
        if access.writes:
            shadow.write(access, cells, clock, report)
        elif not shadow.read(access, cells, clock, report):
            self._uninitialised(region, shadow, cells, access)

    def _uninitialised(
        self, region: Region, shadow: Shadow, cells: Any, access: MemoryAccess
    ) -> None:
        values = shadow.writer[cells]
        where = np.nonzero(values == 0)[0]
        if not len(where):
            return
        low = int(where[0]) + cells.start if isinstance(cells, slice) else int(cells[where[0]])
        name, inside = region.name_of(low * shadow.granule)
        self.machine.at(
            "UNINIT_READ",
            self,
            access.site,
            f"{name} is read before any write",
            buffer=name,
            byte_range=(inside, inside + shadow.granule),
        )

    # -- loads and stores -------------------------------------------------------------------------

    def load(
        self, site: int, mask: Any, base: Any, index: Any, dtype: np.dtype, count: int, vector: int
    ) -> Any:
        """Load `count` elements per lane; a uniform address gives one value for all lanes."""
        size = dtype.itemsize * vector
        region, offsets = self._resolve(
            site, base, index, size, count // vector, mask, dtype.itemsize
        )
        uniform = not isinstance(offsets, np.ndarray)
        shape: Any = (32,) if count == 1 else (32, count)
        if region is None:
            fill = np.full(shape, np.nan if dtype.kind not in "iub" else 0).astype(dtype)
            return fill[0] if uniform and count == 1 else fill
        if region.shadow is not None:
            access = self.access(site, False, lanes=self.lanes_of(mask))
            self.check(region, np.asarray(offsets), dtype.itemsize * count, access)
        if uniform and count == 1 and offsets % dtype.itemsize == 0:
            value = region.view(dtype)[offsets // dtype.itemsize]
            return value.item() if dtype.kind in "iub" else value
        values = self.gather(region, offsets, dtype, count)
        if uniform:
            return values[0] if count == 1 else values.reshape(1, count)
        if count == 1:
            values = values.reshape(-1)
        if mask is None or len(values) == 32:
            return values
        full = np.zeros(shape, dtype)
        full[mask] = values
        return full

    def gather(self, region: Region, offsets: Any, dtype: np.dtype, count: int) -> np.ndarray:
        """Read `count` elements at each byte offset, shape (len(offsets), count)."""
        size = dtype.itemsize
        starts = np.ravel(offsets)
        if not (starts % size).any():
            return region.view(dtype)[starts[:, None] // size + np.arange(count)]
        raw = region.data[starts[:, None] + np.arange(size * count)]
        return np.ascontiguousarray(raw).view(dtype)

    def store(
        self,
        site: int,
        mask: Any,
        base: Any,
        index: Any,
        value: Any,
        dtype: np.dtype,
        count: int,
        vector: int,
    ) -> None:
        """Store `count` elements per lane."""
        size = dtype.itemsize * vector
        lanes = self.lanes_of(mask)
        if not is_lanes(base) and not is_lanes(index):
            index = np.full(1, index)  # all lanes write one place: the last active one stays
            value = np.asarray(value)
            if value.ndim and len(value) == 32:
                last = 31 if mask is None else 31 - int(np.argmax(mask[::-1]))
                value = value[last : last + 1]
            mask = None
        region, offsets = self._resolve(
            site, base, index, size, count // vector, mask, dtype.itemsize, "writes"
        )
        if region is None:
            return
        self.machine.progress += 1
        if region.shadow is not None:
            access = self.access(site, True, lanes=lanes)
            self.check(region, offsets, dtype.itemsize * count, access)
        value = np.asarray(value).astype(dtype, copy=False)
        if mask is not None and value.ndim and len(value) == 32:
            value = value[mask]
        if value.ndim < 2:
            value = value.reshape(-1, 1) if value.ndim else value
        self.scatter(region, offsets, value, dtype, count)

    def scatter(
        self, region: Region, offsets: Any, value: np.ndarray, dtype: np.dtype, count: int
    ) -> None:
        """Write `count` elements at each byte offset."""
        size = dtype.itemsize
        starts = np.ravel(offsets)
        if not (starts % size).any():
            region.view(dtype)[starts[:, None] // size + np.arange(count)] = value
            return
        full = np.ascontiguousarray(np.broadcast_to(value, (len(starts), count)))
        region.data[starts[:, None] + np.arange(size * count)] = full.view(np.uint8)

    # -- atomics ----------------------------------------------------------------------------------

    def atomic(
        self,
        site: int,
        mask: Any,
        op: str,
        address: Any,
        value: Any,
        dtype: np.dtype,
        sem: str = "relaxed",
        scope: str = "gpu",
        compare: Any = None,
    ) -> np.ndarray:
        """Read-modify-write one element per lane; returns what was there before."""
        addresses, values = as_lanes(address), as_lanes(value)
        compares = as_lanes(compare) if compare is not None else None
        old = np.zeros(32, dtype)
        for lane in LANES if mask is None else np.nonzero(mask)[0]:
            place = int(addresses[lane])
            region, offset = self._resolve(
                site, place, 0, dtype.itemsize, 1, None, dtype.itemsize, "writes"
            )
            if region is None:
                continue
            if sem in ("acquire", "acq_rel"):
                self.acquire_at(place, scope)
            access = self.access(site, True, rmw=True, lanes=1 << int(lane))
            self.check(region, np.asarray([offset]), dtype.itemsize, access)
            cell = region.view(dtype)
            before = cell[offset // dtype.itemsize]
            old[lane] = before
            after = _ATOMICS[op](
                before, values[lane], compares[lane] if compares is not None else 0
            )
            if after != before:
                self.machine.progress += 1
            cell[offset // dtype.itemsize] = after
            if sem in ("release", "acq_rel"):
                self.release_at(place, scope, lanes=1 << int(lane))
        return old

    def release_at(
        self, address: int, scope: str, bundle: Bundle | None = None, lanes: int = ALL_LANES
    ) -> None:
        """Publish this warp's clocks (or earlier ones) at a global address."""
        releases = self.machine.releases.setdefault(address, Releases())
        releases.publish(self.cta, scope, self.release(lanes) if bundle is None else bundle)

    def acquire_at(self, address: int, scope: str, clock: Bundle | None = None) -> None:
        """Learn what was published at a global address."""
        releases = self.machine.releases.get(address)
        if releases is not None:
            releases.acquire(self.clock if clock is None else clock, self.cta, scope)

    # -- inside a warp ----------------------------------------------------------------------------

    def elect(self, site: int, mask: Any) -> np.ndarray:
        """Return true in one lane, the lowest active one."""
        if mask is not None:
            self.machine.at(
                "WARP_CONVERGENCE", self, site, "elect.sync with lanes missing from its mask"
            )
        return np.asarray(first_lane(mask) == LANES)

    def activemask(self, mask: Any) -> int:
        """Return the active lanes as bits."""
        return (
            0xFFFFFFFF
            if mask is None
            else int(np.sum(np.uint64(1) << LANES[mask].astype(np.uint64)))
        )

    def _shuffle(self, value: Any, source: np.ndarray, inside: np.ndarray) -> np.ndarray:
        values = as_lanes(value)
        return values[np.where(inside, source, LANES)]

    def shuffle(self, site: int, mask: Any, value: Any, lane: Any, width: Any) -> np.ndarray:
        """Read another lane's value (`shfl.idx`)."""
        width = int(np.max(width))
        source = LANES // width * width + as_lanes(lane) % width
        return self._shuffle(value, source, np.ones(32, bool))

    def shuffle_up(self, site: int, mask: Any, value: Any, delta: Any, width: Any) -> np.ndarray:
        """Read the value of a lane `delta` below."""
        width = int(np.max(width))
        source = LANES - as_lanes(delta)
        return self._shuffle(value, source, source >= LANES // width * width)

    def shuffle_down(self, site: int, mask: Any, value: Any, delta: Any, width: Any) -> np.ndarray:
        """Read the value of a lane `delta` above."""
        width = int(np.max(width))
        source = LANES + as_lanes(delta)
        return self._shuffle(value, source, source < LANES // width * width + width)

    def shuffle_xor(self, site: int, mask: Any, value: Any, bits: Any, width: Any) -> np.ndarray:
        """Read the value of the lane whose number differs in `bits`."""
        width = int(np.max(width))
        source = LANES ^ as_lanes(bits)
        return self._shuffle(value, source, source < LANES // width * width + width)


_ATOMICS = {
    "add": lambda a, b, c: a + b,
    "min": lambda a, b, c: min(a, b),
    "max": lambda a, b, c: max(a, b),
    "and": lambda a, b, c: a & b,
    "or": lambda a, b, c: a | b,
    "xor": lambda a, b, c: a ^ b,
    "exch": lambda a, b, c: b,
    "cas": lambda a, b, c: b if a == c else a,
    "inc": lambda a, b, c: type(a)(0) if a >= b else a + type(a)(1),
    "dec": lambda a, b, c: b if a == 0 or a > b else a - type(a)(1),
}
