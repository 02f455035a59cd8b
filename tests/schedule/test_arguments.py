"""Arguments of the helpers: any kind of integer serves, everything else is one clear error."""

import re

import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx

from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.schedule import arguments
from tvm_hopper.testing import workloads

SHAPE = (128, 128, 128)


def plain():
    return s_tir.Schedule(workloads.matmul(*SHAPE))


def with_copy():
    """Return a schedule with one asynchronous copy, and the loop that it stands in."""
    sch = plain()
    copy = sch.cache_read("C", 0, "shared.dyn")
    outer, _ = sch.split(sch.get_loops("C")[2], [None, 64])
    sch.compute_at(copy, outer)
    hs.async_copy(sch, copy)
    return sch, outer, copy


def refused(match, call, *args, **kwargs):
    with pytest.raises(ScheduleError, match=match):
        call(*args, **kwargs)


# -- integers


@pytest.mark.parametrize("kind", [int, np.int32, np.int64, np.uint8, np.array])
def test_any_kind_of_integer_in_a_configuration(kind):
    config = hs.MatmulConfig(
        (kind(128), kind(64), kind(64)),
        stages=kind(2),
        consumers=kind(2),
        swizzle=kind(64),
        registers=(kind(40), kind(232)),
        wgmma_pending=kind(1),
        raster=kind(2),
        persistent=kind(4),
    )
    want = hs.MatmulConfig((128, 64, 64), 2, 2, 64, (40, 232), 1, 2, 4)
    assert config == want
    assert hash(config) == hash(want)
    assert repr(config) == repr(want)
    sch, fixed = plain(), plain()
    hs.matmul(sch, "C", config)
    hs.matmul(fixed, "C", want)
    tvm.ir.assert_structural_equal(sch.mod, fixed.mod)


def test_a_constant_of_tvm_is_an_integer():
    for stages in (tirx.IntImm("int32", 2), tirx.IntImm("int32", 1) + 1):
        config = hs.MatmulConfig([tirx.IntImm("int64", 64)] * 3, stages=stages)
        assert (config.tile, config.stages) == ((64, 64, 64), 2)


def test_any_kind_of_integer_in_a_pipeline():
    sch, loop, _ = with_copy()
    hs.pipeline(sch, loop, np.int64(2), wgmma_pending=np.int32(0))
    assert list(sch.get(loop).annotations["software_pipeline_stage"]) == [0, 1]


def test_any_kind_of_integer_elsewhere():
    sch = plain()
    hs.pad(sch, "C", np.array([96, 64, 64]).tolist())
    hs.pad(sch, "C", [np.int64(96), np.int64(64), np.int64(64)])
    loop = sch.get_loops("C")[0]
    sch.bind(loop, "blockIdx.x")
    hs.raster(sch, loop, group=np.int64(2), persistent=np.int32(4))
    assert int(sch.get(loop).annotations["tvm_hopper.raster_group"]) == 2
    sch, _, copy = with_copy()
    hs.async_copy(sch, copy, swizzle=np.int64(64))
    assert int(sch.get(copy).annotations["tvm_hopper.swizzle"]) == 64
    assert hs.Roles(np.int64(2), [np.int64(40), np.int64(232)]) == hs.Roles(2, (40, 232))
    chosen = hs.choose_config(np.int64(128), np.int32(128), tirx.IntImm("int32", 128))
    assert chosen == hs.choose_config(*SHAPE)


@pytest.mark.parametrize("value", [True, 2.0, 1.5, "2", [2], None, np.float32(2), np.bool_(True)])
@pytest.mark.parametrize("name", ["stages", "wgmma_pending", "roles"])
def test_another_type_in_a_pipeline(name, value):
    if value is None and name != "stages":
        return
    sch, loop, _ = with_copy()
    given = {"stages": 2, name: value}
    refused(rf"loop k_0: found {name}=.*; need ", hs.pipeline, sch, loop, **given)


@pytest.mark.parametrize("value", [True, 2.0, "2", [2]])
def test_another_type_elsewhere(value):
    sch = plain()
    loop = sch.get_loops("C")[0]
    sch.bind(loop, "blockIdx.x")
    shown = re.escape(repr(value))
    refused(rf"loop i0: found group={shown}; need an int or None", hs.raster, sch, loop, value)
    refused(
        rf"loop i0: found persistent={shown}; need an int", hs.raster, sch, loop, persistent=value
    )
    refused(rf"MatmulConfig: found stages={shown}; need an int", hs.MatmulConfig, stages=value)
    refused(r"pad: found tile=", hs.pad, plain(), "C", (64, 64, value))
    sch, _, copy = with_copy()
    refused(
        rf"found swizzle={shown}; need one of 0, 32, 64, 128 or None",
        hs.async_copy, sch, copy, swizzle=value,
    )  # fmt: skip
    for at, name in enumerate("mnk"):
        shape = [64, 64, 64]
        shape[at] = value
        refused(rf"choose_config: found {name}={shown}; need an int, or", hs.choose_config, *shape)


def test_values_out_of_range():
    sch, loop, _ = with_copy()
    refused(r"loop k_0: found stages=0; need 1 or more", hs.pipeline, sch, loop, 0)
    sch = plain()
    loop = sch.get_loops("C")[0]
    sch.bind(loop, "blockIdx.x")
    refused(r"found group=1099511627776; need at most 2147483647", hs.raster, sch, loop, 2**40)
    refused(r"choose_config: found k=0; need 1 or more", hs.choose_config, 64, 64, 0)
    refused(r"loop i0: found group=0; need 1 or more", hs.raster, sch, loop, 0)
    refused(r"loop i0: found persistent=-2; need -1 or more", hs.raster, sch, loop, None, -2)
    hs.raster(sch, loop, persistent=hs.BY_DEVICE)  # the one size below zero: a name for "by device"
    assert int(sch.get(loop).annotations["tvm_hopper.persistent"]) == hs.BY_DEVICE


@pytest.mark.parametrize("stages", [2**16 + 1, 2**31, 2**40, 2**70])
def test_no_ring_is_that_deep(stages):
    """TVM's trace takes 64 bits, and an annotation any of them."""
    sch, loop, _ = with_copy()
    refused(rf"found stages={stages}; need at most 65536", hs.pipeline, sch, loop, stages)
    refused(rf"found stages={stages}; need at most 65536", hs.MatmulConfig, stages=stages)


def test_groups_in_flight_need_more_slots():
    match = r"found wgmma_pending=1 with 1 stages; need 2 stages or more: a group in flight keeps"
    refused(match, hs.MatmulConfig, stages=1, wgmma_pending=1)
    sch, loop, _ = with_copy()
    refused(match, hs.pipeline, sch, loop, 1, wgmma_pending=1)
    hs.pipeline(sch, loop, 2, wgmma_pending=1)


def test_a_configuration_is_chosen_for_a_product_alone():
    choose = hs.choose_config
    refused(r"choose_config: found dtype='foo'; need one of 'float16', ", choose, *SHAPE, "foo")
    refused(r"found dtype=16; need the name of a type or None", choose, *SHAPE, 16)
    refused(r"found given='x'; need an hs.MatmulConfig or None", choose, *SHAPE, given="x")
    sch = plain()
    tile = (sch.sample_categorical([64, 128], [0.5, 0.5]), 64, 64)
    refused(r"found a sampled tile=.*; need sizes too", choose, *SHAPE, given=hs.MatmulConfig(tile))
    match = r"'promoted' with tile=.*; need a tile and stages that are known: the depth says"
    refused(match, hs.MatmulConfig, tile, accumulate="promoted")
    match = r"choose_config: found sizes="
    refused(match, choose, *SHAPE, given=hs.MatmulConfig(tile), sizes=(64, 64, 64))
    refused(match, choose, *SHAPE, given=hs.MatmulConfig(tile), sizes=((64,), (64,)))
    refused(match, choose, *SHAPE, given=hs.MatmulConfig(tile), sizes=((64,), (64,), ()))
    refused(match, choose, *SHAPE, given=hs.MatmulConfig(tile), sizes=((64,), (64,), (6.4,)))
    sizes = ((64, 128), (64,), (64,))
    assert choose(*SHAPE, given=hs.MatmulConfig(tile), sizes=sizes).consumers == 1


# -- random variables


def test_samples_of_another_schedule():
    sample = plain().sample_categorical([64, 128], [0.5, 0.5])
    match = r"found tile=.*, which is not sampled by this schedule; need an int, or a sample"
    refused(match, hs.pad, plain(), "C", (sample, 64, 64))
    refused(match, hs.matmul, plain(), "C", hs.MatmulConfig((sample, 64, 64)))
    refused(r"found stages=", hs.matmul, plain(), "C", hs.MatmulConfig(stages=sample + 1))
    sch, loop, _ = with_copy()
    refused(r"loop k_0: found stages=", hs.pipeline, sch, loop, stages=sample + 1)


def test_expressions_that_are_no_integers():
    match = r"found stages=.*; need an int, or last \+ 1 with a sampled random variable"
    half = tirx.Var("half", "float32")
    tensor = te.create_prim_func([te.placeholder((8,), "int32", name="A")]).params[0]
    last = tirx.Var("last", "int32")
    for stages in (half + 1, tensor, last, last + 2, tirx.IntImm("bool", 1)):
        refused(match, hs.MatmulConfig, stages=stages)
    for stages in (last + 1, 1 + last):
        found = arguments.last_stage(hs.MatmulConfig(stages=stages).stages)
        assert found.same_as(last)


# -- schedules, blocks and loops

STEPS = {
    "matmul": lambda sch, block: hs.matmul(sch, block),
    "pad": lambda sch, block: hs.pad(sch, block, (64, 64, 64)),
    "fuse_prologue": lambda sch, block: hs.fuse_prologue(sch, block),
    "fuse_epilogue": lambda sch, block: hs.fuse_epilogue(sch, block),
    "async_copy": lambda sch, block: hs.async_copy(sch, block),
    "wgmma": lambda sch, block: hs.wgmma(sch, block),
}
LOOP_STEPS = {
    "pipeline": lambda sch, loop: hs.pipeline(sch, loop, 2),
    "raster": lambda sch, loop: hs.raster(sch, loop, 2),
}


@pytest.mark.parametrize("name", [*STEPS, *LOOP_STEPS])
def test_a_step_needs_a_schedule(name):
    step = {**STEPS, **LOOP_STEPS}[name]
    match = rf"{name}: found sch=.*; need a schedule; make one: s_tir.Schedule\(mod\)"
    for thing in (None, workloads.matmul(*SHAPE), "C"):
        refused(match, step, thing, "C")


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_step_needs_a_block(step):
    sch = plain()
    need = r"need the name of a block, or what sch.get_sblock returned"
    several = [] if step is STEPS["matmul"] else [["C"]]  # which it takes
    for thing in (None, 3, 1.5, *several, sch.get(sch.get_sblock("C"))):
        refused(rf"block: found block=.*; {need}", step, plain(), thing)
    refused(rf"block: found block=a loop; {need}", step, sch, sch.get_loops("C")[0])
    refused(r"block: found a block of another schedule; need", step, sch, other_block())
    match = r"block Z: found none of that name in function main; need one of C"
    refused(match, step, sch, "Z")


@pytest.mark.parametrize("step", LOOP_STEPS.values(), ids=LOOP_STEPS)
def test_a_step_needs_a_loop(step):
    sch = plain()
    need = r"need a loop, as sch.get_loops and sch.split return them"
    for thing in (None, "k", 0, sch.get_loops("C")):
        refused(rf"loop: found loop=.*; {need}", step, sch, thing)
    refused(rf"loop: found loop=a block; {need}", step, sch, sch.get_sblock("C"))
    other = plain()
    other.get_sblock("C")
    refused(r"loop: found a loop of another schedule", step, sch, other.get_loops("C")[2])


def other_block():
    other = plain()
    for _ in range(5):
        block = other.get_sblock("C")
    return block


def test_a_block_that_is_gone():
    sch = s_tir.Schedule(workloads.matmul(*SHAPE))
    copy = sch.cache_read("C", 0, "global")
    loop = sch.get_loops(copy)[0]
    sch.compute_inline(copy)
    match = r"found a {} that no longer exists; need a {} of this schedule; look it up again"
    refused(match.format("block", "block"), hs.wgmma, sch, copy)
    refused(match.format("loop", "loop"), hs.raster, sch, loop)


def test_names_of_blocks():
    sch = s_tir.Schedule(workloads.matmul(*SHAPE, epilogue=("bias_col", "relu")))
    refused(r"need one of C, .*relu; did you mean relu\?", hs.matmul, sch, "rulu")
    stages = [te.placeholder((8,), "float32", name="A")]
    for number in range(12):
        stages.append(plus_one(stages[-1], f"T{number:02d}"))
    many = s_tir.Schedule(te.create_prim_func([stages[0], stages[-1]]))
    refused(r"need one of T00, T01, T02, T03, T04, T05, T06, T07, \.\.\.$", hs.matmul, many, "xyz")


def plus_one(tensor, name):
    return te.compute((8,), lambda x: tensor[x] + te.const(1, "float32"), name=name)


def test_two_blocks_of_one_name():
    sch = s_tir.Schedule(workloads.matmul(*SHAPE, epilogue=("relu",)))
    body = tvm.ir.load_json(tvm.ir.save_json(sch.mod)).script().replace('"relu"', '"C"')
    sch = s_tir.Schedule(tvm.script.from_source(body))
    match = r"block C: found 2 of that name in function main; need one; take the block from sch"
    refused(match, hs.matmul, sch, "C")


def test_a_module_of_several_functions():
    func = workloads.matmul(*SHAPE)["main"]
    mod = tvm.IRModule({n: func.with_attr("global_symbol", n) for n in ("first", "second")})
    sch = s_tir.Schedule(mod)
    match = r"block C: found a module of several functions \(first, second\); .*sch.work_on\(name\)"
    refused(match, hs.matmul, sch, "C")
    sch.work_on("second")
    hs.matmul(sch, "C")


@pytest.mark.parametrize("config", [3, "x", {"tile": (64, 64, 64)}, hs.Roles(1)])
def test_a_configuration_is_one_of_ours(config):
    match = r"matmul: found config=.*; need an hs.MatmulConfig or None"
    refused(match, hs.matmul, plain(), "C", config)


def test_a_label_names_what_it_can():
    sch = plain()
    block = sch.get_sblock("C")
    assert arguments.label(sch, block) == "block C"
    assert arguments.label(sch, sch.get_loops(block)[0]) == "loop i0"
    assert arguments.label(sch, "C") == "block C"
    assert arguments.label(sch, other_block()) == ""
    assert arguments.label(sch, 3) == ""


def test_a_long_value_is_shown_by_its_type():
    refused(r"matmul: found config=a list; need", hs.matmul, plain(), "C", list(range(100)))


@pytest.mark.parametrize(
    ("name", "value", "need"),
    [
        ("form", "dots", "tiles, which tensor cores sum in 14 bits"),
        ("split_k", 2, "one of the two: a thread block promotes a whole sum"),
        ("split_k", "stream", "one of the two: a thread block promotes a whole sum"),
        ("wgmma_pending", 1, "0: each partial sum is added before the next one begins"),
    ],
)
def test_what_does_not_go_with_promoted_sums(name, value, need):
    match = rf"found accumulate='promoted' with {name}={value!r}; need {need}"
    refused(match, hs.MatmulConfig, accumulate="promoted", **{name: value})
