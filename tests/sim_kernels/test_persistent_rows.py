"""Persistent kernels of rows without sums of columns: what rows share stays in registers."""

import ml_dtypes
import numpy as np
import pytest
from tvm import s_tir

from tests.sim_kernels.mutate import change
from tests.sim_kernels.test_memory_bound import run
from tvm_hopper import schedule as hs
from tvm_hopper.simulation import load, simulate, verify
from tvm_hopper.testing import memory_bound


@pytest.fixture(scope="module", autouse=True)
def _few_rooms():
    """Let clusters use their rooms again within few turns."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SLOTS", "MAX_SLOTS"):
            patch.setattr(f"tvm_hopper.transforms.reductions.cluster_exchange_slots.{name}", 4)
        yield


def config(threads, persistent, **more):
    return hs.RowReductionConfig(threads, persistent=persistent, **{"stage": True, **more})


def scheduled(name, count, columns, given):
    sch = s_tir.Schedule(getattr(memory_bound, name)(count, columns))
    hs.row_reduction(sch, config=given)
    return sch


@pytest.mark.parametrize(
    ("name", "count", "dtype", "given"),
    [
        ("layer_norm", 7, "bfloat16", config(32, 2, cluster=2, ahead=2, reload=False)),
        ("rms_norm", 12, "float16", config(64, 1, cluster=2, ahead=1, reload=True)),
        ("add_rms_norm", 5, "bfloat16", config(64, 2, cluster=1, ahead=1)),
        ("layer_norm", 4, "float32", config(32, 2, stage=False, rows=1)),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_values(name, count, dtype, given):
    run(name, count, 1024, dtype, given)


@pytest.mark.parametrize(
    "count", [pytest.param(6, marks=pytest.mark.slow), 11], ids=["whole", "tail"]
)
def test_verified_clean(count):
    given = config(32, 2, cluster=2, ahead=2, reload=False)
    verify(
        scheduled("layer_norm", count, 1024, given), against=memory_bound.layer_norm(count, 1024)
    ).require_clean()


def test_what_rows_share_is_read_once_by_each_cluster(read):
    inputs = run("layer_norm", 6, 1024, config=config(32, 2, cluster=2, ahead=1))
    assert [read[name] for name in "WB"] == [2 * inputs[name].nbytes for name in "WB"]


# -- each sync: of rows alone; of a cluster, nine turns over four rooms; of one whose next row is
# reduced before this turn waits

SYNCS = {
    "alone": [
        *[(name, 0) for name in ("mbarrier_init", "mbarrier_wait", "mbarrier_arrive_expect_tx")],
        *[("tvm_storage_sync", n) for n in range(2)],
    ],
    "cluster": [
        ("mbarrier_init", 0),  # of the rooms, by a thread each
        *[("fence_mbarrier_init", n) for n in range(2)],  # of those, and of the rows'
        ("fence_proxy", 0),
        *[("barrier_cluster_arrive", n) for n in range(2)],  # all run; rooms were read
        *[("barrier_cluster_wait", n) for n in range(2)],
        ("mbarrier_wait", 1),  # values are there; 0 is of rows
        ("mbarrier_arrive_expect_tx", 2),
        ("tvm_storage_sync", 1),  # of warps: what they leave for the first is there
    ],
    "skewed": [
        *[("mbarrier_init", n) for n in (0, 4)],
        *[("fence_mbarrier_init", n) for n in range(2)],
        *[("barrier_cluster_arrive", n) for n in range(2)],
        *[("barrier_cluster_wait", n) for n in range(2)],
        *[("mbarrier_wait", n) for n in range(3)],  # rows, of the first turn and later; values
        *[("mbarrier_arrive_expect_tx", n) for n in range(5)],
        *[("tvm_storage_sync", n) for n in range(3)],
        *[("fence_proxy", n) for n in range(2)],
    ],
}


def in_cluster(**more):
    return load(scheduled("layer_norm", 9, 1024, config(64, 1, cluster=2, **more)))


@pytest.fixture(scope="module")
def programs():
    return {
        "alone": load(scheduled("rms_norm", 5, 1024, config(64, 1, ahead=1))),
        "cluster": in_cluster(ahead=1, reload=False),
        "skewed": in_cluster(ahead=1, reload=True),
    }


def rules(program):
    rows = 5 if len(program.arguments) == 3 else 9  # X, W, Y, or B, too
    shapes = {"X": (rows, 1024), "W": 1024, "B": 1024}
    given = {argument.name for argument in program.arguments} & {*shapes}
    ones = {name: np.ones(shapes[name], ml_dtypes.bfloat16) for name in given}
    return {f.rule for f in simulate(program, ones).findings}


@pytest.mark.parametrize("kind", SYNCS)
def test_as_it_is_the_simulator_has_nothing_to_say(programs, kind):
    assert not rules(programs[kind])


@pytest.mark.parametrize(
    ("kind", "name", "which"), [(kind, *sync) for kind in SYNCS for sync in SYNCS[kind]], ids=str
)
def test_without_each_of_its_syncs_it_has(programs, kind, name, which):
    assert rules(change(programs[kind], name, which))


@pytest.mark.parametrize(
    "count", [pytest.param(16, marks=pytest.mark.slow), 19], ids=["whole", "tail"]
)
def test_skewed_turns_are_verified_clean(count):
    """Eight and ten turns of four rooms, which are used again behind every second turn."""
    given = config(64, 2, cluster=2, ahead=2, reload=True)
    verify(
        scheduled("layer_norm", count, 1024, given), against=memory_bound.layer_norm(count, 1024)
    ).require_clean()


def test_told_as_seldom_as_turns_in_order_skewed_ones_race(monkeypatch):
    """The next turn has sent its value, to the last room, before this one tells."""
    monkeypatch.setattr(
        "tvm_hopper.transforms.reductions.cluster_exchange_loop._were_all_read",
        lambda one: (one.trip % one.num_rooms).equal(one.num_rooms - 1),
    )
    found = rules(in_cluster(ahead=1, reload=True))
    assert any(x.startswith("RACE") for x in found), found


def test_a_row_less_of_room_than_skewed_turns_need_races(monkeypatch):
    monkeypatch.setattr(
        "tvm_hopper.transforms.memory_bound.stage_rows_in_shared_plan.SKEW_TURNS", "no request"
    )
    found = rules(in_cluster(ahead=1, reload=True))
    assert found & {"PROXY_FENCE_MISSING_WAR", "RACE_OVERWRITE_BUSY"}, found
