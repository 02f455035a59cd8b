"""Rows that the thread blocks of a cluster share: values, verdicts, and each sync of theirs."""

import functools

import ml_dtypes
import numpy as np
import pytest
from tvm import s_tir

from tests.sim_kernels.mutate import change, with_argument
from tests.sim_kernels.test_memory_bound import run
from tvm_hopper import ir, schedule as hs
from tvm_hopper.schedule.memory_bound import nests
from tvm_hopper.simulation import load, simulate, verify
from tvm_hopper.testing import losses, memory_bound

AMPERE = {"kind": "cuda", "arch": "sm_80"}


def scheduled(name, count, columns, rows=1, **config):
    sch = s_tir.Schedule(getattr(memory_bound, name)(count, columns))
    hs.row_reduction(sch, config=hs.RowReductionConfig(rows=rows, **config))
    return sch


@pytest.mark.sampled(every=2)
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


@pytest.mark.sampled(every=2)
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


def test_pairs_of_a_cluster():
    mod = losses.top_one(2, 1032)
    sch = s_tir.Schedule(mod)
    hs.row_reduction(sch, config=hs.RowReductionConfig(threads=32, rows=1, cluster=2))
    verify(sch, against=mod).require_clean()


STAGED = {"threads": 64, "chunks": 1, "stage": True}
SMALL = {**STAGED, "threads": 32}


@pytest.mark.sampled(every=2)
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


# -- each sync

COPIES = ("mbarrier_init", "mbarrier_wait", "mbarrier_arrive_expect_tx")
# A kernel, and the instructions of which each is needed, or may not be another.
SYNCS = {
    "exchanged": (
        ("softmax", 1, {"threads": 64, "cluster": 2}),
        [
            ("barrier_cluster_arrive", None),
            ("barrier_cluster_wait", None),
            ("fence_mbarrier_init", None),
            *[(name, i) for name in COPIES for i in range(2)],
            ("mbarrier_arrive_expect_tx", 0, with_argument(1, 12)),
        ],
    ),
    "staged": (
        ("softmax", 1, {"cluster": 2, **STAGED}),
        [
            ("tvm_storage_sync", 0),
            *[(name, i) for name in COPIES for i in range(3)],
            ("fence_mbarrier_init", None),  # of what the cluster exchanges and of the copies
            ("barrier_cluster_wait", None),
        ],
    ),
    "what rows share": (
        ("rms_norm", 2, {"cluster": 2, "preload": True, "rows": 2, **STAGED}),
        [
            ("tvm_storage_sync", 0),
            *[(name, i) for name in COPIES for i in range(2)],
            ("fence_mbarrier_init", None),
            ("barrier_cluster_wait", None),
        ],
    ),
    "the mean and the squares of staged rows, at once": (
        ("layer_norm", 2, {"cluster": 2, "preload": True, "rows": 2, **SMALL}),
        [
            ("tvm_storage_sync", 0),
            *[(name, i) for name in (*COPIES, "cp_async_bulk_g2s_cluster") for i in range(3)],
            *[("st_async", i) for i in range(2)],
            ("fence_mbarrier_init", 0),
            ("barrier_cluster_arrive", 0),
            ("barrier_cluster_wait", 0),
        ],
    ),
}


@functools.cache
def right(kind):
    """Return a kernel over rows of 1024 elements, and zeros for it."""
    name, rows, config = SYNCS[kind][0]
    shapes = {"X": (rows, 1024), "W": (1024,), "B": (1024,)}
    program = load(scheduled(name, rows, 1024, **config))
    given = {argument.name for argument in program.arguments} & {*shapes}
    return program, {name: np.zeros(shapes[name], ml_dtypes.bfloat16) for name in given}


@pytest.mark.parametrize("kind", SYNCS)
def test_as_it_is_the_simulator_has_nothing_to_say(kind):
    assert not simulate(*right(kind)).findings


@pytest.mark.parametrize(
    ("kind", "change_of_one"),
    [(kind, x) for kind in SYNCS for x in SYNCS[kind][1]],
    ids=lambda x: x if isinstance(x, str) else "-".join(map(str, x[:2])),
)
def test_without_each_of_its_syncs_it_has(kind, change_of_one):
    program, values = right(kind)
    assert simulate(change(program, *change_of_one), values).findings


def test_clusters_of_sixteen_on_a_part_that_may_have_no_room_for_one():
    """An H20 has 78 SMs, of which ten may be all that are together."""
    sch = scheduled("softmax", 1, 4096, threads=32, cluster=16)
    mod, once = memory_bound.softmax(1, 4096), [("eager", 0)]
    assert verify(sch, target="nvidia/nvidia-h200", against=mod).verdict == "clean"
    report = verify(sch, target="nvidia/nvidia-h20", runs=once, against=False)
    assert {x.rule for x in report.findings} == {"CLUSTER_NOT_PORTABLE"}
