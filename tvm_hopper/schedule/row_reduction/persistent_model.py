"""The configuration of a persistent kernel over rows, whose threads keep sums of columns.

Registers bound how many rows an SM has in flight: a thread holds its part of a row, and of the
sums. Of sizes the one that has the most bytes of rows on an SM is taken.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import s_tir

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.devices import DEFAULT_NUM_SMS
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.schedule.memory_bound.arrays import Read
from tvm_hopper.schedule.memory_bound.nests import in_memory
from tvm_hopper.schedule.memory_bound.program import Part
from tvm_hopper.schedule.memory_bound.tiles import RegisterTile, widest_vector

from .config import RowReductionConfig, fits_block
from .persistent import Persistent
from .recognize import RowProgram

BASE_REGISTERS = 24  # of a thread, beside its parts of rows and sums
MOST_REGISTERS = 255
REGISTERS_PER_SM = 65536
THREADS_PER_SM = 2048
MOST_BLOCKS_PER_SM = 8
SIZES = (32, 64, 128, 256, 384, 512, 768, 1024)


def split_program(parts: list[Part]) -> tuple[list[Part], list[Part]]:
    """Return what is computed of rows, and the sums of columns; what reads those is neither."""
    from tvm_hopper.schedule.memory_bound.program import is_column_sum

    sums = [p for p in parts if is_column_sum(p)]
    made = [x for p in sums for x in p.outputs]
    own = []
    for part in parts:
        if part in sums:
            continue
        if any(x.source.same_as(y) for x in part.loads for y in made):
            made += part.outputs
        else:
            own.append(part)
    return own, sums


def choose_persistent(
    sch: s_tir.Schedule,
    own: list[Part],
    sums: list[Part],
    program: RowProgram,
    reads: list[Read],
    given: RowReductionConfig,
) -> Persistent:
    results = in_memory(sch, own, program.full)
    tensors = [*(x.tensor for x in reads), *results]
    vector = widest_vector(program.columns, tensors, given.vector)
    row = sum(dtype_bytes(ir.dtype_of(x.tensor)) for x in reads if x.has_rows)
    held = row + sum(dtype_bytes(ir.dtype_of(x.tensor)) for x in reads if not x.has_rows)
    held += sum(dtype_bytes(ir.dtype_of(x)) for p in sums for x in p.outputs)
    vectors = -(-program.columns // vector)
    found = []
    for threads in SIZES if given.threads is None else (given.threads,):
        rows = given.rows or max(1, 128 // threads)
        chunks = -(-vectors // threads)
        need = BASE_REGISTERS + -(-chunks * vector * held // 4)
        on_one = min(REGISTERS_PER_SM // (need * threads * rows), THREADS_PER_SM // (threads * rows), MOST_BLOCKS_PER_SM)
        if not fits_block(threads, rows) or need > MOST_REGISTERS or not on_one:
            continue
        tile = RegisterTile(threads, vector, chunks, rows)
        flight = on_one * rows * program.columns * row
        found.append((flight * program.columns / tile.columns, -threads, on_one, tile, need))
    if not found:
        raise cannot_schedule("row_reduction", "rows", "shorter")
    flight, _, on_one, tile, need = max(found, key=lambda x: x[:2])
    count = [ir.static_int(x) for x in program.rows]
    blocks = on_one * DEFAULT_NUM_SMS
    if None not in count:
        blocks = max(1, min(blocks, -(-prod(x or 0 for x in count) // tile.rows)))
    text = f"{tile.threads} threads a row, {tile.chunks} vectors of {tile.vector}, {tile.rows} rows a block, {blocks} blocks, {need} registers: {flight}"
    return Persistent(tile, given.blocks or blocks, given.ahead or 0, text)
