"""What a Hexagon target lets through, and what it refuses."""

import pytest
import tvm

from tests.hexagon.programs import TARGET, scale, schedule
from tests.transforms.scripts import parse
from tvm_hopper import pipeline
from tvm_hopper.errors import LoweringError, ScheduleError
from tvm_hopper.facts.hexagon import HEXAGONS
from tvm_hopper.requests.targets import processor_of
from tvm_hopper.schedule import async_copy

PLAIN = """
@T.prim_func(s_tir=True)
def main(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
    T.func_attr({"global_symbol": "main"})
    for k in T.serial(64):
        with T.sblock("C"):
            vk = T.axis.spatial(64, k)
            C[vk] = A[vk]
"""


def refused(match, *changes, target=TARGET):
    with pytest.raises(LoweringError, match=match):
        pipeline.lower(tvm.IRModule({"main": parse(PLAIN, *changes)}), target)


def test_another_mechanism():
    refused(
        r"main, block C: found tvm_hopper.async_copy = 'tma' on hexagonv68; need "
        r"tvm_hopper.async_copy = 'dma' alone; remove it, or build for a GPU",
        ("vk = T", 'T.sblock_attr({"tvm_hopper.async_copy": "tma"}); vk = T'),
    )


def test_a_request_for_warp_groups():
    refused(
        r"main, block C: found tvm_hopper.wgmma = 1 on hexagonv68; need tvm_hopper.async_copy",
        ("vk = T", 'T.sblock_attr({"tvm_hopper.wgmma": 1}); vk = T'),
    )


def test_threads():
    refused(
        r"main, loop k: found a loop bound to threadIdx.x on hexagonv68; need serial loops: one "
        r"thread runs the whole function; leave the loop unbound",
        ("T.serial(64)", 'T.thread_binding(64, "threadIdx.x")'),
        ("vk = T", 'T.sblock_attr({"tvm_hopper.async_copy": "dma"}); vk = T'),
    )


@pytest.mark.parametrize(
    ("target", "name"),
    [("qcom/hexagon-v66", "hexagon hexagonv66"), ({"kind": "hexagon"}, "hexagon")],
)
def test_a_chip_of_which_nothing_is_known(target, name):
    refused(
        rf"found tvm_hopper.async_copy with target {name}; need a hexagon target with mcpu "
        r"hexagonv68 or hexagonv69 or hexagonv73 or hexagonv75",
        ("vk = T", 'T.sblock_attr({"tvm_hopper.async_copy": "dma"}); vk = T'),
        target=target,
    )


ON_GPU = """
@T.prim_func(s_tir=True)
def main(A: T.Buffer((64, 4), "float32"), C: T.Buffer((64, 4), "float32")):
    T.func_attr({"global_symbol": "main"})
    for b in T.thread_binding(64, "blockIdx.x"):
        with T.sblock("outer"):
            tile = T.sblock_alloc_buffer((4,), scope="global.vtcm")
            for i in range(4):
                with T.sblock("load", async_copy="dma"):
                    tile[i] = A[b, i]
            for i in range(4):
                with T.sblock("use"):
                    C[b, i] = tile[i]
"""


def test_dma_on_a_gpu():
    match = (
        r"copy of A into tile: found tvm_hopper.async_copy = 'dma' on sm_90a; need a mechanism "
        r"that it has: 'bulk' or 'cp_async' or 'tma'"
    )
    with pytest.raises(LoweringError, match=match):
        pipeline.lower(tvm.IRModule({"main": parse(ON_GPU)}), "nvidia/nvidia-h200")


def test_a_target_says_how_much_vtcm_there_is():
    config = {"kind": "hexagon", "mcpu": "hexagonv73", "vtcm-capacity": 1 << 16}
    func = parse(PLAIN).with_attr("target", tvm.target.Target(config))
    assert processor_of(func).tile_bytes == 1 << 16
    del config["vtcm-capacity"]
    func = func.with_attr("target", tvm.target.Target(config))
    assert processor_of(func) == HEXAGONS["hexagonv73"]


@pytest.mark.parametrize(("mechanism", "scope"), [("dma", "shared.dyn"), ("tma", "global.vtcm")])
def test_the_helper_wants_the_memory_that_the_mechanism_fills(mechanism, scope):
    sch = tvm.s_tir.Schedule(scale(8, 4))
    tile = sch.cache_read("C", 0, scope)
    sch.compute_at(tile, sch.get_loops("C")[0])
    need = {"dma": "global.vtcm", "tma": "shared.dyn"}[mechanism]
    with pytest.raises(ScheduleError, match=f'a write to .*{scope}.*a cache_read to "{need}"'):
        async_copy(sch, tile, mechanism)


def test_what_tvm_annotates_alone_is_no_request():
    sch = schedule(scale(8, 4), 1, stages=3, ours=False)
    mod = pipeline.lower(sch.mod, TARGET, until="tvm_hopper.InsertSyncs")
    assert "tvm_hopper" not in str(mod["main"].body)


@pytest.mark.parametrize(("option", "ours"), [("dma", True), ("auto", False), ("tma", False)])
def test_one_option_takes_a_schedule_as_upstream_writes_it(option, ours):
    """A mechanism that Hexagon has not leaves the function to TVM: nobody wrote that into it."""
    sch = schedule(scale(8, 4), 1, stages=3, ours=False)
    with tvm.transform.PassContext(config={"tvm_hopper.async_copy": option}):
        mod = pipeline.lower(sch.mod, TARGET, until="tvm_hopper.LowerChannelsToMbarriers")
    assert ("dma_wait" in str(mod["main"].body)) == ours
    if ours:
        asked = pipeline.lower(
            schedule(scale(8, 4), 1, stages=3).mod,
            TARGET,
            until="tvm_hopper.LowerChannelsToMbarriers",
        )
        tvm.ir.assert_structural_equal(mod["main"].body, asked["main"].body, map_free_vars=True)


def test_auto_as_an_annotation_is_dma():
    sch, auto = schedule(scale(8, 4), 1, stages=3), schedule(scale(8, 4), 1, stages=3)
    block = auto.get_sblock("A_global.vtcm")
    auto.unannotate(block, "tvm_hopper.async_copy")
    auto.annotate(block, "tvm_hopper.async_copy", "auto")
    want, got = (
        pipeline.lower(x.mod, TARGET, until="tvm_hopper.LowerChannelsToMbarriers")
        for x in (sch, auto)
    )
    tvm.ir.assert_structural_equal(got["main"].body, want["main"].body, map_free_vars=True)


def test_a_store():
    sch = tvm.s_tir.Schedule(scale(8, 4))
    out = sch.cache_write("C", 0, "global.vtcm")
    sch.annotate(out, "tvm_hopper.async_copy", "dma")
    match = (
        r"found a store by 'dma' from scope 'global.vtcm'; need a load: nothing stores from there "
        r"asynchronously; leave the store a loop"
    )
    with pytest.raises(LoweringError, match=match):
        pipeline.lower(sch.mod, TARGET)
