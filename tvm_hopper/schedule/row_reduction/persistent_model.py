"""The configuration of a persistent kernel over rows, whose threads keep sums of columns.

Its currency is bytes in flight on an SM, as for other kernels over rows: those that thread blocks
load at once, and those of later rows that are on their way to L2. Registers bound the former: a
thread holds its part of a row, and of the sums. Where they leave room for little, memory is asked
for rows in advance; more in flight than memory can use only gets in its own way
(docs/memory_bound.md).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import prod

from tvm import s_tir
from tvm.target import Target

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.arch import Arch
from tvm_hopper.facts.devices import DEFAULT_NUM_SMS
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.programming_model import MAX_THREADS, THREADS_PER_WARP
from tvm_hopper.requests.targets import find_processor
from tvm_hopper.schedule.memory_bound.arrays import Read
from tvm_hopper.schedule.memory_bound.nests import in_memory
from tvm_hopper.schedule.memory_bound.program import Part
from tvm_hopper.schedule.memory_bound.tiles import RegisterTile, widest_vector

from .config import THREADS_PER_SM, RowReductionConfig, fits_block
from .persistent import Persistent
from .recognize import RowProgram
from .work import CACHE_BYTES, CLUSTERS, REGISTERS_PER_SM, LoadedRows

BASE_REGISTERS = 36  # of a thread, beside its parts of rows and sums
FEWEST_REGISTERS = 16  # the same, where the user says how many threads there are
MOST_REGISTERS = 224  # that may be needed; above, the compiler runs out of the 255 there are
MOST_BLOCKS_PER_SM = 8
FEWEST_THREADS = 128  # of a thread block
FLIGHT = 96 << 10  # bytes of rows on an SM: loaded, or on their way to L2
LONG_BYTES = 32 << 10  # of a row: from here on it is loaded twice from shared memory
STAGED_FLIGHT = 128 << 10  # bytes of rows on their way to shared memory, of an SM
BULK_BYTES = 16  # of which bulk copies bring multiples
APART = 0.04  # more where an SM has three thread blocks: they are never all at the same place
PER_CHUNK, PER_BLOCK = 0.01, 0.03  # less for a vector of a thread, and a block of staged rows, more
SCATTERED = 0.05  # less where a cluster has more than two: some SMs find no neighbours
BYTES_PER_CYCLE = 18.7  # that memory moves for an SM
LATENCY, L2_LATENCY, SHARED_LATENCY = 1600, 900, 60  # cycles from a load to its data
BARRIER, PER_THREAD = 200, 0.5  # cycles of a barrier, and for each thread that comes to it
CLUSTER_WAIT = 600  # cycles more where a cluster reduces
OPERATIONS, PER_SUM = 7, 9  # instructions for an element, and for each sum of columns
ISSUED = 4  # instructions of warps that an SM issues in a cycle
CROWDED = 0.2  # of memory's rate is lost to twice as many bytes in flight
LEAST_FLIGHT = 40 << 10  # bytes in flight that memory needs
PAIR, GROUPED_SMS = 2, 112  # SMs that are sure to find neighbours for clusters of more than two
SHARED_BYTES = 220 << 10  # of an SM, for rows that wait
MOST_STAGED = 6  # rows of a thread block on their way to shared memory
MOST_AHEAD = 2  # rows of a thread block on their way to L2
SIZES = (32, 64, 128, 256, 384, 512, 768, 1024)
RUNNERS_UP = 2  # that `explain` shows


@dataclass(frozen=True)
class PersistentWork(LoadedRows):
    """What a kernel does to a row, and to sums of columns beside it.

    Parameters
    ----------
    rows, columns, vector, loaded
        As of `LoadedRows`.
    held : int
        Bytes of registers for each element: of rows, of what all rows share, and of sums.
    moved : int
        Bytes that are loaded and stored for each element.
    sums : int
        Sums of columns.
    narrow : int
        Bytes of the narrowest element that is loaded of a row.
    """

    held: int
    moved: int
    sums: int
    narrow: int = 2


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
        moved=loaded + sum(dtype_bytes(ir.dtype_of(x)) for x in in_memory(sch, own, program.full)),
        sums=sum(len(p.outputs) for p in sums),
        narrow=min(dtype_bytes(ir.dtype_of(x.tensor)) for x in reads if x.has_rows),
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
    found = _candidates(work, given)
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
        most *= _clusters(given)[-1]
        _refuse_choice(where, work, given, most)
        beside = "sums of columns" if work.sums else "what all rows share"
        fix = "compute the sums in a function of their own, by hs.column_reduction"
        raise cannot_schedule(
            where,
            f"rows of {work.columns} elements beside {beside}, {work.held} bytes of "
            "registers for each",
            f"rows that fit the registers of a thread block, or of {_clusters(given)[-1]} in a "
            f"cluster: about {most} elements of these types",
            fix if work.sums else "leave persistent= out",
        )
    found.sort(key=lambda x: -rate(x, work))
    texts = [x.text for x in found[: 1 + RUNNERS_UP]]
    best = found[0]
    return replace(best, text="; then ".join(texts))


def _refuse_choice(where: str, work: PersistentWork, given: RowReductionConfig, most: int) -> None:
    """Name what was asked of rows that would fit: they are not what is wrong."""
    values = {x.name: getattr(given, x.name) for x in fields(given)}
    asked = [f"{name}={x}" for name, x in values.items() if x is not None and name != "persistent"]
    if asked and work.columns <= most:
        raise cannot_schedule(
            where,
            f"{', '.join(asked)} for rows of {work.columns} elements in a persistent kernel",
            "values that go together: in a cluster two vectors of a thread or more, and whole "
            "ones of 16 bytes and one row of each thread block if staged",
            "leave some of them open",
        )


def rate(choice: Persistent, work: PersistentWork) -> float:
    """Estimate the part of memory's rate that a configuration reaches.

    Memory takes its time for the rows of all thread blocks on an SM. Each of them waits for its
    row, at the reduction's barrier, and for its turn to issue instructions. Whichever is longer
    decides; where both are alike they are in each other's way.
    """
    tile = choice.tile
    threads = tile.threads * tile.rows
    row = work.columns * tile.rows / tile.cluster
    memory = choice.on_one * row * work.moved / BYTES_PER_CYCLE
    elements = tile.chunks * tile.vector
    issue = elements * (OPERATIONS + PER_SUM * work.sums) * threads / THREADS_PER_WARP / ISSUED
    wait: float = L2_LATENCY if choice.ahead else LATENCY
    if choice.is_staged:
        wait = SHARED_LATENCY
    if tile.threads > THREADS_PER_WARP or tile.cluster > 1:
        wait += BARRIER + threads * PER_THREAD
    wait += CLUSTER_WAIT if tile.cluster > 1 else 0
    turn = wait + choice.on_one * issue
    flight = choice.on_one * (choice.ahead + (not choice.is_staged)) * row * work.loaded
    lost = PER_CHUNK * (tile.chunks - 1) + (SCATTERED if tile.cluster > PAIR else 0)
    if choice.is_staged:
        lost += PER_BLOCK * (choice.on_one - 1)
    else:
        lost += CROWDED * max(0.0, flight / FLIGHT - 1) - (APART if choice.on_one > 2 else 0)
    enough = min(1.0, flight / LEAST_FLIGHT)
    waste = tile.columns / work.columns
    return (1 - lost) * enough * (1 + (waste * turn / memory) ** 4) ** -0.25


def _candidates(work: PersistentWork, given: RowReductionConfig) -> list[Persistent]:
    found = []
    for way in _ways(given):
        for cluster in _clusters(given):
            for threads in SIZES if given.threads is None else (given.threads,):
                most = _room(work, way, given, threads, cluster)
                count = most if given.persistent is None else _asked(given, cluster, most)
                first = 1 if given.persistent is None else count
                found += [
                    _candidate(work, way, given, threads, cluster, on_one)
                    for on_one in range(max(1, first), count + 1)
                ]
    return [x for x in found if x is not None]


@dataclass(frozen=True)
class _Way:
    """Whether rows wait in shared memory, and whether they are loaded twice."""

    stage: bool
    reload: bool


def _ways(given: RowReductionConfig) -> list[_Way]:
    staged = (False, True) if given.stage is None else (given.stage,)
    if given.stage is None and (given.ahead == 0 or not _has_clusters()):
        staged = (False,)
    reloads = (True, False) if given.reload is None else (given.reload,)
    return [
        _Way(stage, reload)
        for stage in staged
        for reload in reloads
        if stage or not reload or given.reload
    ]


def _asked(given: RowReductionConfig, cluster: int, most: int) -> int:
    """Return the thread blocks on an SM, where a configuration names how many there are in all."""
    return min(most, -(-(given.persistent or 1) * cluster // DEFAULT_NUM_SMS))


def _clusters(given: RowReductionConfig) -> tuple[int, ...]:
    if given.cluster is not None:
        return (given.cluster,)
    return CLUSTERS if _has_clusters() else CLUSTERS[:1]


def _rows(work: PersistentWork, way: _Way, given: RowReductionConfig, threads: int) -> int:
    rows = given.rows or (1 if way.stage else max(1, FEWEST_THREADS // threads))
    few = work.rows is not None and given.rows is None and work.rows < rows
    return 1 if few else rows


def _registers(
    work: PersistentWork, way: _Way, given: RowReductionConfig, threads: int, cluster: int
) -> tuple[int, int]:
    """Return the vectors of a thread, and the registers that it needs."""
    chunks = -(-work.columns // (work.vector * threads * cluster))
    base = BASE_REGISTERS if given.threads is None else FEWEST_REGISTERS
    held = chunks * work.vector * work.held
    if way.reload:  # one vector of a row at a time
        held -= (chunks - 1) * work.vector * work.loaded
    return chunks, base + -(-held // 4)


def _room(
    work: PersistentWork, way: _Way, given: RowReductionConfig, threads: int, cluster: int
) -> int:
    """Return the thread blocks that an SM has room for."""
    count = threads * _rows(work, way, given, threads)
    _, need = _registers(work, way, given, threads, cluster)
    if need > MOST_REGISTERS or (cluster > 1 and threads % THREADS_PER_WARP):
        return 0
    return min(REGISTERS_PER_SM // (need * count), THREADS_PER_SM // count, MOST_BLOCKS_PER_SM)


def _candidate(
    work: PersistentWork,
    way: _Way,
    given: RowReductionConfig,
    threads: int,
    cluster: int,
    on_one: int,
) -> Persistent | None:
    rows = _rows(work, way, given, threads)
    if not fits_block(threads, rows) or on_one < 1:
        return None
    chunks, _ = _registers(work, way, given, threads, cluster)
    wide = threads * cluster
    idle = chunks == 1 and wide > SIZES[0] and wide // 2 * work.vector >= work.columns
    if given.threads is None and (idle or (chunks == 1 and cluster > 1)):
        return None  # half of the threads would have nothing to load, or a cluster too little
    tile = RegisterTile(threads, work.vector, chunks, rows, cluster)
    row = work.columns * work.loaded * rows // cluster
    if way.reload and given.reload is None and row < LONG_BYTES:
        return None  # registers have room for it
    skewed = way.stage and way.reload and cluster > 1 and not work.sums
    rooms = 3 if skewed else 2  # beside those of rows on their way
    ahead = _ahead(given, on_one, row, rooms, way.stage)
    if way.stage and (
        not _fits_rooms(work, tile) or ahead < 1 or (ahead + rooms) * on_one * row > SHARED_BYTES
    ):
        return None
    sms = DEFAULT_NUM_SMS if cluster <= PAIR else GROUPED_SMS
    blocks = max(1, on_one * sms // cluster)
    if work.rows is not None:
        blocks = max(1, min(blocks, work.rows // rows))  # a partial sum of no row is none
    if work.rows is not None and work.rows < (given.persistent or 1) * rows:
        return None
    blocks = given.persistent or blocks
    on_one = min(on_one, -(-blocks * cluster // DEFAULT_NUM_SMS))  # registers for no more
    hint = way.stage and _wants_hint(work) if given.hint is None else given.hint
    what = f"clusters of {cluster} thread blocks" if cluster > 1 else "thread blocks"
    where = " in shared memory" if way.stage else ""
    text = (
        f"{threads} threads a row, {chunks} vectors of {work.vector} each, "
        f"{rows} rows a thread block, {blocks} {what}, {on_one} on an SM: "
        f"{on_one * row >> 10} KiB of it in flight, {ahead} times as much ahead{where}"
    )
    return Persistent(tile, blocks, on_one, ahead, text, way.stage, way.reload, hint, skewed)


def _wants_hint(work: PersistentWork) -> bool:
    """Tell rows that are stored, and more of them than L2 holds."""
    large = work.rows is None or work.rows * work.columns * work.moved > CACHE_BYTES
    return large and work.moved > work.loaded


def _fits_rooms(work: PersistentWork, tile: RegisterTile) -> bool:
    """Tell whether bulk copies bring the parts of a row that thread blocks have."""
    part = work.columns // tile.cluster
    whole = tile.cluster == 1 or tile.columns == work.columns
    return whole and tile.rows == 1 and part * work.narrow % BULK_BYTES == 0


def _ahead(given: RowReductionConfig, on_one: int, row: int, rooms: int, stage: bool) -> int:
    """Return by how many rows of each thread block memory is asked in advance."""
    if given.ahead is not None:
        return given.ahead
    if stage:
        room = SHARED_BYTES // (on_one * row) - rooms
        return min(room, max(1, STAGED_FLIGHT // (on_one * row)), MOST_STAGED)
    return min(MOST_AHEAD, max(0, FLIGHT // (on_one * row) - 1, int(on_one == 1)))


def _has_clusters() -> bool:
    chip = find_processor(Target.current(allow_none=True))
    return not isinstance(chip, Arch) or chip.has_clusters
