"""The three stages that users name run alone on a schedule of TVM's, and `tvm.compile` goes on."""

import itertools

import numpy as np
import pytest
import tvm
from tvm import s_tir, te

import tvm_hopper
from tvm_hopper import transforms
from tvm_hopper.errors import HopperWarning, LoweringError
from tvm_hopper.requests import marks

STAGES = ("InjectBulkAsyncCopy", "InjectBarrierPipeline", "InjectTmaStoreGroups")
TARGET = tvm.target.Target("nvidia/nvidia-h200")
SHAPE = (64, 256)


def tiled(*, stored=False, pipelined=False, consumers=0):
    """Return a plain TVM schedule of X + 1 over tiles in shared memory, without keys of ours."""
    x = te.placeholder(SHAPE, "float32", name="X")
    y = te.compute(SHAPE, lambda i, j: x[i, j] + te.const(1, "float32"), name="Y")
    sch = s_tir.Schedule(te.create_prim_func([x, y]))
    i, j = sch.get_loops("Y")
    block_y, step, row = sch.split(i, [None, 4, 8])
    block_x, column = sch.split(j, [None, 128])
    sch.reorder(block_y, block_x, step, row, column)
    sch.bind(block_y, "blockIdx.y")
    sch.bind(block_x, "blockIdx.x")
    sch.compute_at(sch.cache_read("Y", 0, "shared.dyn"), step)
    if stored:
        sch.reverse_compute_at(sch.cache_write("Y", 0, "shared.dyn"), step)
    _, thread, vector = sch.split(sch.fuse(row, column), [None, 128, 4])
    sch.bind(thread, "threadIdx.x")
    sch.vectorize(vector)
    if pipelined:
        statements = range(3 if stored else 2)
        sch.annotate(step, "software_pipeline_stage", [0, 3, 3][: len(statements)])
        sch.annotate(step, "software_pipeline_order", [*statements])
        sch.annotate(step, "software_pipeline_async_stages", [0])
    if consumers:
        sch.annotate(step, "tvm_hopper.consumers", consumers)
    return sch.mod


def run(mod, *stages):
    with TARGET:
        return tvm.transform.Sequential(list(stages))(mod)


def check(mod):
    """Compile what the stages leave; a simulated run is right and clean."""
    ex = tvm.compile(mod, target=TARGET)
    x = np.random.default_rng(0).standard_normal(SHAPE).astype("float32")
    result = tvm_hopper.simulate(ex, {"X": x})
    result.require_clean()
    np.testing.assert_array_equal(result.outputs["Y"], x + 1)


@pytest.mark.parametrize("mechanism", ["auto", "tma", "bulk", "cp_async", "none"])
def test_copies_alone(mechanism):
    mod = run(tiled(), transforms.InjectBulkAsyncCopy(mechanism))
    text = mod["main"].script()
    made = {"auto": "tma", "none": ""}.get(mechanism, mechanism)
    assert ("tvm_hopper.async_op" in text) == bool(made)
    assert ("cuTensorMapEncodeTiled" in text) == (made == "tma")
    check(mod)


def test_a_pipeline_alone():
    mod = run(tiled(pipelined=True), transforms.InjectBarrierPipeline())
    text = mod["main"].script()
    assert "(4, 1, 8, 128)" in text  # four slots
    assert "mbarrier_wait(T.address_of(full[" in text
    check(mod)


def test_a_pipeline_behind_copies_with_a_producer():
    stages = (transforms.InjectBulkAsyncCopy("tma"), transforms.InjectBarrierPipeline())
    mod = run(tiled(pipelined=True, consumers=1), *stages)
    assert "mbarrier_wait(T.address_of(empty[" in mod["main"].script()
    check(mod)


def test_stores_alone():
    mod = run(tiled(stored=True), transforms.InjectTmaStoreGroups(slots=2))
    text = mod["main"].script()
    assert "(2, 1, 8, 128)" in text  # two slots
    assert '"commit_group"' in text
    assert '"wait_group", "read"' in text
    check(mod)


def test_all_three():
    stages = (
        transforms.InjectBulkAsyncCopy(),
        transforms.InjectTmaStoreGroups(slots=2, place_waits=False),
        transforms.InjectBarrierPipeline(),
    )
    check(run(tiled(stored=True, pipelined=True), *stages))


ORDERS = [x for count in (2, 3) for x in itertools.permutations(STAGES, count)]


@pytest.mark.parametrize("names", ORDERS, ids="-".join)
def test_in_any_order_they_are_right_or_refused(names):
    """Stores that wait leave the plain loads to one thread, whose they stay."""
    mod = tiled(stored="InjectTmaStoreGroups" in names, pipelined=True)
    stages = [getattr(transforms, x)() for x in names]
    places = [names.index(x) if x in names else -1 for x in STAGES[1:]]
    if 0 <= places[0] < places[1]:  # stores after the pipeline
        with pytest.raises(LoweringError, match="found a use of what other threads did"):
            run(mod, *stages)
    else:
        check(run(mod, *stages))


def test_again_changes_nothing():
    stages = (transforms.InjectBulkAsyncCopy(), transforms.InjectBarrierPipeline())
    once = run(tiled(pipelined=True), *stages)
    tvm.ir.assert_structural_equal(run(once, *stages), once)


@pytest.mark.parametrize(
    ("stage", "copy"),
    [
        ("InjectBulkAsyncCopy", r"global into shared memory.* as cache_read\("),
        ("InjectBarrierPipeline", r"global into shared memory.* as cache_read\("),
        ("InjectTmaStoreGroups", r"shared into global memory.* as cache_write\("),
    ],
)
def test_functions_without_copies_stay_tvms_which_is_said(stage, copy):
    x = te.placeholder(SHAPE, "float32", name="X")
    mod = s_tir.Schedule(te.create_prim_func([x, te.compute(SHAPE, lambda *i: x(*i) * x(*i))])).mod
    with pytest.warns(HopperWarning, match=f"^{stage}: main: found no copy from {copy}"):
        tvm.ir.assert_structural_equal(run(mod, getattr(transforms, stage)()), mod)


def test_a_stage_for_stores_says_that_there_are_loads_alone():
    with pytest.warns(HopperWarning, match="found no copy from shared into global memory"):
        run(tiled(), transforms.InjectTmaStoreGroups())
    asked = run(tiled(), transforms.InjectBulkAsyncCopy())
    run(asked, transforms.InjectTmaStoreGroups())  # ours already: no warning


@pytest.mark.parametrize("by_stage", [True, False])
def test_an_error_about_a_request_names_who_wrote_it(by_stage):
    sch = s_tir.Schedule(tiled())
    copy = sch.get_sblock("X_shared.dyn")
    if not by_stage:
        sch.annotate(copy, "tvm_hopper.async_copy", "dsm")
    stage = transforms.InjectBulkAsyncCopy("dsm" if by_stage else "tma")
    with pytest.raises(LoweringError) as caught:
        run(sch.mod, stage)
    wrote = "InjectBulkAsyncCopy wrote tvm_hopper.async_copy = 'dsm' on copies that had none"
    assert (wrote in str(caught.value)) == by_stage


def test_schedules_with_requests_reach_opaque_blocks():
    mod = transforms.InjectBulkAsyncCopy("tma")
    lowered = run(tiled(pipelined=True, consumers=1), transforms.LowerToOpaqueBlocks())
    assert marks.is_marked(lowered["main"])
    check(run(lowered, mod, transforms.InjectBarrierPipeline()))


def test_without_a_target_it_says_what_to_do():
    with pytest.raises(LoweringError, match=r"no target; need a cuda target .* build with target="):
        transforms.InjectBulkAsyncCopy()(tiled())
