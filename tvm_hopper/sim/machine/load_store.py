"""Ordinary loads and stores of a warp: one element or a vector for each lane."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tvm_hopper.sim.machine.addresses import Addresses, Touched
from tvm_hopper.sim.machine.lanes import is_lanes
from tvm_hopper.sim.machine.memory import Region
from tvm_hopper.sim.machine.spread import spread_of
from tvm_hopper.sim.options import no_values

# One access of a lane: the type of an element, their number, and the elements an index counts.
Elements = tuple[np.dtype, int, int]


@functools.lru_cache(maxsize=64)
def _zeros(shape: Any, dtype: np.dtype) -> np.ndarray:
    """Return read-only zeros, the loaded values of a run without values."""
    found = np.zeros(shape, dtype)
    found.flags.writeable = False
    return found


def vector_alignment(itemsize: int, count: int) -> int:
    """Return the bytes to which a load or store of `count` elements must be aligned.

    A vector access is aligned to its size (PTX ISA, 5.4.5), at most the 16 bytes of one
    instruction: CUDA splits wider types. A vector of three elements is three accesses.
    """
    size = itemsize * count
    return min(size, 16) if size & (size - 1) == 0 else itemsize


def touched_by(elements: Elements) -> Touched:
    """Return the bytes that an access of some elements touches."""
    dtype, count, vector = elements
    size = dtype.itemsize
    return size * vector, size * vector * (count // vector), vector_alignment(size, count)


def overlapping(offsets: Any, size: int) -> bool:
    """Return whether ranges of `size` bytes from some offsets overlap."""
    starts = offsets if offsets.ndim == 1 else np.ravel(offsets)
    if len(starts) < 2 or spread_of(starts - starts[0]).step >= size:
        return False
    return bool((np.diff(np.sort(starts)) < size).any())


def differ(values: np.ndarray, others: np.ndarray) -> bool:
    """Return whether values differ; one NaN is as good as another."""
    unequal = values != others
    if not unequal.any():
        return False
    return bool((unequal & ((values == values) | (others == others))).any())


class LoadStore(Addresses):
    """Loads and stores; a part of `WarpCore`."""

    def load_anywhere(self, site: int, mask: Any, address: Any, dtype: np.dtype, count: int) -> Any:
        """Load as `load` does; the lanes' addresses may be in several memories."""
        parts = self.by_memory(mask, address)
        if len(parts) == 1:
            return self.load(site, mask, address, 0, (dtype, count, 1))
        full = np.zeros((32,) if count == 1 else (32, count), dtype)
        for part in parts:
            full[part] = self.load(site, part, address, 0, (dtype, count, 1))[part]
        return full

    def store_anywhere(
        self, site: int, mask: Any, address: Any, value: Any, dtype: np.dtype, count: int
    ) -> None:
        """Store as `store` does; the lanes' addresses may be in several memories."""
        for part in self.by_memory(mask, address):
            self.store(site, part, address, 0, value, (dtype, count, 1))

    def load(
        self,
        site: int,
        mask: Any,
        base: Any,
        index: Any,
        elements: Elements,
        view: tuple[str, int] | None = None,
    ) -> Any:
        """Load elements per lane; a uniform address gives one value for all lanes.

        `view`: name and bytes of the view of shared memory that is named, if they are known.
        """
        dtype, count, _ = elements
        region, offsets = self._resolve(
            site, base, index, mask, touched_by(elements), "reads", view
        )
        uniform = not isinstance(offsets, np.ndarray)
        shape: Any = (32,) if count == 1 else (32, count)
        if region is None:
            fill = np.full(shape, np.nan if dtype.kind not in "iub" else 0).astype(dtype)
            return fill[0] if uniform and count == 1 else fill
        if region.unfinished:
            self.reads_whole(region, site, self.lanes_of(mask))
        if region.shadow is not None:
            access = self.access(site, False, lanes=self.lanes_of(mask))
            self.check(region, np.asarray(offsets), dtype.itemsize * count, access)
        if self.looked is not None:
            self.look(region, offsets, dtype.itemsize * count)
        if not self.machine.values:
            return dtype.type(0) if uniform and count == 1 else _zeros(shape, dtype)
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
        elements: Elements,
        view: tuple[str, int] | None = None,
    ) -> None:
        """Store elements per lane; `view` as for `load`."""
        dtype, count, _ = elements
        lanes = self.lanes_of(mask)
        if not is_lanes(base) and not is_lanes(index):
            index, value, mask = np.full(1, index), self._that_stays(site, mask, value), None
        region, offsets = self._resolve(
            site, base, index, mask, touched_by(elements), "writes", view
        )
        if region is None:
            return
        self.machine.progress += 1
        region.begin_store()
        if region.shadow is not None:
            access = self.access(site, True, lanes=lanes)
            self.check(region, offsets, dtype.itemsize * count, access)
        if not self.machine.values:
            if offsets.size > 1 and overlapping(offsets, dtype.itemsize * count):
                no_values(self.machine, "lanes of one store write to one place")
            return
        value = np.asarray(value).astype(dtype, copy=False)
        if mask is not None and value.ndim and len(value) == 32:
            value = value[mask]
        if value.ndim < 2:
            value = value.reshape(-1, 1) if value.ndim else value
        self.scatter(region, offsets, value, dtype, count)
        if value.ndim and len(value) > 1 and overlapping(offsets, dtype.itemsize * count):
            stays = self.gather(region, offsets, dtype, count)
            if differ(np.broadcast_to(value, stays.shape), stays):
                self._one_place(site)

    def _that_stays(self, site: int, mask: Any, value: Any) -> np.ndarray:
        """Return the final value where all lanes write to one place: that of the last active lane.

        Lanes that write different values are reported.
        """
        value = np.asarray(value)
        if not value.ndim or len(value) != 32:
            return value
        last = 31 if mask is None else 31 - int(np.argmax(mask[::-1]))
        stays = value[last : last + 1]
        if mask is None or np.count_nonzero(mask) > 1:
            no_values(self.machine, "lanes of one store write to one place")
        if differ(value if mask is None else value[mask], stays):
            self._one_place(site)
        return stays

    def check_one_place(self, site: int, offsets: np.ndarray, words: np.ndarray) -> None:
        """Check that lanes which write to one place write the same; `words` is (lanes, words)."""
        no_values(self.machine, "lanes of one store write to one place")
        for place in np.unique(offsets):
            here = words[offsets == place]
            if differ(here, np.broadcast_to(here[0], here.shape)):
                self._one_place(site)

    def _one_place(self, site: int) -> None:
        """Report lanes of one store that write different values to one place.

        Which one stays is undefined (CUDA C++ Programming Guide, "SIMT Architecture"): the writes
        are of threads that nothing orders. Equal values are no conflict that anybody could see.
        """
        self.report(
            "RACE_WRITE_WRITE",
            site,
            "lanes of one warp write different values to the same bytes in one store",
            key=(site, "lanes"),
            missing="one lane that writes, or an atomic",
        )

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
