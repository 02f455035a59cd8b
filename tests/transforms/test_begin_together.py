"""BeginTogether: neighbouring thread blocks are a cluster."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import s_tir

from tests.transforms.scripts import check, check_other_kernel_stays, notes_of, parse, run
from tvm_hopper import ir
from tvm_hopper import schedule as hs
from tvm_hopper.plan.notes import RemarkNote
from tvm_hopper.simulation import simulate, verify
from tvm_hopper.testing import memory_bound
from tvm_hopper.transforms import BeginTogether

BEFORE = """
@T.prim_func(private=True, s_tir=True)
def func(X: T.Buffer((8, 32), "float32"), Y: T.Buffer((8, 32), "float32")):
    for bx in T.thread_binding(
        8, thread="blockIdx.x", annotations={"tvm_hopper.begin_together": 2}
    ):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("work"):
                T.reads(X[bx, tx])
                T.writes(Y[bx, tx])
                Y[bx, tx] = X[bx, tx]
"""
AFTER = """
@T.prim_func(private=True, s_tir=True)
def func(X: T.Buffer((8, 32), "float32"), Y: T.Buffer((8, 32), "float32")):
    for number in T.thread_binding(2, thread="blockIdx.z"):
        for rank in T.thread_binding(2, thread="clusterCtaIdx.z"):
            for group in T.thread_binding(4, thread="blockIdx.x"):
                for tx in T.thread_binding(32, thread="threadIdx.x"):
                    with T.sblock("work"):
                        T.reads(X[group * 2 + number, tx])
                        T.writes(Y[group * 2 + number, tx])
                        Y[group * 2 + number, tx] = X[group * 2 + number, tx]
"""
ODD = (
    ("(8, ", "(7, "),
    ("        8, thread", "        7, thread"),
)
ODD_AFTER = (
    ("(8, ", "(7, "),
    (
        "Y[group * 2 + number, tx] = X",
        "if group * 2 + number < 7:\n" + " " * 28 + "Y[group * 2 + number, tx] = X",
    ),
)


def test_pairs_are_clusters():
    after = run(parse(BEFORE), BeginTogether())
    check(after, parse(AFTER))
    check(run(after, BeginTogether()), after)
    (note,) = notes_of(after)
    assert note == RemarkNote("2 neighbouring thread blocks at a time begin together")
    check_other_kernel_stays(parse(BEFORE), after, BeginTogether())


def test_one_more_than_all_pairs_does_nothing():
    check(run(parse(BEFORE, *ODD), BeginTogether()), parse(AFTER, *ODD_AFTER))


def test_a_chip_without_clusters_begins_as_ever():
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
    plain = parse(BEFORE, ('{"tvm_hopper.begin_together": 2}', "{}"))
    got = run(parse(BEFORE).with_attr("target", target), BeginTogether())
    check(got, plain.with_attr("target", target))


def scheduled(name, rows, columns, **config):
    sch = s_tir.Schedule(getattr(memory_bound, name)(rows, columns))
    hs.row_reduction(sch, config=hs.RowReductionConfig(hint=True, **config))
    (kernel,) = ir.kernels(sch.mod["main"])
    assert kernel.annotations["tvm_hopper.begin_together"] == 2
    return sch


@pytest.mark.parametrize(
    ("name", "rows", "columns", "config"),
    [
        ("rms_norm", 3, 4096, {}),
        ("softmax", 4, 4096, {}),
        ("rms_norm", 5, 8192, {"stage": True, "chunks": 1, "threads": 128, "cluster": 1}),
    ],
)
def test_verified_clean(name, rows, columns, config):
    sch = scheduled(name, rows, columns, **config)
    report = verify(sch, against=getattr(memory_bound, name)(rows, columns))
    assert report.verdict == "clean", report.table()


def test_a_number_of_thread_blocks_known_at_run_time():
    x = np.random.default_rng(1).standard_normal((3, 4096)).astype("float32")
    mod = memory_bound.softmax("n", 4096, "float32")
    sch = s_tir.Schedule(mod)
    hs.row_reduction(sch)
    result = simulate(sch, {"X": x})
    assert not result.findings
    (want,) = memory_bound.reference("softmax", [x])
    np.testing.assert_allclose(result.outputs["Y"], want, rtol=2e-5)
