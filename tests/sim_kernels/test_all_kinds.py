"""Copies by TMA and by threads, stores by TMA and products in one kernel: clean, exact waits."""

import re

import pytest
import tvm
from tvm import s_tir, te

from tvm_hopper import pipeline, schedule as hs
from tvm_hopper.simulation import load, verify
from tvm_hopper.testing import step_products, workloads
from tvm_hopper.testing.step_products import ProductTiling

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


@pytest.mark.sampled(every=2)
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
    report = verify(sch).require_clean()
    assert "values compared" in str(report)
    text = str(pipeline.lower_final(sch.mod, H200).device)
    waits = re.findall(r'cp\((\d), "async", ("bulk", )?"wait_group", ("read", )?', text)
    found = [f"cp.async {n}" for n, bulk, _ in waits if not bulk]
    assert found == by_threads
    # in front of the staging tile's next turn, and at the end
    assert [(n, bool(read)) for n, bulk, read in waits if bulk] == [("0", True)] * 2
    assert len(re.findall(r"mbarrier_wait\(|mbarrier_try_wait", text)) == 1


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("pending", "products"), [(0, ["0"]), (1, ["1", "0"])])
def test_products_stores_and_copies_of_both_kinds(pending, products):
    """A by cp.async, B by TMA, their product by WGMMA, its sum out by TMA.

    Copies by the producer's threads are waited for by mbarriers, and by no group.
    """
    mod = workloads.matmul(136, 96, 200, "NT", "float16", "float16")
    tiling = ProductTiling((64, 64, 64), stages=3, wgmma_pending=pending, store="tma")
    sch = step_products.schedule(mod, tiling)
    report = verify(load(sch), against=mod).require_clean()
    assert "values compared" in str(report)
    text = str(pipeline.lower_final(sch.mod, H200).device)
    assert re.findall(r'wgmma\((\d), "wait_group"', text) == products
    assert re.findall(r'cp\((\d), "async", ("bulk", )?"wait_group"', text) == [("0", '"bulk", ')]
    assert text.count('"noinc"') == 1
