"""`hs.online`: the running form against float64, and what it looks like."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tvm import te, tirx

from tests.schedule.attention.programs import Case, program, reference, run, values
from tvm_hopper import ir, schedule as hs
from tvm_hopper.schedule import origins
from tvm_hopper.schedule.attention.apply import attention_shape
from tvm_hopper.schedule.attention.online import ONLINE

TILE = (128, 32), 2
SMALL = (64, 32), 1
INF = float("inf")
LOWEST = float(np.finfo("float32").min)


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
    "ragged": Case(**RAGGED, d=20, v=24),
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
    "causal_lowest_added": Case(**added(lambda i, j: j <= i, LOWEST), n=100, m=100),
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
    "mask_of_keys": Case(
        **{"n": 70, "m": 110, "h": 2, "kv": 1},
        tensors={"mask": ((1, 110), "bool")},
        score=lambda s, p, t: tirx.Select(
            tirx.And(p[3] - p[2] <= 30, t["mask"][p[0], p[3]]), s * f32(0.3), f32(-INF)
        ),
        reference=lambda s, p, t: np.where((p[3] - p[2] <= 30) & t["mask"], s * 0.3, -INF),
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
    "base_two": Case(base_two=True),
    "hidden": Case(b=2, layout="bs(hd)", v=8, n=20),
    "packed": Case(b=2, h=4, kv=2, layout="bs(hd)", packed=True),
    "sink": Case(sink=True, tensors={"sink": ((2,), "float32")}, n=20, log_sum=True),
    "half_scores": Case(acc="float16", score=lambda s, p, t: s / te.sqrt(tirx.const(16, "float16")),
                        reference=lambda s, p, t: s / 4),
}  # fmt: skip


def check(case, tile=TILE, tolerance=2e-3, **given):
    arguments = values(case, **given)
    if "lengths" in arguments:
        arguments["lengths"] = np.array([0, 37], "int32")[: case.b] + 3
    got, got_lse = run(hs.online(program(case), *tile), case, arguments)
    want, lse = reference(case, arguments)
    np.testing.assert_allclose(got, want, atol=tolerance, rtol=tolerance)
    if case.log_sum:
        np.testing.assert_allclose(got_lse, lse, atol=1e-4, rtol=1e-4)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", CASES)
def test_values(name):
    check(CASES[name])


@pytest.mark.parametrize(
    ("name", "fill"),
    [
        ("causal", "-inf"),
        ("causal_added", "-inf"),
        ("causal_finite", "-inf"),
        ("empty_rows_finite", "-1000000000.0"),
        ("empty_rows_lowest", "-65504.0"),
    ],
)
def test_finite_masks_are_infinite_where_no_row_is_empty(name, fill):
    """A row without a key has the mean of the values otherwise, as in the program."""
    func = hs.online(program(CASES[name]), *SMALL)["main"]
    (scores,) = ir.find_all(func, ir.SBlock, lambda x: x.name_hint == "scores")
    text = scores.body.script().splitlines()[-1]
    assert f"T.float32({fill})" in text or f'T.float32("{fill}")' in text


def test_large_logits():
    """Scores of 1e4, next to each other and far apart, overflow nothing."""
    check(CASES["causal"], scale=1e4)


def test_masked_keys_do_not_matter():
    """Whatever the keys behind a mask hold, also of tiles that are not left out."""
    case = CASES["causal_added"]
    given = values(case)
    want, _ = reference(case, given)
    given["K"][:, :, 37:] = np.nan
    got, _ = run(hs.online(program(case), *TILE), case, given)
    np.testing.assert_allclose(got[:, :, :37], want[:, :, :37], atol=2e-3)


def loop_over_keys(case, tile=SMALL):
    """Return the first step and the number of steps for each tile of rows."""
    func = hs.online(program(case), *tile)["main"]
    (loop,) = ir.find_all(func, ir.For, lambda x: x.loop_var.name == "j0")
    (tile_block,) = ir.find_all(func, ir.SBlock, lambda x: x.name_hint == "tile")
    (step,) = ir.find_all(func, ir.SBlockRealize, lambda x: x.block.name_hint == "step")
    first = ir.substitute(step.iter_values[0], {loop.loop_var: 0})
    row = tile_block.iter_vars[-2]
    values = [
        [int(ir.simplify(ir.substitute(x, {row.var: i}))) for x in (first, loop.extent)]
        for i in range(int(row.dom.extent))
    ]
    return [tuple(x) for x in values]


def test_steps_that_masks_leave():
    assert loop_over_keys(CASES["causal"]) == [(0, 2), (0, 4), (0, 5)]
    assert loop_over_keys(CASES["causal_bottom_right"]) == [(0, 4), (0, 5)]
    assert loop_over_keys(CASES["causal_other_way"]) == [(0, 2), (0, 4)]
    assert loop_over_keys(CASES["causal_added"]) == [(0, 2), (0, 4)]
    assert loop_over_keys(CASES["causal_finite"]) == [(0, 2), (0, 4)]
    assert loop_over_keys(CASES["empty_rows"]) == [(0, 0), (0, 2), (0, 2)]
    assert loop_over_keys(CASES["empty_rows_finite"]) == [(0, 2), (0, 2), (0, 2)]
    assert loop_over_keys(CASES["window"]) == [(0, 2), (1, 3), (3, 3), (5, 2)]
    assert loop_over_keys(CASES["mask"]) == [(0, 2), (0, 2)]
    diagonal = Case(n=200, m=200, **masked(lambda i, j: 2 * j <= i + 7))
    assert loop_over_keys(diagonal) == [(0, 2), (0, 3), (0, 4), (0, 4)]


def test_plain_program_is_noted():
    mod = program(CASES["plain"])
    assert origins.plain_of(hs.online(mod)).same_as(mod)
    func = hs.online(mod["main"], (128, 64))
    assert [*func.attrs[ONLINE]] == [128, 64, 2, 1, 0]


def test_probabilities():
    """Weights multiply in the type that the program rounds them to, or in a given one."""

    def weights(case, **options):
        func = hs.online(program(case), *TILE, **options)["main"]
        (buffer,) = {x.buffer for x in ir.find_all(func, ir.BufferStore) if x.buffer.name == "P"}
        return ir.dtype_of(buffer)

    assert weights(CASES["plain"]) == "float16"
    assert weights(CASES["unrounded"]) == "float32"
    assert weights(CASES["unrounded"], probabilities="float16") == "float16"


AFTER = """
Q_tile: Q_tile[vb, vh, vi, vk] = Q[0, vh, vi, vk]
row_max_init: row_max[vi] = -inf
row_sum_init: row_sum[vi] = 0.0
acc_init: acc[vi, vc] = 0.0
K_tile: K_tile[vj, vk] = T.if_then_else(vj0 * 32 + vj < 70, K[0, 0, vj0 * 32 + vj, vk], 0.0)
V_tile: V_tile[vj, vc] = T.if_then_else(vj0 * 32 + vj < 70, V[0, 0, vj0 * 32 + vj, vc], 0.0)
S_init: S[vi, vj] = 0.0
S: S[vi, vj] = S[vi, vj] + f32(Q_tile[vb, vh, ROW, vk]) * f32(K_tile[vj, vk])
scores: S[vi, vj] = T.Select(KEY < 70, T.Select(KEY <= ROW, S[vi, vj], -inf), -inf)
old_max: old_max[vi] = row_max[vi]
row_max: row_max[vi] = T.max(row_max[vi], S[vi, vj])
offset: offset[vi] = T.Select(row_max[vi] == -inf, 0.0, row_max[vi] * -0.36067376022224085)
rescale: rescale[vi] = T.exp2(T.fma(old_max[vi], 0.36067376022224085, offset[vi]))
exponentials: S[vi, vj] = T.exp2(T.fma(S[vi, vj], 0.36067376022224085, offset[vi]))
row_sum_rescale: row_sum[vi] = row_sum[vi] * rescale[vi]
row_sum: row_sum[vi] = row_sum[vi] + S[vi, vj]
P: P[vi, vj] = f16(S[vi, vj])
acc_rescale: acc[vi, vc] = acc[vi, vc] * rescale[vi]
O: acc[vi, vc] = acc[vi, vc] + f32(P[vi, vj]) * f32(V_tile[vj, vc])
out: out[vb, vh, ROW, vc] = f16(acc[vi, vc] * (1.0 / row_sum[vi]))
lse: lse[vb, vh, ROW] = row_max[vi] * 0.25 + T.log(row_sum[vi])
"""
PLACES = {"ROW": "(vi0 * 2 + vi1) * 64 + vi", "KEY": "vj0 * 32 + vj"}


def test_running_form():
    """Before: S, T, M, E, L, P and O over all keys; after: each of them in steps of 32."""
    case = Case(b=1, h=2, kv=1, n=256, m=70, **masked(lambda i, j: j <= i), log_sum=True)
    func = hs.online(program(case), *TILE)["main"]
    lines = []
    for block in ir.find_all(func, ir.SBlock, lambda x: isinstance(x.body, ir.BufferStore)):
        text = block.body.script().splitlines()[-1]
        text = re.sub(r'T\.float(?:16|32)\("?(-?[\w.]+)"?\)', r"\1", text)
        text = re.sub(r'T\.Cast\("float(\d+)", ', r"f\1(", text)
        lines.append(f"{block.name_hint}: {text}")
    after = AFTER
    for name, place in PLACES.items():
        after = after.replace(name, place)
    assert lines == after.strip().splitlines()
    (step,) = ir.find_all(func, ir.SBlock, lambda x: x.name_hint == "step")
    assert step.iter_vars[0].iter_type == tirx.IterVar.CommReduce
    found = ir.find_all(func, ir.SBlockRealize, lambda x: x.block.name_hint == "scores")
    edges = "vj0 * 32 + 32 - 1 >= vi0 * 128 + 1 or vj0 * 32 + 32 > 70"
    assert str(found[0].predicate) == edges


def test_long_tiles_start_first():
    """Where later rows see more keys."""

    def order(case):
        func = hs.online(program(case), *SMALL)["main"]
        (tile,) = ir.find_all(func, ir.SBlockRealize, lambda x: x.block.name_hint == "tile")
        return str(tile.iter_values[-2])

    assert order(CASES["causal"]) == "2 - i0"
    assert [order(CASES[x]) for x in ("plain", "window", "mask")] == ["i0"] * 3


def test_masked_steps():
    """Which steps reach a mask is known where masks are all that is done to scores."""

    def predicate(case):
        func = hs.online(program(case), *SMALL)["main"]
        (found,) = ir.find_all(func, ir.SBlockRealize, lambda x: x.block.name_hint == "scores")
        return str(found.predicate)

    assert predicate(CASES["window"]) == (
        "vj0 * 32 + 32 - 1 >= vi0 * 64 + 1 or vj0 * 32 <= vi0 * 64 + 43 or vj0 * 32 + 32 > 200"
    )
    causal = "vj0 * 32 + 32 - 1 >= vi0 * 64 + 1 or vj0 * 32 + 32 > 100"
    assert predicate(CASES["causal_lowest_added"]) == predicate(CASES["causal_finite"]) == causal
    assert predicate(CASES["ragged"]) == "vj0 * 32 + 32 > 50"
    for name in ("bias", "mask", "softcap", "alibi"):
        assert predicate(CASES[name]) == "T.bool(True)"


def test_rows_are_multiplied_by_the_reciprocal_of_their_sum():
    """All columns share it; a division of each would be a branch of each."""
    text = hs.online(program(CASES["causal"]))["main"].script()
    assert "acc[vi, vc] * (T.float32(1.0) / row_sum[vi])" in text
    assert text.count("/ row_sum[vi]") == 1


@pytest.mark.parametrize(
    ("name", "band"), [("causal", (None, 1)), ("window", (-19, 1)), ("mask", (None, None))]
)
def test_the_band_of_keys_that_rows_see(name, band):
    assert attention_shape(program(CASES[name])["main"]).band == band
