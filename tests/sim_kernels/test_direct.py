"""Few rows whose warps load what they multiply, in the simulator: every form, the one barrier."""

import ml_dtypes
import numpy as np
import pytest
from tvm import s_tir

from tests.sim_kernels.mutate import change
from tvm_hopper import schedule as hs
from tvm_hopper.simulation import load, simulate, verify
from tvm_hopper.testing import workloads

ONE_WARP, FOUR_WARPS = hs.DirectShape(1, 16, 64), hs.DirectShape(4, 32, 32)
ALONG_ROWS = hs.DirectShape(8, 64, 32)
FORMS = {  # m, n, k, layout, direct, other arguments of the workload
    "eight rows": (8, 32, 256, "NT", FOUR_WARPS, {}),
    "what no tile divides": (5, 40, 200, "NT", FOUR_WARPS, {"dtype": "float16"}),
    "one warp, more rows than a tile": (9, 24, 136, "NT", ONE_WARP, {"out_dtype": "float32"}),
    "B along its rows": (8, 128, 512, "NN", ALONG_ROWS, {}),
    "B along its rows, ragged": (3, 72, 104, "NN", ALONG_ROWS, {}),
    "A along its columns": (8, 64, 64, "TT", FOUR_WARPS, {}),
    "both": (24, 64, 96, "TN", ALONG_ROWS, {}),
    "what follows it": (
        *(2, 24, 128, "NT", FOUR_WARPS),
        {"epilogue": ("bias_col", "residual", "silu")},
    ),
    "a batch of one, long indices": (
        *(2, 16, 128, "NT", ONE_WARP),
        {"batch": True, "index": "int64"},
    ),
    "factors the other way round": (1, 16, 128, "NT", ONE_WARP, {"swap": True, "cast_stage": True}),
    "a sum in 16 bits": (
        *(2, 16, 128, "NT", ONE_WARP),
        {"acc_dtype": "float16", "dtype": "float16", "out_dtype": "float16", "cast": "none"},
    ),
}


def scheduled(m, n, k, layout, direct, form, **more):
    form = {"dtype": "bfloat16", "out_dtype": "bfloat16"} | form
    mod = workloads.matmul(m, n, k, layout, **form)
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig(form=direct, accumulate="float32", **more))
    return mod, sch


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("name", FORMS)
def test_forms(name):
    mod, sch = scheduled(*FORMS[name])
    verify(sch, against=mod).require_clean()


def test_weights_that_are_loaded_early():
    mod, sch = scheduled(8, 32, 256, "NT", FOUR_WARPS, {}, early_launch="weights")
    assert verify(sch, against=mod).verdict == "clean"


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("rows", [0, 1, 11])
def test_a_size_class_of_them(rows):
    mod = workloads.matmul("m", 32, 128, "NT", "bfloat16", "bfloat16")
    sch = s_tir.Schedule(mod)
    tiles = hs.MatmulConfig((64, 64, 64), stages=2, consumers=1)
    hs.matmul(sch, "C", classes={8: hs.MatmulConfig(form=FOUR_WARPS), 64: tiles})
    a = np.random.default_rng(1).standard_normal((rows, 128)).astype(ml_dtypes.bfloat16)
    assert verify(sch, against=mod, inputs={"A": a}).verdict == "clean"


def test_without_the_barrier_the_simulator_objects():
    program = load(scheduled(8, 32, 128, "NT", FOUR_WARPS, {})[1])
    zeros = {x: np.zeros(s, ml_dtypes.bfloat16) for x, s in (("A", (8, 128)), ("B", (32, 128)))}
    assert not simulate(program, zeros).findings
    found = simulate(change(program, "tvm_storage_sync"), zeros).findings
    assert any(f.rule.startswith("RACE") for f in found), found
