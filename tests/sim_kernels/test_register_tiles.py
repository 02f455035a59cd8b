"""Statements over several register tiles: local buffers that are computed with a product."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
import tvm
from tvm import s_tir, te

from tvm_hopper import schedule as hs
from tvm_hopper.schedule import steps
from tvm_hopper.simulation import simulate, verify

M, N, K = 128, 48, 32


def product():
    """Return the arguments and the sum of C = A B^T."""
    a, b = (te.placeholder((x, K), "float16", y) for x, y in ((M, "A"), (N, "B")))
    k = te.reduce_axis((0, K), "k")
    wide = lambda x: x.astype("float32")  # noqa: E731
    return a, b, te.compute((M, N), lambda i, j: te.sum(wide(a[i, k]) * wide(b[j, k]), k), name="C")


def of_elements():
    """Return S = relu(C), T = S * C, D = T + R[i, j] * V[j]."""
    a, b, c = product()
    residual, bias = te.placeholder((M, N), "float32", "R"), te.placeholder((N,), "float32", "V")
    s = te.compute((M, N), lambda i, j: te.max(c[i, j], tvm.tirx.const(0.0, "float32")), name="S")
    t = te.compute((M, N), lambda i, j: s[i, j] * c[i, j], name="T")
    d = te.compute((M, N), lambda i, j: t[i, j] + residual[i, j] * bias[j], name="D")
    return a, b, residual, bias, d


def softmax():
    """Return D = softmax(C) and the logarithm of its sums."""
    a, b, c = product()
    u, v = te.reduce_axis((0, N), "u"), te.reduce_axis((0, N), "v")
    x = te.compute((M,), lambda i: te.max(c[i, u], u), name="X")
    p = te.compute((M, N), lambda i, j: te.exp(c[i, j] - x[i]), name="P")
    q = te.compute((M,), lambda i: te.sum(p[i, v], v), name="Q")
    d = te.compute((M, N), lambda i, j: p[i, j] / q[i], name="D")
    return a, b, d, te.compute((M,), lambda i: x[i] + te.log(q[i]), name="L")


def scheduled(mod: tvm.IRModule, local: Sequence[str], stored: Sequence[str]) -> s_tir.Schedule:
    """Keep some blocks in registers: two warp groups of 64 rows, two steps of the sum."""
    sch = s_tir.Schedule(mod)
    block = sch.get_sblock("C")
    i, j, k = sch.get_loops(block)
    group, rows = sch.split(i, [2, None])
    k_outer, k_inner = sch.split(k, [None, 16])
    one = sch.split(j, [1, None])
    sch.reorder(one[0], group, k_outer, rows, one[1], k_inner)
    sch.bind(one[0], "blockIdx.x")
    sch.bind(group, "threadIdx.y")
    sch.set_scope(block, 0, "local")
    for number in range(2):
        copy = sch.cache_read(block, number, "shared.dyn")
        sch.compute_at(copy, k_outer)
        steps.async_copy(sch, copy, "tma")
    for name in local:
        sch.set_scope(name, 0, "local")
    for name in (*local, *stored):
        sch.reverse_compute_at(name, group)
    for name in local:
        if sch.get(sch.get_sblock(name)).init is not None:
            sch.decompose_reduction(name, sch.get_loops(name)[-2])
    for number, region in enumerate(sch.get(sch.get_sblock("D")).reads):
        if region.source.name == "R":
            sch.compute_at(sch.cache_read("D", number, "local"), group)
    steps.wgmma(sch, block)
    steps.pipeline(sch, k_outer, 2, hs.Roles(2))
    return sch


def inputs(**more: tuple[int, ...]):
    rng = np.random.default_rng(0)
    sides = {"A": ((M, K), "float16"), "B": ((N, K), "float16")}
    sides |= {name: (shape, "float32") for name, shape in more.items()}
    values = {x: rng.integers(-2, 3, shape).astype(dtype) for x, (shape, dtype) in sides.items()}
    return values, values["A"].astype("float64") @ values["B"].astype("float64").T


def test_elements():
    sch = scheduled(module(of_elements), "ST", "D")
    values, c = inputs(R=(M, N), V=(N,))
    got = simulate(sch, values).require_clean().outputs["D"]
    np.testing.assert_array_equal(got, np.maximum(c, 0) * c + values["R"] * values["V"])


def test_rows():
    """Maxima and sums of rows: a softmax that leaves the registers once."""
    sch = scheduled(module(softmax), "XPQ", "DL")
    values, c = inputs()
    outputs = simulate(sch, values).require_clean().outputs
    weights = np.exp(c - c.max(1, keepdims=True))
    sums = weights.sum(1)
    np.testing.assert_allclose(outputs["D"], weights / sums[:, None], rtol=1e-5)
    np.testing.assert_allclose(outputs["L"], c.max(1) + np.log(sums), rtol=1e-5)


def test_rows_are_verified():
    mod = module(softmax)
    report = verify(scheduled(mod, "XPQ", "DL"), against=mod)
    assert report.verdict == "clean", report.table()


def drawn(seed: int):
    """Return statements over tiles and rows that a seed decides, and all of them in the outputs."""
    rng = random.Random(seed)
    a, b, c = product()
    tiles, rows, names = [c], [], []

    def reduced(i):
        value, axis = rng.choice(tiles), te.reduce_axis((0, N), "u")
        element = value[i, axis] * 0.5 if rng.random() < 0.5 else value[i, axis]
        return rng.choice((te.sum, te.max, te.min))(element, axis)

    def element(i, j):
        value = rng.choice(tiles)[i, j] + rng.choice(tiles)[i, j] * 0.25
        value = value - rng.choice(rows)[i] * 0.125 if rows and rng.random() < 0.6 else value
        return te.max(value, te.const(-1, "float32")) if rng.random() < 0.3 else value

    for number in range(rng.randint(2, 5)):
        names.append(f"T{number}")
        kind = rng.choice(("element", "element", "reduced", "row"))
        if kind == "element":
            tiles.append(te.compute((M, N), element, name=names[-1]))
        elif kind == "reduced" or not rows:
            rows.append(te.compute((M,), reduced, name=names[-1]))
        else:
            rows.append(te.compute((M,), lambda i: rng.choice(rows)[i] * 0.5 + 1, name=names[-1]))
    d = te.compute(
        (M, N), lambda i, j: sum(x[i, j] for x in tiles) + sum(x[i] for x in rows), name="D"
    )
    left = te.compute((M,), lambda i: sum((x[i] for x in rows), te.const(1, "float32")), name="L")
    return (a, b, d, left) if rows else (a, b, d), names


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(x, marks=pytest.mark.slow) for x in range(2, 60))]
)
def test_drawn_statements(seed):
    arguments, names = drawn(seed)
    func = te.create_prim_func(list(arguments)).with_attr("global_symbol", "main")
    mod = tvm.IRModule({"main": func})
    outputs = [x.op.name for x in arguments[2:]]
    values, _ = inputs()
    got = simulate(scheduled(mod, names, outputs), values).require_clean().outputs
    want = {x: tvm.runtime.tensor(np.zeros((M, N)[: 2 - (x == "L")], "float32")) for x in outputs}
    tvm.compile(mod, target="llvm")["main"](
        *(tvm.runtime.tensor(values[x]) for x in "AB"), *want.values()
    )
    for name in outputs:
        np.testing.assert_allclose(got[name], want[name].numpy(), rtol=1e-4, atol=1e-3)


def module(make):
    func = te.create_prim_func(list(make())).with_attr("global_symbol", "main")
    return tvm.IRModule({"main": func})
