"""Equal shares of all tiles' steps: what is asked for, what is chosen, and what cannot be."""

from dataclasses import replace

import pytest
from tvm import s_tir, tirx

import tvm_hopper
from tests.schedule.devices import gpu_of_sms
from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.requests import keys
from tvm_hopper.testing import workloads

STREAM = hs.MatmulConfig(split_k="stream")


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        (
            {"split_k": hs.SplitK(4, "stream")},
            r"split_k=SplitK\(parts=4, mode='stream'\); need no parts: where sums come apart",
        ),
        ({"persistent": 0}, r"with persistent=0; need thread blocks that share all tiles"),
        ({"store": "tma"}, r"with store='tma'; need threads that store what they hold"),
        ({"cluster": (2, 1)}, r"cluster=\(2, 1\) with split_k='stream'; need one of the two"),
        ({"batch_invariant": True}, r"split_k='stream' with batch_invariant=True; need one of"),
        ({"schedule": "pingpong"}, r"schedule='pingpong' with split_k='stream'; need one of"),
        ({"form": "dots"}, r"form='dots' with split_k='stream'; need the form alone"),
    ],
)
def test_what_does_not_go_with_it(fields, match):
    with pytest.raises(ScheduleError, match=match):
        replace(STREAM, **fields)


def test_rows_that_are_not_known():
    sch = s_tir.Schedule(workloads.matmul(tirx.Var("m", "int64"), 64, 256))
    match = r"found split_k='stream' with symbolic extents; need extents and a tile that are"
    with pytest.raises(ScheduleError, match=match):
        hs.matmul(sch, "C", STREAM)


def test_a_tile_that_is_sampled():
    sch = s_tir.Schedule(workloads.matmul(128, 64, 256))
    rows = sch.sample_categorical([64, 128], [0.5, 0.5])
    with pytest.raises(ScheduleError, match=r"'stream' with a sampled tile or stages; need"):
        hs.matmul(sch, "C", replace(STREAM, tile=(rows, 64, 64)))


def test_a_flag_that_is_none():
    sch = s_tir.Schedule(workloads.matmul(256, 256, 64))
    loop, *_ = sch.get_loops("C")
    sch.bind(loop, "blockIdx.x")
    with pytest.raises(ScheduleError, match=r"found stream=1; need True, False or None"):
        hs.raster(sch, loop, stream=1)


def test_what_is_chosen():
    """As many blocks as SMs, and nothing that does not go with it."""
    for extents in ((2048, 2816, 13824), (128, 256, 32768), (2128, 552, 1288)):
        config = hs.choose_config(*extents, given=STREAM)
        assert (config.split_k, config.persistent) == ("stream", 132)
        assert (config.cluster, config.store) == (None, None)
    with gpu_of_sms(78):
        assert hs.choose_config(512, 512, 512, given=STREAM).persistent == 78
    eight = replace(STREAM, persistent=8)
    assert hs.choose_config(512, 512, 512, given=eight).persistent == 8


def test_both_kinds_of_calls():
    sch = s_tir.Schedule(workloads.matmul(320, 256, 512))
    hs.matmul(sch, "C", replace(STREAM, tile=(64, 64, 64), persistent=8))
    (loop,) = (x for x in sch.get_loops("C_update_o") if keys.STREAM in sch.get(x).annotations)
    assert int(sch.get(loop).annotations[keys.STREAM]) == keys.STREAM_BY_CALLER
    with_memory, without = tvm_hopper.explain(sch.mod, target="nvidia/nvidia-h200").kernels
    assert "each of 8 thread blocks computes 1 whole tile and 12 steps" in with_memory.notes[0]
    assert "with an allocator" in with_memory.launched_for
    assert "without an allocator" in without.launched_for
    assert not without.notes
