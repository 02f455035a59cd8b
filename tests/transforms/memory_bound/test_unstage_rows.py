"""unstage_rows: rows that are read from memory where a chip has no bulk copies."""

from __future__ import annotations

import pytest
import tvm
from tvm import s_tir

from tests.transforms.scripts import check, check_other_kernel_stays, notes_of, parse, run
from tvm_hopper import explain
from tvm_hopper import schedule as hs
from tvm_hopper.errors import LoweringError
from tvm_hopper.testing import memory_bound
from tvm_hopper.transforms.memory_bound.unstage_rows import unstage_rows

STAGED = """
@T.prim_func(private=True, s_tir=True)
def func(X: T.Buffer((8, 64), "float32"), Y: T.Buffer((8, 64), "float32")):
    for bx in T.thread_binding(
        8, thread="blockIdx.x", annotations={"tvm_hopper.memory_bound": "row_reduction"}
    ):
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("kernel"):
                T.reads()
                T.writes()
                tile = T.sblock_alloc_buffer((1, 64), "float32", scope="shared.dyn")
                for i in range(64):
                    with T.sblock("tile"):
                        T.reads(X[bx, i])
                        T.writes(tile[0, i])
                        T.sblock_attr({"tvm_hopper.async_copy": "bulk"})
                        tile[0, i] = X[bx, i]
                with T.sblock("Y"):
                    T.reads(tile[0, tx])
                    T.writes(Y[bx, tx])
                    Y[bx, tx] = tile[0, tx] + T.float32(1)
"""
UNSTAGED = """
@T.prim_func(private=True, s_tir=True)
def func(X: T.Buffer((8, 64), "float32"), Y: T.Buffer((8, 64), "float32")):
    for bx in T.thread_binding(
        8, thread="blockIdx.x", annotations={"tvm_hopper.memory_bound": "row_reduction"}
    ):
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("kernel"):
                T.reads()
                T.writes()
                with T.sblock("Y"):
                    T.reads(X[bx, tx])
                    T.writes(Y[bx, tx])
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


def test_other_kernels_stay():
    ours = of_ampere(STAGED)
    check_other_kernel_stays(ours, run(ours, unstage_rows), unstage_rows)


def test_strictly_they_do_not():
    sch = s_tir.Schedule(memory_bound.row_sum(4, 1024))
    hs.row_reduction(sch, config=hs.RowReductionConfig(threads=32, rows=4, stage=True))
    sch.mod.update_func(
        sch.mod.get_global_var("main"), sch.mod["main"].with_attr("tvm_hopper.strict", True)
    )
    with pytest.raises(LoweringError, match=r"sm_80 has no bulk copies; .*stage=False"):
        explain(sch, AMPERE)
