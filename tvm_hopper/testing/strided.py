"""B = 2 A[first::step], whose rows a copy takes out of shared memory, for tests and benchmarks.

sch = strided.schedule(strided.rows(1000, 512, step=2), tile=(16, 64))
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import s_tir, te

from tvm_hopper import schedule as hs

from .tiling import cut, module_of

SLICE = "X"


def rows(
    *shape: Any, step: Any = 1, first: int = 0, columns: int = 1, dtype: str = "float16"
) -> tvm.IRModule:
    """Build B = X + X, X = A[first::step, ..., ::columns].

    - `shape` (int or str): of A; a name makes a symbolic extent.
    - `step` (int or tuple of int): of the first dimension, or of each but the last.
    - `first`: where X begins along the first dimension.
    - `columns`: step of the last dimension.
    - `dtype`: of A and B.
    """
    extents = [te.var(x) if isinstance(x, str) else x for x in shape]
    steps = [*(step if isinstance(step, tuple) else (step,)), *[1] * len(shape)][: len(shape) - 1]
    steps = [*steps, columns]
    starts = [first, *[0] * (len(shape) - 1)]
    a = te.placeholder(extents, dtype, name="A")
    sizes = [
        (extent - start + by - 1) // by
        for extent, start, by in zip(extents, starts, steps, strict=True)
    ]
    x = te.compute(
        sizes,
        lambda *i: a(*(v * by + start for v, by, start in zip(i, steps, starts, strict=True))),
        name=SLICE,
    )
    return module_of(a, te.compute(sizes, lambda *i: x(*i) + x(*i), name="B"))


def schedule(
    mod: tvm.IRModule,
    tile: tuple[int, ...],
    mechanism: str = "tma",
    stages: int = 3,
    steps: int = 3,
    threads: int = 32,
    swizzle: int | None = None,
    roles: hs.Roles | None = None,
) -> s_tir.Schedule:
    """Schedule it: blocks over tiles, a loop over steps, and in it a tile in; threads store."""
    sch = s_tir.Schedule(mod)
    blocks, k0, inner = cut(sch, sch.get_loops("B"), tile, steps)
    sch.bind(sch.fuse(*blocks), "blockIdx.x")
    sch.set_scope(SLICE, 0, "shared.dyn")
    sch.compute_at(SLICE, k0)
    hs.async_copy(sch, sch.get_sblock(SLICE), mechanism, swizzle)
    _, thread = sch.split(sch.fuse(*inner), [None, threads])
    sch.bind(thread, "threadIdx.x")
    hs.pipeline(sch, k0, stages=stages, roles=roles)
    return sch
