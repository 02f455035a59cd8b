"""Reductions of columns whose parts thread blocks combine in memory, for tests and benchmarks.

sch = reductions.schedule(reductions.columns(1000, 512), reductions.Split(parts=8))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, te, tirx

from tvm_hopper import schedule as hs

from .tiling import module_of

BLOCK = "S"


def _reducer(operation: str, dtype: str) -> Any:
    """Return the reduction of te by an operation's name in PTX."""
    named = {"add": te.sum, "min": te.min, "max": te.max}
    if operation in named:
        return named[operation]
    combine = {"and": tirx.bitwise_and, "or": tirx.bitwise_or, "xor": tirx.bitwise_xor}[operation]
    ones = {"int32": -1, "int64": -1, "uint32": (1 << 32) - 1, "uint64": (1 << 63) - 1}
    start = tirx.const(ones[dtype] if operation == "and" else 0, dtype)
    return te.comm_reducer(lambda x, y: combine(x, y), lambda _: start, operation)


def columns(
    rows: int, width: int, dtype: str = "float32", operation: str = "add", parts: int | None = None
) -> tvm.IRModule:
    """Build S[j] = X[0, j] op X[1, j] op ...: `rows` rows of `width` elements.

    With `parts` the rows are reduced in as many parts, which `Schedule.rfactor` does for the
    operations that it knows ("add", "min", "max").
    """
    x = te.placeholder((rows, width), dtype, name="X")
    reduce = _reducer(operation, dtype)
    if parts is None:
        i = te.reduce_axis((0, rows), "i")
        s = te.compute((width,), lambda j: reduce(x[i, j], axis=i), name=BLOCK)
    else:
        i, p = te.reduce_axis((0, rows // parts), "i"), te.reduce_axis((0, parts), "p")
        part = te.compute(
            (parts, width), lambda n, j: reduce(x[n * (rows // parts) + i, j], axis=i), name="part"
        )
        s = te.compute((width,), lambda j: reduce(part[p, j], axis=p), name=BLOCK)
    return module_of(x, s)


@dataclass(frozen=True)
class Split:
    """How columns and rows are distributed.

    - `parts`: thread blocks that share the rows of some columns.
    - `width`: columns of a thread block; each thread has one.
    - `mechanism`: by which a block's sums are combined with those of others.
    - `share`: false: the parts stay a serial loop of one thread block.
    """

    parts: int = 4
    width: int = 128
    mechanism: str = "auto"
    share: bool = True


def schedule(mod: tvm.IRModule, split: Split) -> s_tir.Schedule:
    """Schedule a reduction of columns: an initial value, then parts that are combined."""
    sch = s_tir.Schedule(mod)
    operation = find_operation(mod)
    producers = sch.get_producers(BLOCK)
    if producers:
        (partial,) = producers
    else:
        _, i = sch.get_loops(BLOCK)
        part, _ = sch.split(i, [split.parts, None])
        partial = sch.rfactor(part, 0)
    combine = sch.get_sblock(BLOCK)
    j, part = sch.get_loops(combine)
    outer, inner = sch.split(j, [None, split.width])
    sch.reorder(outer, part, inner)
    sch.bind(outer, "blockIdx.x")
    first = sch.decompose_reduction(combine, outer)
    tile = sch.cache_read(combine, 1, "shared.dyn")
    sch.compute_at(tile, part)
    sch.set_scope(partial, 0, "local")
    *_, column = sch.get_loops(tile)
    sch.compute_at(partial, column)
    sch.bind(column, "threadIdx.x")
    hs.async_store(sch, combine, split.mechanism, reduce=operation)
    if split.share:
        hs.across_blocks(sch, part)
    sch.bind(sch.get_loops(first)[-1], "threadIdx.x")
    return sch


def find_operation(mod: tvm.IRModule) -> str:
    """Return by which operation a module of `columns` reduces."""
    from tvm_hopper import ir
    from tvm_hopper.analysis.updates import find_update

    updates = [find_update(x) for x in ir.find_all(mod["main"].body, ir.BufferStore)]
    return next(x.operation for x in updates if x is not None)
