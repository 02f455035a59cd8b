"""Programs whose tiles are computed by threads and leave by asynchronous stores, scheduled."""

from typing import Any

import tvm
from tvm import s_tir

from tvm_hopper import schedule as hs
from tvm_hopper.testing import pointwise

TILE = (8, 64)
THREADS = 128


def computed_per_output_tile(
    rows: Any, columns: Any, store: str, slots: int | None, persistent: int | None
) -> s_tir.Schedule:
    """Schedule C = A + bias without a pipeline: a block an output tile, or some for all of them."""
    return _schedule(pointwise.add_row_bias(rows, columns), store, slots, persistent, None)


def loaded_per_output_tile(
    rows: Any, columns: Any, slots: int | None, persistent: int | None, roles: hs.Roles | None
) -> s_tir.Schedule:
    """Schedule C = A + bias with a ring of loads in each output tile, and one tile that leaves."""
    return _schedule(pointwise.add_row_bias(rows, columns), "tma", slots, persistent, 2, roles)


def _schedule(
    mod: tvm.IRModule,
    store: str,
    slots: int | None,
    persistent: int | None,
    stages: int | None,
    roles: hs.Roles | None = None,
) -> s_tir.Schedule:
    sch = s_tir.Schedule(mod)
    i, j = sch.get_loops("C")
    (i0, i1), (j0, j1) = (sch.split(x, [None, n]) for x, n in zip((i, j), TILE, strict=True))
    k0, j1 = sch.split(j1, [2, None])
    sch.reorder(i0, j0, k0, i1, j1)
    sch.bind(i0, "blockIdx.y")
    sch.bind(j0, "blockIdx.x")
    if stages is not None:
        tile = sch.cache_read("C", 0, "shared.dyn")
        sch.compute_at(tile, k0)
        hs.async_copy(sch, tile)
    _, thread, vector = sch.split(sch.fuse(i1, j1), [None, THREADS, 2])
    sch.bind(thread, "threadIdx.x")
    sch.vectorize(vector)
    out = sch.cache_write("C", 0, "shared.dyn")
    sch.reverse_compute_at(out, j0)
    hs.async_store(sch, out, store, slots=slots)
    if stages is not None:
        hs.pipeline(sch, k0, stages=stages, roles=roles)
    if persistent is not None:
        hs.raster(sch, j0, persistent=persistent)
    return sch
