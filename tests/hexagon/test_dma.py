"""Copies by DMA on Hexagon: one transform for three machines, against TVM's own lowering of them.

What TVM makes of the same schedule, by InjectSoftwarePipeline and LowerAsyncDMA, copies the same
bytes in the same order and waits at the same places for the same groups.
"""

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.target import Target

from tests.hexagon.machine import Machine
from tests.hexagon.programs import TARGET, add, inputs, scale, schedule
from tests.transforms.scripts import check, parse
from tvm_hopper import ir, pipeline
from tvm_hopper.pipeline.stock import stock_passes

LAST = "tvm_hopper.RejectUnloweredRequests"
POLICIES = pytest.mark.parametrize("policy", ["early", "late"])


def lower(sch, until=LAST, target=TARGET):
    return pipeline.lower(sch.mod, target, until=until)["main"]


def lower_by_tvm(sch):
    """Run TVM's own passes up to LowerAsyncDMA."""
    mod = tirx.transform.BindTarget(Target(TARGET, host=TARGET))(sch.mod)
    with tvm.transform.PassContext(config={"tirx.use_async_copy": True}):
        for one in stock_passes():
            mod = one(mod)
            if one.info.name == "s_tir.LowerAsyncDMA":
                return mod["main"]
    raise AssertionError("no LowerAsyncDMA")


EXPECTED = """
@T.prim_func(s_tir=True)
def main(A: T.Buffer((8, 128), "float32"), C: T.Buffer((8, 128), "float32")):
    T.func_attr({"global_symbol": "main", "tirx.noalias": True})
    with T.sblock("kernel"):
        tiles = T.sblock_alloc_buffer((3, 1, 128), scope="global.vtcm")
        with T.sblock("tile", reads=[], writes=[], tile_work=1):
            T.call_intrin("int32", "tirx.dma_start_group", 0)
            T.call_intrin("int32", "tirx.dma_copy", 0, T.address_of(tiles[0, 0, 0]),
                T.address_of(A[0, 0]), 512, 0)
            T.call_intrin("int32", "tirx.dma_end_group", 0)
            T.call_intrin("int32", "tirx.dma_start_group", 0)
            T.call_intrin("int32", "tirx.dma_copy", 0, T.address_of(tiles[1, 0, 0]),
                T.address_of(A[1, 0]), 512, 0)
            T.call_intrin("int32", "tirx.dma_end_group", 0)
            for k in T.serial(6, disable_unroll=True):
                T.call_intrin("int32", "tirx.dma_start_group", 0)
                T.call_intrin("int32", "tirx.dma_copy", 0, T.address_of(tiles[(k + 2) % 3, 0, 0]),
                    T.address_of(A[k + 2, 0]), 512, 0)
                T.call_intrin("int32", "tirx.dma_end_group", 0)
                T.call_intrin("int32", "tirx.dma_wait", 0, 2)
                for i, j in T.grid(1, 128):
                    with T.sblock("C"):
                        C[k, j] = tiles[k % 3, 0, j] + T.float32(1.0)
            for k in T.serial(6, 7, disable_unroll=True):
                T.call_intrin("int32", "tirx.dma_wait", 0, 1)
                for i, j in T.grid(1, 128):
                    with T.sblock("C"):
                        C[k, j] = tiles[k % 3, 0, j] + T.float32(1.0)
            for k in T.serial(7, 8, disable_unroll=True):
                T.call_intrin("int32", "tirx.dma_wait", 0, 0)
                for i, j in T.grid(1, 128):
                    with T.sblock("C"):
                        C[k, j] = tiles[k % 3, 0, j] + T.float32(1.0)
"""


def test_a_pipeline_of_three_stages():
    check(lower(schedule(scale(8, 128), 1, stages=3)).without_attr("target"), parse(EXPECTED))


PROGRAMS = {  # function, rows of a tile
    "one copy a tile": (scale(8, 4), 1, [(8, 4), (8, 4)]),
    "rows in a row": (scale(16, 4), 2, [(16, 4), (16, 4)]),
    "two tensors": (add(8, 4), 1, [(8, 4), (8, 4), (8, 4)]),
    "a copy for each row": (scale(32, 4, 8), 4, [(32, 8), (32, 4)]),
    "two tensors of such rows": (add(32, 4, 8), 4, [(32, 8), (32, 8), (32, 4)]),
}
EVERY = pytest.mark.parametrize("name", PROGRAMS)


def trace(func, shapes, policy="late"):
    machine = Machine(policy)
    result = machine.run(func, inputs(*shapes))[-1]
    return machine.trace, result


@EVERY
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_copies_and_waits_are_those_of_tvm(name, stages):
    func, tile, shapes = PROGRAMS[name]
    own, got = trace(lower(schedule(func, tile, stages)), shapes)
    theirs, want = trace(lower_by_tvm(schedule(func, tile, stages, ours=False)), shapes)
    assert own == theirs
    assert [x for x in own if x[0] == "wait"] == [
        *[("wait", stages - 1)] * (8 - stages + 1),
        *[("wait", n) for n in reversed(range(stages - 1))],
    ]
    np.testing.assert_array_equal(got, want)


@pytest.mark.sampled(every=3)
@EVERY
@POLICIES
@pytest.mark.parametrize("stages", [None, 1, 3, 8, 9, 12])
def test_the_plain_program_s_meaning(name, policy, stages):
    """Also with as many stages as iterations, and more; a slot is written as early as it may be."""
    func, tile, shapes = PROGRAMS[name]
    *given, out = inputs(*shapes)
    _, got = trace(lower(schedule(func, tile, stages)), shapes, policy)
    columns = out.shape[1]
    want = given[0][:, :columns] + (1 if len(given) == 1 else given[1][:, :columns])
    np.testing.assert_array_equal(got, want)


@POLICIES
@pytest.mark.parametrize("num_tiles", range(6))
def test_iterations_that_run_time_counts(policy, num_tiles):
    sch = schedule(scale(tvm.te.var("n"), 4), 1, stages=3)
    arrays = inputs((num_tiles, 4), (num_tiles, 4))
    machine = Machine(policy)
    machine.run(lower(sch), arrays, n=num_tiles)
    np.testing.assert_array_equal(arrays[1], arrays[0] + 1)


def test_the_whole_list_runs():
    """Up to the packed host function; TVM's code generation knows no `dma_copy`, nor its own."""
    mod = pipeline.lower(schedule(scale(8, 128), 1, stages=3).mod, Target(TARGET, host=TARGET))
    text = mod.script()
    assert text.count("dma_copy") == 3
    assert [text.count(f"dma_wait(0, {n})") for n in (2, 1, 0)] == [1, 1, 1]


def test_a_function_of_nobody_s_is_left_to_tvm():
    sch = schedule(scale(8, 128), 1, stages=3, ours=False)
    mod = tirx.transform.BindTarget(Target(TARGET, host=TARGET))(sch.mod)
    with tvm.transform.PassContext(config={"tirx.use_async_copy": True}):
        stock = mod
        for one in stock_passes():
            stock = one(stock)
        tvm.ir.assert_structural_equal(pipeline.run(mod), stock)


LATE = """
@T.prim_func(s_tir=True)
def main(A: T.Buffer((8, 4), "float32"), C: T.Buffer((9, 4), "float32")):
    T.func_attr({"global_symbol": "main", "tirx.noalias": True})
    with T.sblock("root"):
        tile = T.sblock_alloc_buffer((4,), scope="global.vtcm")
        other = T.sblock_alloc_buffer((4,), scope="global.vtcm")
        for i in range(4):
            with T.sblock("first"):
                tile[i] = T.float32(0)
        for k in range(8):
            for i in range(4):
                with T.sblock("use"):
                    C[k, i] = tile[i]
            for i in range(4):
                with T.sblock("load", async_copy="dma"):
                    tile[i] = A[k, i]
        for i in range(4):
            with T.sblock("fill"):
                other[i] = T.float32(5)
        for i in range(4):
            with T.sblock("last"):
                C[8, i] = other[i]
"""


@POLICIES
def test_what_nobody_reads_lands_in_bytes_of_its_own(policy):
    """The last copy is waited for at the end, and TVM must put nothing into its bytes till then."""
    mod = tvm.IRModule({"main": parse(LATE)})
    func = pipeline.lower(mod, TARGET, until="tirx.StorageRewrite")["main"]
    arrays = inputs((8, 4), (9, 4))
    machine = Machine(policy)
    machine.run(func, arrays)
    np.testing.assert_array_equal(arrays[1], [[0] * 4, *arrays[0][:-1], [5] * 4])
    assert machine.trace[-1] == ("wait", 0)
    tiles = ir.find_all(func.body, tirx.stmt.AllocBuffer, lambda x: x.buffer.scope() == ir.VTCM)
    assert len(tiles) == 2


@pytest.mark.sampled(every=5)
@POLICIES
@pytest.mark.parametrize("stages", [[0, 1, 2], [0, 1, 3], [0, 2, 2]])
@pytest.mark.parametrize("num_tiles", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("static", [True, False])
def test_copies_that_run_ahead_by_different_numbers_of_trips(policy, stages, num_tiles, static):
    """Peeled iterations go on with those that run less far ahead."""
    rows = num_tiles if static else tvm.te.var("n")
    if static and not num_tiles:
        return
    sch = schedule(add(rows, 4), 1)
    k = sch.get_loops("C")[0]
    sch.annotate(k, "software_pipeline_stage", stages)
    sch.annotate(k, "software_pipeline_order", [0, 1, 2])
    sch.annotate(k, "software_pipeline_async_stages", sorted({*stages[:2]}))
    arrays = inputs(*[(num_tiles, 4)] * 3)
    Machine(policy).run(lower(sch), arrays, n=num_tiles)
    np.testing.assert_array_equal(arrays[2], arrays[0] + arrays[1])
