"""`hs.matmul(sch, ("C", "Q"))`: a product whose kernel reduces the rows of its output, too."""

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx

from tests.schedule.refuse import refuse
from tvm_hopper import schedule as hs
from tvm_hopper.simulation import simulate, verify

TILE = {"tile": (128, 64, 64), "stages": 2}


def straight(i, j):
    return i, j


def statistics(m=200, n=128, k=64, dtype="bfloat16", residual=False, columns=None, at=None):
    """Return D = C (+ R), Q = sum of D * D, X = max of C + V, of each row."""
    rows, n = (tirx.Var(x, "int64") if isinstance(x, str) else x for x in (m, n))
    a, b = (te.placeholder((x, k), dtype, y) for x, y in ((rows, "A"), (n, "B")))
    more, bias = te.placeholder((rows, n), dtype, "R"), te.placeholder((n,), dtype, "V")
    axis, u, v = (te.reduce_axis((0, x), y) for x, y in ((k, "k"), (columns or n, "u"), (n, "v")))
    wide = lambda x: x.astype("float32")  # noqa: E731
    c = te.compute(
        (rows, n), lambda i, j: te.sum(wide(a[i, axis]) * wide(b[j, axis]), axis), name="C"
    )
    whole = (lambda i, j: c[i, j] + wide(more[i, j])) if residual else lambda i, j: c[i, j]
    d = te.compute((rows, n), lambda i, j: whole(i, j).astype(dtype), name="D")
    square = te.compute((rows, n), lambda i, j: wide(d[i, j]) * wide(d[i, j]), name="S")
    q = te.compute((rows,), lambda i: te.sum(square[(at or straight)(i, u)], u), name="Q")
    x = te.compute((rows,), lambda i: te.max(c[i, v] + wide(bias[v]), v), name="X")
    args = [a, b, *([more] if residual else []), bias, d, q, x]
    func = te.create_prim_func(args).with_attr("global_symbol", "main")
    return tvm.IRModule({"main": func})


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ({"m": 130, "n": 64, "residual": True}, TILE),
        ({"m": 40}, TILE | {"store": "tma"}),
        ({"m": 1}, TILE),
        ({"m": 64}, {"tile": (64, 128, 64), "consumers": 2}),  # which share the columns
        ({"m": 256}, TILE | {"persistent": 2, "cluster": (2, 1)}),
        ({"dtype": "float8_e4m3fn"}, {"tile": (64, 64, 32), "accumulate": "promoted"}),
        ({"m": 64, "n": 64}, {}),
    ],
    ids=str,
)
def test_verified(shape, options):
    mod = statistics(**shape)
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, ("C", "Q", "X"), hs.MatmulConfig(**options))
    report = verify(sch, against=mod)
    assert report.verdict == "clean", report.table()


def test_any_number_of_rows():
    sch = s_tir.Schedule(statistics("m"))
    hs.matmul(sch, ("C", "Q", "X"), hs.MatmulConfig(**TILE))
    rng = np.random.default_rng(0)
    sides = {"A": (70, 64), "B": (128, 64), "V": (128,)}
    values = {x: rng.integers(-2, 3, y).astype("float32") for x, y in sides.items()}
    given = {x: y.astype(ml_dtypes.bfloat16) for x, y in values.items()}
    outputs = simulate(sch, given).require_clean().outputs
    c = values["A"] @ values["B"].T
    np.testing.assert_array_equal(outputs["X"], (c + values["V"]).max(1))
    rounded = outputs["D"].astype("float64")
    np.testing.assert_allclose(outputs["Q"], (rounded**2).sum(1), rtol=1e-6)


def test_the_order_of_a_sum_is_fixed():
    """Partial sums lie in memory, a row of them for each column of tiles."""
    sch = s_tir.Schedule(statistics())
    hs.matmul(sch, ("C", "Q", "X"), hs.MatmulConfig(**TILE))
    sizes = {x.name: list(x.shape) for x in sch.get(sch.get_sblock("root")).alloc_buffers}
    assert sizes["Q.rf"] == [2, 200]
    assert "atomic" not in sch.mod.script()


@pytest.mark.parametrize(
    ("shape", "options", "blocks", "match"),
    [
        ({}, {"form": "transposed"}, "CQ", "found form='transposed'; need whole sums of a tile in"),
        ({"n": "n"}, {}, "CQ", "found n columns; need a number that is known: a tile divides it"),
        ({}, {"split_k": 2}, "CQ", "found split_k=2; need whole sums of a tile in one thread blo"),
        ({"n": 136}, TILE, "CQ", "found a tile of 64 columns of 136; need a tile that divides th"),
        ({"columns": 64}, {}, "CQ", "block Q: found 2 loops that reduce S; need a loop over rows"),
        ({"n": 197}, {}, "CQ", "found 197 columns; need a number that a tile divides: a multiple"),
        ({"at": lambda i, j: (i, 127 - j)}, {}, "CQ", "block Q: found 2 loops that reduce S; need"),
        ({"at": lambda i, j: (199 - i, j)}, {}, "CQ", "block Q: found 2 loops that reduce S; need"),
        ({"m": 128, "at": lambda i, j: (j, i)}, {}, "CQ", "block Q: found 2 loops that reduce S; "),
        ({}, {}, "CS", "block S: found 2 loops that reduce D; need a loop over rows and one over"),
        (
            {"m": 256, "n": 384},
            {"tile": (128, 192, 64), "consumers": 2, "schedule": "pingpong"},
            "CQX",
            "found an accumulator of 128x192 and Q.rf_local of 128 and X.rf_local of 128: 200 re",
        ),
        (
            {"residual": True},
            {"store": "tma"},
            "CQ",
            "found store='tma', and a tensor of the output's shape that is read; need threads that",
        ),
    ],
)
def test_refusals(shape, options, blocks, match):
    refuse(statistics(**shape), match, hs.MatmulConfig(**options), tuple(blocks))


def test_a_converted_operand_is_refused_next_to_reductions():
    w, x = te.placeholder((64, 64), "int8", "W"), te.placeholder((64, 64), "float16", "A")
    k, u = (te.reduce_axis((0, 64), name) for name in "ku")
    wide = lambda x: x.astype("float32")  # noqa: E731
    f = te.compute((64, 64), lambda j, i: w[j, i].astype("float16"), name="F")
    c = te.compute((64, 64), lambda i, j: te.sum(wide(x[i, k]) * wide(f[j, k]), k), name="C")
    q = te.compute((64,), lambda i: te.sum(c[i, u], u), name="Q")
    mod = tvm.IRModule({"main": te.create_prim_func([w, x, c, q])})
    match = "found F, converted on its way, of several products or next to reductions; need oper"
    refuse(mod, match, None, ("C", "Q"))
