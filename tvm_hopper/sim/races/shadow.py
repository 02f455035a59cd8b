"""Shadow memory: the last accesses of each granule, checked at every access.

A cell keeps the last write and the set of reads since then.  Two accesses race when they overlap,
at least one writes, and the earlier one is not known to the clock that the later one must rely on.

A granule is the largest power of two, at most 16 bytes, that divides the place and the size of
every access so far: the bytes of a cell have always been accessed together, so that nothing is lost
by keeping one state for them.  An access that divides a cell makes all cells of the region smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from tvm_hopper.sim.machine.pages import no_bytes
from tvm_hopper.sim.machine.spread import spread_of
from tvm_hopper.sim.races.clocks import Bundle, Clock, reaches

GENERIC, ASYNC, TENSORMAP = "generic", "async", "tensormap"
ALL_LANES = (1 << 32) - 1
COARSEST = 16  # bytes of an initial cell: the unit of asynchronous copies and wgmma
PIECE = 1 << 20  # bytes of a large region that are looked at together
MANY_PIECES = 64
EARLIER = 1  # number of the access that stands for all those of earlier launches


@dataclass(slots=True)
class MemoryAccess:
    """One access that later ones are checked against.

    - `warp` (Warp): the warp that executed (or issued) it.
    - `epoch`: the warp's epoch, for an access in program order.
    - `event`: bit number of an asynchronous event; -1 for an access in program order.
    - `kind`: the proxy, "generic", "async" or "tensormap".
    - `rmw`: a strong access (an atomic, a load or store with an order): two of them do not race, if
      the scope of each holds the other's thread.
    - `scope`: scope of a strong access.
    - `lanes`: the lanes that executed it, as bits.
    - `bit`: for an access by some lanes: an event that replaces its epoch, which covers all lanes.
    - `wider`: for a piece of an asynchronous access: events of the whole, as clock bits.
    - `discards`: a write that leaves no value.
    """

    number: int
    warp: Any
    epoch: int
    event: int
    kind: str
    writes: bool
    site: int
    it: tuple[int, ...]
    op: Any = None
    rmw: bool = False
    lanes: int = ALL_LANES
    bit: int = -1
    wider: int = 0
    discards: bool = False
    scope: str = "gpu"

    def strong_with(self, other: MemoryAccess) -> bool:
        """Return whether two accesses are morally strong (PTX ISA, 8.7) and so do not race."""
        return (
            self.rmw
            and other.rmw
            and reaches(self.warp.cta, other.warp.cta, self.scope)
            and reaches(other.warp.cta, self.warp.cta, other.scope)
        )

    def known_to(self, clock: Clock) -> bool:
        """Return whether the clock orders this access before the present."""
        if self.number == EARLIER:
            return True
        if self.event >= 0:
            return bool(clock.events >> self.event & 1 or clock.events & self.wider)
        if self.bit >= 0 and clock.events >> self.bit & 1:
            return True
        return bool(clock.epochs[self.warp.index] >= self.epoch)


class AccessLog:
    """Numbers accesses, and interns sets of readers so that a cell holds one integer.

    - `first` (int): number of this kernel's first access: those below stand for other launches.
    - `discarding` (list of int): the accesses that left no value after it.
    """

    def __init__(self) -> None:
        earlier = MemoryAccess(EARLIER, None, 0, -1, GENERIC, True, 0, ())
        self.accesses: list[MemoryAccess] = [None, earlier]  # type: ignore[list-item]
        self.first = EARLIER + 1
        self.discarding: list[int] = []
        self.sets: list[tuple[int, ...]] = [()]
        self.set_numbers: dict[tuple[int, ...], int] = {(): 0}

    def add(self, *args: Any, **kwargs: Any) -> MemoryAccess:
        """Record a new access."""
        access = MemoryAccess(len(self.accesses), *args, **kwargs)
        self.accesses.append(access)
        return access

    def add_piece(self, whole: MemoryAccess, event: int, lanes: int) -> MemoryAccess:
        """Record the part of some lanes in an asynchronous access, with the events of the whole."""
        access = replace(
            whole,
            number=len(self.accesses),
            event=event,
            lanes=lanes,
            wider=whole.wider | 1 << whole.event,
        )
        self.accesses.append(access)
        return access

    def add_unfinished(self, launch: Any, event: int, writes: bool) -> MemoryAccess:
        """Record an access that stands for those of an earlier launch, which may not have ended."""
        access = self.add(None, 0, event, GENERIC, writes, 0, (), launch)
        self.first = access.number + 1
        return access

    def with_reader(self, number: int, access: MemoryAccess) -> int:
        """Return the set `number` plus one reader, without earlier reads that it implies."""
        kept = []
        for other_number in self.sets[number]:
            other = self.accesses[other_number]
            implied = (
                other.event < 0
                and access.event < 0
                and other.warp is access.warp
                and other.kind == access.kind
                and (other.rmw, other.scope) == (access.rmw, access.scope)
                and not other.lanes & ~access.lanes
            )
            if not implied and other_number != access.number:
                kept.append(other_number)
        return self.set_of((*kept, access.number))

    def set_of(self, numbers: Iterable[int]) -> int:
        """Return the number of a set of accesses."""
        key = tuple(numbers)
        found = self.set_numbers.get(key)
        if found is None:
            found = self.set_numbers[key] = len(self.sets)
            self.sets.append(key)
        return found


def alike(values: np.ndarray) -> bool:
    """Return whether all elements have the same bits; of few elements the quickest way."""
    raw = values.tobytes()
    return raw == raw[: values.itemsize] * len(values)


def _distinct(values: np.ndarray) -> Any:
    if len(values) == 1 or alike(values):
        return (int(values[0]),)
    return np.unique(values).tolist()


def _unordered(other: MemoryAccess, access: MemoryAccess, clock: Clock) -> bool:
    """Return whether an access races with an earlier one of the same byte."""
    if access.rmw and other.strong_with(access):
        return False
    return not other.known_to(clock) or _among_lanes(other, access, clock)


def _among_lanes(earlier: MemoryAccess, later: MemoryAccess, clock: Clock) -> bool:
    """Return whether two accesses of one warp race, since they are of lanes that have not met.

    An access that some lanes released comes back by its event, if another warp handed it on.
    """
    if earlier.bit >= 0 and clock.events >> earlier.bit & 1:
        return False
    return (
        earlier.warp is later.warp
        and earlier.kind == GENERIC
        and (later.kind == GENERIC or not later.lanes & (later.lanes - 1))
        and earlier.epoch > later.warp.lane_order.met
        and bool(later.warp.lane_order.clash(earlier, later))
    )


Report = Callable[[MemoryAccess, MemoryAccess, np.ndarray, int], None]


class Shadow:
    """Shadow cells of one region; `granule` bytes each.

    Cells cost no memory until some thread touches them: the operating system commits pages of zeros
    when they are written.
    """

    def __init__(self, log: AccessLog, num_bytes: int, written: bool) -> None:
        self.log, self.granule = log, COARSEST
        cells = -(-num_bytes // COARSEST)
        self.writer, self.readers = no_cells(cells), no_cells(cells)
        self.fresh = True  # no thread has touched a cell
        self.cells_written = 0  # cells that this kernel has written
        # touched pieces of a large region
        self.num_bytes = cells * COARSEST
        pieces = -(-num_bytes // PIECE)
        self.touched = np.zeros(pieces, bool) if pieces > MANY_PIECES else None
        self.readers_before = 0  # the set that read each cell before this kernel touched it
        self.initialised = written  # the whole region was written before the kernel

    def refine(self, divisor: int) -> None:
        """Make cells as small as the largest power of two that divides `divisor`."""
        granule = divisor & -divisor
        times = self.granule // granule
        self.granule = granule
        self.cells_written *= times
        if self.fresh:
            count = len(self.writer) * times
            self.writer, self.readers = no_cells(count), no_cells(count)
        else:
            self.writer = self._repeated(self.writer, times)
            self.readers = self._repeated(self.readers, times)

    def _repeated(self, cells: np.ndarray, times: int) -> np.ndarray:
        """Repeat each cell; cells that no thread has touched stay without memory."""
        finer = no_cells(len(cells) * times)
        rows = finer.reshape(-1, times)
        for low, high in self.touched_bytes():
            part = slice(low // (self.granule * times), -(-high // (self.granule * times)))
            touched = np.flatnonzero(cells[part])
            rows[part][touched] = cells[part][touched, None]
        return finer

    def _touch(self, cells: Any) -> None:
        assert self.touched is not None
        if isinstance(cells, slice):
            first, last = cells.start * self.granule, (cells.stop - 1) * self.granule
            self.touched[first // PIECE : last // PIECE + 1] = True
        else:
            self.touched[cells * self.granule // PIECE] = True

    def touched_bytes(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of bytes next to which no thread has touched any."""
        if self.touched is None:
            yield 0, self.num_bytes
            return
        for piece in np.flatnonzero(self.touched).tolist():
            yield piece * PIECE, min((piece + 1) * PIECE, self.num_bytes)

    def cells(self, offsets: Any, size: int) -> Any:
        """Return the cells of byte offsets (slice, or array of starts of `size` bytes each)."""
        if isinstance(offsets, slice):
            divisor = offsets.start | offsets.stop
            if divisor & (self.granule - 1):
                self.refine(divisor)
            return slice(offsets.start // self.granule, offsets.stop // self.granule)
        flat = offsets if offsets.ndim == 1 else np.ravel(offsets)
        if not len(flat):
            return flat
        first = int(flat[0])
        spread = spread_of(flat - first)
        divisor = first | spread.bits | size
        if divisor & (self.granule - 1):
            self.refine(divisor)
        granule = self.granule
        if spread.step == size or len(flat) == 1:
            return slice(first // granule, (first + spread.high + size) // granule)
        flat = flat // granule
        count = size // granule
        if count > 1:
            return (flat[:, None] + np.arange(count)).ravel()
        return flat

    def read(self, access: MemoryAccess, cells: Any, clock: Clock, report: Report) -> bool:
        """Record a read; report unordered writes. False if some cell was never written."""
        writers = self.writer[cells]
        self.fresh = False
        if not len(writers):
            return True
        if self.touched is not None:
            self._touch(cells)
        complete = True
        for number in _distinct(writers):
            if number == 0:
                complete = self.initialised
                continue
            other = self.log.accesses[number]
            if other.discards:
                complete = False
            if _unordered(other, access, clock):
                report(other, access, writers, number)
        readers = self._readers(cells, writers)
        sets = _distinct(readers)
        if len(sets) == 1:
            self.readers[cells] = self.log.with_reader(sets[0], access)
        else:
            table = np.zeros(max(sets) + 1, np.int32)
            for number in sets:
                table[number] = self.log.with_reader(number, access)
            self.readers[cells] = table[readers]
        return complete

    def write(self, access: MemoryAccess, cells: Any, clock: Clock, report: Report) -> None:
        """Record a write; report unordered writes and reads."""
        writers = self.writer[cells]
        self.fresh = False
        if not len(writers):
            return
        if self.touched is not None:
            self._touch(cells)
        for number in _distinct(writers):
            if number == 0:
                continue
            other = self.log.accesses[number]
            if _unordered(other, access, clock):
                report(other, access, writers, number)
        readers = self._readers(cells, writers)
        for number in _distinct(readers):
            for reader in self.log.sets[number]:
                other = self.log.accesses[reader]
                if _unordered(other, access, clock):
                    report(other, access, readers, number)
        self.cells_written += int(np.count_nonzero(writers < self.log.first))
        left = self._left(writers, readers) if access.rmw else 0  # of a slice these are views
        self.writer[cells] = access.number
        self.readers[cells] = left

    def _readers(self, cells: Any, writers: np.ndarray) -> np.ndarray:
        """Return the sets of readers of some cells, also for cells that no thread touched."""
        readers: np.ndarray = self.readers[cells]
        if self.readers_before:
            readers = np.where((writers == 0) & (readers == 0), self.readers_before, readers)
        return readers

    def _left(self, writers: np.ndarray, readers: np.ndarray) -> np.ndarray:
        """Return the sets of accesses that a strong write leaves for later comparisons.

        A weak access races with another CTA's strong write, although a later strong access of its
        thread does not.
        """
        found: dict[tuple[int, int], int] = {}
        kept = np.zeros(len(writers), np.int32)
        for cell, pair in enumerate(zip(writers.tolist(), readers.tolist(), strict=True)):
            if pair not in found:
                numbers = (*self.log.sets[pair[1]], pair[0])
                weak = [n for n in numbers if n > EARLIER and not self.log.accesses[n].rmw]
                found[pair] = self.log.set_of(weak)
            kept[cell] = found[pair]
        return kept

    def count(self) -> int:
        """Return how many bytes this kernel has written, about."""
        return self.cells_written * self.granule

    def mark_unfinished(self, write: MemoryAccess | None, read: MemoryAccess | None) -> None:
        """Mark the contents as written and read by launches that may not have ended."""
        if self.fresh and write is None:
            if read is not None:  # a number for all cells: they would cost memory
                self.readers_before = self.log.with_reader(self.readers_before, read)
            return
        if self.readers_before:
            self.readers[(self.writer == 0) & (self.readers == 0)] = self.readers_before
            self.readers_before = 0
        self.fresh, self.touched = False, None
        if write is not None and self.initialised:
            self.writer[:] = write.number
        elif write is not None:
            self.writer[self.writer != 0] = write.number
        if read is not None:
            for number in np.unique(self.readers).tolist():
                held = self.readers == number
                self.readers[held] = self.log.with_reader(number, read)

    def holds_nothing(self, cells: Any) -> np.ndarray:
        """Return for each of some cells whether no thread has given it a value."""
        values = self.writer[cells]
        none: np.ndarray = np.isin(values, self.log.discarding)
        return none if self.initialised else none | (values == 0)

    def discard(self, access: MemoryAccess, cells: Any) -> None:
        """Leave no value where an access has just written."""
        if self.initialised:
            self.log.discarding.append(access.number)
        else:
            self.writer[cells] = 0

    def mark_written(self, flags: np.ndarray) -> None:
        """Take over the bytes that earlier launches wrote."""
        if not flags.any():
            return
        edges = np.flatnonzero(flags[1:] != flags[:-1]) + 1
        divisor = int(np.bitwise_or.reduce(edges)) if len(edges) else COARSEST
        if divisor & (self.granule - 1):
            self.refine(divisor)
        self.fresh, self.touched = False, None
        self.writer[: -(-len(flags) // self.granule)][flags[:: self.granule]] = EARLIER

    def written(self, num_bytes: int) -> np.ndarray:
        """Return which bytes a write has reached, of this kernel or of an earlier one."""
        return np.repeat(self.writer != 0, self.granule)[:num_bytes]


def no_cells(count: int) -> np.ndarray:
    """Return cells that no thread has touched."""
    return no_bytes(count * np.dtype(np.int32).itemsize).view(np.int32)


class Reliance(NamedTuple):
    """Knowledge that an access may rely on, and all clocks of its thread for the message."""

    clock: Clock
    known: Callable[[], Bundle]


def clock_for(bundle: Bundle, kind: str, shared: bool) -> Clock:
    """Return the clock that an access of this kind must rely on."""
    if kind == ASYNC:
        return bundle.async_shared if shared else bundle.async_global
    return bundle.generic
