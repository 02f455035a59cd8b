"""Vector loads and stores, read-only loads, `discard`, and cache policies.

Cache operators, eviction priorities, prefetch sizes and cache policies are hints: none changes what
memory holds (PTX ISA, 9.7.9.1, 9.7.9.2). A vector is aligned to its whole size (5.4.5).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_hopper.sim.machine.lanes import LANES, as_lanes
from tvm_hopper.sim.machine.memory import POISON
from tvm_hopper.sim.ops.atomics import order_of
from tvm_hopper.sim.ops.bulk import active, lane_value

DISCARDED_BYTES = 128
CHECKED_BYTES = 16  # to which `load` and `store` check the alignment themselves


class VectorAccessOps:
    """The vector accesses of one warp; a part of `Warp`."""

    def whole_vector(self, site: int, mask: Any, addr: Any, size: int) -> None:
        """Report an address that is no multiple of a vector's size."""
        active = as_lanes(addr)[LANES if mask is None else mask].astype(np.int64)
        if (active % size).any():
            region, offset = self.region_at(int(active[0]))
            name = "memory" if region is None else region.name
            self.report("MISALIGNED", site, f"offset {offset} of {name}: need {size}", buffer=name)

    def op_ld_vec(
        self, site: int, mask: Any, mods: Any, addr: Any, cache_policy: Any = None
    ) -> Any:
        """Load 2, 4 or 8 elements; a strong vector is one strong access an element."""
        kind, count = self._type(mods), int(mods["vec"][1:])
        sem, scope = order_of(mods)
        if kind.itemsize * count > CHECKED_BYTES or sem != "weak":
            self.whole_vector(site, mask, addr, kind.itemsize * count)
        if sem == "weak":
            values = self.load_anywhere(site, mask, addr, kind, count)
            return tuple(values[:, i] for i in range(count))
        places = as_lanes(addr).astype(np.int64)
        return tuple(
            self.atomic(site, mask, "load", places + i * kind.itemsize, 0, kind, sem, scope)
            for i in range(count)
        )

    def op_st_vec(
        self, site: int, mask: Any, mods: Any, addr: Any, value: Any, cache_policy: Any = None
    ) -> None:
        """Store 2, 4 or 8 elements; one that is `_` is not stored."""
        kind, count = self._type(mods), int(mods["vec"][1:])
        sem, scope = order_of(mods)
        whole = all(element is not None for element in value)
        if kind.itemsize * count > CHECKED_BYTES or sem != "weak" or not whole:
            self.whole_vector(site, mask, addr, kind.itemsize * count)
        places = as_lanes(addr).astype(np.int64)
        if sem == "weak" and whole:
            lanes = [np.broadcast_to(as_lanes(v), (32,)).astype(kind) for v in value]
            self.store_anywhere(site, mask, places, np.stack(lanes, axis=1), kind, count)
            return
        for i, element in enumerate(value):
            if element is None:
                continue
            place = places + i * kind.itemsize
            if sem == "weak":
                self.store_anywhere(site, mask, place, element, kind, 1)
            else:
                self.atomic(site, mask, "store", place, element, kind, sem, scope)

    def op_ldu(self, site: int, mask: Any, mods: Any, addr: Any) -> Any:
        """Load from an address that all threads share (9.7.9.10)."""
        return self.load(site, mask, addr, 0, (self._type(mods), 1, 1))

    def op_discard(self, site: int, mask: Any, mods: Any, addr: Any) -> None:
        """Leave 128 bytes of global memory without a value (9.7.9.17).

        "Semantically, this behaves like a weak write of an unstable indeterminate value".
        """
        for lane in active(mask):
            region, offset = self.region_at(lane_value(addr, lane))
            if region is not None and region.shared:
                text = "discard: need an address of global memory"
                self.report("ILLEGAL_OPERAND", site, text)
                continue
            place = np.asarray([offset])
            if not self.inside(site, region, place, DISCARDED_BYTES, "discard writes"):
                continue
            if (region.base + offset) % DISCARDED_BYTES:
                text = f"offset {offset} of {region.name}: need {DISCARDED_BYTES}"
                self.report("MISALIGNED", site, text, buffer=region.name)
                continue
            region.begin_store()
            self.machine.progress += 1
            if region.shadow is not None:
                access = self.access(site, True, lanes=self.bit_of(int(lane)))
                access.discards = True
                self.check(region, place, DISCARDED_BYTES, access)
                region.shadow.discard(access, region.shadow.cells(place, DISCARDED_BYTES))
            if self.machine.values:
                region.data[offset : offset + DISCARDED_BYTES] = POISON

    def op_createpolicy(self, site: int, mask: Any, mods: Any, **operands: Any) -> int:
        """Return a cache policy: a word that means nothing here (9.7.9.18)."""
        return 0
