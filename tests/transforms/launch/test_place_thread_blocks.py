"""PlaceThreadBlocks: how many thread blocks share an SM, and which are launched as a cluster."""

from __future__ import annotations

import pytest
import tvm
from tvm import s_tir

import tvm_hopper
from tests.transforms.scripts import check, notes_of, parse, run
from tvm_hopper import ir, schedule as hs
from tvm_hopper.requests.keys import LAUNCHED_TOGETHER
from tvm_hopper.testing import memory_bound
from tvm_hopper.transforms.launch.place_thread_blocks import PlaceThreadBlocks, plan_launch_clusters

BEFORE = """
def func(X: T.Buffer((8, 32), "float32"), Y: T.Buffer((8, 32), "float32")):
    for bx in T.thread_binding(8, thread="blockIdx.x", launched_together=4):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("work", reads=[X[bx, tx]], writes=[Y[bx, tx]]):
                Y[bx, tx] = X[bx, tx]
"""
AFTER = """
def func(X: T.Buffer((8, 32), "float32"), Y: T.Buffer((8, 32), "float32")):
    for rank in T.thread_binding(4, thread="clusterCtaIdx.x"):
        for bx in T.thread_binding(8, thread="blockIdx.x"):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                with T.sblock("work", reads=[X[bx, tx]], writes=[Y[bx, tx]]):
                    Y[bx, tx] = X[bx, tx]
"""
ODD = ("T.thread_binding(8,", "T.thread_binding(7,")


def test_neighbours_are_a_cluster():
    check(run(parse(BEFORE), PlaceThreadBlocks()), parse(AFTER))


def test_explain_says_so():
    (note,) = notes_of(run(parse(BEFORE), PlaceThreadBlocks()))
    assert note.text == "4 neighbouring thread blocks begin together"


def test_the_last_cluster_is_filled_up():
    guarded = [
        ("Y[bx, tx] = X[bx, tx]", "if bx < 7:\n                        Y[bx, tx] = X[bx, tx]")
    ]
    check(run(parse(BEFORE, ODD), PlaceThreadBlocks()), parse(AFTER, *guarded))


def test_a_number_that_is_known_at_run_time():
    names = [("def func(", "def func(n: T.int32, "), ("T.thread_binding(8,", "T.thread_binding(n,")]
    text = run(parse(BEFORE, *names), PlaceThreadBlocks()).script()
    assert "T.thread_binding((n + 3) // 4 * 4" in text
    assert "if bx < n:" in text


def test_again_finds_nothing():
    after = run(parse(BEFORE), PlaceThreadBlocks())
    assert run(after, PlaceThreadBlocks()).same_as(after)
    plain = parse(BEFORE, (", launched_together=4", ""))
    assert run(plain, PlaceThreadBlocks()).same_as(plain)


def test_a_chip_without_clusters():
    func = parse(BEFORE, ODD).with_attr("target", tvm.target.Target("nvidia/nvidia-a100"))
    text = run(func, PlaceThreadBlocks()).script()
    assert "clusterCtaIdx" not in text
    assert "T.thread_binding(7" in text
    assert "launched_together" not in text


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("config", [{"rows": 2}, {"rows": 1, "stage": True, "chunks": 1}], ids=str)
def test_rows_that_leave_a_cluster_broken(config):
    mod = memory_bound.layer_norm(5, 1024)
    sch = s_tir.Schedule(mod)
    given = hs.RowReductionConfig(threads=64, cluster=1, together=2, **config)
    hs.row_reduction(sch, config=given)
    assert tvm_hopper.verify(sch, against=mod).verdict == "clean"


def test_clusters_that_begin_while_the_launch_in_front_ends():
    mod = memory_bound.silu_mul(3, 1024)
    sch = s_tir.Schedule(mod)
    config = hs.PointwiseConfig(threads=32, together=4, early_launch=True)
    hs.pointwise(sch, config=config)
    ex = tvm.compile(sch.mod, target="nvidia/nvidia-h200")
    assert tvm_hopper.verify(ex, against=mod).verdict == "clean"


@pytest.mark.parametrize("target", ["nvidia/nvidia-h200", "nvidia/nvidia-a100"])
@pytest.mark.parametrize("rows", [3, 4])
def test_a_program_of_whole_and_broken_clusters(target: str, rows: int):
    mod = memory_bound.silu_mul(rows, 1024)
    sch = s_tir.Schedule(mod)
    hs.pointwise(sch, config=hs.PointwiseConfig(threads=32, together=4))
    (loop,) = ir.kernels(sch.mod["main"])
    assert loop.annotations[LAUNCHED_TOGETHER] == 4
    assert plan_launch_clusters(loop) == 4
    ex = tvm.compile(sch.mod, target=target)
    assert tvm_hopper.verify(ex, against=mod).verdict == "clean"


FOUR_PER_SM = """
def func(X: T.Buffer((8, 256), "float32")):
    for bx in T.thread_binding(8, thread="blockIdx.x", blocks_per_sm=4):
        for tx in T.thread_binding(256, thread="threadIdx.x"):
            with T.sblock("init", reads=[], writes=[X[bx, tx]]):
                X[bx, tx] = T.float32(0)
"""
BOUNDED = """
def func(X: T.Buffer((8, 256), "float32")):
    for bx in T.thread_binding(8, thread="blockIdx.x"):
        for tx in T.thread_binding(256, thread="threadIdx.x"):
            with T.sblock("init", reads=[], writes=[X[bx, tx]]):
                with T.attr(T.int32(0), "tirx.launch_bounds_min_blocks_per_sm", 4):
                    X[bx, tx] = T.float32(0)
"""


def test_the_kernel_is_bounded():
    check(run(parse(FOUR_PER_SM), PlaceThreadBlocks()), parse(BOUNDED))


def test_others_stay():
    check(run(parse(BOUNDED), PlaceThreadBlocks()), parse(BOUNDED))


def test_the_compiler_is_told():
    sch = s_tir.Schedule(memory_bound.softmax(1 << 16, 1024))
    hs.row_reduction(sch, config=hs.RowReductionConfig(threads=128, blocks=6))
    text = tvm.compile(sch.mod, target="nvidia/nvidia-h200").mod.imports[0].inspect_source()
    assert "__launch_bounds__(128, 6)" in text
