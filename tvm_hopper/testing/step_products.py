"""Products scheduled step by step, each operand by a mechanism of its own.

sch = step_products.schedule(workloads.matmul(64, 64, 66), ProductTiling(a="cp_async", b="tma"))
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import s_tir

from tvm_hopper import schedule as hs
from tvm_hopper.schedule.products.staging import stage_output

BLOCK = "C"


@dataclass(frozen=True)
class ProductTiling:
    """How a product is cut up, and who brings its operands.

    - `tile`: rows, columns and depth of an output tile.
    - `a`, `b`: mechanisms of the operands.
    - `stages`: slots of the ring; None leaves the pipeline out.
    - `consumers`: warp groups that share the rows.
    - `swizzle`: bytes of the tiles' XOR pattern; None: the widest.
    - `persistent`: thread blocks that share all output tiles.
    - `wgmma_pending`: WGMMA groups left in flight over an iteration.
    - `store`: "tma": the output goes through shared memory; None: registers are stored.
    """

    tile: tuple[int, int, int] = (64, 16, 32)
    a: str = "cp_async"
    b: str = "tma"
    stages: int | None = 2
    consumers: int = 1
    swizzle: int | None = None
    persistent: int | None = None
    wgmma_pending: int | None = None
    store: str | None = None


def schedule(mod: tvm.IRModule, tiling: ProductTiling) -> s_tir.Schedule:
    """Schedule block C of `workloads.matmul` by WGMMA."""
    sch = s_tir.Schedule(mod)
    block = sch.get_sblock(BLOCK)
    hs.fuse_prologue(sch, block)
    hs.pad(sch, block, tiling.tile)
    rows, columns, depth = tiling.tile
    i, j, k = sch.get_loops(block)
    i0, i1, i2 = sch.split(i, [None, tiling.consumers, rows // tiling.consumers])
    j0, j1 = sch.split(j, [None, columns])
    k0, k1 = sch.split(k, [None, depth])
    sch.reorder(i0, j0, i1, k0, i2, j1, k1)
    sch.bind(i0, "blockIdx.y")
    sch.bind(j0, "blockIdx.x")
    sch.bind(i1, "threadIdx.y")
    hs.raster(sch, j0, persistent=tiling.persistent)
    store = sch.cache_write(block, 0, "local")
    sch.reverse_compute_at(store, i1)
    for index, mechanism in enumerate((tiling.a, tiling.b)):
        copy = sch.cache_read(block, index, "shared.dyn")
        sch.compute_at(copy, k0)
        hs.async_copy(sch, copy, mechanism, tiling.swizzle)
    hs.fuse_epilogue(sch, store)
    if tiling.store is not None:
        config = hs.MatmulConfig(tiling.tile, consumers=tiling.consumers, store=hs.TmaStore(1))
        stage_output(sch, store, config)
    hs.wgmma(sch, block)
    if tiling.stages is not None:
        roles = hs.Roles(tiling.consumers)
        hs.pipeline(sch, k0, tiling.stages, roles, wgmma_pending=tiling.wgmma_pending)
    return sch
