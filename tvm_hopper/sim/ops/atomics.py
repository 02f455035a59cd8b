"""Atomics, of elements, packed halves and vectors; loads and stores with semantics.

"Vector atomics ... are guaranteed separately for each of the individual ... elements; the entire
atom is not guaranteed to be atomic as a single access" (PTX ISA, 9.7.13.5 atom, 9.7.13.7 red).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tvm_hopper.sim.arithmetic.integers import pack, unpack
from tvm_hopper.sim.machine.lanes import LANES, as_lanes
from tvm_hopper.sim.ops.fences import narrower
from tvm_hopper.sim.ops.reductions import OPERATIONS
from tvm_hopper.sim.options import no_values
from tvm_hopper.sim.races.clocks import Bundle, Releases
from tvm_hopper.sim.races.lane_order import lane_bits
from tvm_hopper.sim.races.shadow import ALL_LANES
from tvm_hopper.sim.tir import DTYPE_OF, numpy_dtype

# `volatile` has the semantics of relaxed at system scope, `mmio` too (PTX ISA, ld and st).
_AS_RELAXED = ("volatile", "mmio")


def order_of(mods: Any) -> tuple[str, str]:
    """Return semantics ("weak" if none) and scope of a load, store or atomic."""
    sem = mods.get("sem") or ("relaxed" if mods.get("mmio") else "weak")
    if sem in _AS_RELAXED:
        return "relaxed", "sys"
    return sem, mods.get("scope") or "gpu"


def _lane_by_lane(op: str, mask: Any, addresses: np.ndarray) -> Iterator[tuple[int, int]]:
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
        """Read, write, or read and write one element per lane; returns the old values."""
        no_values(self.machine, "an atomic or ordered access hands a value on")
        addresses, values = as_lanes(address), as_lanes(value)
        compares = as_lanes(compare) if compare is not None else None
        old = np.zeros(32, dtype)
        for places, lanes in self._by_place(mask, addresses):
            if op != "store":
                self._read(places, lanes, sem, scope)
        for lane, bit in _lane_by_lane(op, mask, addresses):
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
            succeeds = compares is None or before == compares[lane]
            after = values[lane] if succeeds else before
            if op in OPERATIONS:
                after = OPERATIONS[op](before, after)
            if after != before:
                self.machine.progress += 1
            cell[offset // dtype.itemsize] = after
            if op == "store" and (present := self.machine.releases.get((region, offset))):
                present.overwrite((self.index, bit))
            if succeeds:  # a comparison that fails has written nothing
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
        """Learn the knowledge released at a place; relaxed reads wait for a fence after them."""
        releases = self.machine.releases[self._place(place)]
        if sem in ("acquire", "acq_rel"):
            releases.acquire(self.bundle_of(lanes), self.cta, scope)
        else:
            for fence, pending in self.pending_reads(lanes):
                releases.acquire(pending, self.cta, narrower(scope, fence))
        if releases.fenced:
            releases.see(self.bundle_of(lanes), self.cta, scope)

    def _published(self, place: int, bit: int, sem: str, scope: str) -> None:
        """Publish the knowledge that one lane's write releases, directly or by an earlier fence."""
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
        """Load; `.acquire` learns the knowledge released at the address."""
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


_NUMBERS = {"min": "fmin", "max": "fmax"}  # of floats: drops a NaN


class PackedAtomicOps:
    """The atomics of one warp on more than one element, and of halves; a part of `Warp`."""

    def atomic_elements(
        self, site: int, mask: Any, mods: Any, addr: Any, values: list[np.ndarray]
    ) -> list[np.ndarray]:
        """Run one atomic an element; return the old values."""
        kind = numpy_dtype(DTYPE_OF[mods["type"].partition("x")[0]])
        sem, scope = order_of({**mods, "sem": mods.get("sem") or "relaxed"})
        if len(values) > 1:
            self.whole_vector(site, mask, addr, kind.itemsize * len(values))
        places, op = as_lanes(addr).astype(np.int64), _NUMBERS.get(mods["op"], mods["op"])
        with np.errstate(all="ignore"):
            return [
                self.atomic(site, mask, op, places + i * kind.itemsize, value, kind, sem, scope)
                for i, value in enumerate(values)
            ]

    def op_atom_vec_half(
        self, site: int, mask: Any, mods: Any, addr: Any, value: Any, cache_policy: Any = None
    ) -> Any:
        """Add to, or take the minimum or maximum with, halves and packed pairs of them."""
        values = [np.broadcast_to(as_lanes(v), (32,)) for v in _tuple(value)]
        if not mods["type"].endswith("x2"):
            found = self.atomic_elements(site, mask, mods, addr, values)
            return found[0] if len(found) == 1 else tuple(found)
        kind = numpy_dtype(DTYPE_OF[mods["type"].partition("x")[0]])
        words = [np.ascontiguousarray(v.astype(np.uint32)) for v in values]
        parts = [part.view(kind) for word in words for part in unpack(word, 16, 2)]
        old = [o.view(np.uint16) for o in self.atomic_elements(site, mask, mods, addr, parts)]
        packed = [pack(old[i : i + 2], 16) for i in range(0, len(old), 2)]
        return packed[0] if len(packed) == 1 else tuple(packed)

    def op_atom_vec_f32(
        self, site: int, mask: Any, mods: Any, addr: Any, value: Any, cache_policy: Any = None
    ) -> Any:
        """Add to a vector of f32."""
        values = [np.broadcast_to(as_lanes(v), (32,)).astype(np.float32) for v in value]
        return tuple(self.atomic_elements(site, mask, mods, addr, values))


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
