"""`hs.online`: the running form against float64, and what it looks like."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import te, tirx

from tests.schedule.attention.programs import Case, program, reference, run, values
from tvm_hopper import schedule as hs

TILE = (64, 32)
INF = float("inf")


def f32(x):
    return tirx.const(x, "float32")


def masked(condition, fill=-INF):
    """Return a score masked by a condition, and its reference."""

    def score(s, place, tensors):
        return tirx.Select(condition(*place[2:]), s * f32(0.25), f32(fill))

    def expected(s, place, tensors):
        return np.where(condition(*place[2:]), s * 0.25, fill)

    return {"score": score, "reference": expected}


def added(condition, fill=-INF):
    def score(s, place, tensors):
        return s * f32(0.25) + tirx.Select(condition(*place[2:]), f32(0), f32(fill))

    return {"score": score, "reference": masked(condition, fill)["reference"]}


def window(i, j):
    both = tirx.And if isinstance(i, tirx.Var) else np.logical_and
    return both(j <= i, j > i - 20)


RAGGED = {"n": 70, "m": 50}
CASES = {
    "plain": Case(),
    "ragged": Case(**RAGGED, v=24),
    "after": Case(**RAGGED, normalize="after", log_sum=True),
    "log_sum": Case(log_sum=True, m=80),
    "unrounded": Case(rounded=False),
    "float32": Case(dtype="float32", rounded=False),
    "grouped": Case(b=2, h=4, kv=2, n=20),
    "one_kv_head": Case(h=3, kv=1),
    "by_rows_first": Case(b=2, h=4, kv=2, layout="bshd", n=65),
    "one_row": Case(n=1, h=4, kv=2, m=80),
    "causal": Case(**masked(lambda i, j: j <= i), n=130, m=130),
    "causal_bottom_right": Case(**masked(lambda i, j: j <= i + 34), n=96, m=130, log_sum=True),
    "causal_other_way": Case(**masked(lambda i, j: i >= j), n=100, m=100),
    "causal_added": Case(**added(lambda i, j: j <= i), n=100, m=100),
    "causal_finite": Case(**masked(lambda i, j: j <= i, -1e9), n=100, m=100),
    "empty_rows": Case(**masked(lambda i, j: j <= i - 70), n=140, m=60),
    "empty_rows_finite": Case(**masked(lambda i, j: j <= i - 70, -1e9), n=140, m=60),
    "empty_rows_lowest": Case(**masked(lambda i, j: j <= i - 70, -65504.0), n=100, m=60),
    "window": Case(**masked(window), n=200, m=200),
    "softcap": Case(
        score=lambda s, p, t: te.tanh(s * f32(0.5) / f32(2)) * f32(2),
        reference=lambda s, p, t: np.tanh(s * 0.25) * 2,
    ),
    "bias": Case(
        **RAGGED,
        tensors={"bias": ((1, 2, 70, 50), "float16")},
        score=lambda s, p, t: s * f32(0.25) + t["bias"][0, p[1], p[2], p[3]].astype("float32"),
        reference=lambda s, p, t: s * 0.25 + t["bias"],
    ),
    "mask": Case(
        **RAGGED,
        tensors={"mask": ((1, 1, 70, 50), "bool")},
        score=lambda s, p, t: tirx.Select(t["mask"][0, 0, p[2], p[3]], s * f32(0.3), f32(-INF)),
        reference=lambda s, p, t: np.where(t["mask"], s * 0.3, -INF),
    ),
    "lengths": Case(
        b=2,
        m=100,
        tensors={"lengths": ((2,), "int32")},
        score=lambda s, p, t: tirx.if_then_else(p[3] < t["lengths"][p[0]], s, f32(-INF)),
        reference=lambda s, p, t: np.where(p[3] < t["lengths"][p[0]], s, -INF),
    ),
    "alibi": Case(
        tensors={"slopes": ((2,), "float32")},
        score=lambda s, p, t: s * f32(0.3) - t["slopes"][p[1]] * (p[2] - p[3]).astype("float32"),
        reference=lambda s, p, t: s * 0.3 - t["slopes"][p[1]] * (p[2] - p[3]),
    ),
    "hidden": Case(b=2, layout="bs(hd)", v=8, n=20),
    "packed": Case(b=2, h=4, kv=2, layout="bs(hd)", packed=True),
    "sink": Case(sink=True, tensors={"sink": ((2,), "float32")}, n=20, log_sum=True),
    "half_scores": Case(acc="float16", score=lambda s, p, t: s / te.sqrt(tirx.const(16, "float16")),
                        reference=lambda s, p, t: s / 4),
}  # fmt: skip


def check(case, mod=None, tile=TILE, tolerance=2e-3, **given):
    mod = program(case) if mod is None else mod
    arguments = values(case, **given)
    if "lengths" in arguments:
        arguments["lengths"] = np.array([0, 37], "int32")[: case.b] + 3
    got, got_lse = run(hs.online(mod, tile), case, arguments)
    want, lse = reference(case, arguments)
    np.testing.assert_allclose(got, want, atol=tolerance, rtol=tolerance)
    if case.log_sum:
        np.testing.assert_allclose(got_lse, lse, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_values(name):
    check(CASES[name])
