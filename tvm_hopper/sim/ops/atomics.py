"""Atomics, and loads and stores with semantics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tvm_hopper.sim.machine.lanes import LANES, as_lanes
from tvm_hopper.sim.ops.fences import narrower
from tvm_hopper.sim.ops.ptx_types import DTYPE_OF
from tvm_hopper.sim.ops.reductions import OPERATIONS
from tvm_hopper.sim.races.clocks import Bundle, Releases
from tvm_hopper.sim.races.lane_order import lane_bits
from tvm_hopper.sim.races.shadow import ALL_LANES
from tvm_hopper.sim.shortcuts import no_values
from tvm_hopper.sim.tir import numpy_dtype

# `volatile` has the semantics of relaxed at system scope, `mmio` too (PTX ISA, ld and st).
_AS_RELAXED = ("volatile", "mmio")


def order_of(mods: Any) -> tuple[str, str]:
    """Return semantics ("weak" if none) and scope of a load, store or atomic."""
    sem = mods.get("sem") or ("relaxed" if mods.get("mmio") else "weak")
    if sem in _AS_RELAXED:
        return "relaxed", "sys"
    return sem, mods.get("scope") or "gpu"


def _in_turn(op: str, mask: Any, addresses: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield lanes one after another, and as bits; those that load the same element together."""
    active = LANES if mask is None else np.nonzero(mask)[0]
    together: dict[int, int] = {}
    for lane in map(int, active):
        name = int(addresses[lane]) if op == "load" else ~lane
        together[name] = together.get(name, 0) | 1 << lane
    for bits in together.values():
        yield (bits & -bits).bit_length() - 1, bits


class AtomicOps:
    """Atomics of one warp, and its loads and stores that order memory."""

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
        """Read, write, or read and write one element per lane; returns what was there before."""
        no_values(self.machine, "an atomic or ordered access hands a value on")
        addresses, values = as_lanes(address), as_lanes(value)
        compares = as_lanes(compare) if compare is not None else None
        old = np.zeros(32, dtype)
        for places, lanes in self._by_place(mask, addresses):
            if op != "store":
                self._read(places, lanes, sem, scope)
        for lane, bit in _in_turn(op, mask, addresses):
            place = int(addresses[lane])
            region, offset = self._resolve(site, place, 0, None, (dtype.itemsize,) * 3, "writes")
            if region is None or offset % dtype.itemsize:
                continue
            if op != "load":
                region.begin_store()
            access = self.access(site, op != "load", rmw=True, lanes=bit)
            if access is not None:
                access.scope = scope
            place_bytes = np.asarray([offset])
            self.check(region, place_bytes, dtype.itemsize, access, reads=op != "store")
            cell = region.view(dtype)
            before = cell[offset // dtype.itemsize]
            old[lane] = before
            if op == "load":
                if self.looked is not None:
                    self.look(region, offset, dtype.itemsize)
                old[[x for x in LANES if bit >> x & 1]] = before
                continue
            after = values[lane]
            if compares is not None:
                after = after if before == compares[lane] else before
            elif op in OPERATIONS:
                after = OPERATIONS[op](before, after)
            if after != before:
                self.machine.progress += 1
            cell[offset // dtype.itemsize] = after
            if op == "store" and (present := self.machine.releases.get((region, offset))):
                present.overwrite((self.index, bit))
            if compares is None or before == compares[lane]:  # one that fails has written nothing
                self._published(place, bit, sem, scope)
        return old

    def _by_place(self, mask: Any, addresses: np.ndarray) -> Iterator[tuple[int, int]]:
        """Yield each address at which something was released, and the lanes that name it."""
        if not self.machine.releases:
            return
        active = LANES if mask is None else np.nonzero(mask)[0]
        for place in np.unique(addresses[active]):
            if self._place(int(place)) in self.machine.releases:
                named = addresses == place if mask is None else (addresses == place) & mask
                yield int(place), ALL_LANES if named.all() else lane_bits(named)

    def _place(self, address: int) -> tuple[Any, int]:
        """Name a byte of memory: shared addresses of different clusters are alike."""
        region, offset = self.region_at(address)
        return region, offset

    def _read(self, place: int, lanes: int, sem: str, scope: str) -> None:
        """Learn what was released at a place; relaxed reads wait for a fence after them."""
        releases = self.machine.releases[self._place(place)]
        if sem in ("acquire", "acq_rel"):
            releases.acquire(self.told(lanes), self.cta, scope)
        else:
            for fence, pending in self.pending_reads(lanes):
                releases.acquire(pending, self.cta, narrower(scope, fence))
        if releases.fenced:
            releases.see(self.told(lanes), self.cta, scope)

    def _published(self, place: int, bit: int, sem: str, scope: str) -> None:
        """Publish what a write by one lane releases, by itself or by a fence before it."""
        if self.lane_waits:
            self.lanes_came(bit)
        found: list[tuple[str, Bundle]] = []
        if sem in ("release", "acq_rel"):
            found.append((scope, self.release(bit)))
        else:
            for fence, bundle in self.fenced_before(bit):
                found.append((narrower(scope, fence), bundle))
        fenced = self.knows(bit).fenced
        if not found and fenced is None:
            return
        releases = self.machine.releases.setdefault(self._place(place), Releases())
        author = self.index, bit
        for reach, bundle in found:
            releases.publish(self.cta, reach, author, bundle)
        if fenced is not None and scope != "cta":
            bundle = fenced.plain()
            self.lane_order.limit_all(bundle, bit, self.machine)
            releases.publish_fenced(self.cta, scope, author, bundle)

    # -- loads, stores, atomics -------------------------------------------------------------------

    def _type(self, mods: Any) -> np.dtype:
        return numpy_dtype(DTYPE_OF[mods["type"]])

    def op_ld(self, site: int, mask: Any, mods: Any, addr: Any, cache_policy: Any = None) -> Any:
        """Load; `.acquire` learns what was released at the address."""
        sem, scope = order_of(mods)
        if sem == "weak":
            return self.load_anywhere(site, mask, addr, self._type(mods), 1)
        return self.atomic(site, mask, "load", addr, 0, self._type(mods), sem, scope)

    def op_st(
        self, site: int, mask: Any, mods: Any, addr: Any, value: Any, cache_policy: Any = None
    ) -> None:
        """Store; `.release` publishes at the address."""
        sem, scope = order_of(mods)
        if sem == "weak":
            self.store_anywhere(site, mask, as_lanes(addr), value, self._type(mods), 1)
        else:
            self.atomic(site, mask, "store", addr, value, self._type(mods), sem, scope)

    def op_atom(
        self, site: int, mask: Any, mods: Any, addr: Any, value: Any, cache_policy: Any = None
    ) -> Any:
        """Read-modify-write and return the value before."""
        sem, scope = order_of({**mods, "sem": mods.get("sem") or "relaxed"})
        kind = self._type(mods)
        return self.atomic(site, mask, mods.get("op") or "exch", addr, value, kind, sem, scope)

    def op_atom_cas(
        self, site: int, mask: Any, mods: Any, addr: Any, compare: Any, value: Any
    ) -> Any:
        """Compare and swap."""
        sem, scope = order_of({**mods, "sem": mods.get("sem") or "relaxed"})
        return self.atomic(
            site, mask, "cas", addr, value, self._type(mods), sem, scope, compare=compare
        )
