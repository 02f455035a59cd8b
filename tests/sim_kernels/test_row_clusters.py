"""Rows that the thread blocks of a cluster share: values, verdicts, and each sync of theirs."""

import ml_dtypes
import numpy as np
import pytest
from tvm import s_tir

from tests.sim_kernels.mutate import change, with_argument
from tests.sim_kernels.test_memory_bound import run
from tvm_hopper import ir
from tvm_hopper import schedule as hs
from tvm_hopper.schedule.memory_bound import nests
from tvm_hopper.simulation import load, simulate, verify
from tvm_hopper.testing import losses, memory_bound

AMPERE = {"kind": "cuda", "arch": "sm_80"}


def scheduled(name, count, columns, rows=1, **config):
    sch = s_tir.Schedule(getattr(memory_bound, name)(count, columns))
    hs.row_reduction(sch, config=hs.RowReductionConfig(rows=rows, **config))
    return sch


@pytest.mark.parametrize(
    ("name", "columns", "dtype", "config"),
    [
        ("rms_norm", 1040, "bfloat16", hs.RowReductionConfig(32, 1, cluster=4)),
        ("add_rms_norm", 1032, "float16", hs.RowReductionConfig(64, 1, cluster=2, hint=True)),
        ("layer_norm", 524, "float32", hs.RowReductionConfig(32, 2, cluster=2, preload=True)),
        ("log_softmax", 1001, "bfloat16", hs.RowReductionConfig(32, 1, cluster=8)),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_values(name, columns, dtype, config):
    run(name, 3, columns, dtype, config)


@pytest.mark.parametrize(
    ("name", "columns", "given"),
    [
        ("softmax", 1544, {"threads": 64, "cluster": 2, "reload": True, "blocks": 2, "hint": True}),
        # as long rows of several tensors: four vectors of each in a thread
        ("add_rms_norm", 16384, {"threads": 32, "cluster": 16, "blocks": 3, "stage": False}),
    ],
)
def test_verified_clean(name, columns, given):
    verify(
        scheduled(name, 2, columns, **given), against=getattr(memory_bound, name)(2, columns)
    ).require_clean()


@pytest.mark.parametrize("config", [{"stage": True, "chunks": 1}, {"cluster": 1}], ids=str)
def test_the_last_rows_have_policies_of_their_own(monkeypatch, config):
    monkeypatch.setattr(nests, "kept_bytes", lambda _: 2 * 1024 * 2)
    monkeypatch.setattr(nests, "TIMES_KEPT", 2)
    more = {"rows": 1, "threads": 32, "cluster": 2, "preload": True, "hint": True, **config}
    sch = scheduled("layer_norm", 4, 1024, **more)
    (kernel,) = ir.kernels(sch.mod["main"])
    assert kernel.annotations["tvm_hopper.kept_end"] == 2
    verify(sch, against=memory_bound.layer_norm(4, 1024)).require_clean()


def test_verified_clean_in_turn_on_ampere():
    sch = scheduled("layer_norm", 3, 1032, threads=32, rows=2, cluster=4)
    verify(sch, against=memory_bound.layer_norm(3, 1032), target=AMPERE).require_clean()


def test_a_number_of_rows_known_at_run_time():
    x = np.random.default_rng(1).standard_normal((3, 520)).astype(ml_dtypes.bfloat16)
    result = simulate(scheduled("softmax", "n", 520, threads=32, cluster=2), {"X": x})
    assert not result.findings, result.findings
    (want,) = memory_bound.reference("softmax", [x])
    got = result.outputs["Y"].astype(np.float64)
    np.testing.assert_allclose(got, want, rtol=2e-2, atol=1e-6)


@pytest.fixture(scope="module")
def program():
    return load(scheduled("softmax", 1, 1024, threads=64, cluster=2))


def found(program):
    x = np.zeros((1, 1024), ml_dtypes.bfloat16)
    return {f.rule for f in simulate(program, {"X": x}).findings}


SYNCS = [
    ("barrier_cluster_arrive", None, None),
    ("barrier_cluster_wait", None, None),
    ("mbarrier_init", 0, None),
    ("mbarrier_init", 1, None),
    ("fence_mbarrier_init", None, None),
    ("mbarrier_arrive_expect_tx", 0, None),
    ("mbarrier_arrive_expect_tx", 1, None),
    ("mbarrier_arrive_expect_tx", 0, with_argument(1, 12)),
    ("mbarrier_wait", 0, None),
    ("mbarrier_wait", 1, None),
]


def test_as_it_is_the_simulator_has_nothing_to_say(program):
    assert not found(program)


@pytest.mark.parametrize(("name", "which", "new"), SYNCS, ids=range(len(SYNCS)))
def test_without_each_of_its_syncs_it_has(program, name, which, new):
    assert found(change(program, name, which, new))


def test_pairs_of_a_cluster():
    mod = losses.top_one(2, 1032)
    sch = s_tir.Schedule(mod)
    hs.row_reduction(sch, config=hs.RowReductionConfig(threads=32, rows=1, cluster=2))
    verify(sch, against=mod).require_clean()


STAGED = {"threads": 64, "chunks": 1, "stage": True}
SMALL = {**STAGED, "threads": 32}


@pytest.mark.parametrize(
    ("name", "columns", "dtype", "config"),
    [
        ("rms_norm", 1032, "bfloat16", hs.RowReductionConfig(32, 2, chunks=2, stage=True)),
        ("softmax", 1000, "float16", hs.RowReductionConfig(64, 1, stage=True, cluster=2)),
        ("layer_norm", 900, "float32", hs.RowReductionConfig(32, 1, stage=True, cluster=4)),
        ("row_mean", 1544, "bfloat16", hs.RowReductionConfig(32, 4, stage=True, cluster=1)),
        (
            "layer_norm",
            1032,
            "bfloat16",
            hs.RowReductionConfig(32, 2, stage=True, preload=True, cluster=2),
        ),
        ("rms_norm", 524, "float32", hs.RowReductionConfig(64, 1, stage=True, preload=True)),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_staged_values(name, columns, dtype, config):
    run(name, 3, columns, dtype, config)


def test_staged_rows_are_verified_clean():
    sch = scheduled("layer_norm", 2, 1544, cluster=2, hint=True, **STAGED)
    verify(sch, against=memory_bound.layer_norm(2, 1544)).require_clean()


def test_staged_rows_on_ampere():
    sch = scheduled("softmax", 2, 1032, cluster=2, hint=True, **STAGED)
    verify(sch, against=memory_bound.softmax(2, 1032), target=AMPERE).require_clean()


def test_what_staged_rows_share_waits_beside_them():
    sch = scheduled("layer_norm", 3, 520, cluster=2, preload=True, rows=2, **SMALL)
    verify(sch, against=memory_bound.layer_norm(3, 520)).require_clean()


def test_what_staged_rows_share_on_ampere():
    run(
        "layer_norm",
        3,
        520,
        "bfloat16",
        hs.RowReductionConfig(32, 2, stage=True, preload=True),
        AMPERE,
    )


STAGED_SYNCS = [
    ("tvm_storage_sync", 0, None),
    *[(name, i, None) for name in ("mbarrier_init", "mbarrier_wait") for i in range(3)],
    *[("mbarrier_arrive_expect_tx", i, None) for i in range(3)],
    ("fence_mbarrier_init", None, None),  # one, of what the cluster exchanges and of the copies
    ("barrier_cluster_wait", None, None),
]


@pytest.fixture(scope="module")
def staged():
    return load(scheduled("softmax", 1, 1024, cluster=2, **STAGED))


def test_staged_as_it_is_the_simulator_has_nothing_to_say(staged):
    assert not found(staged)


@pytest.mark.parametrize(("name", "which", "new"), STAGED_SYNCS, ids=str)
def test_without_each_sync_of_staged_rows_it_has(staged, name, which, new):
    assert found(change(staged, name, which, new))


@pytest.fixture(scope="module")
def shared():
    return load(scheduled("rms_norm", 2, 1024, cluster=2, preload=True, rows=2, **STAGED))


SHARED_SYNCS = [
    ("tvm_storage_sync", 0, None),
    *[(name, i, None) for name in ("mbarrier_init", "mbarrier_wait") for i in range(2)],
    *[("mbarrier_arrive_expect_tx", i, None) for i in range(2)],
    ("fence_mbarrier_init", None, None),
    ("barrier_cluster_wait", None, None),
]


def found_shared(program):
    x, w = (np.zeros(shape, ml_dtypes.bfloat16) for shape in ((2, 1024), (1024,)))
    return {f.rule for f in simulate(program, {"X": x, "W": w}).findings}


def test_shared_as_it_is_the_simulator_has_nothing_to_say(shared):
    assert not found_shared(shared)


@pytest.mark.parametrize(("name", "which", "new"), SHARED_SYNCS, ids=str)
def test_without_each_sync_of_what_rows_share_it_has(shared, name, which, new):
    assert found_shared(change(shared, name, which, new))


MOMENTS_SYNCS = [
    ("tvm_storage_sync", 0),
    *[(name, i) for name in ("mbarrier_init", "mbarrier_wait") for i in range(3)],
    *[("mbarrier_arrive_expect_tx", i) for i in range(3)],
    *[("cp_async_bulk_g2s_cluster", i) for i in range(3)],
    *[("st_async", i) for i in range(2)],
    ("fence_mbarrier_init", 0),
    ("barrier_cluster_arrive", 0),
    ("barrier_cluster_wait", 0),
]


@pytest.fixture(scope="module")
def moments():
    """Exchange the mean and the squares of staged rows at once."""
    return load(scheduled("layer_norm", 2, 1024, cluster=2, preload=True, rows=2, **SMALL))


def found_moments(program):
    shapes = {"X": (2, 1024), "W": (1024,), "B": (1024,)}
    inputs = {name: np.zeros(shape, ml_dtypes.bfloat16) for name, shape in shapes.items()}
    return {f.rule for f in simulate(program, inputs).findings}


def test_moments_as_they_are_the_simulator_has_nothing_to_say(moments):
    assert not found_moments(moments)


@pytest.mark.parametrize(("name", "which"), MOMENTS_SYNCS, ids=str)
def test_without_each_sync_of_moments_it_has(moments, name, which):
    assert found_moments(change(moments, name, which))


def test_clusters_of_sixteen_on_a_part_that_may_have_no_room_for_one():
    """An H20 has 78 SMs, of which ten may be all that are together."""
    sch = scheduled("softmax", 1, 4096, threads=32, cluster=16)
    mod, once = memory_bound.softmax(1, 4096), [("eager", 0)]
    assert verify(sch, target="nvidia/nvidia-h200", against=mod).verdict == "clean"
    report = verify(sch, target="nvidia/nvidia-h20", runs=once, against=False)
    assert {x.rule for x in report.findings} == {"CLUSTER_NOT_PORTABLE"}
