"""Parts of a row on the thread blocks of a cluster, or in turn without clusters."""

import pytest
import tvm
from tvm import s_tir

from tests.transforms.scripts import check, notes_of, parse, run
from tvm_hopper import explain, ir, schedule as hs
from tvm_hopper.errors import LoweringError
from tvm_hopper.testing import memory_bound
from tvm_hopper.transforms.common.explain_notes import FallbackNote
from tvm_hopper.transforms.reductions.reduce_across_threads import ReduceAcrossThreads
from tvm_hopper.transforms.reductions.split_rows_across_cluster import split_rows_across_cluster

BEFORE = """
def func(X: T.Buffer((8, 4, 64), "float32"), Y: T.Buffer((8, 4, 64), "float32")):
    for bx in T.thread_binding(8, thread="blockIdx.x", memory_bound="row_reduction",
        row_cluster=4):
        for tz in T.thread_binding(4, thread="threadIdx.z"):
            for tx in T.thread_binding(64, thread="threadIdx.x"):
                with T.sblock("kernel", reads=[], writes=[]):
                    own = T.sblock_alloc_buffer((1,), "float32", scope="local")
                    total = T.sblock_alloc_buffer((1,), "float32", scope="local")
                    own[0] = X[bx, tz, tx]
                    with T.sblock("cross", reads=[], writes=[]):
                        T.attr(T.comm_reducer(lambda x, y: x + y, [T.float32(0)]), "reduce_scope",
                            0)
                        T.tvm_thread_allreduce(T.uint32(1), own[0], T.bool(True), total[0], tz, tx)
                    Y[bx, tz, tx] = own[0] + total[0]
"""
SPREAD = (
    ('    for bx in T.thread_binding(8, thread="blockIdx.x", memory_bound="row_reduction",\n'
     '        row_cluster=4):\n'
     '        for tz in T.thread_binding(4, thread="threadIdx.z"):\n',
     '    for tz in T.thread_binding(4, thread="blockIdx.z"):\n'
     '      for rank in T.thread_binding(4, thread="clusterCtaIdx.z"):\n'
     '        for bx in T.thread_binding(8, thread="blockIdx.x", memory_bound="row_reduction"):\n'),
)  # fmt: skip
AMPERE = {"kind": "cuda", "arch": "sm_80"}


def test_parts_are_counted_by_the_thread_blocks_of_a_cluster():
    got = run(parse(BEFORE), split_rows_across_cluster)
    check(got, parse(BEFORE, *SPREAD))
    check(run(got, split_rows_across_cluster), got)


def test_without_clusters_parts_come_in_turn():
    before = parse(BEFORE).with_attr("target", tvm.target.Target(AMPERE))
    got = run(before, split_rows_across_cluster)
    (note,) = notes_of(got)
    assert isinstance(note, FallbackNote)
    assert "sm_80 has no clusters" in note.text
    (kernel,) = ir.kernels(got)
    assert {str(x) for x in ir.thread_axes(kernel)} == {"blockIdx.x", "threadIdx.x"}
    text = str(got.script())
    assert "total[0, 0] = kept_2 + own[3, 0]" in text
    assert "total[3, 0] = total[0, 0]" in text
    assert "for p in T.unroll(4)" in text


def test_strictly_they_do_not():
    sch = s_tir.Schedule(memory_bound.row_sum(4, 1024))
    hs.row_reduction(sch, config=hs.RowReductionConfig(threads=32, rows=1, cluster=2))
    sch.mod.update_func(
        sch.mod.get_global_var("main"), sch.mod["main"].with_attr("tvm_hopper.strict", True)
    )
    with pytest.raises(LoweringError, match=r"sm_80 has no clusters; .*inside of `with target:`"):
        explain(sch, AMPERE)


def test_a_cluster_reduces_by_stores_that_arrive():
    text = str(run(parse(BEFORE), split_rows_across_cluster, ReduceAcrossThreads()).script())
    assert text.count("st_async") == 1
    assert text.count("mbarrier_wait") == text.count('"wait", "acquire"') == 1
    assert "T.uint32(32)" in text  # bytes: 4 thread blocks of 2 warps
    assert "tvm_storage_sync" not in text
    assert "of_warps[0, 0, tx % 32 % 8]" in text


def test_more_warps_than_lanes():
    words = [(x, x.replace("64", "1024")) for x in ("(8, 4, 64)", "T.thread_binding(64")]
    text = str(run(parse(BEFORE, *words), ReduceAcrossThreads()).script())
    assert text.count("taken") >= 3 * 2  # 128 values, four a lane
    assert (
        "of_warps[0, 0, 96 + tx % 32 % 32]" in text or "of_warps[0, 0, tx % 32 % 32 + 96]" in text
    )
