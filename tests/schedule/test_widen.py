"""hs.widen_sums: reductions in 16 bits become reductions in float32, and nothing else changes."""

from __future__ import annotations

import pytest
import tvm
from tvm import s_tir, te, tirx, topi
from tvm.script import tirx as T

from tvm_hopper import ir, schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.simulation import verify


@T.prim_func(s_tir=True)
def before(X: T.Buffer((4, 64), "float16"), Y: T.Buffer((4, 64), "float16")):
    M = T.sblock_alloc_buffer((4,), "float16")
    E = T.sblock_alloc_buffer((4, 64), "float16")
    for i, k in T.grid(4, 64):
        with T.sblock("M"):
            v_i, v_k = T.axis.remap("SR", [i, k])
            with T.init():
                M[v_i] = T.float16(-65504.0)
            M[v_i] = T.max(M[v_i], X[v_i, v_k])
    for i, j in T.grid(4, 64):
        with T.sblock("E"):
            v_i, v_j = T.axis.remap("SS", [i, j])
            E[v_i, v_j] = T.if_then_else(
                X[v_i, v_j] > T.float16(0.0), T.exp(X[v_i, v_j] - M[v_i]), T.float16(1.0)
            )
    for i, j in T.grid(4, 64):
        with T.sblock("Y"):
            v_i, v_j = T.axis.remap("SS", [i, j])
            Y[v_i, v_j] = T.Cast("float16", T.Cast("float32", E[v_i, v_j]) * T.float32(2.0))


@T.prim_func(s_tir=True)
def after(X: T.Buffer((4, 64), "float16"), Y: T.Buffer((4, 64), "float16")):
    M = T.sblock_alloc_buffer((4,), "float32")
    E = T.sblock_alloc_buffer((4, 64), "float32")
    for i, k in T.grid(4, 64):
        with T.sblock("M"):
            v_i, v_k = T.axis.remap("SR", [i, k])
            with T.init():
                M[v_i] = T.min_value("float32")
            M[v_i] = T.max(M[v_i], T.Cast("float32", X[v_i, v_k]))
    for i, j in T.grid(4, 64):
        with T.sblock("E"):
            v_i, v_j = T.axis.remap("SS", [i, j])
            E[v_i, v_j] = T.if_then_else(
                T.Cast("float32", X[v_i, v_j]) > T.float32(0.0),
                T.exp(T.Cast("float32", X[v_i, v_j]) - M[v_i]),
                T.float32(1.0),
            )
    for i, j in T.grid(4, 64):
        with T.sblock("Y"):
            v_i, v_j = T.axis.remap("SS", [i, j])
            Y[v_i, v_j] = T.Cast("float16", E[v_i, v_j] * T.float32(2.0))


def test_before_and_after():
    got = hs.widen_sums(before)
    tvm.ir.assert_structural_equal(got, after.with_attrs(dict(before.attrs)))
    assert hs.widen_sums(got).same_as(got)


def reduced(dtype, reducer=te.sum, value=lambda x: x):
    x = te.placeholder((6, 96), dtype, name="X")
    k = te.reduce_axis((0, 96), name="k")
    y = te.compute((6,), lambda i: reducer(value(x[i, k]), axis=k), name="Y")
    return tvm.IRModule({"main": te.create_prim_func([x, y])})


@pytest.mark.parametrize(
    ("dtype", "reducer"), [("bfloat16", te.sum), ("float16", te.max), ("bfloat16", te.min)]
)
def test_a_sum_in_memory_gets_a_temporary(dtype, reducer):
    mod = reduced(dtype, reducer)
    wide = hs.widen_sums(mod)
    (made,) = (b for x in ir.find_all(wide["main"].body, ir.SBlock) for b in x.alloc_buffers)
    assert ir.dtype_of(made) == "float32"
    assert [ir.dtype_of(x) for x in wide["main"].params] == [dtype] * 2
    sch = s_tir.Schedule(wide)
    hs.row_reduction(sch)
    assert verify(sch, against=mod).verdict == "clean"


def test_other_calls_keep_their_type():
    mod = reduced("float16", value=lambda x: tirx.call_extern("float16", "f", x))
    (call,) = ir.find_all(hs.widen_sums(mod)["main"].body, ir.Call)
    assert ir.dtype_of(call) == "float16"
    assert ir.dtype_of(call.args[-1]) == "float16"


@pytest.mark.parametrize(
    ("what", "dtype"), [(te.floor, "float32"), (tirx.popcount, "float16")], ids=["floor", "other"]
)
def test_a_call_reads_the_wide_temporary(what, dtype):
    """Arguments are rewritten, too: they were loads of a temporary that is there no more."""
    x = te.placeholder((6, 96), "float16", name="X")
    k = te.reduce_axis((0, 96), name="k")
    s = te.compute((6,), lambda i: te.sum(x[i, k], axis=k), name="S")
    y = te.compute((6,), lambda i: what(s[i]), name="Y")
    func = hs.widen_sums(te.create_prim_func([x, y]))
    (call,) = ir.find_all(func.body, ir.Call)
    assert ir.dtype_of(call) == dtype
    assert ir.dtype_of(call.args[0]) == dtype  # a type that the call knows
    (made,) = (b for z in ir.find_all(func.body, ir.SBlock) for b in z.alloc_buffers)
    (load,) = ir.find_all(call, ir.TensorLoad)
    assert load.source.same_as(made)


@T.prim_func(s_tir=True)
def in_place(X: T.Buffer((4, 64), "float16"), Y: T.Buffer((4,), "float16")):
    for i, k in T.grid(4, 64):
        with T.sblock("S"):
            v_i, v_k = T.axis.remap("SR", [i, k])
            with T.init():
                Y[v_i] = T.float16(0.0)
            Y[v_i] = Y[v_i] + X[v_i, v_k]
    for i in T.grid(4):
        with T.sblock("Y"):
            v_i = T.axis.spatial(4, i)
            Y[v_i] = T.max(Y[v_i], T.float16(0.0))


@T.prim_func(s_tir=True)
def of_one_name(X: T.Buffer((4, 64), "float16"), Y: T.Buffer((4,), "float16")):
    M = T.sblock_alloc_buffer((4,), "float16")
    for i, k in T.grid(4, 64):
        with T.sblock("S"):
            v_i, v_k = T.axis.remap("SR", [i, k])
            with T.init():
                M[v_i] = T.float16(0.0)
            M[v_i] = M[v_i] + X[v_i, v_k]
    for i, k in T.grid(4, 64):
        with T.sblock("S"):
            v_i, v_k = T.axis.remap("SR", [i, k])
            with T.init():
                Y[v_i] = T.float16(0.0)
            Y[v_i] = Y[v_i] + M[v_i] * X[v_i, v_k]


@T.prim_func(s_tir=True)
def by_address(X: T.Buffer((4, 64), "float16"), Y: T.Buffer((4,), "float16")):
    M = T.sblock_alloc_buffer((4,), "float16")
    for i, k in T.grid(4, 64):
        with T.sblock("M"):
            v_i, v_k = T.axis.remap("SR", [i, k])
            with T.init():
                M[v_i] = T.float16(0.0)
            M[v_i] = M[v_i] + X[v_i, v_k]
    for i in T.grid(4):
        with T.sblock("Y"):
            v_i = T.axis.spatial(4, i)
            Y[v_i] = T.call_extern("float16", "f", T.address_of(M[v_i]))


@T.prim_func(s_tir=True)
def in_threads(X: T.Buffer((4, 64), "float16"), Y: T.Buffer((4,), "float16")):
    for i in T.thread_binding(4, thread="blockIdx.x"):
        for k in range(64):
            with T.sblock("S"):
                v_i, v_k = T.axis.remap("SR", [i, k])
                with T.init():
                    Y[v_i] = T.float16(0.0)
                Y[v_i] = Y[v_i] + X[v_i, v_k]


@pytest.mark.parametrize("func", [in_place, of_one_name, by_address, in_threads])
def test_functions_that_cannot_be_widened_stay_as_they_are(func):
    """A model with one of them is built: TVM's error about its blocks ended the whole build."""
    assert hs.widen_sums(func).same_as(func)


@T.prim_func(s_tir=True)
def by_address_of_another(X: T.Buffer((4, 64), "float16"), Y: T.Buffer((4,), "float16")):
    for i, k in T.grid(4, 64):
        with T.sblock("Y"):
            v_i, v_k = T.axis.remap("SR", [i, k])
            with T.init():
                Y[v_i] = T.float16(0.0)
            Y[v_i] = Y[v_i] + T.call_extern("float16", "f", T.address_of(X[v_i, v_k]))


def test_an_address_of_another_tensor_stays():
    func = hs.widen_sums(by_address_of_another)
    assert not func.same_as(by_address_of_another)
    (address,) = ir.find_all(func.body, ir.Call, lambda x: x.op.name == "tirx.address_of")
    assert address.args[0].source.same_as(func.params[0])


def test_a_cast_that_is_written_rounds():
    mod = reduced("float16", value=lambda x: (x.astype("float32") * 3.0).astype("float16"))
    casts = [ir.dtype_of(x) for x in ir.find_all(hs.widen_sums(mod)["main"].body, tirx.Cast)]
    assert casts.count("float16") == 2  # the one that is written, and the store
    assert casts.count("float32") == 2


def test_choices_are_made_in_float32():
    mod = reduced("float16", value=lambda x: tirx.Select(x > 0.5, x, -x))
    (found,) = ir.find_all(hs.widen_sums(mod)["main"].body, tirx.Select)
    assert ir.dtype_of(found) == "float32"


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_nothing_to_widen(dtype):
    mod = reduced(dtype)
    assert hs.widen_sums(mod).same_as(mod)


def test_elementwise_functions_stay_as_they_are():
    x = te.placeholder((64,), "float16", name="X")
    mod = tvm.IRModule({"main": te.create_prim_func([x, te.compute((64,), lambda i: x[i] * x[i])])})
    assert hs.widen_sums(mod).same_as(mod)


def test_what_is_no_module():
    with pytest.raises(ScheduleError, match="widen_sums: found int; need an IRModule"):
        hs.widen_sums(3)


def test_row_reduction_names_the_remedy():
    with pytest.raises(ScheduleError, match=r"cast the input to float32 .* or .*widen_sums"):
        hs.row_reduction(s_tir.Schedule(reduced("float16")))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_place_of_a_maximum(dtype):
    """Its reduction names values, and starts from two stores; the remedy that is named works."""
    x = te.placeholder((4, 64), dtype, name="X")
    func = te.create_prim_func([x, topi.argmax(x, axis=1)])
    with pytest.raises(ScheduleError, match=r"widen_sums\(mod\)"):
        hs.row_reduction(s_tir.Schedule(func))
    sch = s_tir.Schedule(hs.widen_sums(func))
    hs.row_reduction(sch)
    assert verify(sch, against=func).verdict == "clean"


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("reduce", [te.max, te.min, te.sum], ids=["max", "min", "sum"])
def test_short_integers_are_reduced_in_32_bits(dtype, reduce):
    """A sum wraps around once where it would at each step."""
    x, k = te.placeholder((6, 144), dtype, name="X"), te.reduce_axis((0, 144), name="k")
    func = te.create_prim_func([x, te.compute((6,), lambda i: reduce(x[i, k], axis=k), name="Y")])
    wide = hs.widen_sums(func)
    assert "int32" in {ir.dtype_of(y.buffer) for y in ir.find_all(wide.body, ir.BufferStore)}
    assert hs.widen_sums(wide).same_as(wide)
    with pytest.raises(ScheduleError, match=rf"a reduction in {dtype}; .*widen_sums\(mod\)"):
        hs.row_reduction(s_tir.Schedule(func))
    sch = s_tir.Schedule(wide)
    hs.row_reduction(sch)
    assert verify(sch, against=func).verdict == "clean"
