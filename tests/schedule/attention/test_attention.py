"""`hs.attention`: values in the simulator against float64, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from tvm import s_tir

from tests.schedule.attention.programs import Case, program, reference, shape, values
from tests.schedule.attention.test_online import CASES, masked
from tvm_hopper import schedule as hs
from tvm_hopper.simulation import simulate, verify

H200 = "nvidia/nvidia-h200"
SMALL = {"tile": (64, 32), "consumers": 1}


def scheduled(case, **config):
    """Return the schedule of a case's kernel."""
    sch = s_tir.Schedule(hs.online(program(case)))
    hs.attention(sch, hs.AttentionConfig(**config))
    return sch


def poisoned(case):
    """Return outputs full of NaN, by name."""
    found = {"out": np.full(shape(case, case.h, case.n, case.v), np.nan, case.dtype)}
    if case.log_sum:
        found["lse"] = np.full((case.b, case.h, case.n), np.nan, "float32")
    return found


def check(case, **config):
    """Simulate a kernel, and compare its values with float64."""
    given = values(case)
    done = simulate(scheduled(case, **config).mod, {**given, **poisoned(case)}, target=H200)
    assert done.findings == ()
    out, lse = reference(case, given)
    tolerance = 1e-2 if case.dtype == "bfloat16" else 2e-3
    got = done.outputs["out"].astype("float64")
    np.testing.assert_allclose(got, out, atol=tolerance, rtol=tolerance)
    if case.log_sum:
        np.testing.assert_allclose(done.outputs["lse"], lse, atol=1e-4, rtol=1e-4)


ONE = Case(h=1, kv=1, d=64, v=64)
CAUSAL = masked(lambda i, j: j <= i)
KERNELS = {
    "plain": (replace(ONE, n=128, m=96), {}),
    "no overlap": (replace(ONE, n=128, m=96), {"overlap": False, "tile": (128, 48)}),
    "one stage": (replace(ONE, m=96), {"stages": 1, **SMALL}),
    "three stages": (replace(ONE, m=160), {"stages": 3, **SMALL}),
    "three consumers": (replace(ONE, n=192), {"consumers": 3, "tile": (192, 32)}),
    "ragged": (replace(ONE, n=70, m=50), {}),
    "few rows": (replace(ONE, n=2, m=40), SMALL),
    "one step": (replace(ONE, m=16), SMALL),
    "causal": (replace(ONE, n=130, m=130, **CAUSAL), SMALL),
    "causal from the last": (
        replace(ONE, n=70, m=104, **masked(lambda i, j: j <= i + 34), log_sum=True),
        SMALL,
    ),
    "empty rows": (replace(ONE, n=100, m=40, **masked(lambda i, j: j <= i - 70, -1e9)), SMALL),
    "grouped, rows first": (
        Case(h=4, kv=2, d=32, v=32, layout="bshd", dtype="bfloat16"),
        {**SMALL, "tile": (64, 64)},
    ),
    "window": (replace(CASES["window"], h=1, kv=1, d=32, v=32, n=130, m=130), SMALL),
    "softcap": (replace(CASES["softcap"], h=1, kv=1, d=32, v=32), SMALL),
    "bias": (replace(CASES["bias"], d=32, v=32), SMALL),
    "mask": (replace(CASES["mask"], d=32, v=32), SMALL),
    "sink": (replace(CASES["sink"], d=32, v=32), SMALL),
    **{
        f"columns {d} and {v}": (replace(ONE, n=64, m=32, d=d, v=v), SMALL)
        for d, v in ((40, 40), (72, 104), (192, 128), (200, 248), (256, 256))
    },
}


@pytest.mark.parametrize("name", KERNELS)
def test_values(name):
    case, config = KERNELS[name]
    check(case, **config)
