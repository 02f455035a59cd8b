"""One kernel with a workspace and one in clusters, chosen by what a call comes with."""

import pytest
import tvm
from tvm import s_tir

import tvm_hopper
from tests.transforms.scripts import check, check_other_kernel_stays, parse, run
from tests.transforms.split_k.test_lower_split_k import BEFORE as SCRIPT
from tvm_hopper import ir, schedule as hs
from tvm_hopper.facts.devices import Chip
from tvm_hopper.pipeline.run import lower
from tvm_hopper.requests import keys
from tvm_hopper.testing import workloads
from tvm_hopper.transforms.split_k.dispatch_split_k_by_allocator import (
    cluster_blocks,
    dispatch_split_k_by_allocator,
    plan_split_k_dispatch,
)

ASKED = ("across_cluster=1", "across_cluster=3")
TWELVE = ("T.serial(4, across_cluster=3", "T.serial(12, across_cluster=3")
STEPS = ("part * 2 + k)", "(k * 12 + part) * 64)")


def branches(func):
    """Return the function with each of the two kernels alone."""
    (branch,) = ir.find_all(func.body, ir.IfThenElse)
    assert ir.answers_for_allocator(branch.condition) is True
    return [
        func.with_body(ir.replace_nodes(func.body, ir.IfThenElse, {branch: x}))
        for x in (branch.then_case, branch.else_case)
    ]


def test_as_many_blocks_as_parts_are_the_same_loop():
    func = parse(SCRIPT, ASKED)
    wide, narrow = branches(run(func, dispatch_split_k_by_allocator))
    check(wide, parse(SCRIPT, (ASKED[0], "across_cluster=2")))
    check(narrow, parse(SCRIPT))


def test_a_block_of_a_cluster_has_the_steps_of_several_parts():
    func = parse(SCRIPT, ASKED, TWELVE, STEPS)
    wide, narrow = branches(run(func, dispatch_split_k_by_allocator))
    check(wide, parse(SCRIPT, ASKED, TWELVE, STEPS, ("across_cluster=3", "across_cluster=2")))
    blocks = cluster_blocks(12, 2, Chip())
    want = parse(
        SCRIPT,
        ("for part in T.serial(4", f"for part in T.serial({blocks}"),
        ("for k in range(2)", f"for k in range({2 * 12 // blocks})"),
        ("part * 2 + k)", f"(k * {blocks} + part) * 64)"),
    )
    simple = tvm.tirx.transform.StmtSimplify()
    check(run(narrow, simple), run(want, simple))


def test_equal_shares_where_there_is_memory_for_them():
    """Else each block computes whole tiles, as persistent ones do that nobody asked."""
    sch = s_tir.Schedule(workloads.matmul(320, 256, 512))
    config = hs.MatmulConfig((64, 64, 64), consumers=1, persistent=8, split_k="stream")
    hs.matmul(sch, "C", config)
    before = lower(sch.mod, "nvidia/nvidia-h200", before="tvm_hopper.MakeSplitKKernels")["main"]
    shared, whole = branches(run(before, dispatch_split_k_by_allocator))
    key = keys.STREAM
    axis = ir.thread_axes(ir.kernels(before)[0])["blockIdx.x"]
    assert int(axis.annotations[key]) == keys.STREAM_BY_CALLER
    notes = [
        dict(ir.thread_axes(ir.kernels(x)[0])["blockIdx.x"].annotations) for x in (shared, whole)
    ]
    assert int(notes[0].pop(key)) == keys.STREAM_ALWAYS
    assert key not in notes[1]
    assert notes[0] == notes[1]
    assert run(shared, dispatch_split_k_by_allocator).same_as(shared)


def test_again_finds_nothing():
    for func in branches(run(parse(SCRIPT, ASKED), dispatch_split_k_by_allocator)):
        assert plan_split_k_dispatch(ir.kernels(func)[0], Chip()) is None
    func = parse(SCRIPT)
    assert run(func, dispatch_split_k_by_allocator).same_as(func)


def test_other_kernels_stay():
    func = parse(SCRIPT)
    check_other_kernel_stays(func, func, dispatch_split_k_by_allocator)


@pytest.mark.parametrize(
    ("parts", "tiles", "blocks"),
    [
        (8, 12, 8),
        (4, 32, 2),  # 30 clusters of 4 run at once: 32 take two turns
        (12, 10, 6),
        (10, None, 5),
        (11, 12, None),
        (64, 2, 8),
    ],
)
def test_which_clusters(parts, tiles, blocks):
    assert cluster_blocks(parts, tiles, Chip()) == blocks


def test_clusters_that_load_for_one_another_have_fewer_parts():
    assert cluster_blocks(8, 12, Chip(), beside=2) == 4
    assert cluster_blocks(7, 12, Chip(), beside=2) is None


@pytest.mark.parametrize(("parts", "names"), [(2, 2), (6, 6)])
def test_both_kernels_are_judged_and_explained(parts, names):
    plain = workloads.matmul(64, 16, 200, out_dtype="float16")
    sch = s_tir.Schedule(plain)
    given = {"tile": (64, 16, 16), "stages": 2, "consumers": 1}
    hs.matmul(sch, "C", hs.MatmulConfig(**given, split_k=hs.SplitK(parts, "caller")))
    report = tvm_hopper.verify(sch, against=plain).require_clean()
    assert {x.kernel for x in report.choices} == {"main_kernel", "main_kernel_1", "main_kernel_2"}
    kernels = tvm_hopper.explain(sch, target="nvidia/nvidia-h200").kernels
    said = {x.launched_for for x in kernels}
    assert said == {f"calls {x} an allocator of their own" for x in ("with", "without")}
