"""Persistent kernels of rows without sums of columns: what rows share stays in registers."""

from collections import Counter

import ml_dtypes
import numpy as np
import pytest
from tvm import s_tir

from tests.sim_kernels.mutate import change
from tests.sim_kernels.test_memory_bound import run
from tvm_hopper import schedule as hs
from tvm_hopper.sim.machine.load_store import LoadStore
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


def test_what_rows_share_is_read_once_by_each_cluster(monkeypatch):
    read = Counter()
    gather = LoadStore.gather

    def counting(self, region, offsets, dtype, count):
        read[region.name] += np.size(offsets) * count
        return gather(self, region, offsets, dtype, count)

    monkeypatch.setattr(LoadStore, "gather", counting)
    run("layer_norm", 6, 1024, config=config(32, 2, cluster=2, ahead=1))
    assert (read["W"], read["B"]) == (2 * 1024, 2 * 1024)


@pytest.fixture(scope="module")
def program():
    return load(scheduled("rms_norm", 5, 1024, config(64, 1, ahead=1)))


def found(program):
    x, w = (np.ones(shape, "float32") for shape in ((5, 1024), (1024,)))

    named = {"X": x.astype(ml_dtypes.bfloat16), "W": w.astype(ml_dtypes.bfloat16)}
    return {f.rule for f in simulate(program, named).findings}


def test_as_it_is_the_simulator_has_nothing_to_say(program):
    assert not found(program)


SYNCS = [
    *[(name, 0) for name in ("mbarrier_init", "mbarrier_wait", "mbarrier_arrive_expect_tx")],
    ("tvm_storage_sync", 0),
    ("tvm_storage_sync", 1),
]


@pytest.mark.parametrize(("name", "which"), SYNCS, ids=str)
def test_without_each_of_its_syncs_it_has(program, name, which):
    assert found(change(program, name, which, None))


# -- clusters: nine turns and four rooms

CLUSTER = [
    ("mbarrier_init", 0),  # of the rooms, by a thread each
    *[("fence_mbarrier_init", n) for n in range(2)],  # of those, and of the rows'
    ("fence_proxy", 0),
    *[("barrier_cluster_arrive", n) for n in range(2)],  # all run; rooms were read
    *[("barrier_cluster_wait", n) for n in range(2)],
    ("mbarrier_wait", 1),  # values are there; 0 is of rows
    ("mbarrier_arrive_expect_tx", 2),
    ("tvm_storage_sync", 1),  # of warps: what they leave for the first is there
]
NAMED = {
    x: np.ones(s, ml_dtypes.bfloat16) for x, s in {"X": (9, 1024), "W": 1024, "B": 1024}.items()
}


def in_cluster(threads, **more):
    given = config(threads, 1, cluster=2, **more)
    return load(scheduled("layer_norm", 9, 1024, given))


@pytest.fixture(scope="module")
def cluster():
    return in_cluster(64, ahead=1, reload=False)


def rules(program):
    return {f.rule for f in simulate(program, NAMED).findings}


def test_a_cluster_as_it_is_has_nothing_to_say(cluster):
    assert not rules(cluster)


@pytest.mark.parametrize(("name", "which"), CLUSTER, ids=str)
def test_without_each_sync_of_a_cluster_it_has(cluster, name, which):
    assert rules(change(cluster, name, which))


# -- the same, of which the next turn's row is reduced before this turn waits

SKEWED = [
    *[("mbarrier_init", n) for n in (0, 4)],
    *[("fence_mbarrier_init", n) for n in range(2)],
    *[("barrier_cluster_arrive", n) for n in range(2)],
    *[("barrier_cluster_wait", n) for n in range(2)],
    *[("mbarrier_wait", n) for n in range(3)],  # rows, of the first turn and later; values
    *[("mbarrier_arrive_expect_tx", n) for n in range(5)],
    *[("tvm_storage_sync", n) for n in range(3)],
    *[("fence_proxy", n) for n in range(2)],
]


@pytest.fixture(scope="module")
def skewed():
    return in_cluster(64, ahead=1, reload=True)


def test_skewed_turns_as_they_are_have_nothing_to_say(skewed):
    assert not rules(skewed)


@pytest.mark.parametrize(("name", "which"), SKEWED, ids=str)
def test_without_each_sync_of_skewed_turns_it_has(skewed, name, which):
    assert rules(change(skewed, name, which))


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
    found = rules(in_cluster(64, ahead=1, reload=True))
    assert any(x.startswith("RACE") for x in found), found


def test_a_row_less_of_room_than_skewed_turns_need_races(monkeypatch):
    monkeypatch.setattr(
        "tvm_hopper.transforms.memory_bound.stage_rows_in_shared_plan.SKEW_TURNS", "no request"
    )
    found = rules(in_cluster(64, ahead=1, reload=True))
    assert found & {"PROXY_FENCE_MISSING_WAR", "RACE_OVERWRITE_BUSY"}, found
