"""Consumers in turn: what is asked for, and what cannot be."""

import pytest
import tvm
from tvm import s_tir, tirx

import tvm_hopper
from tests.transforms.pipeline.test_plan_ring_buffers import PLANNED
from tests.transforms.refusals.turns import ONE_GROUP, SHARED
from tests.transforms.scripts import parse
from tvm_hopper import ir, schedule as hs
from tvm_hopper.errors import LoweringError, ScheduleError
from tvm_hopper.facts.arch import SM_90A
from tvm_hopper.requests.keys import BY_DEVICE
from tvm_hopper.testing import workloads
from tvm_hopper.testing.contractions import contraction
from tvm_hopper.transforms.warp_specialization.ping_pong_plan import check_turns
from tvm_hopper.transforms.warp_specialization.specialize_warps_plan import Agent, plan_roles

TARGET = "nvidia/nvidia-h200"
PINGPONG = {"schedule": "pingpong"}


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"consumers": 1}, r"schedule='pingpong' with consumers=1; need 2 or 3"),
        ({"persistent": 0}, r"with persistent=0; need thread blocks that compute several tiles"),
        (
            {"consumers": 2, "registers": (40, 232)},
            r"with registers=\(40, 232\); need registers le",
        ),
        ({"split_k": 2}, r"with split_k=2; need one of the two: blocks that share a sum"),
        (
            {"cluster": (2, 1)},
            r"with cluster=\(2, 1\); need one of the two: slots that blocks fill",
        ),
        ({"store": "tma"}, r"with store='tma'; need threads that store what they hold"),
        (
            {"store": hs.TmaStore(operand_slots=1)},
            r"with store=TmaStore\(operand_slots=1\); need threads that store",
        ),
    ],
)
def test_what_does_not_go_with_turns(fields, match):
    with pytest.raises(ScheduleError, match=match):
        hs.MatmulConfig(**PINGPONG, **fields)


@pytest.mark.parametrize("extents", [(2128, 552, 1288), (128, 256, 32768)])
def test_turns_alone_choose_nothing_that_does_not_go_with_them(extents):
    """Where clusters, and parts of a sum, are what would be chosen otherwise."""
    free = hs.choose_config(*extents)
    assert free.cluster or free.split_k
    config = hs.choose_config(*extents, given=hs.MatmulConfig(**PINGPONG))
    assert (config.cluster, config.split_k) == (None, None)
    hs.matmul(s_tir.Schedule(workloads.matmul(*extents)), "C", hs.MatmulConfig(**PINGPONG))


FP8 = ("float8_e4m3fn", "bfloat16")


@pytest.mark.parametrize(
    ("extents", "types", "given", "schedule"),
    [
        ((1024, 4608, 1536), FP8, {}, "pingpong"),
        ((1024, 4608, 1536), FP8, {"batch_invariant": True}, "pingpong"),
        ((1024, 4608, 1536), FP8, {"schedule": "cooperative"}, "cooperative"),
        ((1024, 4608, 1536), FP8, {"store": "tma"}, None),
        ((1024, 4608, 1536), ("float8_e4m3fn", "float32"), {}, None),
        ((1024, 4608, 1536), ("float16", "float16"), {}, None),  # measured: nothing is gained
        ((1024, 4608, 3072), FP8, {}, None),
        ((512, 512, 1536), FP8, {}, None),  # a tile a block
        (("m", 4608, 1536), FP8, {}, None),
    ],
)
def test_short_products_of_bytes_take_turns(extents, types, given, schedule):
    m, *others = extents
    rows = tirx.Var(m, "int64") if isinstance(m, str) else m
    config = hs.MatmulConfig(**given)
    found = hs.choose_config(rows, *others, types[0], given=config, out_dtype=types[1])
    assert found.schedule == schedule
    if schedule == "pingpong":
        assert (found.consumers, found.persistent) == (2, BY_DEVICE)


@pytest.mark.parametrize("residual", [False, True])
def test_a_residual_is_loaded_for_consumers_that_share_tiles(residual):
    def epilogue(total, i, j, **others):
        value = total(i, j) + others["R"][i, j] if residual else total(i, j)
        return value.astype("bfloat16")

    mod = contraction("mk,nk->mn", {"m": 1024, "n": 4608, "k": 1536}, FP8[:1] * 2, "float32",
                      epilogue, {"R": "mn"} if residual else {})  # fmt: skip
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C")
    text = sch.mod.script()
    assert ("tvm_hopper.in_turn" in text or "tvm_hopper.turns" in text) != residual


def test_another_schedule_is_none():
    with pytest.raises(ScheduleError, match="schedule='stream_k'; need one of"):
        hs.MatmulConfig(schedule="stream_k")


def test_accumulators_of_a_whole_tile():
    """Of one consumer, in the registers that two have."""
    config = hs.MatmulConfig((128, 208, 64), **PINGPONG)
    with pytest.raises(ScheduleError, match=r"found 208 accumulators a thread .* need at most 206"):
        hs.matmul(s_tir.Schedule(workloads.matmul(512, 512, 512)), "C", config)


@pytest.mark.parametrize(("columns", "width"), [(256, 128), (224, 112)])
def test_instructions_are_as_wide_as_all_consumers_leave_registers_for(columns, width):
    """Three consumers and a producer enter with 128 registers each, whatever is moved later."""
    sch = s_tir.Schedule(workloads.matmul(3000, 2048, 128))
    hs.matmul(sch, "C", hs.MatmulConfig((64, columns, 64), consumers=3, stages=2, **PINGPONG))
    ex = tvm.compile(sch.mod, target=TARGET)
    assert f"m64n{width}k16" in ex.mod.imports[0].inspect_source()
    assert tvm_hopper.cubin(ex)


def test_explain_names_them():
    sch = s_tir.Schedule(workloads.matmul(512, 512, 512))
    hs.matmul(sch, "C", hs.MatmulConfig((128, 64, 64), **PINGPONG))
    text = str(tvm_hopper.explain(sch.mod, target=TARGET))
    assert "2 consumer warp groups, which compute output tiles in turn, 384 threads" in text
    assert "by the device at launch" in text


def test_a_tile_by_the_estimate():
    """Which one consumer can hold, whatever all of them could together."""
    for m, n, k in ((1024, 1024, 512), (8192, 8192, 4096)):
        config = hs.choose_config(m, n, k, given=hs.MatmulConfig(**PINGPONG))
        assert (config.consumers, config.wgmma_pending) == (2, 1)
        assert config.tile[0] * config.tile[1] <= 128 * 206
        assert config.persistent == -1
    sch = s_tir.Schedule(workloads.matmul(1024, 1024, 512))
    hs.matmul(sch, "C", hs.MatmulConfig(**PINGPONG, consumers=3))
    assert "3 consumer warp groups" in str(tvm_hopper.explain(sch.mod, target=TARGET))


def planned(*changes):
    return plan_roles(ir.kernels(parse(PLANNED, *changes))[0], SM_90A)


def test_roles_in_turn():
    (plan,) = planned(SHARED, ONE_GROUP)
    assert (plan.turns, plan.num_threads) == (2, 384)
    assert plan.consumer.agent == Agent(128, 128)
    assert (plan.producer.num_registers, plan.consumer.num_registers) == (40, 232)


def test_two_loops_of_products():
    kernel = ir.kernels(parse(PLANNED, SHARED, ONE_GROUP))[0]
    loops = ir.find_all(kernel, ir.For, lambda x: "tvm_hopper.num_slots" in x.annotations) * 2
    with pytest.raises(LoweringError, match="found 2 loops whose loads are handed over; need one"):
        check_turns(kernel, loops, 1, True, kernel)


@pytest.mark.parametrize(
    ("epilogue", "config", "match"),
    [
        (
            ("residual",),
            {"store": hs.TmaStore(operand_slots=1)},
            r"found residual_shared.dyn, shared memory that consumer",
        ),
        (
            (),
            {},
            r"found C_shared.dyn, shared memory that consumer groups would use at the same time",
        ),
    ],
)
def test_epilogues_through_shared_memory(epilogue, config, match):
    mod = workloads.matmul(512, 256, 256, epilogue=epilogue)
    sch = s_tir.Schedule(mod)
    config = hs.MatmulConfig((64, 64, 64), 2, 1, persistent=2, **{"store": "tma", **config})
    hs.matmul(sch, "C", config)
    block = sch.get_sblock("C_update_o")
    columns = next(
        x
        for x in sch.get_loops(block)
        if (bound := sch.get(x).thread_binding) is not None
        and str(bound.thread_tag) == "blockIdx.x"
    )
    sch.annotate(columns, "tvm_hopper.turns", 2)
    with pytest.raises(LoweringError, match=match):
        tvm.compile(sch.mod, target=TARGET)
