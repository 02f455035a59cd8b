"""What a function must be for hs.pointwise and hs.row_reduction: plain loops, one store each."""

from __future__ import annotations

import pytest
import tvm
from tvm import s_tir, te, tirx, topi
from tvm.script import tirx as T

import tvm_hopper
from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.schedule.pointwise import apply as pointwise
from tvm_hopper.schedule.row_reduction import apply as row_reduction
from tvm_hopper.testing import memory_bound

HEAD = """
@T.prim_func(private=True, s_tir=True)
def func(X: T.Buffer((4, 64), "float32"), Y: T.Buffer((4, 64), "float32")):
"""


def refuse(body: str, match: str, helper=hs.pointwise):
    func = tvm.script.from_source(HEAD + body, extra_vars={"T": T})
    sch = s_tir.Schedule(tvm.IRModule({"main": func}))
    with pytest.raises(ScheduleError, match=match):
        helper(sch)


def test_no_blocks():
    refuse("    T.evaluate(0)\n", "a function without blocks; need a program in plain loops")


def test_what_tvm_writes_out_by_hand_is_refused_by_its_name():
    x = te.placeholder((8, 64), "float32", name="X")
    sch = s_tir.Schedule(te.create_prim_func([x, topi.cumsum(x, axis=1)]))
    with pytest.raises(ScheduleError, match="found loops written out in block cumsum_generic"):
        hs.row_reduction(sch)


def test_blocks_inside_of_blocks():
    body = """
    for i in range(4):
        with T.sblock("outer"):
            vi = T.axis.spatial(4, i)
            for j in range(64):
                with T.sblock("inner"):
                    vj = T.axis.spatial(64, j)
                    Y[vi, vj] = X[vi, vj]
"""
    refuse(body, "block outer: found blocks inside of it; need plain serial loops")


def test_a_predicate():
    body = """
    for i, j in T.grid(4, 64):
        with T.sblock("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.where(j < 32)
            Y[vi, vj] = X[vi, vj]
"""
    refuse(body, "block Y: found the predicate j < 32; need none")


@pytest.mark.parametrize("bound", ["[j, i]", "[i, 63 - j]"])
def test_variables_that_are_no_loops_in_order(bound):
    shapes = "(64, 4)" if bound == "[j, i]" else "(4, 64)"
    first, second = shapes.strip("()").split(", ")
    body = f"""
    for i, j in T.grid(4, 64):
        with T.sblock("Y"):
            va = T.axis.spatial({first}, {bound.strip("[]").split(", ")[0]})
            vb = T.axis.spatial({second}, {bound.strip("[]").split(", ")[1]})
            Y[{"vb, va" if bound == "[j, i]" else "va, vb"}] = T.float32(1)
"""
    refuse(body, "block Y: found it bound to .*; need one loop from 0 for each of its dimensions")


def test_several_stores():
    body = """
    for i, j in T.grid(4, 64):
        with T.sblock("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            if X[vi, vj] > T.float32(0):
                Y[vi, vj] = X[vi, vj]
"""
    refuse(body, "block Y: found IfThenElse in it; need a block that stores one element")


def test_a_sum_without_an_initial_value():
    body = """
    for i, j in T.grid(4, 64):
        with T.sblock("Y"):
            vi, vj = T.axis.remap("SR", [i, j])
            Y[vi, 0] = Y[vi, 0] + X[vi, vj]
"""
    refuse(body, "block Y: found no initial value; need T.init in a block with a reduction axis")


def test_a_sum_of_all_before():
    body = """
    for i, j, k in T.grid(4, 64, 64):
        with T.sblock("Y"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                Y[vi, vj] = T.float32(0)
            Y[vi, vj] = Y[vi, vj] + T.if_then_else(vk <= vj, X[vi, vk], T.float32(0))
"""
    refuse(body, "found the index .*; need a row for each result", hs.row_reduction)


def test_a_tensor_that_two_blocks_write():
    body = """
    E = T.sblock_alloc_buffer((4, 64))
    for i, j in T.grid(4, 32):
        with T.sblock("left"):
            vi, vj = T.axis.remap("SS", [i, j])
            E[vi, vj] = X[vi, vj]
    for i, j in T.grid(4, 32):
        with T.sblock("right"):
            vi, vj = T.axis.remap("SS", [i, j])
            E[vi, vj + 32] = X[vi, vj]
    for i, j in T.grid(4, 64):
        with T.sblock("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = E[vi, vj]
"""
    refuse(body, "block left: found what TVM cannot inline.*; need elementwise blocks")


@pytest.mark.parametrize(
    ("module", "name", "helper", "program"),
    [
        (pointwise, "pointwise", hs.pointwise, memory_bound.copy),
        (row_reduction, "row_reduction", hs.row_reduction, memory_bound.row_sum),
    ],
)
def test_what_tvm_refuses_is_one_error(module, name, helper, program, monkeypatch):
    def fails(*_):
        raise tvm.error.InternalError("Check failed: something of TVM's own")

    monkeypatch.setattr(module, "merge", fails)
    with pytest.raises(ScheduleError, match=f"{name}: found what TVM cannot schedule; need plain"):
        helper(s_tir.Schedule(program(4, 64)))


@pytest.mark.parametrize("helper", [hs.row_reduction, hs.column_reduction, hs.pointwise])
def test_extents_of_two_integer_types_are_refused_with_what_makes_them_one(helper):
    rows = te.var("n", "int64")
    x = te.placeholder((rows, 64), "float32", name="X")
    k = te.reduce_axis((0, 64 if helper is hs.row_reduction else rows), name="k")
    tensors = {
        hs.row_reduction: lambda: te.compute((rows,), lambda i: te.sum(x[i, k], axis=k), name="Y"),
        hs.column_reduction: lambda: te.compute((64,), lambda j: te.sum(x[k, j], axis=k), name="Y"),
        hs.pointwise: lambda: te.compute((rows, 64), lambda i, j: x[i, j] + 1, name="Y"),
    }
    given = [x, tensors[helper]()]
    with pytest.raises(ScheduleError, match=r"extents of int32 and of int64.*index_dtype_override"):
        helper(s_tir.Schedule(te.create_prim_func(given)))
    helper(s_tir.Schedule(te.create_prim_func(given, index_dtype_override="int64")))


@pytest.mark.parametrize(
    ("start", "combine", "need"),
    [
        ('T.float32("-inf")', "T.max(Y[vi, 0], X[vi, vk])", "which changes no maximum"),
        ("T.float32(1)", "Y[vi, 0] + X[vi, vk]", "which changes no sum"),
        ("T.float32(0)", "Y[vi, 0] * X[vi, vk]", "which changes no product"),
        ("T.float32(0)", "T.min(Y[vi, 0], X[vi, vk])", "which changes no minimum"),
    ],
)
def test_a_start_that_is_no_neutral_element_is_refused(start, combine, need):
    body = f"""
    for i, k in T.grid(4, 64):
        with T.sblock("Y"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                Y[vi, 0] = {start}
            Y[vi, 0] = {combine}
"""
    refuse(body, f"block Y: found the initial value .*; need .*{need}", hs.row_reduction)


def _reducer_of(width, combine):
    """Reduce 6 rows of 64 integers, or as many columns, by an operation of te."""

    def build(along_rows):
        x = te.placeholder((6, 64) if along_rows else (64, 6), "int32", name="X")
        k = te.reduce_axis((0, 64), name="k")

        def start(*types):
            values = tuple(tirx.const(0, t) for t in types)
            return values if width > 1 else values[0]

        reduce = te.comm_reducer(combine, start, "by")

        def value(i):
            one = x[i, k] if along_rows else x[k, i]
            return reduce((one,) * width if width > 1 else one, axis=k)

        made = te.compute((6,), value, name="Y")
        return te.create_prim_func([x, *(made if width > 1 else [made])])

    return build


UNKNOWN = {
    "bits": (_reducer_of(1, lambda a, b: a | b), r"by Y\[v_i\] \| X"),
    "a sum and more": (_reducer_of(1, lambda a, b: a + b * a), r"by Y\[v_i\] \+ X"),
    "the greatest two": (
        _reducer_of(2, lambda a, b: (te.max(a[0], b[0]), te.max(te.min(a[0], b[0]), b[1]))),
        "by a rule of 2 values",
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
@pytest.mark.parametrize("helper", [hs.row_reduction, hs.column_reduction])
def test_operations_that_tvm_cannot_combine_from_parts_are_refused_when_scheduled(name, helper):
    build, found = UNKNOWN[name]
    func = build(helper is hs.row_reduction)
    with pytest.raises(ScheduleError, match=f"{found}.*cannot combine from parts; need a sum"):
        helper(s_tir.Schedule(func))


def test_a_tensor_of_no_dimensions_is_read():
    x, c = te.placeholder((6, 64), "float32", name="X"), te.placeholder((), "float32", name="c")
    func = te.create_prim_func([x, c, te.compute((6, 64), lambda i, j: x[i, j] * c(), name="Y")])
    sch = s_tir.Schedule(func)
    hs.pointwise(sch)
    assert tvm_hopper.verify(sch, against=func).verdict == "clean"


@pytest.mark.parametrize(
    ("dtype", "fix"),
    [("float64", "is reduced$"), ("int64", "is reduced$"), ("float16", r"hs.widen_sums\(mod\)$")],
)
def test_only_16_bits_are_told_of_widen_sums(dtype, fix):
    x, k = te.placeholder((6, 64), dtype, name="X"), te.reduce_axis((0, 64), name="k")
    total = te.compute((6,), lambda i: te.sum(x[i, k], axis=k), name="Y")
    with pytest.raises(ScheduleError, match=f"a reduction in {dtype}; .*{fix}"):
        hs.row_reduction(s_tir.Schedule(te.create_prim_func([x, total])))


def test_rows_of_several_results_are_stored_in_another_order():
    x, k = te.placeholder((6, 4, 64), "float32", name="X"), te.reduce_axis((0, 64), name="k")
    most = te.compute((6, 4), lambda i, h: te.max(x[i, h, k], axis=k), name="M")
    shape = (6, 4, 64)
    less = te.compute(shape, lambda i, h, j: x[i, h, j] - most[i, h], name="D")
    more = te.compute(shape, lambda i, h, j: x[i, h, j] + most[i, h], name="E")
    first = te.compute((4, 6, 64), lambda h, i, j: less[i, h, j], name="Y")
    second = te.compute((4, 6, 64), lambda h, i, j: more[i, h, j], name="Z")
    func = te.create_prim_func([x, first, second])
    sch = s_tir.Schedule(func)
    hs.row_reduction(sch)
    assert tvm_hopper.verify(sch, against=func).verdict == "clean"
