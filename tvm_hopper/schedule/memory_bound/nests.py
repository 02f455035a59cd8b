"""Loop nests of a kernel: loads, computation in registers, stores.

  Y[i, j] = f(X[i, j], S[i])                         S a result of this function
->
  load     X_local[i, j] = X[i, j]
  compute  Y_local[i, j] = f(X_local[i, j], S_local[i])
  store    Y[i, j] = Y_local[i, j]
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from tvm import s_tir
from tvm.tirx import IndexMap, IterVar

from tvm_hopper import ir
from tvm_hopper.requests import keys

from .arrays import Read, keep_output, keep_read
from .program import Part, results
from .tiles import (
    PART_AXIS,
    RegisterTile,
    ends_with,
    first_of_row,
    flat,
    lay_out,
    lay_out_rows,
    regroup,
    zero_of,
)


class Work(Enum):
    """The work of a loop nest."""

    STAGE = "copy rows to shared memory"
    STAGE_COLUMNS = "copy what all rows share to shared memory"
    LOAD = "load elements"
    LOAD_AGAIN = "load elements again"
    LOAD_COLUMNS = "load what all rows share"
    COMPUTE = "compute elements"
    WINDOW = "compute elements from windows"
    REDUCE = "reduce rows"
    COMPUTE_ROWS = "compute one value a row"
    STORE = "store elements"
    STORE_ROWS = "store one value a row"


OF_ALL_ROWS = (Work.LOAD_COLUMNS, Work.STAGE_COLUMNS)
LOADS = (Work.LOAD, Work.LOAD_AGAIN, Work.LOAD_COLUMNS)
WHOLE_VECTORS = (*LOADS, Work.STORE)
KEPT_PERCENT = 72  # of L2: the end of a result that it still has after the kernel
TIMES_KEPT = 8  # as large at least are results of which it is to have that
BY_ROW = (Work.COMPUTE_ROWS, Work.STORE_ROWS)  # without a loop over columns


@dataclass(frozen=True)
class Nest:
    """One loop nest around one block."""

    block: Any
    work: Work


def keep_arrays(
    sch: s_tir.Schedule,
    parts: list[Part],
    full: frozenset[str],
    reads: list[Read],
    loads: frozenset[str] = frozenset(),
) -> list[Nest]:
    """Read and write arrays of registers; return all nests, in an order that they can run in.

    - `parts`: the program, inlined.
    - `full`: names of the blocks that compute one value for each element; others have one a row.
    - `reads`: tensors to load once.
    - `loads`: names of the blocks that only load a part of a tensor, by whole vectors.
    """
    outputs = results(sch, parts)
    stores: dict[str, list[Nest]] = {}
    for part in parts:
        stores[part.name] = []
        for number, buffer in enumerate(part.outputs):
            if any(buffer.same_as(x) for x in outputs):
                readers = [p for p in parts if any(x.source.same_as(buffer) for x in p.loads)]
                work = Work.STORE if part.name in full else Work.STORE_ROWS
                stores[part.name].append(Nest(keep_output(sch, part, number, readers), work))
            else:
                sch.set_scope(part.block, number, "local")
    nests = [
        Nest(keep_read(sch, read), Work.LOAD if read.has_rows else Work.LOAD_COLUMNS)
        for read in reads
        if not read.again
    ]
    for part in parts:
        again = [x for x in reads if x.again and x.readers[0] is part]
        nests += [
            Nest(keep_read(sch, read), Work.LOAD_AGAIN if read.has_rows else Work.LOAD_COLUMNS)
            for read in again
        ]
        nests.append(Nest(part.block, _work_of(part, full, loads)))
        nests += stores[part.name]
    return nests


def _work_of(part: Part, full: frozenset[str], loads: frozenset[str]) -> Work:
    if part.reduced:
        return Work.WINDOW if part.name in full else Work.REDUCE
    if part.name in loads:
        return Work.LOAD
    return Work.COMPUTE if part.name in full else Work.COMPUTE_ROWS


def keep_in_registers(
    sch: s_tir.Schedule,
    parts: list[Part],
    full: frozenset[str],
    rows: tuple[Any, ...],
    row: tuple[Any, ...],
    reads: list[Read],
    tile: RegisterTile,
    loads: frozenset[str] = frozenset(),
) -> list[Nest]:
    """Put tensors and results in registers; return all nests, in an order that they can run in.

    - `parts`: the program, inlined.
    - `full`: names of the blocks that compute one value for each element; others have one a row.
    - `rows`, `row` (tuple): extents of the dimensions outside of a row, and of those inside of it.
    - `reads`: tensors to load once.
    - `tile`: how elements are distributed to threads.
    - `loads`: names of the blocks that only load a part of a tensor, by whole vectors.
    """
    nests = keep_arrays(sch, parts, full, reads, loads)
    for nest in nests:
        number_elements(sch, nest, len(rows), row)
    for nest in nests:
        if nest.work in (*LOADS, Work.COMPUTE, Work.WINDOW):
            lay_out(sch, nest.block, tile, len(row), row[0] if len(row) == 1 else None, bool(rows))
        elif nest.work in (Work.REDUCE, Work.COMPUTE_ROWS):
            lay_out_rows(sch, nest.block)
    return nests


def number_elements(sch: s_tir.Schedule, nest: Nest, num_rows: int, row: tuple[Any, ...]) -> None:
    """Let a block count rows by one variable, and the elements of a row by another.

    Its loops become one over rows, where there are dimensions of rows, and one over a row's
    elements, where it has any. Dimensions of extent one, which number nothing, go.
    """
    axes = list(sch.get(nest.block).iter_vars)
    inner = [x for x in axes if nest.work is Work.WINDOW and x.iter_type == IterVar.CommReduce]
    axes = axes[: len(axes) - len(inner)]
    extents = [x.dom.extent for x in axes]
    if all(ir.is_const(x, 1) for x in extents) and nest.work in BY_ROW:
        return  # one value
    count = 0 if nest.work in BY_ROW else 1 if nest.work is Work.REDUCE else len(row)
    first = first_of_row(extents, count)
    shared = nest.work in OF_ALL_ROWS or not num_rows  # by all rows; there may be none
    crosses = count == 1 and nest.work is not Work.REDUCE and not ends_with(extents, row[0])
    if not crosses and first == (not shared) and len(axes) - first == min(count, 1):
        return

    def index(*all_indices: Any) -> list[Any]:
        i = all_indices[: len(axes)]
        window = _longer(all_indices[len(axes) :], inner)
        if crosses:
            own = flat(i, extents) if shared else regroup(list(i), extents, [None, row[0]])
            return [*own, *window]
        rows = [] if shared else flat(i[:first], extents[:first]) or [zero_of(i)]
        return [*rows, *flat(i[first:], extents[first:]), *window]

    dtype = ir.dtype_of(axes[0].var)
    numbered = IndexMap.from_func(index, ndim=len(axes) + len(inner), index_dtype=dtype)
    sch.transform_block_layout(nest.block, numbered)


def _longer(indices: tuple[Any, ...], axes: list[Any]) -> list[Any]:
    """Return the indices of axes of more than one element; the first if there are none."""
    pairs = zip(indices, axes, strict=True)
    return [x for x, axis in pairs if not ir.is_const(axis.dom.extent, 1)] or list(indices[:1])


def hint_loads(sch: s_tir.Schedule, nests: list[Nest]) -> None:
    """Tell the caches that rows are wanted longest, and no longer when they are loaded again.

    What is read elsewhere than at the element that is computed is loaded where it is used.
    """
    hints = {Work.LOAD: "evict_last", Work.LOAD_AGAIN: "evict_first", Work.COMPUTE: "evict_last"}
    for nest in nests:
        if nest.work in hints and (nest.work is not Work.COMPUTE or _reads_memory(sch, nest)):
            sch.annotate(nest.block, keys.LOAD_HINT, hints[nest.work])


def kept_bytes(l2_bytes: int) -> int:
    """Return the bytes at the end of a result that stay in an L2 cache of so many bytes."""
    return l2_bytes * KEPT_PERCENT // 100


def keep_end(sch: s_tir.Schedule, blocks: Any, stored: int, l2_bytes: int) -> None:
    """Let the last thread blocks leave in L2 what they store, where that is little of all.

    Of a smaller result L2 keeps much in any case, and what it gives up last is in the way of
    others: in turn with RMSNorm of 164 MB a copy took 8% more time, and the kernel itself 3%.

    - `blocks` (LoopRV): the loop over thread blocks.
    - `stored`: bytes that one stores.
    - `l2_bytes`: bytes of the L2 cache.
    """
    extent, kept = ir.static_int(sch.get(blocks).extent), kept_bytes(l2_bytes)
    if extent is not None and extent * stored >= TIMES_KEPT * kept:
        sch.annotate(blocks, keys.KEPT_END, -(-kept // stored))


def _reads_memory(sch: s_tir.Schedule, nest: Nest) -> bool:
    return any(str(x.source.scope()) in ("", "global") for x in sch.get(nest.block).reads)


def bind_blocks(
    sch: s_tir.Schedule, loop: Any, kind: str, text: str, blocks: int, early_launch: bool | None
) -> None:
    """Make a loop the thread blocks of a kernel of ours, and note what was chosen for it."""
    sch.bind(loop, "blockIdx.x")
    sch.annotate(loop, keys.MEMORY_BOUND, kind)
    sch.annotate(loop, keys.CHOSEN, text)
    if blocks > 1:
        sch.annotate(loop, keys.BLOCKS_PER_SM, blocks)
    if early_launch:
        sch.annotate(loop, keys.EARLY_LAUNCH, 1)


def row_loop(sch: s_tir.Schedule, nest: Nest) -> Any:
    """Return the loop over rows; a program of one row has none, and gets one."""
    loops = list(sch.get_loops(nest.block))
    if len(loops) > (nest.work not in BY_ROW):
        return loops[0]
    return sch.add_unit_loop(loops[0] if loops else nest.block)


def merge(sch: s_tir.Schedule, loops: list[Any]) -> Any:
    """Make one loop of the outermost loops of several nests."""
    return loops[0] if len(loops) == 1 else sch.merge(*loops)


def in_memory(sch: s_tir.Schedule, parts: list[Part], full: frozenset[str]) -> list[Any]:
    """Return the outputs that have one value for each element."""
    outputs = results(sch, parts)
    written = [p.outputs[0] for p in parts if p.name in full]
    return [x for x in written if any(x.same_as(y) for y in outputs)]


def one_thread(sch: s_tir.Schedule, block: Any, tile: RegisterTile) -> None:
    """Let the first of a row's threads alone run a block, which has no loop over columns."""
    rest, thread = sch.split(sch.add_unit_loop(block), [None, tile.threads])
    sch.bind(thread, "threadIdx.x")
    if tile.cluster > 1:
        _, part = sch.split(rest, [None, tile.cluster])
        sch.bind(part, PART_AXIS)
