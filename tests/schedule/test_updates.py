"""Functions that write what they have read, and arrays that no block owns: one error each."""

import pytest
import tvm
from tvm import s_tir
from tvm.script import tirx as T

from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError

TEXT = """
@T.prim_func(s_tir=True)
def main({arguments}):
{body}
"""
ELEMENTS = """
    for i, j in T.grid(16, 256):
        with T.sblock("{name}"):
            vi, vj = T.axis.remap("SS", [i, j])
            {name}[vi, vj] = {value}
"""
ROW_SUM = """
    M = T.{alloc}((16,), "float32")
    for i, k in T.grid(16, 256):
        with T.sblock("M"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                M[vi] = T.float32(0)
            M[vi] = M[vi] + X[vi, vk]
"""


def schedule(body, alloc="sblock_alloc_buffer"):
    matrices = ", ".join(f'{x}: T.Buffer((16, 256), "float32")' for x in "XYZ")
    text = TEXT.format(arguments=matrices, body=body.replace("{alloc}", alloc))
    return s_tir.Schedule(tvm.script.from_source(text, extra_vars={"T": T}))


def store(name, value):
    return ELEMENTS.format(name=name, value=value)


UPDATES = {
    "elements": (hs.pointwise, store("X", "X[vi, vj] * T.float32(2)"), "X", "X"),
    "what a block in front has read": (
        hs.pointwise,
        store("Y", "X[vi, vj]") + store("X", "Z[vi, vj]"),
        "X",
        "Y",
    ),
    "rows": (hs.row_reduction, ROW_SUM + store("X", "X[vi, vj] - M[vi]"), "X", "M"),
    "a row by its sum": (hs.row_reduction, ROW_SUM + store("X", "M[vi]"), "X", "M"),
}


@pytest.mark.parametrize("kind", UPDATES)
def test_updates_in_place_are_refused_with_the_way_out(kind):
    """Loads are moved in front of stores: TVM's primitives would read what was written."""
    helper, body, block, reader = UPDATES[kind]
    match = (
        f"block {block}, tensor X: found an update in place: block {reader} reads what it "
        "replaces; need a result in a tensor of its own; write to another argument"
    )
    with pytest.raises(ScheduleError, match=match):
        helper(schedule(body))


def test_results_that_are_read_behind_are_no_updates():
    hs.pointwise(schedule(store("X", "Z[vi, vj]") + store("Y", "X[vi, vj]")))
    hs.row_reduction(schedule(ROW_SUM + store("Y", "X[vi, vj] - M[vi]")))


@pytest.mark.parametrize("helper", [hs.matmul, hs.row_reduction, hs.pointwise, hs.column_reduction])
def test_arrays_of_no_block_are_refused_by_name(helper):
    sch = schedule(ROW_SUM + store("Y", "X[vi, vj] - M[vi]"), "alloc_buffer")
    match = (
        "tensor M: found T.alloc_buffer, memory that no block allocates; need arrays of blocks, "
        "which a schedule moves; write T.sblock_alloc_buffer"
    )
    with pytest.raises(ScheduleError, match=f"{helper.__name__}, {match}"):
        helper(sch, *(["M"] if helper is hs.matmul else []))


def test_an_update_by_a_product_that_another_block_reads():
    text = """
@T.prim_func(s_tir=True)
def main(A: T.Buffer((64, 64), "float16"), C: T.Buffer((64, 64)), D: T.Buffer((64, 64))):
    for i, j, k in T.grid(64, 64, 64):
        with T.sblock("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            C[vi, vj] = C[vi, vj] + T.Cast("float32", A[vi, vk]) * T.Cast("float32", A[vj, vk])
    for i, j in T.grid(64, 64):
        with T.sblock("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = C[vi, vj] + C[vi, 0]
"""
    sch = s_tir.Schedule(tvm.script.from_source(text, extra_vars={"T": T}))
    match = "block C_store: found an update of .* in place, whose result another block reads; need"
    with pytest.raises(ScheduleError, match=match):
        hs.matmul(sch, "C")
