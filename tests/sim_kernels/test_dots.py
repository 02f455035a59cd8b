"""Products of few rows as dot products, in the simulator: values of every form, the one barrier."""

import ml_dtypes
import numpy as np
import pytest
from tvm import s_tir

from tests.sim_kernels.mutate import change
from tvm_hopper import schedule as hs
from tvm_hopper.simulation import load, simulate, verify
from tvm_hopper.testing import workloads

ONE_WARP, TWO_WARPS = hs.DotShape(32, 2, 2, 2), hs.DotShape(64, 1, 2, 1)
FORMS = {  # m, n, k, dots, other arguments of the workload
    "one row": (1, 16, 1024, hs.DotShape(32, 4, 1, 4), {}),
    "ends within a vector of a thread": (1, 9, 520, ONE_WARP, {"dtype": "float16"}),
    "several warps a sum, three rows": (3, 6, 1000, TWO_WARPS, {}),
    "eight rows": (8, 5, 264, ONE_WARP, {"out_dtype": "float32"}),
    "what follows it": (
        *(2, 12, 512, ONE_WARP),
        {"epilogue": ("bias_col", "residual", "silu")},
    ),
    "a batch of one, long indices": (2, 8, 512, TWO_WARPS, {"batch": True, "index": "int64"}),
    "factors the other way round": (1, 8, 512, ONE_WARP, {"swap": True, "cast_stage": True}),
}


def scheduled(m, n, k, dots, form=None, classes=None):
    mod = workloads.matmul(m, n, k, "NT", **{"dtype": "bfloat16", "out_dtype": "bfloat16"} | form)
    sch = s_tir.Schedule(mod)
    if classes is None:
        hs.matmul(sch, "C", hs.MatmulConfig(form=dots, accumulate="float32"))
    else:
        hs.matmul(sch, "C", classes=classes)
    return mod, sch


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("name", FORMS)
def test_forms(name):
    mod, sch = scheduled(*FORMS[name])
    verify(sch, against=mod).require_clean()


def test_a_sum_in_16_bits_is_one_in_float32():
    narrow = {"acc_dtype": "float16", "dtype": "float16", "out_dtype": "float16", "cast": "none"}
    mod, sch = scheduled(2, 8, 2048, ONE_WARP, narrow | {"epilogue": ("scale",)})
    assert verify(sch, against=mod).verdict == "clean"
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((2, 2048), (8, 2048)))
    *_, got = simulate(sch, {"A": a, "B": b}).outputs.values()
    want = (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.float16) * np.float16(0.125)
    np.testing.assert_array_equal(got, want)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_a_size_class_of_them(rows):
    few = hs.MatmulConfig(form=hs.DotShape(32, 2, 1, 2))
    classes = {2: few, 64: hs.MatmulConfig((64, 64, 64), stages=2, consumers=1)}
    mod, sch = scheduled("m", 64, 512, None, {}, classes)
    a = np.random.default_rng(1).standard_normal((rows, 512)).astype(ml_dtypes.bfloat16)
    assert verify(sch, against=mod, inputs={"A": a}).verdict == "clean"


def test_more_rows_than_the_one_kernel_was_chosen_for():
    mod = workloads.matmul("m", 16, 512, "NT", "bfloat16", "bfloat16")
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig(form=ONE_WARP), rows=2)
    a = np.random.default_rng(1).standard_normal((5, 512)).astype(ml_dtypes.bfloat16)
    assert verify(sch, against=mod, inputs={"A": a}).verdict == "clean"


@pytest.mark.parametrize("rows", [1, 3])
def test_without_the_barrier_the_simulator_objects(rows):
    program = load(scheduled(rows, 4, 512, TWO_WARPS, {})[1])
    inputs = {
        "A": np.zeros((rows, 512), ml_dtypes.bfloat16),
        "B": np.zeros((4, 512), ml_dtypes.bfloat16),
    }
    assert not simulate(program, inputs).findings
    found = simulate(change(program, "tvm_storage_sync"), inputs).findings
    assert any(f.rule.startswith("RACE") for f in found), found
