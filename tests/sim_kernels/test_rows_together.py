"""Rows that the same threads have together: values, reads, verdicts, and each sync of theirs."""

from __future__ import annotations

from collections import Counter

import ml_dtypes
import numpy as np
import pytest
from tvm import s_tir

from tests.sim_kernels.mutate import change
from tests.sim_kernels.test_memory_bound import run
from tvm_hopper import schedule as hs
from tvm_hopper.errors import LoweringError
from tvm_hopper.sim.machine.load_store import LoadStore
from tvm_hopper.simulation import load, simulate, verify
from tvm_hopper.testing import memory_bound

AMPERE = {"kind": "cuda", "arch": "sm_80"}


def config(threads, together, **more):
    return hs.RowReductionConfig(
        threads, chunks=1, together=together, preload=more.pop("preload", False), **more
    )


def scheduled(name, count, columns, dtype="bfloat16", **given):
    sch = s_tir.Schedule(getattr(memory_bound, name)(count, columns, dtype))
    hs.row_reduction(sch, config=config(**given))
    return sch


@pytest.mark.parametrize(
    ("name", "count", "columns", "dtype", "given"),
    [
        ("layer_norm", 5, 1032, "bfloat16", config(32, 2, cluster=2)),
        ("rms_norm", 4, 1024, "float16", config(32, 4, cluster=4)),
        ("layer_norm", 9, 516, "float32", config(32, 3, cluster=1, rows=2)),
        ("softmax", 3, 1024, "bfloat16", config(64, 2, cluster=1)),
        ("layer_norm", 4, 520, "bfloat16", config(32, 2, cluster=2, preload=True)),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_values(name, count, columns, dtype, given):
    run(name, count, columns, dtype, given)


@pytest.mark.parametrize("count", [4, 3], ids=["whole", "tail"])
def test_verified_clean(count):
    sch = scheduled("layer_norm", count, 1544, threads=64, together=2, cluster=2, hint=True)
    report = verify(sch, against=memory_bound.layer_norm(count, 1544))
    assert report.verdict == "clean", report.table()


def test_what_rows_share_is_read_once_for_all_of_them(monkeypatch):
    read = Counter()
    gather = LoadStore.gather

    def counting(self, region, offsets, dtype, count):
        read[region.name] += np.size(offsets) * count
        return gather(self, region, offsets, dtype, count)

    monkeypatch.setattr(LoadStore, "gather", counting)
    run("layer_norm", 4, 1024, config=config(32, 2, cluster=2))
    assert (read["W"], read["B"]) == (2 * 1024, 2 * 1024)


@pytest.mark.parametrize("count", [5, 1])
def test_a_number_of_rows_known_at_run_time(count):
    x = np.random.default_rng(1).standard_normal((count, 1024)).astype(ml_dtypes.bfloat16)
    sch = scheduled("softmax", "n", 1024, threads=64, together=2, cluster=2)
    result = simulate(sch, {"X": x})
    assert not result.findings, result.findings
    (want,) = memory_bound.reference("softmax", [x])
    got = result.outputs["Y"].astype(np.float64)
    np.testing.assert_allclose(got, want, rtol=2e-2, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 2])
def test_on_ampere_each_pass_reads_memory(rows):
    mod = memory_bound.layer_norm(5, 1032)
    sch = s_tir.Schedule(mod)
    hs.row_reduction(sch, config=config(32, 2, cluster=1, rows=rows))
    report = verify(sch, against=mod, target=AMPERE)
    assert report.verdict == "clean", report.table()


def test_clusters_on_ampere_are_refused():
    sch = scheduled("layer_norm", 4, 1024, threads=64, together=2, cluster=2)
    with pytest.raises(LoweringError, match=r"rows of 2 thread blocks of a cluster in it"):
        load(sch, target=AMPERE)


@pytest.fixture(scope="module")
def program():
    return load(scheduled("softmax", 2, 1024, threads=64, together=2, cluster=2))


def found(program):
    x = np.zeros((2, 1024), ml_dtypes.bfloat16)
    return {f.rule for f in simulate(program, {"X": x}).findings}


def test_as_it_is_the_simulator_has_nothing_to_say(program):
    assert not found(program)


SYNCS = [
    ("barrier_cluster_arrive", None),
    ("barrier_cluster_wait", None),
    ("tvm_storage_sync", 0),
    ("fence_mbarrier_init", 1),
    *[("mbarrier_init", i) for i in range(3)],
    *[("mbarrier_arrive_expect_tx", i) for i in range(3)],
    *[("mbarrier_wait", i) for i in range(3)],
]


@pytest.mark.parametrize(("name", "which"), SYNCS, ids=str)
def test_without_each_of_its_syncs_it_has(program, name, which):
    assert found(change(program, name, which, None))
