"""unstage_rows: rows that are read from memory where a chip has no bulk copies."""

import pytest
import tvm
from tvm import s_tir

from tests.transforms.scripts import check, notes_of, parse, run
from tvm_hopper import explain, schedule as hs
from tvm_hopper.errors import LoweringError
from tvm_hopper.testing import memory_bound
from tvm_hopper.transforms.memory_bound.unstage_rows import unstage_rows

STAGED = """
def func(X: T.Buffer((8, 64), "float32"), Y: T.Buffer((8, 64), "float32")):
    for bx in T.thread_binding(8, thread="blockIdx.x", memory_bound="row_reduction"):
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("kernel", reads=[], writes=[]):
                tile = T.sblock_alloc_buffer((1, 64), "float32", scope="shared.dyn")
                for i in range(64):
                    with T.sblock("tile", reads=[X[bx, i]], writes=[tile[0, i]],
                        async_copy="bulk"):
                        tile[0, i] = X[bx, i]
                with T.sblock("Y", reads=[tile[0, tx]], writes=[Y[bx, tx]]):
                    Y[bx, tx] = tile[0, tx] + T.float32(1)
"""
UNSTAGED = """
def func(X: T.Buffer((8, 64), "float32"), Y: T.Buffer((8, 64), "float32")):
    for bx in T.thread_binding(8, thread="blockIdx.x", memory_bound="row_reduction"):
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("kernel", reads=[], writes=[]):
                with T.sblock("Y", reads=[X[bx, tx]], writes=[Y[bx, tx]]):
                    Y[bx, tx] = X[bx, tx] + T.float32(1)
"""
AMPERE = {"kind": "cuda", "arch": "sm_80"}


def of_ampere(text):
    return parse(text).with_attr("target", tvm.target.Target(AMPERE))


def test_rows_are_read_from_memory():
    got = run(of_ampere(STAGED), unstage_rows)
    check(got, of_ampere(UNSTAGED))
    assert "sm_80 has no bulk copies" in notes_of(got)[0].text
    check(run(got, unstage_rows), got)


def test_where_there_are_bulk_copies_they_stay():
    check(run(parse(STAGED), unstage_rows), parse(STAGED))


def test_strictly_they_do_not():
    sch = s_tir.Schedule(memory_bound.row_sum(4, 1024))
    hs.row_reduction(sch, config=hs.RowReductionConfig(threads=32, rows=4, stage=True))
    sch.mod.update_func(
        sch.mod.get_global_var("main"), sch.mod["main"].with_attr("tvm_hopper.strict", True)
    )
    with pytest.raises(LoweringError, match=r"sm_80 has no bulk copies; .*stage=False"):
        explain(sch, AMPERE)
