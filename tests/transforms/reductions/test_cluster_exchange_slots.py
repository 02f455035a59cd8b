"""How many rooms the values have that thread blocks of a cluster send each other in turns."""

import pytest
from tvm import s_tir, tirx

from tests.sim_kernels.mutate import instructions
from tvm_hopper import schedule as hs
from tvm_hopper.simulation import load
from tvm_hopper.testing import backward, memory_bound
from tvm_hopper.transforms.reductions import cluster_exchange_slots

SMALL = hs.RowReductionConfig(64, persistent=1, cluster=2, ahead=1, stage=True, reload=False)
IN_REGISTERS = hs.RowReductionConfig(64, persistent=2, cluster=2, ahead=1, stage=False)


@pytest.fixture
def counts(monkeypatch):
    found = []
    count = cluster_exchange_slots.count_rooms

    def counting(*given):
        found.append(count(*given))
        return found[-1]

    monkeypatch.setattr(cluster_exchange_slots, "count_rooms", counting)
    return found


@pytest.mark.parametrize(
    ("program", "config", "rooms"),
    [
        (memory_bound.layer_norm(4096, 131072), None, 256),  # 274 turns, 34 KiB left
        (memory_bound.layer_norm(70, 1024), SMALL, 128),  # 70 turns
        (memory_bound.layer_norm(20, 1024), SMALL, 32),
        (memory_bound.layer_norm("n", 1024), SMALL, 256),
        (backward.rms_norm_backward(200, 1024), IN_REGISTERS, 32),
        (backward.layer_norm_backward(2730, 131072), None, 256),  # 195 turns
    ],
)
def test_as_many_as_there_is_space_for_and_no_more_than_turns(program, config, rooms, counts):
    sch = s_tir.Schedule(program)
    hs.row_reduction(sch, config=config)
    load(sch)
    assert counts[0] == rooms


@pytest.mark.parametrize(("rows", "meetings"), [(32, 1), (257, 2)])
def test_turns_that_have_a_room_each_tell_nothing(rows, meetings):
    """All thread blocks meet where they begin, and in the turn that uses the last room."""
    sch = s_tir.Schedule(memory_bound.layer_norm(rows, 1024))
    hs.row_reduction(sch, config=SMALL)
    (func,) = load(sch).kernels.values()
    assert isinstance(func, tirx.PrimFunc)
    assert len(instructions(func, "barrier_cluster_arrive")) == meetings
