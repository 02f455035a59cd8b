"""Attention on a GPU against float64: random problems, configurations, poisoned outputs."""

from __future__ import annotations

import random

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from tests.schedule.attention.programs import Case, reference, values
from tests.schedule.attention.test_attention import H200, poisoned, scheduled
from tests.schedule.attention.test_online import f32

pytestmark = pytest.mark.gpu

STEPS = 29  # head dimensions 32 to 256 in steps of 8
PROBLEMS = 3 * STEPS
TOLERANCES = {"float16": 4e-3, "bfloat16": 2e-2}
INF = float("inf")
POISON = 777


def masked(condition, fill=-INF):
    """Return a score masked by a condition on query, key, and their offset; and its reference."""

    def make(n, m, scale):
        def score(s, place, tensors):
            return tirx.Select(condition(*place[2:], m - n), s * f32(scale), f32(fill))

        def expected(s, place, tensors):
            return np.where(condition(*place[2:], m - n), s * scale, fill)

        return {"score": score, "reference": expected}

    return make


def window(i, j, offset):
    both = tirx.And if isinstance(i, tirx.Var) else np.logical_and
    return both(j <= i + offset, j > i + offset - 77)


def plain(n, m, scale):
    return {"score": lambda s, *_: s * f32(scale), "reference": lambda s, *_: s * scale}


def softcap(n, m, scale):
    return {
        "score": lambda s, *_: te.tanh(s * f32(scale / 4)) * f32(4),
        "reference": lambda s, *_: np.tanh(s * scale / 4) * 4,
    }


def bias(n, m, scale):
    return {
        "tensors": {"bias": ((1, 1, n, m), "float16")},
        "score": lambda s, p, t: s * f32(scale) + t["bias"][0, 0, p[2], p[3]].astype("float32"),
        "reference": lambda s, p, t: s * scale + t["bias"],
    }


def mask(n, m, scale):
    return {
        "tensors": {"mask": ((1, 1, n, m), "bool")},
        "score": lambda s, p, t: tirx.Select(
            t["mask"][0, 0, p[2], p[3]], s * f32(scale), f32(-INF)
        ),
        "reference": lambda s, p, t: np.where(t["mask"], s * scale, -INF),
    }


KINDS = {
    "plain": plain,
    "causal": masked(lambda i, j, _: j <= i),
    "causal from the last": masked(lambda i, j, offset: j <= i + offset),
    "causal, finite": masked(lambda i, j, offset: j <= i + offset, -1e9),
    "window": masked(window),
    "softcap": softcap,
    "bias": bias,
    "mask": mask,
    "empty rows": masked(lambda i, j, _: j <= i - 70),
    "empty rows, finite": masked(lambda i, j, _: j <= i - 70, -1e9),
    "logits of 1e4": plain,
}


def draw(seed: int) -> tuple[str, Case]:
    """Draw a kind of score, and a problem of it: each head dimension in turn, lengths off tiles."""
    choose = random.Random(f"attention {seed}")
    kind = list(KINDS)[seed % len(KINDS)]
    d = 32 + 8 * (seed % STEPS)
    kv = choose.choice((1, 2, 3))
    n, m = (choose.choice((choose.randint(1, 400), 64 * choose.randint(1, 6))) for _ in "nm")
    n = max(n, 80) if "empty" in kind else n  # some rows see a key
    problem = {
        "b": choose.choice((1, 2)),
        "h": kv * choose.choice((1, 2, 4)),
        "kv": kv,
        "n": n,
        "m": m,
        "d": d,
        "v": choose.choice((d, d, 32 + 8 * choose.randrange(STEPS))),
        "dtype": choose.choice(tuple(TOLERANCES)),
        "layout": choose.choice(("bhsd", "bshd")),
        "normalize": choose.choice(("before", "after")),
        "log_sum": choose.random() < 0.3,
    }
    return kind, Case(**problem, **KINDS[kind](n, m, d**-0.5))


def compute(case, given, runs=1, **config):
    """Run a kernel on the GPU; returns its outputs, the same at each run."""
    if not tvm.cuda(0).exist or tvm.cuda(0).compute_version != "9.0":
        pytest.skip("no GPU of compute capability 9.0")
    run = tvm.compile(scheduled(case, **config).mod, target=H200)["main"]
    outputs = []
    for _ in range(runs):
        empty = [np.full_like(x, POISON) for x in poisoned(case).values()]
        tensors = [tvm.runtime.tensor(x, device=tvm.cuda(0)) for x in (*given.values(), *empty)]
        run(*tensors)
        outputs.append([x.numpy() for x in tensors[len(given) :]])
    for others in outputs[1:]:
        for one, other in zip(outputs[0], others, strict=True):
            np.testing.assert_array_equal(one.view("uint8"), other.view("uint8"))
    return outputs[0]


def check(case, found, given):
    """Compare outputs with float64, in units of the values' size."""
    out, lse = reference(case, given)
    size = abs(given["V"].astype("float64")).max()
    tolerance = TOLERANCES[case.dtype] * max(1, size / 4)
    np.testing.assert_allclose(found[0].astype("float64"), out, atol=tolerance, rtol=tolerance)
    if case.log_sum:
        some = np.isfinite(lse)  # of a row without a key it is -inf, or NaN as the plain program's
        np.testing.assert_allclose(found[1][some], lse[some], atol=1e-3, rtol=1e-5)
        assert not np.isfinite(found[1][~some]).any()


@pytest.mark.parametrize("splits", [None, 1, 2, 5])
@pytest.mark.parametrize("rows", [1, 3, 16])
def test_few_rows(rows, splits):
    """Heads that share keys are packed; parts of the keys are merged by a second kernel."""
    case = Case(b=2, h=8, kv=2, n=rows, m=1000, d=128, v=128, **plain(rows, 1000, 128**-0.5))
    given = values(case)
    check(case, compute(case, given, splits=splits), given)


@pytest.mark.parametrize("seed", range(PROBLEMS))
def test_random_problems(seed):
    kind, case = draw(seed)
    given = values(case, seed, 1e4 if kind == "logits of 1e4" else 1.0)
    check(case, compute(case, given), given)


@pytest.mark.parametrize(
    "config",
    [
        *({"overlap": x, "consumers": y} for x in (False, True) for y in (1, 2, 3)),
        {"stages": 1},
        {"stages": 3, "tile": (128, 64)},
        {"tile": (64, 16), "consumers": 1},
        {"tile": (192, 80), "consumers": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["plain", "causal from the last"])
def test_configurations(kind, config):
    """Many thread blocks, many steps, and the same bits each time: no race of the chip's."""
    n, m, d = 1000, 1500, 64
    case = Case(b=2, h=8, kv=2, n=n, m=m, d=d, v=d, **KINDS[kind](n, m, d**-0.5))
    given = values(case)
    check(case, compute(case, given, runs=10, **config), given)
