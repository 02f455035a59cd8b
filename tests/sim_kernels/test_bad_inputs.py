"""Each kind of kernel that is bound by memory on inputs that nobody wishes for.

What is no number, infinite or zero ends as the unscheduled program has it; tensors that lie
otherwise in memory than the kernel needs are one error.
"""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import s_tir

from tvm_hopper import ir
from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.simulation import simulate
from tvm_hopper.testing import attention, backward, columns, group_norms, losses, memory_bound

ROWS, COLUMNS = 8, 256
ROW = hs.RowReductionConfig


def f32(build):
    return lambda rows: build(rows, COLUMNS, "float32")


KINDS = {  # what it is built and scheduled by, with rows or without a number of them
    "elements": (f32(memory_bound.silu_mul), hs.pointwise, None),
    "pairs": (f32(attention.rope), hs.pointwise, None),
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


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_that_begin_in_a_vector_are_one_error(kind):
    sch = scheduled(kind)
    inputs = drawn(sch)
    x = inputs["X"]
    longer = np.zeros(x.size + 16, x.dtype)
    first = next(i for i in range(1, 16) if (longer.ctypes.data + i * x.itemsize) % 16 == 4)
    moved = longer[first : first + x.size].reshape(x.shape)
    with pytest.raises((ValueError, RuntimeError), match=r"X.*(aligned|multiple of \d+ bytes)"):
        simulate(sch, {**inputs, "X": moved})


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
