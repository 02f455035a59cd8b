"""Plain programs of many kinds, with what they compute in numpy (float64)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import te
from tvm.script import tirx as T


@dataclass(frozen=True)
class Case:
    """A program, random arguments of its inputs, and its outputs in order of its parameters.

    `compute` takes the inputs as float64 (or integers); `exact_on_integers` tells whether every
    order of its operations gives the same there.
    """

    func: tvm.tirx.PrimFunc
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    compute: Callable[..., tuple[np.ndarray, ...]]
    exact_on_integers: bool = True
    outputs: int = 1


def layer_norm(m: int = 24, n: int = 40) -> Case:
    x = te.placeholder((m, n), "float32", name="X")
    k = te.reduce_axis((0, n), "k")
    total = te.compute((m,), lambda i: te.sum(x[i, k], k), name="total")
    mean = te.compute((m,), lambda i: total[i] / te.const(n, "float32"), name="mean")
    k2 = te.reduce_axis((0, n), "k2")
    square = te.compute(
        (m,), lambda i: te.sum((x[i, k2] - mean[i]) * (x[i, k2] - mean[i]), k2), name="square"
    )
    out = te.compute(
        (m, n),
        lambda i, j: (
            (x[i, j] - mean[i])
            * te.rsqrt(square[i] / te.const(n, "float32") + te.const(1e-5, "float32"))
        ).astype("float16"),
        name="Y",
    )

    def compute(x: np.ndarray) -> tuple[np.ndarray, ...]:
        mean = x.mean(1, keepdims=True)
        return ((x - mean) / np.sqrt(((x - mean) ** 2).mean(1, keepdims=True) + 1e-5),)

    func = te.create_prim_func([x, out])
    return Case(func, ("float32", "float16"), ((m, n), (m, n)), compute, False)


def softmax(m: int = 12, n: int = 48) -> Case:
    x = te.placeholder((m, n), "float16", name="X")
    k, k2 = te.reduce_axis((0, n), "k"), te.reduce_axis((0, n), "k2")
    wide = te.compute((m, n), lambda i, j: x[i, j].astype("float32"), name="wide")
    top = te.compute((m,), lambda i: te.max(wide[i, k], k), name="top")
    power = te.compute((m, n), lambda i, j: te.exp(wide[i, j] - top[i]), name="power")
    total = te.compute((m,), lambda i: te.sum(power[i, k2], k2), name="total")
    out = te.compute((m, n), lambda i, j: power[i, j] / total[i], name="Y")

    def compute(x: np.ndarray) -> tuple[np.ndarray, ...]:
        power = np.exp(x - x.max(1, keepdims=True))
        return (power / power.sum(1, keepdims=True),)

    func = te.create_prim_func([x, out])
    return Case(func, ("float16", "float32"), ((m, n), (m, n)), compute, False)


def convolution(h: int = 14, c: int = 8, o: int = 6) -> Case:
    x = te.placeholder((h, h, c), "float16", name="X")
    w = te.placeholder((3, 3, c, o), "float16", name="W")
    padded = te.compute(
        (h + 2, h + 2, c),
        lambda i, j, k: te.if_then_else(
            te.all(i >= 1, i < h + 1, j >= 1, j < h + 1), x[i - 1, j - 1, k], te.const(0, "float16")
        ),
        name="padded",
    )
    r, s, k = (te.reduce_axis((0, e), n) for e, n in ((3, "r"), (3, "s"), (c, "k")))
    out = te.compute(
        (h, h, o),
        lambda i, j, f: te.sum(
            padded[i + r, j + s, k].astype("float32") * w[r, s, k, f].astype("float32"), [r, s, k]
        ),
        name="Y",
    )

    def compute(x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, ...]:
        wide = np.pad(x, ((1, 1), (1, 1), (0, 0)))
        return (
            sum(
                wide[r : r + h, s : s + h] @ w[r, s]
                for r in range(3)
                for s in range(3)
            ),
        )  # fmt: skip

    func = te.create_prim_func([x, w, out])
    shapes = ((h, h, c), (3, 3, c, o), (h, h, o))
    return Case(func, ("float16", "float16", "float32"), shapes, compute)


def two_products(m: int = 16, n: int = 24) -> Case:
    """Multiply twice, round in between, and keep both."""
    a, b, c = (
        te.placeholder(s, "bfloat16", name=x)
        for s, x in (((m, n), "A"), ((n, n), "B"), ((n, m), "D"))
    )
    k, k2 = te.reduce_axis((0, n), "k"), te.reduce_axis((0, n), "k2")

    def wide(x):
        return x.astype("float32")

    first = te.compute((m, n), lambda i, j: te.sum(wide(a[i, k]) * wide(b[k, j]), k), name="first")
    half = te.compute((m, n), lambda i, j: first[i, j].astype("bfloat16"), name="half")
    out = te.compute((m, m), lambda i, j: te.sum(wide(half[i, k2]) * wide(c[k2, j]), k2), name="Y")

    def compute(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, ...]:
        import ml_dtypes

        half = (a @ b).astype(ml_dtypes.bfloat16)
        return half.astype(np.float64), half.astype(np.float64) @ c

    func = te.create_prim_func([a, b, c, half, out])
    shapes = ((m, n), (n, n), (n, m), (m, n), (m, m))
    return Case(func, ("bfloat16",) * 4 + ("float32",), shapes, compute, outputs=2)


def prefix_sums(m: int = 6, n: int = 30) -> Case:
    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((m, n), "float32"), Y: T.Buffer((m, n), "float32")):
        for i in range(m):
            with T.sblock("first"):
                vi = T.axis.spatial(m, i)
                Y[vi, 0] = X[vi, 0]
            for j in range(n - 1):
                with T.sblock("next"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    Y[vi, vj + 1] = Y[vi, vj] + X[vi, vj + 1]

    return Case(main, ("float32",) * 2, ((m, n),) * 2, lambda x: (x.cumsum(1),))


def fused_transpose(m: int = 12, n: int = 20) -> Case:
    """One loop over all elements, taken apart by division, as a library's copy kernel has it."""

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((m, n), "float32"), Y: T.Buffer((n, m), "float32")):
        for f in range(m * n):
            with T.sblock("Y"):
                vj = T.axis.spatial(n, f // m)
                vi = T.axis.spatial(m, f % m)
                Y[vj, vi] = X[vi, vj] * T.float32(2)

    return Case(main, ("float32",) * 2, ((m, n), (n, m)), lambda x: (2 * x.T,))


def threads(m: int = 64, n: int = 32) -> Case:
    """Bind threads, and use one shared tile again for each step."""

    @T.prim_func(s_tir=True)
    def main(
        X: T.Buffer((m, n), "float32"),
        W: T.Buffer((n,), "float32"),
        Y: T.Buffer((m,), "float32"),
    ):
        tile = T.sblock_alloc_buffer((16, 8), "float32", scope="shared")
        for bx in T.thread_binding(m // 16, thread="blockIdx.x"):
            for step in range(n // 8):
                for tx in T.thread_binding(16, thread="threadIdx.x"):
                    for j in range(8):
                        with T.sblock("tile"):
                            vi = T.axis.spatial(16, tx)
                            vj = T.axis.spatial(8, j)
                            vb = T.axis.spatial(m // 16, bx)
                            vs = T.axis.spatial(n // 8, step)
                            tile[vi, vj] = X[vb * 16 + vi, vs * 8 + vj]
                for tx in T.thread_binding(16, thread="threadIdx.x"):
                    for j in range(8):
                        with T.sblock("Y"):
                            vi = T.axis.spatial(16, tx)
                            vb = T.axis.spatial(m // 16, bx)
                            vs, vj = T.axis.remap("RR", [step, j])
                            with T.init():
                                Y[vb * 16 + vi] = T.float32(0)
                            Y[vb * 16 + vi] = Y[vb * 16 + vi] + tile[vi, vj] * W[vs * 8 + vj]

    return Case(main, ("float32",) * 3, ((m, n), (n,), (m,)), lambda x, w: (x @ w,))


def launched(m: int = 64) -> Case:
    """Threads by `launch_thread`, without a block."""

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((m,), "float32"), Y: T.Buffer((m,), "float32")):
        bx = T.launch_thread("blockIdx.x", m // 16)
        tx = T.launch_thread("threadIdx.x", 16)
        if bx * 16 + tx < m - 5:
            Y[bx * 16 + tx] = X[bx * 16 + tx] + T.float32(1)
        else:
            Y[bx * 16 + tx] = T.float32(-1)

    def compute(x: np.ndarray) -> tuple[np.ndarray, ...]:
        return (np.where(np.arange(m) < m - 5, x + 1, -1),)

    return Case(main, ("float32",) * 2, ((m,),) * 2, compute)


def triangle(n: int = 20) -> Case:
    """Sum over a part that depends on the row."""

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((n, n), "float32"), Y: T.Buffer((n,), "float32")):
        for i in range(n):
            Y[i] = T.float32(0)
            for j in range(i + 1):
                Y[i] = Y[i] + X[i, j]

    return Case(main, ("float32",) * 2, ((n, n), (n,)), lambda x: (np.tril(x).sum(1),))


def integers(m: int = 12, n: int = 16) -> Case:
    a, b = te.placeholder((m, n), "int8", name="A"), te.placeholder((m, n), "int8", name="B")
    k = te.reduce_axis((0, n), "k")
    out = te.compute(
        (m, m), lambda i, j: te.sum(a[i, k].astype("int32") * b[j, k].astype("int32"), k), name="C"
    )
    func = te.create_prim_func([a, b, out])
    shapes = ((m, n), (m, n), (m, m))
    return Case(func, ("int8", "int8", "int32"), shapes, lambda a, b: (a @ b.T,))


def quantized(m: int = 32) -> Case:
    @T.prim_func(s_tir=True)
    def main(
        X: T.Buffer((m,), "float32"), Y: T.Buffer((m,), "int8"), Z: T.Buffer((m,), "float8_e4m3fn")
    ):
        for i in range(m):
            with T.sblock("Y"):
                vi = T.axis.spatial(m, i)
                Y[vi] = T.Cast(
                    "int8",
                    T.max(T.min(T.round(X[vi] * T.float32(1.5)), T.float32(127)), T.float32(-128)),
                )
        for i in range(m):
            with T.sblock("Z"):
                vi = T.axis.spatial(m, i)
                Z[vi] = T.Cast("float8_e4m3fn", X[vi] * T.float32(300))

    def compute(x: np.ndarray) -> tuple[np.ndarray, ...]:
        import ml_dtypes

        eight = np.clip(x * 300, -448, 448).astype(ml_dtypes.float8_e4m3fn)
        return np.clip(np.rint(x * 1.5), -128, 127), eight.astype(np.float64)

    shapes = ((m,),) * 3
    return Case(main, ("float32", "int8", "float8_e4m3fn"), shapes, compute, outputs=2)


def argmax(m: int = 10, n: int = 24) -> Case:
    @T.prim_func(s_tir=True)
    def main(
        X: T.Buffer((m, n), "float32"), at: T.Buffer((m,), "int32"), top: T.Buffer((m,), "float32")
    ):
        for i, j in T.grid(m, n):
            with T.sblock("argmax"):
                vi, vj = T.axis.remap("SR", [i, j])
                with T.init():
                    at[vi] = -1
                    top[vi] = T.min_value("float32")
                where: T.let[T.int32] = T.Select(top[vi] >= X[vi, vj], at[vi], vj)
                best: T.let[T.float32] = T.Select(top[vi] >= X[vi, vj], top[vi], X[vi, vj])
                at[vi] = where
                top[vi] = best

    def compute(x: np.ndarray) -> tuple[np.ndarray, ...]:
        return x.argmax(1), x.max(1)

    return Case(main, ("float32", "int32", "float32"), ((m, n), (m,), (m,)), compute, outputs=2)


def rows_by_index(m: int = 16, n: int = 12) -> Case:
    """Gather rows: which one is read follows from data."""

    @T.prim_func(s_tir=True)
    def main(
        X: T.Buffer((m, n), "float16"), at: T.Buffer((m,), "int32"), Y: T.Buffer((m, n), "float16")
    ):
        for i, j in T.grid(m, n):
            with T.sblock("Y"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = X[at[vi], vj]

    return Case(main, ("float16", "int32", "float16"), ((m, n), (m,), (m, n)), lambda x, i: (x[i],))


CASES = {
    make.__name__: make
    for make in (
        layer_norm,
        softmax,
        convolution,
        two_products,
        prefix_sums,
        fused_transpose,
        threads,
        launched,
        triangle,
        integers,
        quantized,
        argmax,
        rows_by_index,
    )
}
