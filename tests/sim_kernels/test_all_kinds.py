"""Copies by TMA and by the threads, and stores by TMA, in one kernel: clean, with exact waits."""

from __future__ import annotations

import re

import pytest
import tvm
from tvm import s_tir, te

from tvm_hopper import pipeline
from tvm_hopper import schedule as hs
from tvm_hopper.simulation import verify

H200 = "nvidia/nvidia-h200"


def scheduled(stages: int | None) -> s_tir.Schedule:
    """Schedule C = A + B: A by TMA, B by the threads of the block, C by TMA again."""
    a, b = (te.placeholder((64, 256), "float16", name=name) for name in "AB")
    c = te.compute((64, 256), lambda i, j: a[i, j] + b[i, j], name="C")
    func = te.create_prim_func([a, b, c]).with_attr("global_symbol", "main")
    sch = s_tir.Schedule(tvm.IRModule({"main": func}))
    tiles = [sch.cache_read("C", n, "shared.dyn") for n in range(2)]
    out = sch.cache_write("C", 0, "shared.dyn")
    i, j = sch.get_loops("C")
    block, k, row = sch.split(i, [None, 4, 8])
    column, inside = sch.split(j, [None, 128])
    sch.reorder(block, column, k, row, inside)
    sch.bind(sch.fuse(block, column), "blockIdx.x")
    for tile, mechanism in zip(tiles, ("tma", "cp_async"), strict=True):
        sch.compute_at(tile, k)
        hs.async_copy(sch, tile, mechanism)
    sch.reverse_compute_at(out, k)
    hs.async_store(sch, out, "tma")
    element = sch.fuse(*sch.get_loops("C")[-2:])
    _, threads = sch.split(element, [None, 128])
    sch.bind(threads, "threadIdx.x")
    if stages is not None:
        hs.pipeline(sch, k, stages=stages)
    return sch


@pytest.mark.parametrize(
    ("stages", "by_threads"),
    [
        (None, ["cp.async 0"]),
        # of the trip; at the end, where nobody reads what is under way
        (3, ["cp.async 1", "cp.async 0"]),
    ],
)
def test_each_kind_is_waited_for_by_itself(stages, by_threads):
    sch = scheduled(stages)
    report = verify(sch)
    assert report.verdict == "clean", str(report)
    assert "values compared" in str(report)
    text = str(pipeline.lower_final(sch.mod, H200).device)
    waits = re.findall(r'cp\((\d), "async", ("bulk", )?"wait_group", ("read", )?', text)
    found = [f"cp.async {n}" for n, bulk, _ in waits if not bulk]
    assert found == by_threads
    # in front of the staging tile's next turn, and at the end
    assert [(n, bool(read)) for n, bulk, read in waits if bulk] == [("0", True)] * 2
    assert len(re.findall(r"mbarrier_wait\(|mbarrier_try_wait", text)) == 1
