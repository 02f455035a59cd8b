"""Each kind of kernel that is bound by memory on inputs that nobody wishes for.

What is no number, infinite or zero ends as the unscheduled program has it; tensors that lie
otherwise in memory than the kernel needs are one error.
"""

import ml_dtypes  # noqa: F401, numpy knows bfloat16 by it
import numpy as np
import pytest
import tvm
from tvm import s_tir, te
from tvm.script import tirx as T

import tvm_hopper
from tvm_hopper import ir, schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.simulation import load, simulate
from tvm_hopper.testing import attention, backward, columns, group_norms, losses, memory_bound

ROWS, COLUMNS = 8, 256
ROW = hs.RowReductionConfig


def f32(build):
    return lambda rows: build(rows, COLUMNS, "float32")


def matrix(rows):
    """Return an input."""
    count = rows if isinstance(rows, int) else te.var(rows, "int32")
    return te.placeholder((count, COLUMNS), name="X")


def turned(rows):
    """Return a transpose."""
    x = matrix(rows)
    y = te.compute(tuple(x.shape[::-1]), lambda j, i: x[i, j], name="Y")
    return tvm.IRModule({"main": te.create_prim_func([x, y])})


def total(rows):
    """Return the sum of all elements."""
    x = matrix(rows)
    i, j = te.reduce_axis((0, x.shape[0]), "i"), te.reduce_axis((0, COLUMNS), "j")
    y = te.compute((1,), lambda _: te.sum(x[i, j], [i, j]), name="Y")
    return tvm.IRModule({"main": te.create_prim_func([x, y])})


KINDS = {  # what it is built and scheduled by, with rows or without a number of them
    "elements": (f32(memory_bound.silu_mul), hs.pointwise, None),
    "pairs": (f32(attention.rope), hs.pointwise, None),
    "transposes": (turned, hs.pointwise, None),
    "rows": (f32(memory_bound.softmax), hs.row_reduction, None),
    "rows twice": (
        f32(memory_bound.layer_norm),
        hs.row_reduction,
        ROW(64, 1, reload=True, hint=True),
    ),
    "rows in parts": (f32(memory_bound.softmax), hs.row_reduction, ROW(32, 1, chunks=1)),
    "rows of a cluster": (f32(memory_bound.softmax), hs.row_reduction, ROW(32, 1, cluster=2)),
    "rows staged": (f32(memory_bound.softmax), hs.row_reduction, ROW(32, 1, chunks=1, stage=True)),
    "losses": (f32(losses.cross_entropy), hs.row_reduction, None),
    "gradients": (
        f32(backward.rms_norm_backward),
        hs.row_reduction,
        ROW(32, 1, persistent=2, ahead=0),
    ),
    "columns": (
        f32(columns.column_sum),
        hs.column_reduction,
        hs.ColumnReductionConfig(rows=1, flight=1, blocks=2),
    ),
    "all elements": (
        total,
        hs.column_reduction,
        hs.ColumnReductionConfig(rows=1, flight=1, blocks=2),
    ),
    "groups": (
        lambda rows: group_norms.group_norm(rows, 2, 4, 8, 4, "float32"),
        hs.row_reduction,
        None,
    ),
}


def scheduled(kind, rows=ROWS):
    build, helper, config = KINDS[kind]
    sch = s_tir.Schedule(build(rows))
    helper(sch, config=config)
    return sch


def written(sch):
    return {x.buffer.name for x in ir.find_all(sch.mod["main"].body, ir.BufferStore)}


def drawn(sch):
    """Draw the inputs of a kernel; labels name a column."""
    rng, found = np.random.default_rng(4), {}
    for param in sch.mod["main"].params:
        shape, dtype = [int(x) for x in param.shape], ir.dtype_of(param)
        if param.name in written(sch):
            continue
        values = rng.standard_normal(shape) if dtype.startswith("f") else rng.integers(0, 9, shape)
        found[param.name] = values.astype(dtype)
    return found


def spoil(x):
    """Put what is no number, what is infinite, masks and zeros into rows of a tensor."""
    rows = x.reshape(x.shape[0], -1)
    rows[0, 5], rows[1, 7], rows[2, 9] = np.nan, np.inf, -np.inf
    rows[3, ::2], rows[4], rows[5] = -np.inf, -np.inf, 0


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_number_ends_as_in_the_unscheduled_program(kind):
    sch = scheduled(kind)
    inputs = drawn(sch)
    spoil(inputs["X"])
    result = simulate(sch, inputs)
    assert not result.findings, result.findings
    plain = tvm.compile(KINDS[kind][0](ROWS), target="llvm")["main"]
    wanted = {k: np.full_like(x, 7) for k, x in result.outputs.items() if k not in inputs}
    named = {k: tvm.runtime.tensor(v) for k, v in {**inputs, **wanted}.items()}
    plain(*[named[p.name] for p in sch.mod["main"].params])
    for name in wanted:
        got = result.outputs[name]
        np.testing.assert_allclose(got, named[name].numpy(), rtol=2e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_apart_in_memory_are_one_error(kind):
    sch = scheduled(kind)
    inputs = drawn(sch)
    x = inputs["X"]
    wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
    with pytest.raises((ValueError, RuntimeError), match=r"X.*(strides|compact|contiguous)"):
        simulate(sch, {**inputs, "X": wide[..., : x.shape[-1]]})


ONE_OUTPUT = [x for x in KINDS if x.startswith(("elements", "rows", "groups"))]


@pytest.mark.parametrize("kind", ONE_OUTPUT)
def test_one_tensor_as_source_and_destination(kind):
    """Each element, or each row, is read before it is stored, and by no other thread behind."""
    sch = scheduled(kind)
    inputs, program = drawn(sch), load(sch.mod)
    wanted = simulate(program, inputs).outputs["Y"]
    both = inputs["X"].copy()
    result = simulate(program, {**inputs, "X": both, "Y": both})
    assert result.verdict == "incomplete"
    np.testing.assert_array_equal(result.outputs["Y"], wanted)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_of_a_number_known_at_run_time(kind):
    sch = scheduled(kind, "n")
    inputs = {
        p.name: np.zeros([ir.static_int(x) or 0 for x in p.shape], ir.dtype_of(p))
        for p in sch.mod["main"].params
        if p.name not in written(sch)
    }
    result = simulate(sch, inputs)
    assert not result.findings, result.findings
    assert not any(x.any() for x in result.outputs.values())


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_of_a_static_number_are_refused_by_name(kind):
    build, helper, config = KINDS[kind]
    with pytest.raises(ScheduleError, match="found no elements; need one or more"):
        helper(s_tir.Schedule(build(0)), config=config)


STRIDED = """
@T.prim_func(s_tir=True)
def main(x: T.handle, Y: T.Buffer({shape}, "{dtype}")):
    apart = T.int32()
    X = T.match_buffer(x, (8, 64), "{dtype}", strides=[{strides}])
{body}
"""
ADD = """
    for i, j in T.grid(8, 64):
        with T.sblock("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = X[vi, vj] + X[vi, vj]
"""
CENTRE = """
    S = T.sblock_alloc_buffer((8,))
    for i, k in T.grid(8, 64):
        with T.sblock("S"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = S[vi] + T.Cast("float32", X[vi, vk])
    for i, j in T.grid(8, 64):
        with T.sblock("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = T.Cast("{dtype}", T.Cast("float32", X[vi, vj]) - S[vi])
"""
SUM = """
    for j, k in T.grid(64, 8):
        with T.sblock("Y"):
            vj, vk = T.axis.remap("SR", [j, k])
            with T.init():
                Y[vj] = T.float32(0)
            Y[vj] = Y[vj] + X[vk, vj]
"""
VIEWS = {
    "elements": (ADD, "(8, 64)", hs.pointwise, lambda x: x + x),
    "rows": (CENTRE, "(8, 64)", hs.row_reduction, lambda x: x - x.sum(-1, keepdims=True)),
    "columns": (SUM, "(64,)", hs.column_reduction, lambda x: x.sum(0)),
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("strides", ["68, 1", "65, 1", "apart, 1", "1, 8"])
@pytest.mark.parametrize("kind", VIEWS)
def test_tensors_with_strides_of_their_own(kind, strides):
    """Rows that begin between two vectors are loaded by shorter ones, which compile."""
    body, shape, helper, exact = VIEWS[kind]
    dtype = "float32" if kind == "columns" else "bfloat16"
    text = STRIDED.format(shape=shape, dtype=dtype, strides=strides, body=body.format(dtype=dtype))
    sch = s_tir.Schedule(tvm.script.from_source(text, extra_vars={"T": T}))
    helper(sch)
    assert tvm_hopper.cubin(tvm.compile(sch.mod, target="nvidia/nvidia-h200"))
    first = strides.split(",")[0]
    shape = (64, 8) if first == "1" else (8, 67 if first == "apart" else int(first))
    memory = np.random.default_rng(6).integers(-4, 5, shape).astype(dtype)
    x = memory.T if first == "1" else memory[:, :64]
    result = simulate(sch, {"X": x})
    assert not result.findings, result.findings
    wanted = exact(x.astype("float32")).astype(dtype)
    assert (result.outputs["Y"].astype("float32") == wanted.astype("float32")).all()
