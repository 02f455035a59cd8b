"""Choose the configuration of an elementwise kernel.

Its currency is bytes in flight on an SM: what all its threads have requested. A few ten KiB hide
the latency of memory; more of them only let reads and writes get in each other's way: on an H200 a
copy of one vector a thread is 3% faster than one of two. With two tensors read and one written,
thread blocks of 1024 threads are 0.4% to 0.8% faster than of 256, for a copy 4% slower; four
neighbours of them that begin together are another 0.4% faster, small ones are slower so.
Compute-bound programs, with an exponential or the like for each element of more than 16 bits, are
fastest with two vectors per thread (docs/memory_bound.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tvm_hopper import ir
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.programming_model import MAX_THREADS, THREADS_PER_WARP
from tvm_hopper.schedule.memory_bound.arrays import Read
from tvm_hopper.schedule.memory_bound.estimate import MemoryModel, model_of_target
from tvm_hopper.schedule.memory_bound.tiles import RegisterTile

from .config import MOST_CHUNKS, THREADS_PER_SM, PointwiseConfig
from .recognize import ElementProgram

THREADS = 256  # of a thread block
PAIR_THREADS, PAIR_BYTES = 1024, 32  # the same, where a thread loads a vector of two large tensors
PAIR_TOGETHER = 4  # of these, neighbours, begin together
# threads of a block, and vectors of a thread, where arithmetic is expensive
EXPENSIVE_THREADS, EXPENSIVE_CHUNKS = 512, 2
# Waves of such blocks from which they are chosen: with 1.5 of them half of the SMs wait at the end
# (32x512x14x14 with two sigmoids, 14.0 us; in blocks of half the size 12.0, H200).
FEWEST_WAVES = 3
SHARING_CHUNKS = (2, 4, 1)  # vectors of a thread that share what they read, the best first
SHARING_THREADS = range(64, 513)
RUNNERS_UP = 2  # that `explain` shows


@dataclass(frozen=True)
class ElementChoice:
    """A configuration with nothing left open, what it amounts to, and what came after it."""

    tile: RegisterTile
    flight: int  # bytes on an SM
    hint: bool
    text: str
    blocks: int = 1  # that are to share an SM
    together: int = 1  # that begin at the same time

    @property
    def config(self) -> PointwiseConfig:
        """The same as a request: a schedule with it is this one."""
        tile = self.tile
        blocks = self.blocks if self.blocks > 1 else None
        together = self.together if self.together > 1 else None
        return PointwiseConfig(
            tile.threads, tile.chunks, tile.vector, self.hint, blocks=blocks, together=together
        )


def choose_elements(
    program: ElementProgram,
    tensors: list[Any],
    reads: list[Read],
    vector: int,
    dear: bool,
    given: PointwiseConfig,
    span: int | None = None,
) -> ElementChoice:
    """Choose what a configuration leaves open.

    - `program`: what there is to do.
    - `tensors` (list of Buffer): all that it touches in memory, one element for each of the
      program's.
    - `reads`: tensors that are loaded by vectors.
    - `vector`: elements of a vector.
    - `expensive` (bool): whether an element takes more than a few instructions.
    - `given`: what is decided already.
    - `span`: neighbouring elements that share what they read of a tensor: a thread block has all of
      them.
    """
    model = model_of_target()
    loaded = sum(dtype_bytes(ir.dtype_of(x.tensor)) for x in reads) or 1
    hint = _wants_hint(program, tensors, model) if given.hint is None else given.hint
    is_pair = hint and len(reads) == 2 and len(tensors) == 3  # two are read, one is written
    search = _ElementSearch(program, given, model, vector, loaded, hint, dear, is_pair)
    found = [search.candidate(chunks) for chunks in search.counts(len(reads))]
    least = model.flight(model.rates.elementwise_bytes)
    enough = [x for x in found if x.flight >= least] or found[-1:]
    if span is not None and not program.rows and given.threads is given.chunks is None:
        blocks = given.blocks or 1
        spans = [x for x in _spanning(span, vector) if x[0] * blocks <= THREADS_PER_SM]
        enough = [search.element(*x, blocks) for x in spans] or enough
    rest = list(dict.fromkeys(x.text for x in enough if x.text != enough[0].text))[:RUNNERS_UP]
    text = "; then ".join([f"{enough[0].text} in flight", *rest])
    return replace(enough[0], text=text, together=search.together(enough[0]))


@dataclass(frozen=True)
class _ElementSearch:
    """The configurations of a program, by the vectors of a thread."""

    program: ElementProgram
    given: PointwiseConfig
    model: MemoryModel
    vector: int
    loaded: int  # bytes for each element
    hint: bool
    dear: bool
    is_pair: bool  # two large tensors are read, one is written

    def counts(self, reads: int) -> range:
        """Return the numbers of vectors to try."""
        if self.given.chunks is not None:
            return range(self.given.chunks, self.given.chunks + 1)
        elements, sms = _elements(self.program), self.model.chip.num_sms
        wave = THREADS_PER_SM * sms * EXPENSIVE_CHUNKS * self.vector
        is_long = elements is None or elements >= FEWEST_WAVES * wave
        first = EXPENSIVE_CHUNKS if self.dear and reads > 1 and is_long else 1
        most = _most_chunks(self.program, self.vector, self.given.threads or THREADS_PER_WARP)
        return range(min(first, most), most + 1)

    def candidate(self, chunks: int) -> ElementChoice:
        """Return the best configuration of so many vectors."""
        given, elements = self.given, chunks * self.vector
        is_pair = self.is_pair and elements * self.loaded == PAIR_BYTES
        most = EXPENSIVE_THREADS if self.dear else PAIR_THREADS if is_pair else THREADS
        most = min(most, THREADS_PER_SM // (given.blocks or 1))
        threads = given.threads or _threads(self.program, elements, most, self.model)
        there = min(chunks, _most_chunks(self.program, self.vector, threads))  # have elements
        # Without a limit the assembler takes over 32 registers, and no two blocks fit.
        blocks = given.blocks or (2 if threads == MAX_THREADS and is_pair and not self.dear else 1)
        return self.element(threads, there, blocks)

    def element(self, threads: int, chunks: int, blocks: int = 1) -> ElementChoice:
        """Return a configuration, and what it amounts to."""
        vector = self.vector
        flight = THREADS_PER_SM * chunks * vector * self.loaded
        text = f"{threads} threads, {chunks} vectors of {vector} each: {flight >> 10} KiB of an SM"
        tile = RegisterTile(threads, vector, chunks)
        return ElementChoice(tile, flight, self.hint, text, blocks)

    def together(self, best: ElementChoice) -> int:
        """Return how many neighbouring thread blocks of a configuration begin at the same time."""
        fills_sm = self.hint and best.tile.threads == PAIR_THREADS and best.blocks > 1
        fills_sm = fills_sm and _elements(self.program) is not None  # few would wait for each other
        return self.given.together or (PAIR_TOGETHER if fills_sm else 1)


def _wants_hint(program: ElementProgram, tensors: list[Any], model: MemoryModel) -> bool:
    """Tell whether a kernel touches more than L2 holds."""
    total, moved = _elements(program), sum(dtype_bytes(ir.dtype_of(x)) for x in tensors)
    return model.outgrows_cache(None if total is None else total * moved)


def _spanning(span: int, vector: int) -> list[tuple[int, int]]:
    """List threads and vectors of one that are a span together, the best first."""
    vectors, rest = divmod(span, vector)
    found = [
        (vectors // chunks, chunks)
        for chunks in SHARING_CHUNKS
        if not rest and vectors % chunks == 0
    ]
    return [x for x in found if x[0] in SHARING_THREADS and x[0] % THREADS_PER_WARP == 0]


def _elements(program: ElementProgram) -> int | None:
    """Return the number of all elements, None if it is known at run time only."""
    total = ir.static_int(program.columns)
    for extent in program.rows:
        size = ir.static_int(extent)
        total = None if total is None or size is None else total * size
    return total


def _most_chunks(program: ElementProgram, vector: int, threads: int) -> int:
    """Return the most vectors of a thread: no more than a row, or the program, has for each."""
    columns = ir.static_int(program.columns)
    if columns is None:
        return MOST_CHUNKS
    return max(1, min(MOST_CHUNKS, -(-columns // (threads * vector))))


def _threads(program: ElementProgram, elements: int, most: int, model: MemoryModel) -> int:
    """Return the threads of a block: fewer where else SMs, or threads of a row, had nothing."""
    columns, total = ir.static_int(program.columns), _elements(program)
    threads = most
    while threads > THREADS_PER_WARP and (
        (total is not None and total < threads * elements * model.chip.num_sms)
        or (bool(program.rows) and columns is not None and columns <= threads // 2 * elements)
    ):
        threads //= 2
    if not program.rows or columns is None:
        return threads
    blocks = -(-columns // (threads * elements))  # of a row: each has as much of it as the others
    warps = -(-columns // (blocks * elements * THREADS_PER_WARP))
    return min(threads, warps * THREADS_PER_WARP)
