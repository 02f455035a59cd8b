"""Windows: reductions of a few elements around the place of each result, as in pooling.

    P[n, c, h, w] += X[n, c, h * 2 + a, w * 2 + b] * K[c, a, b]        a, b < 3
    Y[n, c, h, w] = max(P[n, c, h, w] + B[c], 0)
  ->
    for a, b in unroll(3, 3):                  in registers, for the elements of a thread's vector
        for v in unroll(8): P_local[v] += X[..] * K[..]
    Y = max(P_local + B, 0)

Depthwise convolutions and pooling are such programs. What windows read is loaded as it is used:
neighbouring windows share it, and the caches have it.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import s_tir, tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.schedule.memory_bound.inline import is_dear
from tvm_hopper.schedule.memory_bound.program import MemoryProgram, Part
from tvm_hopper.schedule.memory_bound.reducers import is_plain_reduction
from tvm_hopper.schedule.memory_bound.tiles import RegisterTile, deal_out
from tvm_hopper.schedule.memory_bound.widen import HALVES

MOST_ELEMENTS = 64  # of a window: each is loaded by itself, for each result anew
MOST_UNROLLED = 16  # of a window: others are loops, so that code stays short


def check_window(part: Part) -> None:
    """Refuse a reduction that is no window."""
    where = f"block {part.name}"
    sizes = [ir.static_int(x.dom.extent) for x in part.reduced]
    count = None if None in sizes else prod(x or 0 for x in sizes)
    if count is None or count > MOST_ELEMENTS or not part.spatial:
        found = "a reduction" if count is None else f"a reduction of {count} elements"
        fix = "reductions are for hs.row_reduction or hs.column_reduction, products for hs.matmul"
        need = f"elementwise blocks, and windows of at most {MOST_ELEMENTS} elements"
        raise cannot_schedule(where, found, need, fix)
    variables = [x.var for x in part.spatial]
    own = [x for x in part.loads if all(ir.depends_on(list(x.indices), [v]) for v in variables)]
    if not own:
        need, fix = "a window of its own for each result", "products are for hs.matmul"
        raise cannot_schedule(where, "a reduction of what several results share", need, fix)
    if not any(ir.depends_on(x.indices[-1], variables) for x in own):
        need = "windows whose neighbours are neighbours in memory"
        raise cannot_schedule(where, "a reduction of rows", need, "take hs.row_reduction")
    if not is_plain_reduction(part.store):
        need = "a sum, a product, the greatest or the least of its elements"
        raise cannot_schedule(where, "a window that is reduced in another way", need)
    dtype = ir.dtype_of(part.store.buffer)
    if dtype in HALVES and isinstance(part.store.value, tirx.Add | tirx.Mul):
        fix = "cast the input to float32 before it is reduced, or take hs.widen_sums(mod)"
        raise cannot_schedule(where, f"a reduction in {dtype}", "one in 32 bits", fix)


def check_producers(program: MemoryProgram) -> None:
    """Refuse what is expensive and read by windows: each of them would compute it again."""
    for part in program.parts:
        if part.reduced or not is_dear(_without_choices(part.store.value)):
            continue
        for reader in program.parts:
            if reader.reduced and any(x.source.same_as(part.outputs[0]) for x in reader.loads):
                raise cannot_schedule(
                    f"block {part.name}",
                    f"an expensive value that each window of {reader.name} would compute again",
                    "one that is in memory, or takes few instructions",
                    "compute it in a separate function",
                )


def _without_choices(value: Any) -> Any:
    """Return what padding surrounds: whether an element exists takes few instructions."""
    return ir.replace(value, ir.Call, lambda x: x.args[1] if ir.is_choice(x) else x)


def deal_out_window(sch: s_tir.Schedule, block: Any, place: int, tile: RegisterTile) -> Any:
    """Deal out a window's results as those of other blocks; return the loop over tiles.

    - `block` (SBlockRV): reduces; its loops over a window follow those over results.
    - `place`: the loop over results that is dealt out.
    """
    loops = list(sch.get_loops(block))
    window = loops[place + 1 :]
    sizes = [int(sch.get(x).extent) for x in window]
    outer = deal_out(sch, loops[place], tile, whole=False)
    element = sch.get_loops(block)[place + 3]
    sch.reorder(*window, element)
    while sizes and prod(sizes) > MOST_UNROLLED and len(sizes) > 1:
        sizes, window = sizes[1:], window[1:]
    for loop in window:
        sch.unroll(loop)
    return outer
