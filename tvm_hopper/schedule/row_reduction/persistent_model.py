"""The configuration of a persistent kernel over rows, whose threads keep sums of columns.

Its currency is bytes in flight on an SM, as for other kernels over rows: those that thread blocks
load at once, and those of later rows that are on their way to L2. Registers bound the former: a
thread holds its part of a row, and of the sums. Where they leave room for little, memory is asked
for rows in advance; more in flight than memory can use only gets in its own way
(docs/memory_bound.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tvm import s_tir

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.devices import DEFAULT_NUM_SMS
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.programming_model import MAX_THREADS
from tvm_hopper.schedule.memory_bound.arrays import Read
from tvm_hopper.schedule.memory_bound.nests import in_memory
from tvm_hopper.schedule.memory_bound.program import Part
from tvm_hopper.schedule.memory_bound.tiles import RegisterTile, widest_vector

from .config import RowReductionConfig, fits_block
from .persistent import Persistent
from .recognize import RowProgram

BASE_REGISTERS = 16  # of a thread, beside its parts of rows and sums
MOST_REGISTERS = 224  # that may be needed; above, the compiler runs out of the 255 there are
REGISTERS_PER_SM = 65536
THREADS_PER_SM = 2048
MOST_BLOCKS_PER_SM = 8
FEWEST_THREADS = 128  # of a thread block
FLIGHT = 96 << 10  # bytes of rows on an SM: loaded, or on their way to L2
MOST_AHEAD = 2  # rows of a thread block on their way to L2
SIZES = (32, 64, 128, 256, 384, 512, 768, 1024)
RUNNERS_UP = 2  # that `explain` shows


@dataclass(frozen=True)
class PersistentWork:
    """What a kernel does to a row.

    Parameters
    ----------
    rows : int or None
        Rows, None if they are known at run time only.
    columns : int
        Elements of a row.
    vector : int
        Elements of the widest vector that is legal.
    loaded : int
        Bytes that are loaded for each element.
    held : int
        Bytes of registers for each element: of rows, of what all rows share, and of sums.
    """

    rows: int | None
    columns: int
    vector: int
    loaded: int
    held: int


def find_work(
    sch: s_tir.Schedule,
    own: list[Part],
    sums: list[Part],
    program: RowProgram,
    reads: list[Read],
    given: RowReductionConfig,
) -> PersistentWork:
    """Count what a program of rows with sums of columns does to a row.

    Parameters
    ----------
    sch : Schedule
        Only read.
    own, sums : list of Part
        What is computed of rows, and the sums of columns.
    program : RowProgram
        What the former are.
    reads : list of Read
        Tensors to load once.
    given : RowReductionConfig
        What is decided already.

    Raises
    ------
    ScheduleError
        The vectors asked for do not fit the rows.
    """
    tensors = [*(x.tensor for x in reads), *in_memory(sch, own, program.full)]
    vector = widest_vector(program.columns, tensors, given.vector)
    if given.vector is not None and vector != given.vector:
        raise cannot_schedule(
            "RowReductionConfig",
            f"vector={given.vector} for rows of {program.columns} elements",
            f"at most 16 bytes of the widest tensor, and whole vectors: {vector}",
        )
    count = [ir.static_int(x) for x in program.rows]
    loaded = sum(dtype_bytes(ir.dtype_of(x.tensor)) for x in reads if x.has_rows)
    shared = sum(dtype_bytes(ir.dtype_of(x.tensor)) for x in reads if not x.has_rows)
    summed = sum(dtype_bytes(ir.dtype_of(x)) for p in sums for x in p.outputs)
    return PersistentWork(
        rows=None if None in count else prod(x or 0 for x in count),
        columns=program.columns,
        vector=vector,
        loaded=loaded,
        held=loaded + shared + summed,
    )


def choose_persistent(where: str, work: PersistentWork, given: RowReductionConfig) -> Persistent:
    """Choose what a configuration leaves open.

    Parameters
    ----------
    where : str
        Names the program in an error message.
    work : PersistentWork
        What there is to do.
    given : RowReductionConfig
        What is decided already.

    Raises
    ------
    ScheduleError
        A row and its sums do not fit into the registers of a thread block.
    """
    sizes = SIZES if given.threads is None else (given.threads,)
    found = [x for x in (_candidate(work, given, t) for t in sizes) if x is not None]
    if (
        not found
        and work.rows is not None
        and work.rows < (given.persistent or 1) * (given.rows or 1)
    ):
        raise cannot_schedule(
            where,
            f"{work.rows} rows for {given.persistent or 1} thread blocks of {given.rows or 1}",
            "a row for each of them, or more",
        )
    if not found:
        most = (REGISTERS_PER_SM // MAX_THREADS - BASE_REGISTERS) * 4 // work.held * MAX_THREADS
        raise cannot_schedule(
            where,
            f"rows of {work.columns} elements beside sums of columns, {work.held} bytes of "
            "registers for each",
            f"rows that fit the registers of a thread block: about {most} elements of these types",
            "compute the sums in a function of their own, by hs.column_reduction",
        )
    found.sort(key=lambda x: _order(x, work))
    texts = [x.text for x in found[: 1 + RUNNERS_UP]]
    best = found[0]
    return replace(best, text="; then ".join(texts))


def _order(choice: Persistent, work: PersistentWork) -> tuple[float, ...]:
    """Sort the most bytes in flight first, up to what memory can use; then the most threads."""
    tile = choice.tile
    row = work.columns * work.loaded * tile.rows
    flight = min(FLIGHT, choice.on_one * (1 + choice.ahead) * row) * work.columns / tile.columns
    return (-flight, -min(choice.on_one, 2), choice.ahead, tile.threads * tile.rows)


def _candidate(work: PersistentWork, given: RowReductionConfig, threads: int) -> Persistent | None:
    rows = given.rows or max(1, FEWEST_THREADS // threads)
    if work.rows is not None and given.rows is None and work.rows < rows:
        rows = 1
    chunks = -(-work.columns // (work.vector * threads))
    need = BASE_REGISTERS + -(-chunks * work.vector * work.held // 4)
    count = threads * rows
    on_one = min(REGISTERS_PER_SM // (need * count), THREADS_PER_SM // count, MOST_BLOCKS_PER_SM)
    if not fits_block(threads, rows) or need > MOST_REGISTERS or not on_one:
        return None
    idle = chunks == 1 and threads > SIZES[0] and threads // 2 * work.vector >= work.columns
    if given.threads is None and idle:
        return None  # half of the threads would have nothing to load
    tile = RegisterTile(threads, work.vector, chunks, rows)
    row = work.columns * work.loaded * rows
    ahead = min(MOST_AHEAD, max(0, FLIGHT // (on_one * row) - 1, int(on_one == 1)))
    ahead = ahead if given.ahead is None else given.ahead
    blocks = on_one * DEFAULT_NUM_SMS
    if work.rows is not None:
        blocks = max(1, min(blocks, work.rows // rows))  # a partial sum of no row is none
    if work.rows is not None and work.rows < (given.persistent or 1) * rows:
        return None
    if given.persistent is not None:
        blocks = given.persistent
    on_one = min(on_one, -(-blocks // DEFAULT_NUM_SMS))  # registers for no more than there are
    text = (
        f"{threads} threads a row, {chunks} vectors of {work.vector} each, "
        f"{rows} rows a thread block, {blocks} thread blocks, {on_one} on an SM: "
        f"{on_one * row >> 10} KiB of it in flight, {ahead} times as much ahead"
    )
    return Persistent(tile, blocks, on_one, ahead, text)
