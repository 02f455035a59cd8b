"""What `hs.online` refuses, and in which words."""

from __future__ import annotations

import re

import pytest
import tvm
from tvm import te, tirx
from tvm.script import tirx as T

from tests.schedule.programs import module
from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError

SIZE = (8, 8)


def total(name, shape, term, *extents, reduce=te.sum):
    """Return a reduction of `term(own indices, reduced indices)`."""
    axes = [te.reduce_axis((0, x), f"r{i}") for i, x in enumerate(extents)]
    return te.compute(shape, lambda *x: reduce(term(x, axes), axes), name)


def attention(
    product=None,
    scores=None,
    weight=None,
    value=None,
    shift=None,
    output=None,
    more=None,
):
    """Return attention of 8 queries and keys, some of its steps replaced."""
    q, k, v = (te.placeholder(SIZE, "float32", x) for x in "QKV")
    s = (product or (lambda q, k: total("S", SIZE, lambda x, r: q[x[0], r[0]] * k[x[1], r[0]], 8)))(
        q, k
    )
    t = te.compute(SIZE, scores(s, q) if scores else lambda i, j: s[i, j], "T")
    top = total("M", (8,), lambda x, r: t[x[0], r[0]], 8, reduce=te.max)
    shifted = shift(top) if shift else top
    e = te.compute(SIZE, lambda i, j: te.exp(t[i, j] - shifted[i]), "E")
    sums = total("L", (8,), lambda x, r: e[x[0], r[0]], 8)
    p = te.compute(SIZE, (weight or (lambda e, den: lambda i, j: e[i, j] / den[i]))(e, sums), "P")
    o = total(
        "O", SIZE, (value or (lambda p, v: lambda x, r: p[x[0], r[0]] * v[r[0], x[1]]))(p, v), 8
    )
    out = te.compute(SIZE, (output or (lambda o, den, s: lambda i, c: o[i, c]))(o, sums, s), "out")
    others = more(s, top, sums, o) if more else []
    return module(q, k, v, out, *others)


def two_outputs(s, top, den, o):
    return [te.compute(SIZE, lambda i, c: o[i, c] + 1.0, "twice")]


def with_sink(more):
    """Return attention with one more key, of the score 3."""
    shifts = []

    def shift(top):
        shifts.append(te.compute((8,), lambda i: tirx.Max(top[i], tirx.const(3.0, "float32"))))
        return shifts[0]

    def output(o, den, s):
        return lambda i, c: o[i, c] / (den[i] + te.exp(3.0 - shifts[0][i]))

    return attention(weight=lambda e, den: lambda *x: e[x], shift=shift, output=output, more=more)


def maximum(s, top, den, o):
    return [te.compute((8,), lambda i: top[i], "first")]


def scores_of_one_key(s, top, den, o):
    return [te.compute((8,), lambda i: s[i, 0], "first")]


def logs(s, top, den, o):
    return [te.compute((8,), lambda i: top[i] + te.log(den[i]), x) for x in ("first", "second")]


def wide(q, k):
    return total("S", SIZE, lambda x, r: q[x[0], r[0]] * k[x[1], r[1]], 8, 8)


REFUSED = {
    "two products": (
        lambda: attention(
            scores=lambda s, q: lambda i, j: s[i, j]
            + total("S2", SIZE, lambda x, r: q[x[0], r[0]] * q[x[1], r[0]], 8)[i, j]
        ),
        "found scores of 2 sums; need one product of queries and keys",
    ),
    "two axes": (lambda: attention(product=wide), "block S: found a sum over 2 axes; need one"),
    "a computed operand": (
        lambda: attention(
            product=lambda q, k: total(
                "S", SIZE, lambda x, r: te.sin(q[x[0], r[0]]) * k[x[1], r[0]], 8
            )
        ),
        "block S: found the sum of .*sin.*; need products of an element of the queries",
    ),
    "no queries": (
        lambda: attention(
            product=lambda q, k: total(
                "S", SIZE, lambda x, r: q[x[1] + x[0] * 0, r[0]] * k[x[1], r[0]], 8
            )
        ),
        "block S: found a product of Q and K; need one operand with an axis of keys",
    ),
    "computed values": (
        lambda: attention(value=lambda p, v: lambda x, r: p[x[0], r[0]] * te.sin(v[r[0], x[1]])),
        "block O: found values that are computed: .*sin",
    ),
    "no columns": (
        lambda: attention(value=lambda p, v: lambda x, r: p[x[0], r[0]] * v[r[0], x[0]]),
        "block O: found 0 axes of columns; need one axis of columns",
    ),
    "moved rows": (
        lambda: attention(output=lambda o, den, s: lambda i, c: o[7 - i, c]),
        "tensor O: found the index 7 - .*, from which the output reads",
    ),
    "two outputs": (
        lambda: attention(more=two_outputs),
        "found several sums of weighted values, O and O; need one in one output",
    ),
    "three outputs": (
        lambda: attention(more=logs),
        "tensor second: found a third output; need the attention and its log-sum-exp",
    ),
    "scores as an output": (
        lambda: attention(more=scores_of_one_key),
        "tensor first: found a second output that is no function of the maximum and the sum",
    ),
    "the maximum without a sink": (
        lambda: with_sink(maximum),
        "tensor first: found the maximum of keys without the sink",
    ),
    "columns of parts": (
        lambda: attention(
            output=lambda o, den, s: lambda i, c: o[i // 3 * 2, (i * 8 + c) % 7],
        ),
        "tensor O: found the index",
    ),
    "a reduction in the scores": (
        lambda: attention(
            scores=lambda s, q: lambda i, j: s[i, j]
            - total("R", (8,), lambda x, r: q[x[0], r[0]], 8, reduce=te.max)[i] * 2.0
        ),
        "tensor R: found a reduction in the scores; need one product alone",
    ),
    "a reduction next to it": (
        lambda: attention(
            output=lambda o, den, s: lambda i, c: o[i, c]
            + total("R", (8,), lambda x, r: s[x[0], r[0]], 8, reduce=te.max)[i] * 0.0
            + total("W", (8,), lambda x, r: s[x[0], r[0]], 8)[i]
        ),
        "block W: found a reduction next to the attention; need results of its sums",
    ),
    "no quotient": (
        lambda: attention(
            weight=lambda e, den: lambda i, j: e[i, j],
            shift=lambda top: te.compute((8,), lambda i: tirx.const(3.0, "float32"), "C"),
        ),
        "found sums of exponentials that are not divided by each other",
    ),
    "no attention": (
        lambda: module(x := te.placeholder(SIZE), total("R", (8,), lambda i, r: x[i[0], r[0]], 8)),
        "found the reductions R; need softmax attention",
    ),
    "nothing": (
        lambda: module(x := te.placeholder(SIZE), te.compute(SIZE, lambda *i: x(*i) + 1.0)),
        "function: found no reduction; need softmax attention",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    make, message = REFUSED[name]
    with pytest.raises(ScheduleError, match=message):
        hs.online(make())


@T.prim_func(s_tir=True)
def bare(X: T.Buffer((8,), "float32")):
    X[0] = T.float32(0)


@T.prim_func(s_tir=True)
def outside(X: T.Buffer((8,), "float32")):
    with T.sblock("root"):
        for i in range(8):
            X[i] = T.float32(0)


@T.prim_func(s_tir=True)
def several(X: T.Buffer((8,), "float32"), Y: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.sblock("both"):
            vi = T.axis.spatial(8, i)
            X[vi] = T.float32(0)
            Y[vi] = T.float32(0)


@T.prim_func(s_tir=True)
def stored_twice(X: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.sblock("first"):
            vi = T.axis.spatial(8, i)
            X[vi] = T.float32(0)
    for i in range(8):
        with T.sblock("second"):
            vi = T.axis.spatial(8, i)
            X[vi] = T.float32(1)


@T.prim_func(s_tir=True)
def reversed_index(X: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.sblock("X"):
            vi = T.axis.spatial(8, i)
            X[7 - vi] = T.float32(0)


@T.prim_func(s_tir=True)
def product_of_all(X: T.Buffer((8,), "float32"), Y: T.Buffer((1,), "float32")):
    for i in range(8):
        with T.sblock("Y"):
            vi = T.axis.reduce(8, i)
            with T.init():
                Y[0] = T.float32(1)
            Y[0] = Y[0] * X[vi]


@T.prim_func(s_tir=True)
def unlooped(X: T.Buffer((8,), "float32")):
    with T.sblock("X"):
        vi = T.axis.spatial(8, 0)
        X[vi] = T.float32(0)


PROGRAMS = [
    (bare, "function: found a body without a root block; need plain loops"),
    (outside, "function: found a statement outside of blocks; need plain loops"),
    (several, "block both: found several statements; need one store"),
    (stored_twice, "block second: found another store to X; need one block for each tensor"),
    (reversed_index, r"block X: found the index \[7 - vi\]; need one variable of the block"),
    (product_of_all, "block Y: found the update .*; need a sum or a maximum with an initial value"),
    (unlooped, "block X: found no loops; need one loop a dimension"),
]


@pytest.mark.parametrize(("func", "message"), PROGRAMS)
def test_programs_that_are_not_plain(func, message):
    with pytest.raises(ScheduleError, match=message):
        hs.online(func)


def test_sums_that_begin_with_a_number():
    text = attention()["main"].script()
    begun = re.sub(r"(L\[\w+\]) = T.float32\(0.0\)", r"\1 = T.float32(1.0)", text)
    assert begun != text
    with pytest.raises(ScheduleError, match=r"block L: found the initial value .*1.*; need 0"):
        hs.online(tvm.script.from_source(begun))


def test_arguments():
    for tile in ((64,), (60, 64), (64, 24), (0, 16), "64"):
        with pytest.raises(ScheduleError, match="need rows, a multiple of 128, and keys"):
            hs.online(attention(), tile)
    with pytest.raises(ScheduleError, match="parts=8; need"):
        hs.online(attention(), parts=8)
    with pytest.raises(ScheduleError, match="online: found int; need an IRModule or a PrimFunc"):
        hs.online(3)
    with pytest.raises(ScheduleError, match="probabilities='int8'; need one of"):
        hs.online(attention(), probabilities="int8")
