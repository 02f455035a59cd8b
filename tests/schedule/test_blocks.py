"""Blocks of a function by one helper (`blocks=`): the others stay for other calls."""

import pytest
from tvm import s_tir, te

from tests.schedule.programs import axis, module, tensor
from tvm_hopper import ir, schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.requests import keys
from tvm_hopper.simulation import verify


def wide(x):
    return x.astype("float32")


def norm_and_scale():
    """Rows over their sums, what is computed of them by column sums, and a plain function of x."""
    x = tensor(24, 136, dtype="float16")
    e = te.compute(x.shape, lambda i, j: te.exp(wide(x[i, j])), name="E")
    k, r = axis(136), axis(24, "r")
    s = te.compute((24,), lambda i: te.sum(e[i, k], k), name="S")
    y = te.compute(x.shape, lambda i, j: (e[i, j] / s[i]).astype("float16"), name="Y")
    c = te.compute((136,), lambda j: te.sum(wide(y[r, j]), r), name="C")
    z = te.compute(x.shape, lambda i, j: wide(y[i, j]) - c[j], name="Z")
    t = te.compute((136, 24), lambda j, i: z[i, j].astype("float16"), name="T")
    return module(x, y, t)


def kinds(sch):
    """Return what kind of kernel each is, in order."""
    return [str(x.annotations.get(keys.MEMORY_BOUND, "")) for x in ir.kernels(sch.mod["main"])]


def check(sch):
    """Compare with the plain function, in the simulator."""
    verify(sch, runs=(("on_wait", 0),)).require_clean()


ROWS, COLUMNS, ELEMENTS = keys.ROW_REDUCTION, keys.COLUMN_REDUCTION, keys.POINTWISE


def test_a_call_for_each_part():
    sch = s_tir.Schedule(norm_and_scale())
    hs.pointwise(sch, blocks=["Z", "T"])  # through shared memory; C reads the same tensor
    hs.column_reduction(sch, blocks=["C"])
    hs.row_reduction(sch, blocks=["E", "S", sch.get_sblock("Y")])
    assert kinds(sch) == [ROWS, COLUMNS, ELEMENTS]
    check(sch)


def test_the_rest_by_primitives():
    sch = s_tir.Schedule(norm_and_scale())
    hs.row_reduction(sch, blocks=["E", "S", "Y"])
    hs.pointwise(sch, blocks=["Z", "T"])
    sch.bind(sch.get_loops("C")[0], "threadIdx.x")
    assert kinds(sch) == [ROWS, "", ELEMENTS]
    check(sch)


def test_column_sums_next_to_rows_and_their_readers_outside():
    x, d, k, r = tensor(24, 128), tensor(24, 128, name="D"), axis(128), axis(24, "r")
    p = te.compute(x.shape, lambda i, j: x[i, j] + 1.0, name="P")
    s = te.compute((24,), lambda i: te.sum(p[i, k] * d[i, k], k), name="S")
    g = te.compute((128,), lambda j: te.sum(p[r, j] * d[r, j], r), name="G")
    y = te.compute(x.shape, lambda i, j: p[i, j] * s[i], name="Y")
    z = te.compute(x.shape, lambda i, j: p[i, j] * g[j], name="Z")
    sch = s_tir.Schedule(module(x, d, y, z))
    hs.pointwise(sch, blocks=["P"])
    hs.pointwise(sch, blocks=["Z"])
    hs.row_reduction(sch, blocks=["S", "G", "Y"])
    assert kinds(sch) == [ELEMENTS, ROWS, ROWS, ELEMENTS]
    check(sch)


@pytest.mark.parametrize(
    ("blocks", "match"),
    [
        ("C", r"blocks='C'; need blocks of the function, or their names: blocks=\['C', 'D'\]"),
        (2, "blocks=2; need .*; set occupancy in config="),
        ([], r"blocks=\[\]; need"),
        (["Q"], "block Q: found none of that name in function main"),
        (["root"], "block root: found 0 blocks of that name that are in no other block"),
        (["E", "Y"], "block S: found it after block E, on which it depends, and before Y; need "),
        (["S"], "block S: found a reduction of 136 elements; need elementwise"),
    ],
    ids=str,
)
def test_what_is_no_part(blocks, match):
    sch = s_tir.Schedule(norm_and_scale())
    before = sch.mod
    with pytest.raises(ScheduleError, match=match):
        hs.pointwise(sch, blocks=blocks)
    assert sch.mod.same_as(before)
    assert not sch.trace.insts


def test_a_part_that_is_scheduled():
    sch = s_tir.Schedule(norm_and_scale())
    hs.pointwise(sch, blocks=["E"])
    with pytest.raises(ScheduleError, match=r"block E: found loop \w+ that is scheduled already"):
        hs.pointwise(sch, blocks=["E"])
