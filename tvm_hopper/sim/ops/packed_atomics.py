"""Atomics of halves, packed halves and vectors: one atomic an element, in no order among them.

"Vector atomics ... are guaranteed separately for each of the individual ... elements; the entire
atom is not guaranteed to be atomic as a single access" (PTX ISA, 9.7.13.5 atom, 9.7.13.7 red).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_hopper.sim.arithmetic.integers import pack, unpack
from tvm_hopper.sim.machine.lanes import as_lanes
from tvm_hopper.sim.ops.atomics import order_of
from tvm_hopper.sim.ops.ptx_types import DTYPE_OF
from tvm_hopper.sim.tir import numpy_dtype

_NUMBERS = {"min": "fmin", "max": "fmax"}  # of floats: the one that is no NaN


class PackedAtomicOps:
    """The atomics of one warp on more than one element, and of halves; a part of `Warp`."""

    def atomic_elements(
        self, site: int, mask: Any, mods: Any, addr: Any, values: list[np.ndarray]
    ) -> list[np.ndarray]:
        """Run one atomic an element; return what was there before."""
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
