"""`hs.matmul` keeps the meaning of every form of matmul: its schedules, run serially."""

import numpy as np
import pytest
import tvm
from tvm import s_tir, te

from tvm_hopper import schedule as hs
from tvm_hopper.testing import workloads
from tvm_hopper.testing.serial import run_serially

SMALL = hs.MatmulConfig(tile=(64, 64, 64), stages=2, consumers=1)
RAGGED = {"m": 72, "n": 40, "k": 72}


def check(options, config=SMALL, **extents):
    mod = workloads.matmul(**options)
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", config)
    inputs = workloads.make_inputs(mod, **extents)
    got = run_serially(sch.mod, inputs, **extents).astype(np.float64)
    epilogue = options.get("epilogue", ())
    want = workloads.reference(inputs, options.get("layout", "NT"), epilogue)
    if {"gelu", "silu"} & set(epilogue):
        np.testing.assert_allclose(got, want, rtol=4e-3, atol=4e-3)  # an fp16 output, rounded
    else:
        np.testing.assert_array_equal(got, want)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("layout", workloads.LAYOUTS)
@pytest.mark.parametrize("shape", [(64, 64, 64), (72, 40, 72), (8, 136, 136)])
def test_layouts_and_shapes(layout, shape):
    m, n, k = shape
    check({"m": m, "n": n, "k": k, "layout": layout})


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    "options",
    [
        {"cast": "after"},
        {"swap": True},
        {"cast": "after", "swap": True, "layout": "NN"},
        {"cast_stage": True, "layout": "TN"},
        {"dtype": "bfloat16", "layout": "TT"},
        {"index": "int64", "layout": "NN"},
        {"batch": True},
        {"batch": True, "index": "int64", "layout": "NN", "cast_stage": True},
        {"m": 1},
        {"n": 1},
        {"k": 8},
        {"m": 1, "n": 8, "k": 8, "batch": True},
    ],
    ids=lambda options: "-".join(f"{k}={v}" for k, v in options.items()),
)
def test_forms(options):
    check({**RAGGED, **options})


def test_casts_that_keep_values_may_follow_each_other():
    a, b = (te.placeholder((64, 64), "float16", name=name) for name in "AB")
    k = te.reduce_axis((0, 64), "k")
    wide = lambda x: x.astype("float64").astype("float32")  # noqa: E731
    c = te.compute((64, 64), lambda i, j: te.sum(wide(a[i, k]) * wide(b[j, k]), k), name="C")
    sch = s_tir.Schedule(te.create_prim_func([a, b, c]))
    inputs = workloads.make_inputs(sch.mod)
    hs.matmul(sch, "C", SMALL)
    want = workloads.reference(inputs, "NT", ())
    np.testing.assert_array_equal(run_serially(sch.mod, inputs).astype(np.float64), want)


@pytest.mark.parametrize("extent", [1, 63, 64, 65])
def test_symbolic_rows(extent):
    options = {**RAGGED, "m": "m", "index": "int64", "layout": "NN", "batch": True}
    check(options, m=extent)


def test_symbolic_rows_that_tma_can_take():
    m = tvm.tirx.Var("m", "int32")
    sch = s_tir.Schedule(workloads.matmul(m * 8, 40, 72, layout="TN"))
    hs.matmul(sch, "C", SMALL)  # rows of A lie m * 16 bytes apart
    copies = [sch.get(b) for b in sch.get_producers("C_update_o")]
    assert sum("tvm_hopper.async_copy" in b.annotations for b in copies) == 2


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("epilogue", "shape"),
    [
        *(((name,), RAGGED) for name in workloads.EPILOGUES),
        (("bias_row", "bias_col", "scale", "residual", "relu"), RAGGED),
        (("bias_row", "bias_col", "scale", "residual", "relu"), {"m": 64, "n": 64, "k": 64}),
        (("bias_col", "silu", "residual", "gelu"), RAGGED),
    ],
    ids=str,
)
def test_epilogues(epilogue, shape):
    check({**shape, "out_dtype": "float16", "epilogue": epilogue, "batch": True})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_sum_as_relax_writes_it(dtype):
    options = {
        **RAGGED,
        "dtype": dtype,
        "acc_dtype": dtype,
        "out_dtype": dtype,
        "cast": "none",
        "index": "int64",
        "batch": True,
        "layout": "NN",
        "m": "m",
        "epilogue": ("bias_col", "relu"),
        "k": 24,  # sums that bfloat16 holds
    }
    config = hs.MatmulConfig((64, 64, 64), stages=2, consumers=1, accumulate="float32")
    check(options, config, m=65)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("tile", "consumers"),
    [
        ((64, 64, 64), 2),
        ((128, 64, 32), 1),
        ((128, 64, 16), 2),
        ((192, 24, 64), 3),
        ((192, 64, 64), 2),
        ((64, 48, 64), 3),
    ],
)
def test_tiles_and_consumers(tile, consumers):
    check({"m": 200, "n": 72, "k": 72}, hs.MatmulConfig(tile, stages=1, consumers=consumers))


def test_loops_in_another_order():
    mod = workloads.matmul(**RAGGED)
    sch = s_tir.Schedule(mod)
    i, j, k = sch.get_loops("C")
    sch.reorder(k, j, i)
    hs.matmul(sch, sch.get_sblock("C"), SMALL)
    inputs = workloads.make_inputs(mod)
    np.testing.assert_array_equal(run_serially(sch.mod, inputs), workloads.reference(inputs))


def test_default_config():
    check({"m": 136, "n": 72, "k": 72, "layout": "TN", "epilogue": ("relu",)}, None)
