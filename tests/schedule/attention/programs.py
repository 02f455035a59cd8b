"""Softmax attention written in `te`, and in numpy with float64."""

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
    base_two: bool = False  # whether weights are powers of two
    packed: bool = False  # queries, keys and values in one tensor
    sink: bool = False  # whether the tensor "sink" holds one more score for each head


SCALE = 0.3


def shape(case, heads, length, width):
    return {
        "bhsd": (case.b, heads, length, width),
        "bshd": (case.b, length, heads, width),
        "bs(hd)": (case.b, length, heads * width),
    }[case.layout]


def place(case, b, h, s, d, width):
    return {
        "bhsd": lambda: (b, h, s, d),
        "bshd": lambda: (b, s, h, d),
        "bs(hd)": lambda: (b, s, h * width + d),
    }[case.layout]()


def operands(case):
    """Return the arguments with operands, and what reads each, by batch, head, row and column."""
    sizes = {"Q": (case.h, case.n, case.d), "K": (case.kv, case.m, case.d)}
    sizes["V"] = (case.kv, case.m, case.v)
    if not case.packed:
        made = {x: te.placeholder(shape(case, *size), case.dtype, x) for x, size in sizes.items()}
        return [*made.values()], {
            x: lambda b, h, s, d, x=x: made[x][place(case, b, h, s, d, sizes[x][2])] for x in made
        }
    whole = te.placeholder((case.b, case.n, case.h + 2 * case.kv, case.d), case.dtype, "QKV")
    first = {"Q": 0, "K": case.h, "V": case.h + case.kv}
    return [whole], {
        x: lambda b, h, s, d, start=start: whole[b, s, start + h, d] for x, start in first.items()
    }


def program(case):
    """Return the module of a case."""
    g = case.h // case.kv
    given, reads = operands(case)
    more = {name: te.placeholder(*x, name) for name, x in case.tensors.items()}
    kd = te.reduce_axis((0, case.d), "kd")
    acc = case.acc
    whole = (case.b, case.h, case.n, case.m)
    rows = whole[:3]
    s = te.compute(
        whole,
        lambda b, h, i, j: te.sum(
            reads["Q"](b, h, i, kd).astype(acc) * reads["K"](b, h // g, j, kd).astype(acc), kd
        ),
        "S",
    )
    score = case.score or (lambda s, place, tensors: s * tirx.const(SCALE, acc))
    t = te.compute(whole, lambda *x: score(s[x], x, more), "T")
    j1, j2, j3 = (te.reduce_axis((0, case.m), f"j{x}") for x in range(3))
    top = te.compute(rows, lambda *x: te.max(t[(*x, j1)], j1), "M")
    sink = case.sink and more["sink"]
    shift = te.compute(rows, lambda *x: te.max(top[x], sink[x[1]]) if case.sink else top[x], "R")
    exp = tirx.exp2 if case.base_two else tirx.exp
    e = te.compute(whole, lambda *x: exp(t[x] - shift[x[:3]]), "E")
    total = te.compute(rows, lambda *x: te.sum(e[(*x, j2)], j2), "L")
    total = te.compute(
        rows, lambda *x: total[x] + te.exp(sink[x[1]] - shift[x]) if case.sink else total[x], "D"
    )
    first = case.normalize == "before"
    weight = te.compute(whole, lambda *x: e[x] / total[x[:3]], "P") if first else e
    p = te.compute(whole, lambda *x: weight[x].astype(case.dtype if case.rounded else acc), "P16")
    summed = te.compute(
        (*rows, case.v),
        lambda b, h, i, c: te.sum(
            p[b, h, i, j3].astype(acc) * reads["V"](b, h // g, j3, c).astype(acc), j3
        ),
        "O",
    )
    o = te.compute(summed.shape, lambda *x: summed[x] / (1 if first else total[x[:3]]), "N")
    stored = {
        "bhsd": lambda b, h, i, c: o[b, h, i, c].astype(case.dtype),
        "bshd": lambda b, i, h, c: o[b, h, i, c].astype(case.dtype),
        "bs(hd)": lambda b, i, x: o[b, x // case.v, i, x % case.v].astype(case.dtype),
    }
    out = te.compute(shape(case, case.h, case.n, case.v), stored[case.layout], "out")
    outs = [out]
    if case.log_sum:
        outs.append(te.compute(rows, lambda *x: shift[x] + te.log(total[x]), "lse"))
    return tvm.IRModule({"main": te.create_prim_func([*given, *more.values(), *outs])})


def values(case, seed=0, scale=1.0):
    """Return random arguments of a case, by name."""
    random = np.random.default_rng(seed)

    def normal(*size):
        return random.standard_normal(size).astype(case.dtype)

    if case.packed:
        made = {"QKV": normal(case.b, case.n, case.h + 2 * case.kv, case.d)}
    else:
        made = {
            "Q": normal(*shape(case, case.h, case.n, case.d)) * np.array(scale, case.dtype),
            "K": normal(*shape(case, case.kv, case.m, case.d)),
            "V": normal(*shape(case, case.kv, case.m, case.v)),
        }
    for name, (size, dtype) in case.tensors.items():
        if dtype == "bool":
            made[name] = random.random(size) < 0.7
        else:
            made[name] = random.standard_normal(size).astype(dtype)
    return made


def heads_first(case, given):
    """Return queries, keys and values of [b, h, s, d] in float64."""
    if case.packed:
        whole = given["QKV"].astype("float64").transpose(0, 2, 1, 3)
        return np.split(whole, [case.h, case.h + case.kv], axis=1)
    found = [given[x].astype("float64") for x in "QKV"]
    if case.layout == "bhsd":
        return found
    heads = (case.h, case.kv, case.kv)
    return [
        x.reshape(*x.shape[:2], h, -1).transpose(0, 2, 1, 3)
        for x, h in zip(found, heads, strict=True)
    ]


def reference(case, given):
    """Return output and log-sum-exp in float64."""
    q, k, v = heads_first(case, given)
    k, v = (np.repeat(x, case.h // case.kv, axis=1) for x in (k, v))
    s = q @ k.transpose(0, 1, 3, 2)
    place = np.meshgrid(*(np.arange(x) for x in s.shape), indexing="ij")
    with np.errstate(invalid="ignore", divide="ignore"):
        t = s * SCALE if case.reference is None else case.reference(s, place, given)
        if case.sink:
            t = np.concatenate(
                [t, np.broadcast_to(given["sink"][None, :, None, None], (*t.shape[:3], 1))], axis=-1
            )
            v = np.concatenate([v, np.zeros_like(v[:, :, :1])], axis=2)
        top = t.max(-1, keepdims=True)
        e = (np.exp2 if case.base_two else np.exp)(t - top)
        total = e.sum(-1, keepdims=True)
        out = (e / total) @ v
        lse = (top + np.log(total))[..., 0]
    if case.layout != "bhsd":
        out = out.transpose(0, 2, 1, 3)
    return out.reshape(shape(case, case.h, case.n, case.v)), lse


def run(mod, case, given):
    """Run a module on the CPU; returns the output and the log-sum-exp, None without one."""
    outs = [np.zeros(shape(case, case.h, case.n, case.v), case.dtype)]
    if case.log_sum:
        outs.append(np.zeros((case.b, case.h, case.n), "float32"))
    tensors = [tvm.runtime.tensor(x) for x in (*given.values(), *outs)]
    tvm.compile(mod, target="llvm")["main"](*tensors)
    found = [x.numpy() for x in tensors[len(given) :]]
    return found[0], (found[1] if case.log_sum else None)
