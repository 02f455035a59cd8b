"""Reductions as steps: what they leave behind, what they refuse, and products in parts."""

import pytest
import tvm
from tvm import s_tir, te

from tvm_hopper import ir, schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.requests import keys
from tvm_hopper.testing import reductions, workloads
from tvm_hopper.testing.reductions import Split


def parts_of(sch):
    return next(
        loop for loop in sch.get_loops("S_update") if str(sch.get(loop).loop_var.name) == "i_0"
    )


def half(**split):
    """Schedule columns as far as the request for a reduction."""
    return reductions.schedule(reductions.columns(12, 256), Split(3, share=False, **split))


def test_what_the_steps_leave_behind():
    sch = reductions.schedule(reductions.columns(12, 256), Split(3, mechanism="bulk"))
    (block,) = ir.find_blocks(sch.mod["main"], keys.REDUCE)
    assert dict(block.annotations) == {keys.ASYNC_COPY: "bulk", keys.REDUCE: "add"}
    (loop,) = ir.find_all(
        sch.mod["main"].body, ir.For, lambda x: keys.ACROSS_BLOCKS in x.annotations
    )
    assert (int(loop.extent), str(loop.annotations[keys.ACROSS_BLOCKS])) == (3, "blockIdx.z")


def test_a_trace_replays():
    mod = reductions.columns(12, 256)
    sch = reductions.schedule(mod, Split(3))
    again = s_tir.Schedule(mod)
    sch.trace.apply_to_schedule(again, remove_postproc=False)
    tvm.ir.assert_structural_equal(again.mod, sch.mod)


@pytest.mark.parametrize(
    ("operation", "mechanism", "match"),
    [
        (
            "max",
            "tma",
            r"block S_update: found an update by 'add'; need C\[...\] = C\[...\] max",
        ),
        ("mul", "tma", r"reduce='mul'; need one of"),
        (
            "add",
            "none",
            r"found reduce='add' by threads, whose updates of one element would race; ",
        ),
    ],
)
def test_no_such_reduction(operation, mechanism, match):
    sch = half()
    block = sch.get_sblock("S_update")
    for key in (keys.ASYNC_COPY, keys.REDUCE):
        sch.unannotate(block, key)
    before = sch.mod
    with pytest.raises(ScheduleError, match=match):
        hs.async_store(sch, block, mechanism, reduce=operation)
    assert sch.mod.same_as(before)


def test_a_plain_store_is_no_reduction():
    mod = workloads.matmul(64, 64, 64)
    sch = s_tir.Schedule(mod)
    copy = sch.cache_write("C", 0, "shared.dyn")
    with pytest.raises(ScheduleError, match="found no update in place"):
        hs.async_store(sch, copy, "tma", reduce="add")


@pytest.mark.parametrize(
    ("columns", "stored", "written"), [(4, 128, 16), (260, 1300, 1040), (32, 128, 128)]
)
def test_a_tile_of_fewer_elements_than_threads_store(columns, stored, written):
    """TVM's copy has whole rows of all threads; of 4 x 32 threads write all."""
    x = te.placeholder((64, columns), "float32", name="X")
    y = te.compute(x.shape, lambda i, j: x[i, j] * 2.0, name="Y")
    sch = s_tir.Schedule(te.create_prim_func([x, y]))
    i, j = sch.get_loops("Y")
    block, step, i = sch.split(i, [None, 4, 4])
    sch.bind(block, "blockIdx.x")
    _, thread = sch.split(sch.fuse(i, j), [None, 128])
    sch.bind(thread, "threadIdx.x")
    copy = sch.cache_write("Y", 0, "shared.dyn")
    sch.reverse_compute_at(copy, step)
    if columns % 32 == 0:
        hs.async_store(sch, copy)
        return
    match = rf"a store of {stored} elements, of which threads write {written}; .*divide the tile"
    with pytest.raises(ScheduleError, match=match):
        hs.async_store(sch, copy)


def test_a_loop_without_reductions_is_not_shared():
    sch = half()
    with pytest.raises(ScheduleError, match="found no store that combines what it moves"):
        hs.across_blocks(sch, sch.get_loops("S_init")[-1] and sch.get_loops("S_rf")[-1])


def test_a_bound_loop_is_not_shared():
    sch = half()
    outer, *_ = sch.get_loops("S_update")
    with pytest.raises(ScheduleError, match=r"found a loop of kind thread_binding; need a serial"):
        hs.across_blocks(sch, outer)
    with pytest.raises(ScheduleError, match=r"axis='blockIdx.x'; need one of"):
        hs.across_blocks(sch, parts_of(sch), "blockIdx.x")


def test_another_axis():
    sch = half()
    hs.across_blocks(sch, parts_of(sch), "blockIdx.y")
    hs.across_blocks(sch, parts_of(sch), "blockIdx.y")  # the same once more says nothing new
    with pytest.raises(ScheduleError, match="a second request"):
        hs.across_blocks(sch, parts_of(sch))


# -- products in parts


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"split_k": 17}, r"found split_k=17 in a cluster; need at most 16 parts.*workspace"),
        (
            {"split_k": hs.SplitK(65, "workspace")},
            r"found .*parts=65.* in global memory; need at most 64",
        ),
        (
            {"split_k": hs.SplitK(11, "caller")},
            r"found .*parts=11.* as the caller decides; need a multiple of a number from 2 to 8",
        ),
        ({"split_k": 0}, r"split_k=0"),
        ({"split_k": 2, "persistent": 4}, r"split_k=2 with persistent=4; need a cluster for each"),
        ({"split_k": 2, "store": "tma"}, r"split_k=2 with store='tma'; need threads that store"),
    ],
)
def test_no_such_parts(fields, match):
    with pytest.raises(ScheduleError, match=match):
        hs.MatmulConfig(**fields)


def test_a_ring_that_does_not_fit_is_refused_as_without_parts():
    mod = workloads.matmul(256, 256, 256)
    found = []
    for parts in (1, 2):
        config = hs.MatmulConfig((128, 256, 64), stages=5, split_k=parts)
        with pytest.raises(ScheduleError) as caught:
            hs.matmul(s_tir.Schedule(mod), "C", config)
        found.append(str(caught.value))
    assert found[0] == found[1]
    assert "+ alignment 8 = 245848 B of shared memory" in found[0]


def test_parts_that_no_mode_has():
    sch = s_tir.Schedule(workloads.matmul(64, 64, 1040))
    _, _, k = sch.get_loops("C")
    part, _ = sch.split(k, [65, None])
    with pytest.raises(ScheduleError, match="need a serial loop of 2 to 64 iterations, parts that"):
        hs.across_cluster(sch, part, "workspace")
    with pytest.raises(ScheduleError, match="need a serial loop of 2 to 16 iterations, the thread"):
        hs.across_cluster(sch, part)
    with pytest.raises(ScheduleError, match="mode='free'; need one of"):
        hs.across_cluster(sch, part, "free")


def test_one_part_is_no_split():
    mod = workloads.matmul(256, 256, 256)
    one, none = s_tir.Schedule(mod), s_tir.Schedule(mod)
    hs.matmul(one, "C", hs.MatmulConfig((128, 128, 64), split_k=1))
    hs.matmul(none, "C", hs.MatmulConfig((128, 128, 64)))
    tvm.ir.assert_structural_equal(one.mod, none.mod)


def test_parts_step_by_step():
    mod = workloads.matmul(128, 128, 512)
    whole = s_tir.Schedule(mod)
    hs.matmul(whole, "C", hs.MatmulConfig((128, 128, 64), 4, 2, split_k=4))
    steps = s_tir.Schedule(mod)
    block = steps.get_sblock("C")
    i, j, k = steps.get_loops(block)
    i0, i2 = steps.split(i, [None, 128])
    j0, j1 = steps.split(j, [None, 128])
    k0, k1 = steps.split(k, [None, 256])
    parts, k1 = steps.split(k1, [4, 64])
    i1, i2 = steps.split(i2, [2, None])
    steps.reorder(i0, j0, i1, parts, k0, i2, j1, k1)
    steps.bind(i0, "blockIdx.y")
    steps.bind(j0, "blockIdx.x")
    steps.bind(i1, "threadIdx.y")
    hs.raster(steps, j0, group=1, persistent=0, early_launch=True)
    store = steps.cache_write(block, 0, "local")
    steps.reverse_compute_at(store, i1)
    for index in (0, 1):
        copy = steps.cache_read(block, index, "shared.dyn")
        steps.compute_at(copy, k0)
        hs.async_copy(steps, copy, mechanism="tma")
    hs.fuse_epilogue(steps, store)
    steps.decompose_reduction(block, parts)
    hs.across_cluster(steps, parts)
    hs.wgmma(steps, block)
    hs.pipeline(steps, k0, stages=4, roles=hs.Roles(consumers=2))
    tvm.ir.assert_structural_equal(steps.mod, whole.mod)


def test_a_loop_that_no_cluster_shares():
    sch = s_tir.Schedule(workloads.matmul(64, 64, 64))
    i, _, k = sch.get_loops("C")
    match = "found a loop of kind serial and 64 iterations; need a serial loop of 2 to 16"
    with pytest.raises(ScheduleError, match=match):
        hs.across_cluster(sch, k)
    sch.bind(i, "blockIdx.x")
    with pytest.raises(ScheduleError, match="found a loop of kind thread_binding"):
        hs.across_cluster(sch, i)


def test_sampled_sizes_are_no_parts():
    sch = s_tir.Schedule(workloads.matmul(256, 256, 256))
    tile_n = sch.sample_categorical([64, 128], [0.5, 0.5])
    with pytest.raises(ScheduleError, match="found split_k=2 with a sampled tile or stages"):
        hs.matmul(sch, "C", hs.MatmulConfig(tile=(128, tile_n, 64), stages=2, split_k=2))
