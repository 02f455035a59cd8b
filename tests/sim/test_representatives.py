"""CTAs whose values speak for all others: of each kind as many as span what its CTAs address."""

import re

import numpy as np
import pytest
from tvm import s_tir, tirx
from tvm.script import tirx as T

from tvm_hopper import schedule as hs
from tvm_hopper.sim.kinds.representatives import representatives
from tvm_hopper.sim.launch.arguments import complete
from tvm_hopper.sim.launch.host import evaluate
from tvm_hopper.simulation import load, verify
from tvm_hopper.testing import workloads
from tvm_hopper.verification import values
from tvm_hopper.verification.launches import bound_launches

from .kernels import lower
from .test_kinds import random_expression

GRID = 60


def found(program):
    arguments, _ = complete(program.arguments, {})
    *_, launch = bound_launches(program, arguments, 132)
    return representatives(launch.func, launch.setup)


def kernel(body, grid=GRID):
    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((20000,), "float32"), rows: T.Buffer((GRID,), "int32"),
        C: T.Buffer((20000,), "float32"),
    ):  # fmt: skip
        bx = T.launch_thread("blockIdx.x", grid)
        tx = T.launch_thread("threadIdx.x", 32)
        if body == "affine":
            C[bx * 32 + tx] = A[bx * 64 + tx] * T.float32(2)
        if body == "other scale for one":
            C[bx * 32 + tx] = A[bx * 64 + tx] * T.Select(bx == 41, T.float32(3), T.float32(2))
        if body == "other place for one":
            C[bx * 32 + tx] = A[T.Select(bx == 41, 40, bx) * 64 + tx]
        if body == "a name":
            row: T.let[T.int32] = T.min(bx, 57)
            C[bx * 32 + tx] = A[row * 64 + tx]
        if body == "condition" and bx * 32 + tx < 1900:
            C[bx * 32 + tx] = A[bx * 32 + tx]
        if body == "remainder":
            C[bx * 32 + tx] = A[bx % 4 * 64 + tx]
        if body == "remainder with threads":
            C[bx * 32 + tx] = A[(bx * 16 + tx) % 48]
        if body == "quotient":
            C[bx * 32 + tx] = A[bx // 4 * 64 + bx % 4 * 8 + tx]
        if body == "other quotient":
            C[bx // 4 * 128 + bx % 4 * 32 + tx] = A[bx // 5 * 64 + bx % 4 * 8 + tx]
        if body == "tiles":
            for t in T.serial((130 - bx + GRID - 1) // GRID):
                C[(bx + t * GRID) * 32 + tx] = A[(bx + t * GRID) // 8 * 64 + tx]
        if body == "another tile for one":
            for t in T.serial(2):
                C[(bx + t * GRID) * 32 + tx] = A[
                    (bx + t * GRID + T.Select(T.And(bx == 41, t == 1), 1, 0)) * 64 + tx
                ]
        if body == "table":
            C[bx * 32 + tx] = A[rows[bx] * 64 + tx]
        if body == "a value":
            C[bx * 32 + tx] = T.Cast("float32", bx * bx)

    return lower(main)


@pytest.mark.parametrize(
    ("body", "kinds", "count"),
    [
        ("affine", 1, 3),  # two and the last
        ("other scale for one", 2, 4),
        ("other place for one", 2, 4),
        ("a name", 2, 6),
        ("condition", 2, 4),  # all of it, or 12 of 32
        ("remainder", 1, 4),  # bx and bx % 4 are apart
        ("remainder with threads", 1, 5),
        ("quotient", 1, 4),
        ("other quotient", 1, 4),
        ("tiles", 2, None),  # three turns, or two
        ("another tile for one", 2, 4),
        ("table", 1, 3),
        ("a value", 1, 4),
    ],
)
def test_kinds_and_what_spans_them(body, kinds, count):
    got = found(kernel(body))
    assert got.kinds == kinds
    assert count is None or len(got.blocks) == count, got.blocks
    if "for one" in body:
        assert (41, 0, 0) in got.blocks


@pytest.mark.parametrize("seed", range(12))
def test_every_cta_is_an_affine_combination_of_those_that_speak(seed):
    """What indices are, for each thread: of CTAs that take the same branches."""
    rng = np.random.default_rng(seed)
    x, t = tirx.Var("x", "int32"), tirx.Var("t", "int32")
    place, bound = (random_expression(rng, [x, t]) for _ in "ab")
    buffer = tirx.decl_buffer((1 << 20,), "float32", name="B")
    store = tirx.BufferStore(buffer, tirx.const(1.0, "float32"), [place])
    body = tirx.IfThenElse(bound < 5, store, None)
    for var, tag, extent in ((t, "threadIdx.x", 6), (x, "blockIdx.x", 24)):
        axis = tirx.IterVar((0, extent), var, tirx.IterVar.ThreadIndex, tag)
        body = tirx.AttrStmt(axis, "thread_extent", tirx.IntImm("int32", extent), body)
    setup = {"params": {}, "grid": (24, 1, 1), "cluster": (1, 1, 1)}
    got = representatives(tirx.PrimFunc([buffer], body), setup)

    def table(expr):
        return np.array(
            [[int(evaluate(expr, {x: i, t: j}, {}, {})) for j in range(6)] for i in range(24)]
        )

    places, taken = table(place), table(bound < 5)
    chosen = [block[0] for block in got.blocks]
    for kind in range(got.kinds):
        members = np.flatnonzero(got.label == kind)
        assert len(np.unique(taken[members], axis=0)) == 1
        speak = [i for i in chosen if got.label[i] == kind]
        base = np.hstack([places[speak], np.ones((len(speak), 1))]).T  # of the combination: 1
        for i in members:
            wanted = np.append(places[i], 1)
            weights = np.linalg.lstsq(base, wanted, rcond=None)[0]
            assert np.allclose(base @ weights, wanted, atol=1e-6)


def test_boxes_that_are_cut_off_are_a_kind_and_so_are_ranks_of_a_cluster():
    def product(m, **config):
        sch = s_tir.Schedule(workloads.matmul(m, 256, 64))
        tile = {"tile": (64, 64, 32), "stages": 2, "consumers": 1}
        hs.matmul(sch, "C", hs.MatmulConfig(**tile, **config))
        return found(load(sch.mod))

    whole, cut, pairs = product(512), product(500), product(512, cluster=(2, 1))
    assert (whole.kinds, len(whole.blocks)) == (1, 6)  # a corner, two beside it, three at ends
    assert cut.kinds > 1
    assert pairs.kinds == 2


def chain(wrong, rows=40):
    """Double, sum each row, and add the sum: of each launch one CTA may be wrong."""

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((rows * 32,), "float32"), Y: T.Buffer((rows * 32,), "float32")):
        W = T.alloc_buffer((rows * 32,), "float32")
        V = T.alloc_buffer((rows,), "float32")
        with T.attr(T.int32(0), "first", 1):
            a = T.launch_thread("blockIdx.x", rows)
            tx = T.launch_thread("threadIdx.x", 32)
            if wrong == "value":
                W[a * 32 + tx] = X[a * 32 + tx] * T.Select(a == 21, T.float32(3), T.float32(2))
            elif wrong != "store" or a != 21 or tx != 5:
                W[a * 32 + tx] = X[a * 32 + tx] * T.float32(2)
        with T.attr(T.int32(0), "second", 1):
            b = T.launch_thread("blockIdx.x", rows)
            T.launch_thread("threadIdx.x", 1)
            s = T.alloc_buffer((1,), "float32", scope="local")
            s[0] = T.float32(0)
            for i in T.serial(32):
                if wrong == "row":
                    s[0] = s[0] + W[T.Select(T.And(b == 21, i == 7), 0, b) * 32 + i]
                else:
                    s[0] = s[0] + W[b * 32 + i]
            V[b] = s[0]
        with T.attr(T.int32(0), "third", 1):
            c = T.launch_thread("blockIdx.x", rows)
            tz = T.launch_thread("threadIdx.x", 32)
            Y[c * 32 + tz] = X[c * 32 + tz] + V[c]

    return main


@pytest.mark.parametrize(
    ("wrong", "rule"), [("", ""), ("value", "WRONG_VALUE"), ("store", "UNINIT_READ"),
                        ("row", "WRONG_VALUE")],
)  # fmt: skip
def test_kinds_go_on_from_launch_to_launch(monkeypatch, wrong, rule):
    """What one CTA of an earlier launch does is seen in the one CTA that it feeds."""
    monkeypatch.setattr(values, "LITTLE", 0)
    report = verify(lower(chain(wrong)), runs=(("eager", 0),), against=chained())
    assert rule in {f.rule for f in report.findings} or not (rule or report.findings), str(report)
    found = int(re.search(r"on integers (\d+) of 1280", report.values.text)[1])
    assert found <= 12 * 32  # and not all of them run


def chained():
    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((1280,), "float32"), Y: T.Buffer((1280,), "float32")):
        V = T.alloc_buffer((40,), "float32")
        for i, j in T.grid(40, 32):
            V[i] = T.if_then_else(j == 0, T.float32(0), V[i]) + X[i * 32 + j] * T.float32(2)
        for i in T.serial(1280):
            Y[i] = X[i] + V[i // 32]

    return main


def test_symbolic_products_of_many_persistent_blocks_have_a_verdict():
    """Which rows a tile has is decided tile by tile, along a curve: (bx + t * grid) // 256 ..."""
    from tvm.target import Target

    from tvm_hopper.sim.cta_selection import choose_blocks

    mod = workloads.matmul("m", 2048, 128, layout="NT", dtype="float16", out_dtype="float16")
    with Target("nvidia/nvidia-h200"):
        sch = s_tir.Schedule(mod)
        hs.matmul(sch, "C")
        program = load(sch)
    for m in (333, 4000):
        given, _ = complete(program.arguments, {"A": np.zeros((m, 128), "float16")})
        (launch,) = bound_launches(program, given, 132)
        choice = choose_blocks(launch.func, launch.setup, 8)
        assert choice.total > 32
        assert choice.covered, choice.reason
