"""Elementwise programs over tiles that hardware brings, and how to schedule them, for tests.

C[i, j] = exp(A[i, j]) + B[i, j]

sch = pointwise.schedule(pointwise.exp_add(1000, 1000), pointwise.Tiling(tile=(32, 128)))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, te

from tvm_hopper import schedule as hs

from .tiling import cut, deal_out, module_of

Extent = Any  # an int, or a name, which makes a symbolic extent
BLOCK = "C"


def exp_add(rows: Extent, columns: Extent, dtype: str = "float32") -> tvm.IRModule:
    """Build C = exp(A) + B."""
    a = _placeholder((rows, columns), dtype, "A")
    b = te.placeholder(a.shape, dtype, name="B")
    return module_of(a, b, te.compute(a.shape, lambda *i: te.exp(a(*i)) + b(*i), name=BLOCK))


def scale(length: Extent, dtype: str = "float32") -> tvm.IRModule:
    """Build C = 3 A, of one dimension."""
    a = _placeholder((length,), dtype, "A")
    return module_of(a, te.compute(a.shape, lambda i: a(i) * te.const(3, dtype), name=BLOCK))


def add_row_bias(rows: Extent, columns: Extent, dtype: str = "float32") -> tvm.IRModule:
    """Build C = A + bias, one value of the bias a row, which is read from global memory."""
    a = _placeholder((rows, columns), dtype, "A")
    bias = te.placeholder(a.shape[:1], dtype, name="bias")
    return module_of(a, bias, te.compute(a.shape, lambda i, j: a(i, j) + bias(i), name=BLOCK))


def _placeholder(shape: tuple[Extent, ...], dtype: str, name: str) -> Any:
    extents = [te.var(x) if isinstance(x, str) else x for x in shape]
    return te.placeholder(extents, dtype, name=name)


def reference(name: str, inputs: list[np.ndarray]) -> np.ndarray:
    """Compute a program, by its function's name, in float64."""
    a, *more = (x.astype(np.float64) for x in inputs)
    if name == "exp_add":
        return np.exp(a) + more[0]
    return a * 3 if name == "scale" else a + more[0][:, None]


@dataclass(frozen=True)
class Tiling:
    """How a program is cut up.

    - `tile`: elements of one step of the pipeline, along each dimension of the output.
    - `steps`: tiles that one thread block computes, one below the other.
    - `threads`, `vector`: threads, and elements that one loads and stores at once.
    - `stages`: slots of the ring; None leaves the pipeline out.
    - `roles`: none: every thread both requests copies and computes.
    - `swizzle`: bytes of the shared tiles' XOR pattern; None: none.
    - `load`: the mechanism by which tiles of the inputs come.
    - `num_shared`: how many of the block's reads go through shared memory; None: those of the
      output's rank.
    - `store`: the mechanism by which a tile of the output leaves through shared memory; None:
      threads store what they compute.
    - `store_slots`: slots of that tile.
    """

    tile: tuple[int, ...] = (32, 128)
    steps: int = 4
    threads: int = 256
    vector: int = 4
    stages: int | None = 4
    roles: hs.Roles | None = None
    swizzle: int | None = None
    load: str = "tma"
    num_shared: int | None = None
    store: str | None = None
    store_slots: int | None = None


def schedule(mod: tvm.IRModule, tiling: Tiling) -> s_tir.Schedule:
    """Schedule a program as a ring of tiles: blocks over tiles, a loop over steps, threads."""
    sch = s_tir.Schedule(mod)
    node, loops = sch.get(sch.get_sblock(BLOCK)), sch.get_loops(BLOCK)
    rank = len(loops)
    shared = [i for i, region in enumerate(node.reads) if len(region.region) == rank]
    blocks, k0, inner = cut(sch, loops, tiling.tile, tiling.steps)
    for loop, axis in zip(reversed(blocks), ("x", "y", "z"), strict=False):
        sch.bind(loop, f"blockIdx.{axis}")
    for index in shared[: tiling.num_shared]:
        copy = sch.cache_read(BLOCK, index, "shared.dyn")
        sch.compute_at(copy, k0)
        hs.async_copy(sch, copy, tiling.load, tiling.swizzle)
    deal_out(sch, inner, tiling.threads, tiling.vector)
    if tiling.store is not None:
        out = sch.cache_write(BLOCK, 0, "shared.dyn")
        sch.reverse_compute_at(out, k0)
        hs.async_store(sch, out, tiling.store, slots=tiling.store_slots)
    if tiling.stages is not None:
        hs.pipeline(sch, k0, stages=tiling.stages, roles=tiling.roles)
    return sch
