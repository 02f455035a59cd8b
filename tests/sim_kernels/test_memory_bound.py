"""Elementwise kernels and reductions of rows in the simulator: values, reads, the one barrier."""

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import s_tir, te

from tests.sim_kernels.mutate import change
from tvm_hopper import ir, schedule as hs
from tvm_hopper.simulation import load, simulate, verify
from tvm_hopper.testing import memory_bound

FORMS = {**memory_bound.ROW_REDUCTIONS, **memory_bound.POINTWISE}
TOLERANCE = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2}
ARRAYS = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def scheduled(name, rows, columns, dtype="bfloat16", config=None):
    sch = s_tir.Schedule(FORMS[name](rows, columns, dtype))
    helper = hs.row_reduction if name in memory_bound.ROW_REDUCTIONS else hs.pointwise
    helper(sch, config=config)
    return sch


def run(name, rows, columns, dtype="bfloat16", config=None, target=None):
    """Simulate a kernel on normal inputs; compare with float64; return the result and inputs."""
    sch = scheduled(name, rows, columns, dtype, config)
    params = sch.mod["main"].params
    count = len(params) - len(outputs_of(name))
    rng = np.random.default_rng(3)
    inputs = {
        p.name: rng.standard_normal([int(x) for x in p.shape]).astype(ARRAYS[ir.dtype_of(p)])
        for p in params[:count]
    }
    result = simulate(load(sch, target), inputs)
    assert not result.findings, result.findings
    wanted = memory_bound.reference(name, list(inputs.values()), dtype)
    for param, want in zip(params[count:], wanted, strict=True):
        got = result.outputs[param.name].astype(np.float64)
        scale = np.abs(want) + np.abs(want).mean() / 10 + 1e-6
        assert np.all(np.abs(got - want) / scale < TOLERANCE[dtype]), param.name
    return inputs


def outputs_of(name):
    return {"add_rms_norm": "HY", "sum_and_difference": "PD"}.get(name, "Y")


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", FORMS)
def test_each_element_is_read_once(name, read):
    rows, columns = 3, 520
    inputs = run(name, rows, columns)
    for tensor, values in inputs.items():
        times = read[tensor] / values.nbytes
        shared = values.shape == (columns,)
        assert times == (rows if shared else 1) or values.shape == (rows,), (tensor, times)


@pytest.mark.parametrize("shape", [(1, 2), (3, 1001)], ids=str)
@pytest.mark.parametrize("name", ["row_mean", "silu_mul"])
def test_shapes(name, shape):
    run(name, *shape)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_types(dtype):
    run("layer_norm", 3, 264, dtype)
    run("gelu_mul", 3, 264, dtype)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    "config",
    [
        hs.RowReductionConfig(4, 8),
        hs.RowReductionConfig(32, 4),
        hs.RowReductionConfig(64, 2, preload=True),
        hs.RowReductionConfig(96, 1),
        hs.RowReductionConfig(32, 1, 2, recompute=True),
        hs.RowReductionConfig(32, 4, reload=True, recompute=True, hint=True),
        hs.RowReductionConfig(64, 1, blocks=2, hint=True),
    ],
    ids=str,
)
def test_configurations(config):
    run("softmax", 5, 128, config=config)


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "softmax"])
def test_rows_that_are_loaded_again(name, read):
    """Once for the reductions, once behind the last of them: by vectors, in words of the caches."""
    config = hs.RowReductionConfig(64, 1, reload=True, recompute=True, hint=True)
    inputs = run(name, 3, 520, config=config)
    assert read["X"] == 2 * inputs["X"].nbytes


@pytest.mark.parametrize(("name", "passes"), [("rms_norm", 2), ("softmax", 2), ("row_sum", 1)])
def test_rows_that_are_streamed(name, passes, read):
    inputs = run(name, 3, 1032, config=hs.RowReductionConfig(32, 1, chunks=2, hint=True))
    assert read["X"] == passes * inputs["X"].nbytes


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    "config",
    [
        hs.RowReductionConfig(threads=64, chunks=1),
        hs.RowReductionConfig(threads=32, rows=2, chunks=2),
        hs.RowReductionConfig(threads=1, rows=32, vector=1, chunks=1),
        hs.RowReductionConfig(threads=1, rows=32),
    ],
    ids=str,
)
def test_elements_that_are_stored_in_front_of_a_reduction(config):
    x = te.placeholder((3, 264), "float16", name="X")
    k = te.reduce_axis((0, 264), name="k")
    y = te.compute(x.shape, lambda i, j: x[i, j] + x[i, j], name="Y")
    s = te.compute((3,), lambda i: te.sum(x[i, k].astype("float32"), axis=k), name="S")
    mod = tvm.IRModule({"main": te.create_prim_func([x, y, s])})
    sch = s_tir.Schedule(mod)
    hs.row_reduction(sch, config=config)
    verify(sch, against=mod, runs=(("on_wait", 0),), max_ctas=3).require_clean()


def test_pairs_of_sums_whose_results_a_second_reduction_uses():
    """Two sums as one reduction, then another one: no mean and squares around it."""
    x = te.placeholder((3, 48), "float32", name="X")
    k, m = (te.reduce_axis((0, 48), name=n) for n in "km")
    both = te.comm_reducer(
        lambda a, b: (a[0] + b[0], a[1] + b[1]),
        lambda *types: tuple(te.const(0, t) for t in types),
    )
    s, q = te.compute((3,), lambda i: both((x[i, k], x[i, k] * x[i, k]), axis=k), name="S")
    z = te.compute((3,), lambda i: te.sum(x[i, m] * s[i] + q[i], axis=m), name="Z")
    mod = tvm.IRModule({"main": te.create_prim_func([x, z])})
    sch = s_tir.Schedule(mod)
    hs.row_reduction(sch)
    assert verify(sch, against=mod, runs=(("on_wait", 0),)).verdict == "clean"


def test_verified_clean_when_streamed():
    config = hs.RowReductionConfig(64, 1, chunks=1, hint=True)
    verify(
        scheduled("rms_norm", 2, 1544, config=config), against=FORMS["rms_norm"](2, 1544)
    ).require_clean()


def test_verified_clean_with_hints():
    config = hs.RowReductionConfig(64, 1, reload=True, recompute=True, blocks=2, hint=True)
    verify(
        scheduled("softmax", 3, 520, config=config), against=FORMS["softmax"](3, 520)
    ).require_clean()


def test_verified_clean():
    sch = scheduled("layer_norm", 5, 1032)
    verify(sch, against=memory_bound.layer_norm(5, 1032)).require_clean()


def test_verified_clean_with_a_tail():
    sch = scheduled("sum_and_difference", 7, 101)
    verify(sch, against=memory_bound.sum_and_difference(7, 101)).require_clean()


@pytest.mark.parametrize("which", [0, 1])
def test_without_a_barrier_the_simulator_objects(which):
    program = load(scheduled("softmax", 1, 512, config=hs.RowReductionConfig(64, 1)))
    x = np.zeros((1, 512), ml_dtypes.bfloat16)
    assert not simulate(program, {"X": x}).findings
    found = simulate(change(program, "tvm_storage_sync", which), {"X": x}).findings
    assert any(f.rule.startswith("RACE") for f in found), found


@pytest.mark.parametrize("rows", [0, 5])
@pytest.mark.parametrize("name", ["softmax", "copy"])
def test_a_number_of_rows_known_at_run_time(name, rows):
    x = np.random.default_rng(1).standard_normal((rows, 264)).astype(ml_dtypes.bfloat16)
    result = simulate(scheduled(name, "n", 264), {"X": x})
    assert not result.findings, result.findings
    if rows:
        (want,) = memory_bound.reference(name, [x])
        got = result.outputs["Y"].astype(np.float64)
        np.testing.assert_allclose(got, want, rtol=2e-2, atol=1e-6)


def test_rows_that_are_no_numbers_are_as_the_program_says():
    x = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    x[1, 7] = np.nan
    x[2, 3] = np.inf
    x[3, ::2] = -np.inf
    y = simulate(scheduled("softmax", 4, 64, "float32"), {"X": x}).outputs["Y"]
    (want,) = memory_bound.reference("softmax", [x[[0, 3]]])
    np.testing.assert_allclose(y[[0, 3]], want, rtol=1e-5)
    assert np.isnan(y[1]).all()
    assert np.isnan(y[2]).any()


@pytest.mark.parametrize("scale", [1.0, 1e-40, 3e-39, 1e38])
def test_rows_by_their_greatest_element_however_small_or_large(scale):
    x, k = te.placeholder((4, 256), "float32", name="X"), te.reduce_axis((0, 256), "k")
    most = te.compute((4,), lambda i: te.max(x[i, k], k), "M")
    y = te.compute((4, 256), lambda i, j: (x[i, j] / most[i]).astype("bfloat16"), "Y")
    sch = s_tir.Schedule(te.create_prim_func([x, y]))
    hs.row_reduction(sch)
    given = np.random.default_rng(5).uniform(0.5, 1.5, (4, 256)).astype(np.float32)
    given *= np.float32(scale)
    got = simulate(sch, {"X": given}).outputs["Y"].astype(np.float64)
    want = given.astype(np.float64) / given.max(1, keepdims=True)
    np.testing.assert_allclose(got, want, rtol=2**-8)
