"""Reductions of rows in one call, made of TVM's primitives: one pass over memory.

  hs.row_reduction(sch)
->
  blockIdx.x        thread blocks
    threadIdx.y     rows of one
      load W, X     vectors, all in flight: threadIdx.x
      S = sum       of registers, then across the row's threads
      Y = f(X, S)   in registers
      store Y
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.requests import keys
from tvm_hopper.schedule import origins
from tvm_hopper.schedule.arguments import as_block, check_schedule, check_type
from tvm_hopper.schedule.memory_bound.arrays import Read, find_reads, keep_output, keep_read
from tvm_hopper.schedule.memory_bound.inline import inline_parts
from tvm_hopper.schedule.memory_bound.program import FULL, ROW, Part, find_parts, params
from tvm_hopper.schedule.memory_bound.tiles import (
    RegisterTile,
    deal_out,
    lay_out,
    lay_out_rows,
)
from tvm_hopper.schedule.reasons import TVM_ERRORS, in_words
from tvm_hopper.schedule.trial import as_one_step, rehearse

from .config import RowReductionConfig
from .model import choose_rows
from .recognize import RowProgram, find_rows


def row_reduction(
    sch: s_tir.Schedule, block: Any = None, config: RowReductionConfig | None = None
) -> None:
    """Schedule a function of row reductions and what surrounds them as one kernel.

    Each tensor is read from memory once: a row stays in the registers of its threads.

    Parameters
    ----------
    sch : Schedule
        Changed in place; left as it was when the program is refused. The function that it works on
        is plain loops: reductions over the last dimension, and elementwise blocks around them.
    block : SBlockRV or str, optional
        One of its reductions, to say which is meant.
    config : RowReductionConfig, optional
        How to cut it up; what it leaves open is chosen from the shape.

    Raises
    ------
    ScheduleError
        The function is no program of row reductions that can be served, or the configuration does
        not fit it.
    """
    check_schedule("row_reduction", sch)
    check_type("row_reduction", "config", config, RowReductionConfig, "an hs.RowReductionConfig")
    if block is not None:
        _check_block(sch, block)
    given = config or RowReductionConfig()
    rehearse(sch, lambda copy, _same: _schedule(copy, given))
    with origins.noted(sch), as_one_step():
        _schedule(sch, given)


def _check_block(sch: s_tir.Schedule, block: Any) -> None:
    node = sch.get(as_block(sch, block))
    parts = find_parts(sch, "row_reduction")
    part = next((p for p in parts if p.node.same_as(node)), None)
    if part is None or not part.reduced:
        need = "a block with a reduction axis"
        raise cannot_schedule(f"block {node.name_hint}", "no reduction", need)


def _schedule(sch: s_tir.Schedule, given: RowReductionConfig) -> None:
    try:
        _apply(sch, given)
    except TVM_ERRORS as error:
        found = f"what TVM cannot schedule{in_words(error)}"
        raise cannot_schedule("row_reduction", found, "plain loops over whole rows") from error


def _apply(sch: s_tir.Schedule, given: RowReductionConfig) -> None:
    parts = inline_parts(sch, "row_reduction")
    program = find_rows(parts)
    reads = find_reads(sch, parts, program.columns)
    outputs = list(params(sch))
    results = [
        p.outputs[0]
        for p in parts
        if program.kinds[p.name] == FULL and any(p.outputs[0].same_as(x) for x in outputs)
    ]
    choice = choose_rows(program, [*(x.tensor for x in reads), *results], given)
    tile = choice.tile
    nests = _keep_in_registers(sch, parts, program, reads, tile)

    rows = [_row_loop(sch, block, kind) for block, kind in nests.items() if kind != "column"]
    row = rows[0] if len(rows) == 1 else sch.merge(*rows)
    for block, kind in nests.items():
        if kind == "column":
            sch.compute_at(block, row, index=0)
    for block, kind in nests.items():
        _deal_out_nest(sch, block, kind, tile)
    if tile.rows > 1:
        row, inner = sch.split(row, [None, tile.rows])
        sch.bind(inner, "threadIdx.y")
    sch.bind(row, "blockIdx.x")
    sch.annotate(row, keys.MEMORY_BOUND, keys.ROW_REDUCTION)
    sch.annotate(row, keys.CHOSEN, choice.text)


def _keep_in_registers(
    sch: s_tir.Schedule,
    parts: list[Part],
    program: RowProgram,
    reads: list[Read],
    tile: RegisterTile,
) -> dict[Any, str]:
    """Put tensors and results in registers; return all blocks, in order, and what each is."""
    outputs = list(params(sch))
    kinds: dict[Any, str] = {}
    stores: dict[Any, tuple[Any, str]] = {}
    for part in parts:
        kind = program.kinds[part.name]
        (buffer,) = part.outputs
        if any(buffer.same_as(x) for x in outputs):
            readers = [p for p in parts if any(x.source.same_as(buffer) for x in p.loads)]
            store = keep_output(sch, part, readers)
            stores[part.block] = (store, "store" if kind == FULL else "store row")
        else:
            sch.set_scope(part.block, 0, "local")
        kinds[part.block] = "reduce" if part.reduced else kind
    loads = {keep_read(sch, read): "load" if read.has_rows else "column" for read in reads}
    for block, kind in loads.items():
        lay_out(sch, block, tile, program.rows if kind == "load" else ())
    for part in parts:
        if program.kinds[part.name] == FULL:
            lay_out(sch, part.block, tile, program.rows)
        else:
            lay_out_rows(sch, part.block, program.rows)
    nests = dict(loads)
    for part in parts:
        nests[part.block] = kinds[part.block]
        if part.block in stores:
            store, kind = stores[part.block]
            nests[store] = kind
    return nests


def _row_loop(sch: s_tir.Schedule, block: Any, kind: str) -> Any:
    """Return one loop over the rows of a block, outside of its loop over columns."""
    loops = list(sch.get_loops(block))
    outer = loops if kind in (ROW, "store row") else loops[:-1]
    if len(outer) > 1:
        return sch.fuse(*outer)
    return outer[0] if outer else sch.add_unit_loop(loops[0] if loops else block)


def _deal_out_nest(sch: s_tir.Schedule, block: Any, kind: str, tile: RegisterTile) -> None:
    if kind == ROW:
        return
    if kind == "store row":
        one = sch.add_unit_loop(block)
        _, thread = sch.split(one, [None, tile.threads])
        sch.bind(thread, "threadIdx.x")
        return
    loop = list(sch.get_loops(block))[-1]
    deal_out(sch, loop, tile, whole=kind in ("load", "store", "column"))
