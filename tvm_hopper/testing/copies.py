"""B = A through shared memory, each way by a mechanism of its own, for tests and benchmarks.

sch = copies.schedule(copies.copy(1000, 1000), copies.Route(load="tma", store="bulk"))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, te, tirx

from tvm_hopper import schedule as hs

from .tiling import cut, deal_out, fused, module_of

Extent = Any  # an int, or a name, which makes a symbolic extent
BLOCK = "B"


def copy(*shape: Extent, dtype: str = "float16") -> tvm.IRModule:
    """Build B = A."""
    extents = [te.var(x) if isinstance(x, str) else x for x in shape]
    a = te.placeholder(extents, dtype, name="A")
    return module_of(a, te.compute(extents, lambda *i: a(*i), name=BLOCK))


def shift(rows: int, columns: int, by: tuple[int, int], dtype: str = "float16") -> tvm.IRModule:
    """Build B[i, j] = A[i - by[0], j - by[1]], with zeros where A has no such element."""
    down, right = by
    a = te.placeholder((rows, columns), dtype, name="A")

    def value(i: Any, j: Any) -> Any:
        row, column = i - down, j - right
        inside = tirx.all(row >= 0, row < rows, column >= 0, column < columns)
        return te.if_then_else(inside, a[row, column], te.const(0, dtype))

    filled = te.compute((rows, columns), value, name="filled")
    return module_of(a, te.compute(a.shape, lambda *i: filled(*i), name=BLOCK))


def schedule_shift(mod: tvm.IRModule, load: str, stages: int | None) -> s_tir.Schedule:
    """Schedule `shift`: five rows a step, four steps a thread block, 32 threads."""
    sch = s_tir.Schedule(mod)
    tile = sch.get_sblock("filled")
    sch.set_scope(tile, 0, "shared.dyn")
    i, j = sch.get_loops(BLOCK)
    block, k0, i = sch.split(i, [None, 4, 5])
    sch.bind(block, "blockIdx.x")
    sch.compute_at(tile, k0)
    deal_out(sch, [i, j], 32)
    hs.async_copy(sch, tile, load)
    if stages is not None:
        hs.pipeline(sch, k0, stages=stages)
    return sch


@dataclass(frozen=True)
class Route:
    """How tiles go in and out.

    - `tile`: elements of one step of the pipeline, along each dimension.
    - `steps`: tiles that one thread block copies, one below the other.
    - `blocks`: thread blocks that take the tiles in turn, so that those copied at one time are
      neighbors; `steps` is without meaning then.
    - `load`, `store`: mechanisms; None: threads load, or store, what the tile holds.
    - `stages`: slots of the ring; None leaves the pipeline out.
    - `roles`: none: the same threads load and store.
    - `threads`, `vector`: threads, and elements that one loads or stores at once, where threads do
      it.
    - `slots`: of the tile that is stored; None leaves the number to the lowering.
    - `swizzle`: bytes of the shared tile's XOR pattern.
    """

    tile: tuple[int, ...] = (32, 128)
    steps: int = 4
    load: str | None = "tma"
    store: str | None = "tma"
    stages: int | None = 4
    roles: hs.Roles | None = None
    threads: int = 128
    vector: int = 8
    swizzle: int | None = None
    slots: int | None = None
    blocks: int | None = None


def schedule(mod: tvm.IRModule, route: Route) -> s_tir.Schedule:
    """Schedule a copy: blocks over tiles, a loop over steps, and in it a tile in and out."""
    sch = s_tir.Schedule(mod)
    tile = sch.cache_read(BLOCK, 0, "shared.dyn")
    loops = sch.get_loops(BLOCK)
    steps = route.steps if route.blocks is None else 1
    blocks, k0, inner = cut(sch, loops, route.tile, steps)
    block = fused(sch, blocks)
    if route.blocks is not None:
        k0, block = sch.split(sch.fuse(block, k0), [None, route.blocks])
        sch.reorder(block, k0)
    sch.bind(block, "blockIdx.x")
    sch.compute_at(tile, k0)
    if route.load is None:
        deal_out(sch, sch.get_loops(tile)[-len(inner) :], route.threads, route.vector)
    else:
        hs.async_copy(sch, tile, route.load, route.swizzle)
    if route.store is None:
        deal_out(sch, inner, route.threads, route.vector)
    else:
        hs.async_store(sch, sch.get_sblock(BLOCK), route.store, slots=route.slots)
    if route.stages is not None:
        hs.pipeline(sch, k0, stages=route.stages, roles=route.roles)
    return sch
