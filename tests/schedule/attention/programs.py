"""Softmax attention written in `te`, and in numpy with float64."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import te, tirx


@dataclass(frozen=True)
class Case:
    """One attention problem and how its program writes it.

    `score` maps (product, place, tensors) to a score, `place` = (b, h, i, j); so does `reference`
    with numpy arrays. `tensors` are further arguments by name: shape and type.
    """

    b: int = 1
    h: int = 2
    kv: int = 2
    n: int = 64
    m: int = 64
    d: int = 16
    v: int = 16
    dtype: str = "float16"
    layout: str = "bhsd"
    score: Any = None
    reference: Any = None
    tensors: dict = field(default_factory=dict)
    normalize: str = "before"  # "before" the product with V, "after" it
    rounded: bool = True  # whether weights are rounded to 16 bits
    log_sum: bool = False
    acc: str = "float32"
    options: dict = field(default_factory=dict)  # of online


SCALE = 0.3


def shape(case, heads, length, width):
    return {
        "bhsd": (case.b, heads, length, width),
        "bshd": (case.b, length, heads, width),
    }[case.layout]


def at(case, b, h, s, d):
    return (b, h, s, d) if case.layout == "bhsd" else (b, s, h, d)


def program(case):
    """Return the module of a case."""
    g = case.h // case.kv
    q = te.placeholder(shape(case, case.h, case.n, case.d), case.dtype, "Q")
    k = te.placeholder(shape(case, case.kv, case.m, case.d), case.dtype, "K")
    v = te.placeholder(shape(case, case.kv, case.m, case.v), case.dtype, "V")
    more = {name: te.placeholder(*x, name) for name, x in case.tensors.items()}
    kd = te.reduce_axis((0, case.d), "kd")
    acc = case.acc
    whole = (case.b, case.h, case.n, case.m)
    rows = whole[:3]
    s = te.compute(
        whole,
        lambda b, h, i, j: te.sum(
            q[at(case, b, h, i, kd)].astype(acc) * k[at(case, b, h // g, j, kd)].astype(acc), kd
        ),
        "S",
    )
    score = case.score or (lambda s, place, tensors: s * tirx.const(SCALE, acc))
    t = te.compute(whole, lambda *x: score(s[x], x, more), "T")
    j1, j2, j3 = (te.reduce_axis((0, case.m), f"j{x}") for x in range(3))
    top = te.compute(rows, lambda *x: te.max(t[(*x, j1)], j1), "M")
    e = te.compute(whole, lambda *x: te.exp(t[x] - top[x[:3]]), "E")
    total = te.compute(rows, lambda *x: te.sum(e[(*x, j2)], j2), "L")
    first = case.normalize == "before"
    weight = te.compute(whole, lambda *x: e[x] / total[x[:3]], "P") if first else e
    p = te.compute(whole, lambda *x: weight[x].astype(case.dtype if case.rounded else acc), "P16")
    summed = te.compute(
        (*rows, case.v),
        lambda b, h, i, c: te.sum(
            p[b, h, i, j3].astype(acc) * v[at(case, b, h // g, j3, c)].astype(acc), j3
        ),
        "O",
    )
    o = te.compute(summed.shape, lambda *x: summed[x] / (1 if first else total[x[:3]]), "N")
    out = te.compute(
        shape(case, case.h, case.n, case.v),
        lambda b, y, z, c: o[(b, *((y, z) if case.layout == "bhsd" else (z, y)), c)].astype(
            case.dtype
        ),
        "out",
    )
    outs = [out]
    if case.log_sum:
        outs.append(te.compute(rows, lambda *x: top[x] + te.log(total[x]), "lse"))
    return tvm.IRModule({"main": te.create_prim_func([q, k, v, *more.values(), *outs])})


def values(case, seed=0, scale=1.0):
    """Return random arguments of a case, by name."""
    random = np.random.default_rng(seed)
    made = {}
    for name, heads, length, width in (
        ("Q", case.h, case.n, case.d),
        ("K", case.kv, case.m, case.d),
        ("V", case.kv, case.m, case.v),
    ):
        x = random.standard_normal(shape(case, heads, length, width)) * (
            scale if name == "Q" else 1.0
        )
        made[name] = x.astype(case.dtype)
    for name, (size, dtype) in case.tensors.items():
        if dtype == "bool":
            made[name] = random.random(size) < 0.7
        else:
            made[name] = random.standard_normal(size).astype(dtype)
    return made


def reference(case, given):
    """Return output and log-sum-exp in float64."""

    def heads_first(x):
        x = x.astype("float64")
        return x if case.layout == "bhsd" else x.transpose(0, 2, 1, 3)

    g = case.h // case.kv
    q, k, v = (heads_first(given[x]) for x in "QKV")
    k, v = (np.repeat(x, g, axis=1) for x in (k, v))
    s = q @ k.transpose(0, 1, 3, 2)
    place = np.meshgrid(*(np.arange(x) for x in s.shape), indexing="ij")
    with np.errstate(invalid="ignore", divide="ignore"):
        t = s * SCALE if case.reference is None else case.reference(s, place, given)
        top = t.max(-1, keepdims=True)
        e = np.exp(t - top)
        total = e.sum(-1, keepdims=True)
        out = (e / total) @ v
        lse = (top + np.log(total))[..., 0]
    return (out if case.layout == "bhsd" else out.transpose(0, 2, 1, 3)), lse


def run(mod, case, given):
    """Run a module on the CPU; returns the output and the log-sum-exp, None without one."""
    outs = [np.zeros(shape(case, case.h, case.n, case.v), case.dtype)]
    if case.log_sum:
        outs.append(np.zeros((case.b, case.h, case.n), "float32"))
    tensors = [tvm.runtime.tensor(x) for x in (*given.values(), *outs)]
    tvm.compile(mod, target="llvm")["main"](*tensors)
    found = [x.numpy() for x in tensors[len(given) :]]
    return found[0], (found[1] if case.log_sum else None)


LOG2E = math.log2(math.e)
