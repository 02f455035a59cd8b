"""Matmuls of our own lowering, simulated: a pairwise cover of trips, stages, edges and layouts.

Integer-valued inputs make every order of accumulation exact, so the product must be equal.
"""

import ml_dtypes
import numpy as np
import pytest
from tvm import s_tir

from benchmarks.covering import pairwise
from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.simulation import load, simulate
from tvm_hopper.testing import workloads

FACTORS = {
    "stages": (1, 2, 3, 4),
    "trips": ("1", "S-1", "S", "S+1", "2S-1", "2S+1"),
    "rest_m": (0, 1, 8, 57, 63),
    "rest_n": (0, 8, 56),
    "rest_k": (0, 8, 56),
    "consumers": (1, 2),
    "layout": ("NT", "NN", "TN", "TT"),
    "dtype": ("float16", "bfloat16"),
    "out_dtype": ("float32", "float16"),
    "policy": ("on_wait", "random", "lifo", "starve:consumer"),
}


def trips_of(word, stages):
    return max(1, {"1": 1}.get(word) or eval(word.replace("2S", "2*S"), {"S": stages}))


CASES = pairwise(FACTORS)


def run(case, policy, seed=1):
    tile_m = 64 * case["consumers"]
    m, n = tile_m + case["rest_m"], 64 + case["rest_n"]
    k = trips_of(case["trips"], case["stages"]) * 64 - (64 - case["rest_k"]) % 64
    layout = case["layout"]
    inner = [m if layout[0] == "T" else k, k if layout[1] == "T" else n]
    mod = workloads.matmul(m, n, k, layout, case["dtype"], case["out_dtype"])
    sch = s_tir.Schedule(mod)
    config = hs.MatmulConfig(
        tile=(tile_m, 64, 64), stages=case["stages"], consumers=case["consumers"]
    )
    if any(extent % 8 for extent in inner):
        with pytest.raises(ScheduleError, match="16"):
            hs.matmul(sch, "C", config)
        return
    hs.matmul(sch, "C", config)
    program = load(sch.mod)
    kind = np.dtype(getattr(ml_dtypes, case["dtype"], case["dtype"]))
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(-2, 3, shape).astype(kind) for shape in ((m, k), (n, k)))
    names = [argument.name for argument in program.arguments]
    given = {
        names[0]: a.T.copy() if layout[0] == "T" else a,
        names[1]: b if layout[1] == "T" else b.T.copy(),
    }
    result = simulate(program, given, policy=policy, seed=seed).require_clean()
    want = a.astype("float64") @ b.astype("float64").T
    assert np.array_equal(result.outputs[names[2]].astype("float64"), want)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c.values())))
def test_the_product_is_exact_and_the_protocol_clean(case):
    run(case, case["policy"])


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["eager", "on_wait", "lifo", "random", "starve:producer"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c.values())))
def test_every_policy_agrees(case, policy):
    run(case, policy, seed=7)
