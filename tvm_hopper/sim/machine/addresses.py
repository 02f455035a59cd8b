"""Addresses of a warp's accesses: which memory they are in, and whether they may be touched."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_hopper.sim.machine.lanes import is_lanes
from tvm_hopper.sim.machine.memory import Region, global_number, shared_offset, shared_rank
from tvm_hopper.sim.machine.spread import spread_of
from tvm_hopper.sim.races.lane_order import lane_bits
from tvm_hopper.sim.races.shadow import ALL_LANES

# Bytes that an index counts, those that one lane touches, and those that they are aligned to.
Touched = tuple[int, int, int]


def ends(offsets: Any) -> tuple[int, int]:
    """Return the lowest and the highest of some offsets, or of one."""
    if isinstance(offsets, np.ndarray):
        return int(np.minimum.reduce(offsets, None)), int(np.maximum.reduce(offsets, None))
    return offsets, offsets


class Addresses:
    """Finds the region of an address; a part of `WarpCore`."""

    machine: Any
    cta: Any
    knows: Any
    epoch: int
    it: tuple[int, ...]

    def report(self, rule: str, site: int, message: str, **more: Any) -> None:
        """Report a rule that a statement of this warp breaks."""
        self.machine.at(rule, self, site, message, **more)

    def region_at(self, address: int) -> tuple[Region | None, int]:
        """Return the region of an address and the offset from its first byte, maybe negative."""
        address = int(address)
        number = global_number(address)
        if number:
            region = self.machine.regions.get(number)
            return region, (address - region.base if region is not None else 0)
        rank, ctas = shared_rank(address), self.cta.cluster
        if rank >= len(ctas):
            return None, 0
        return ctas[rank].shared, shared_offset(address)

    def by_memory(self, mask: Any, address: Any) -> list[Any]:
        """Split the active lanes by where they point: a tensor, or one CTA's shared memory."""
        if not isinstance(address, np.ndarray) or not address.ndim:
            return [mask]
        places = address.astype(np.int64)
        numbers = global_number(places)
        memory = np.where(numbers != 0, numbers << 8, shared_rank(places))
        found = np.unique(memory if mask is None else memory[mask])
        if len(found) == 1:
            return [mask]
        return [(memory == one) if mask is None else (memory == one) & mask for one in found]

    def reach(self, site: int, cta: Any, lanes: int) -> None:
        """Check that another CTA whose shared memory is touched runs: has begun, and not left.

        Leaving is checked at the end: the CTA must know of the access, in whatever scope (PTX ISA,
        9.7.13.3; calibration, point e).
        """
        known = self.knows(lanes)
        clocks = (known.generic.epochs, known.narrow.epochs)
        if not any(epochs[warp.index] for epochs in clocks for warp in cta.warps):
            text = (
                f"reaches into the shared memory of {cta.label}, which may not have begun: "
                "nothing of it is known here"
            )
            self.report("CLUSTER_TARGET_NOT_STARTED", site, text, key=(site, "begun"))
        if cta.exited:
            self.report("CLUSTER_TARGET_EXITED", site, f"{cta.label} has exited")
        self.machine.reached[cta, self, site] = (self.epoch, self.it)

    def inside(
        self,
        site: int,
        region: Region | None,
        offsets: Any,
        size: int,
        verb: str,
        *,
        at: int = 0,
        between: tuple[int, int] | None = None,
    ) -> bool:
        """Check that bytes are in memory, and are elements of the tensor; False: not in memory.

        `at` is the address to name if there is no region, `between` the ends of the offsets.
        """
        if isinstance(offsets, np.ndarray) and not offsets.size:
            return True
        if region is None:
            where = f"address {at:#x}" if at else "an address"
            text = f"{verb} {where}, where neither a tensor nor shared memory lies"
            text += self.machine.index_text(site)
            self.report("OOB_ACCESS", site, text)
            return False
        low, high = between or ends(offsets)
        if low < region.low or high + size > region.size:
            first, last = low - region.low, high + size - region.low
            text = f"{verb} bytes [{first}, {last}) of {region.name}, which has "
            text += f"{region.size - region.low} bytes{self.machine.index_text(site)}"
            self.report("OOB_ACCESS", site, text, buffer=region.name, byte_range=(first, last))
            return False
        if region.is_parameter and "writes" in verb:
            text = f"{verb} a parameter of the kernel, {region.name}, which is constant"
            self.report("OOB_ACCESS", site, text, buffer=region.name)
            return False
        if region.outside is not None:
            self._in_view(site, region, region.outside, np.ravel(offsets), size, verb)
        return True

    def in_view(
        self, site: int, base: Any, low: int, high: int, view: tuple[str, int], verb: str
    ) -> None:
        """Check that all accesses of a view of shared memory fit into as many bytes as it has.

        Bytes from `low` up to `high` of the region are touched.

        TVM merges allocations by adding to the indices: a view may begin anywhere after its
        declared address, but has its declared length.
        """
        start = shared_offset(int(base))
        low, high = low - start, high - start
        name, limit = view
        seen = self.machine.views.setdefault(name, [low, high])
        if low >= seen[0] and high <= seen[1] and high - low <= limit:
            return
        seen[:] = min(low, seen[0]), max(high, seen[1])
        if seen[1] - seen[0] <= limit:
            return
        name = self.machine.buffer_of(site) or name
        text = (
            f"{verb} bytes [{low}, {high}) from the address of {name}, which has {limit} bytes; "
            f"all accesses of it lie in [{seen[0]}, {seen[1]})"
        )
        self.report("OOB_ACCESS", site, text, buffer=name, byte_range=(low, high))

    def _in_view(
        self, site: int, region: Region, outside: Any, starts: Any, size: int, verb: str
    ) -> None:
        wrong = outside[starts[:, None] + np.arange(size)].any(axis=1)
        if wrong.any():
            first = int(starts[wrong].min())
            self.report(
                "OUT_OF_VIEW",
                site,
                f"{verb} byte {first} of the memory that {region.name} is a view of, which is none "
                f"of {region.name}'s own elements",
                buffer=region.name,
                byte_range=(first, first + size),
            )

    def _resolve(
        self,
        site: int,
        base: Any,
        index: Any,
        mask: Any,
        touched: Touched,
        verb: str = "reads",
        view: tuple[str, int] | None = None,
    ) -> tuple[Region | None, Any]:
        """Return region and byte offsets (int, or array per active lane), checked."""
        size, total, align = touched
        if is_lanes(base) or is_lanes(index):
            address = np.asarray(base + np.asarray(index, np.int64) * size, np.int64)
            if address.ndim and mask is not None:
                address = address[mask]
            place = int(address[0])
            region, first = self.region_at(place)
            offsets: Any = address - (place - first)
            spread = spread_of(address - place)
            bad = bool((first | spread.bits) & (align - 1))
            low, high = first + spread.low, first + spread.high
        else:
            place = int(base + index * size)
            region, offsets = self.region_at(place)
            bad = offsets % align != 0
            low = high = offsets
        if (
            not self.inside(site, region, offsets, total, verb, at=place, between=(low, high))
            or region is None
        ):
            return None, offsets
        if region.shared and region.cta is not self.cta:
            self.reach(site, region.cta, ALL_LANES if mask is None else lane_bits(mask))
        if bad:
            text = f"offset {low} of {region.name}: need {align}"
            self.report("MISALIGNED", site, text, buffer=region.name)
        if region.shared and region.live[low : high + total].any():
            self._live_object(site, region, offsets, total)
        if not region.shared and self.machine.recorder.on:
            self.machine.recorder.touch(self, site, region.name, verb != "reads")
        if view is not None:
            self.in_view(site, base, low, high + total, view, verb)
        return region, offsets

    def _live_object(self, site: int, region: Region, offsets: Any, total: int) -> None:
        spread = np.ravel(offsets)[:, None] + np.arange(total)
        if region.live[spread].any():
            name, inside = region.name_of(int(np.min(offsets)))
            text = "an ordinary access touches a live mbarrier object"
            self.report("OOB_ACCESS", site, text, buffer=name, byte_range=(inside, inside + total))
