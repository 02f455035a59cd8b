"""Functions that write what they have read, and arrays that no block owns: one error each."""

import pytest
import tvm
from tvm import s_tir
from tvm.script import tirx as T

from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError

ROW_SUM = """
    M = T.ALLOC((16,), "float32")
    for i, k in T.grid(16, 16):
        with T.sblock("M"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                M[vi] = T.float32(0)
            M[vi] = M[vi] + X[vi, vk]
"""
UPDATE = """
    for i, j, k in T.grid(16, 16, 16):
        with T.sblock("X"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            X[vi, vj] = X[vi, vj] + T.Cast("float32", A[vi, vk]) * T.Cast("float32", A[vj, vk])
"""


def schedule(*parts, alloc="sblock_alloc_buffer"):
    matrices = ", ".join(f"{x}: T.Buffer((16, 16))" for x in "XYZ")
    head = f'@T.prim_func(s_tir=True)\ndef main({matrices}, A: T.Buffer((16, 16), "float16")):\n'
    text = head + "".join(parts).replace("ALLOC", alloc)
    return s_tir.Schedule(tvm.script.from_source(text, extra_vars={"T": T}))


def store(name, value):
    return f"""
    for i, j in T.grid(16, 16):
        with T.sblock("{name}"):
            vi, vj = T.axis.remap("SS", [i, j])
            {name}[vi, vj] = {value}
"""


CENTRED = "X[vi, vj] - M[vi]"


@pytest.mark.parametrize(
    ("helper", "parts", "reader"),
    [
        (hs.pointwise, [store("X", "X[vi, vj] * T.float32(2)")], "X"),
        (hs.pointwise, [store("Y", "X[vi, vj]"), store("X", "Z[vi, vj]")], "Y"),
        (hs.row_reduction, [ROW_SUM, store("X", CENTRED)], "M"),
        (hs.row_reduction, [ROW_SUM, store("X", "M[vi]")], "M"),
    ],
)
def test_updates_in_place_are_refused_with_the_way_out(helper, parts, reader):
    """Loads are moved in front of stores: TVM's primitives would read what was written."""
    match = (
        f"block X, tensor X: found an update in place: block {reader} reads what it replaces; "
        "need a result in a separate tensor; write to another argument; a call may pass"
    )
    with pytest.raises(ScheduleError, match=match):
        helper(schedule(*parts))


def test_results_that_are_read_behind_are_no_updates():
    hs.pointwise(schedule(store("X", "Z[vi, vj]"), store("Y", "X[vi, vj]")))
    hs.row_reduction(schedule(ROW_SUM, store("Y", CENTRED)))


@pytest.mark.parametrize("helper", [hs.matmul, hs.row_reduction, hs.pointwise, hs.column_reduction])
def test_arrays_of_no_block_are_refused_by_name(helper):
    sch = schedule(ROW_SUM, store("Y", CENTRED), alloc="alloc_buffer")
    match = (
        f"{helper.__name__}, tensor M: found T.alloc_buffer, memory that no block allocates; need "
        "arrays of blocks, which a schedule moves; write T.sblock_alloc_buffer"
    )
    with pytest.raises(ScheduleError, match=match):
        helper(sch, *(["M"] if helper is hs.matmul else []))


def test_an_update_by_a_product_that_another_block_reads():
    match = "block X_store: found an update of .* in place, whose result another block reads; need"
    with pytest.raises(ScheduleError, match=match):
        hs.matmul(schedule(UPDATE, store("Y", "X[vi, vj] + X[vi, 0]")), "X")
