"""Programs whose tiles come by DMA, scheduled as upstream's async pipelines are."""

import numpy as np
from tvm import s_tir, te

from tvm_hopper import schedule as hs

TARGET = "qcom/hexagon-v68"


def scale(rows, columns, width=None):
    """Build C = A + 1 of `columns` columns, where A is as wide or wider."""
    a = te.placeholder((rows, width or columns), "float32", name="A")
    c = te.compute((rows, columns), lambda i, j: a[i, j] + 1.0, name="C")
    return te.create_prim_func([a, c]).with_attr("global_symbol", "main")


def add(rows, columns, width=None):
    """Build C = A + B."""
    shape = (rows, width or columns)
    a, b = (te.placeholder(shape, "float32", name=name) for name in "AB")
    c = te.compute((rows, columns), lambda i, j: a[i, j] + b[i, j], name="C")
    return te.create_prim_func([a, b, c]).with_attr("global_symbol", "main")


def schedule(func, tile, stages=None, ours=True):
    """Bring `tile` rows at a time into VTCM, by our request or by TVM's annotations alone."""
    sch = s_tir.Schedule(func)
    k, _ = sch.split(sch.get_loops("C")[0], [None, tile])
    tiles = [
        sch.cache_read("C", n, "global.vtcm")
        for n in range(len(sch.get(sch.get_sblock("C")).reads))
    ]
    for one in tiles:
        sch.compute_at(one, k)
        if ours:
            hs.async_copy(sch, one, "dma")
    if stages is not None and ours:
        hs.pipeline(sch, k, stages=stages)
    elif stages is not None:
        sch.annotate(k, "software_pipeline_stage", [*[0] * len(tiles), stages - 1])
        sch.annotate(k, "software_pipeline_order", list(range(len(tiles) + 1)))
        sch.annotate(k, "software_pipeline_async_stages", [0])
    return sch


def inputs(*shapes):
    """Return arrays of small different numbers, and one of NaN for the result."""
    *given, last = shapes
    arrays = [
        np.arange(np.prod(x), dtype="float32").reshape(x) % 251 + n for n, x in enumerate(given)
    ]
    return [*arrays, np.full(last, np.nan, "float32")]
