"""Epilogues beside products, asked for one product: what goes with them, what is chosen."""

import pytest
import tvm
from tvm import s_tir

import tvm_hopper
from tvm_hopper import schedule as hs
from tvm_hopper.errors import LoweringError, ScheduleError
from tvm_hopper.requests import keys
from tvm_hopper.testing import workloads

TARGET = "nvidia/nvidia-h200"
NOTE = "half of the epilogue runs beside the other half's products of {} steps"


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"overlap": 9}, r"overlap=9; need at most 8"),
        ({"persistent": 0}, r"overlap=2 with persistent=0; need thread blocks that compute sev"),
        ({"wgmma_pending": 1}, r"with wgmma_pending=1; need steps that are waited for, 0"),
        ({"schedule": "pingpong"}, r"with schedule=\"pingpong\"; need consumers that share a"),
        ({"transposed": True}, r"with transposed=True; need rows of a tile that are rows in mem"),
        ({"split_k": 2}, r"with split_k=2; need blocks that sum all of a tile"),
        ({"store": "tma"}, r"with store='tma'; need threads that store what they hold"),
        (
            {"store": "tma", "operand_slots": 1},
            r"with (store='tma'|operand_slots=1); need threads that",
        ),
        ({"stages": 1}, r"overlap=2 with 1 stages; need as many stages as steps, or more"),
        ({"direct": True}, r"direct with overlap=2; need direct alone: there are no tiles"),
    ],
)
def test_what_does_not_go_with_halves(fields, match):
    with pytest.raises(ScheduleError, match=match):
        hs.MatmulConfig(**{"overlap": 2, **fields})


def test_a_tile_is_chosen_that_has_halves():
    config = hs.choose_config(8192, 14336, 4096, given=hs.MatmulConfig(overlap=4))
    assert config.tile is not None
    assert config.tile[0] // config.consumers >= 128
    assert config.stages >= 4
    assert (config.persistent, config.wgmma_pending, config.store) == (keys.BY_DEVICE, 0, None)


def test_a_sum_of_too_few_steps():
    with pytest.raises(ScheduleError, match=r"no tile that fits .*overlap=4"):
        hs.choose_config(8192, 8192, 256, given=hs.MatmulConfig(overlap=4))


def _scheduled(**config):
    sch = s_tir.Schedule(workloads.matmul(512, 512, 512, epilogue=("bias_col", "relu")))
    hs.matmul(sch, "C", hs.MatmulConfig((256, 64, 64), **config))
    return sch


def test_it_is_asked_on_the_axis_and_served():
    ex = tvm.compile(_scheduled(overlap=2).mod, target=TARGET)
    assert NOTE.format(2) in str(tvm_hopper.explain(ex))


def test_the_axis_wins_over_the_option():
    with tvm.transform.PassContext(config={keys.OVERLAP: 1}):
        ex = tvm.compile(_scheduled(overlap=2).mod, target=TARGET)
    assert NOTE.format(2) in str(tvm_hopper.explain(ex))


def test_what_is_annotated_by_hand_is_refused_where_it_cannot_be():
    sch = _scheduled(overlap=2)
    (rows, columns, *_) = sch.get_loops(sch.get_sblock("C_update_o"))
    axis = next(x for x in (rows, columns) if keys.OVERLAP in sch.get(x).annotations)
    sch.unannotate(axis, keys.OVERLAP)
    sch.annotate(axis, keys.OVERLAP, 5)
    with pytest.raises(LoweringError, match=r"found 2 rows .* and 8 steps of k; need .* 10 steps"):
        tvm.compile(sch.mod, target=TARGET)
