"""`hs.online` on programs as TVM's legalizer and other frontends write them."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx, topi

from tests.schedule.attention.programs import Case, program, reference, run, values
from tests.schedule.programs import module
from tvm_hopper import schedule as hs

INF = float("inf")


def legalized(case, causal=None):
    """Return the function that TVM makes of `nn.attention`, which sums in the operands' type."""
    builder = relax.BlockBuilder()
    shapes = [(case.b, x, case.h, case.d) for x in (case.n, case.m, case.m)]
    shapes += [size for size, _ in case.tensors.values()]
    given = [
        relax.Var(x, relax.TensorType(size, case.dtype))
        for x, size in zip(("q", "k", "v", "bias"), shapes, strict=False)
    ]
    with builder.function("main", given):
        call = relax.op.nn.attention(*given, causal_mask=causal)
        builder.emit_func_output(builder.emit(call))
    mod = relax.transform.LegalizeOps()(builder.get())
    func = next(x for x in mod.functions.values() if isinstance(x, tirx.PrimFunc))
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


LEGALIZED = {
    "bias": (None, lambda s, i, j, t: s + t["bias"]),
    "TopLeft": ("TopLeft", lambda s, i, j, t: np.where(j <= i, s, -INF)),
    "BottomRight": ("BottomRight", lambda s, i, j, t: np.where(j <= i + 4, s, -INF)),
}


@pytest.mark.parametrize("name", LEGALIZED)
def test_legalized_attention(name):
    causal, masked = LEGALIZED[name]
    tensors = {"bias": ((2, 2, 20, 24), "float16")} if name == "bias" else {}
    case = Case(
        b=2, n=20, m=24, layout="bshd", tensors=tensors,
        reference=lambda s, p, t: masked(s / 4, p[2], p[3], t),
    )  # fmt: skip
    given = values(case)
    got, _ = run(hs.online(legalized(case, causal)), case, given)
    np.testing.assert_allclose(got, reference(case, given)[0], atol=3e-3)


ROWS = Case(
    b=1,
    n=100,
    m=64,
    layout="bs(hd)",
    reference=lambda s, p, t: np.where(p[3] + 30 <= p[2], s, -INF),
)


def written_out(case):
    """Return attention of single operators, with 0 for rows without a key, as PyTorch has it."""
    q, k, v = (
        te.placeholder((case.b, length, case.h * case.d), case.dtype, name)
        for name, length in zip("QKV", (case.n, case.m, case.m), strict=True)
    )

    def heads(x):
        x = topi.reshape(x, (case.b, x.shape[1], case.h, case.d))
        x = topi.transpose(x, (0, 2, 1, 3))
        return topi.cast(topi.reshape(x, (case.b * case.h, x.shape[2], case.d)), "float32")

    s = topi.nn.batch_matmul(heads(q), heads(k))
    zero, masked = tirx.const(0, "float32"), tirx.const(-INF, "float32")
    mask = te.compute((case.n, case.m), lambda i, j: tirx.Select(j + 30 <= i, zero, masked), "mask")
    s = topi.add(s, mask)
    p = topi.nn.softmax(s, axis=-1)
    finite = te.compute(s.shape, lambda *x: tirx.Not(s[x].equal(masked)), "finite")
    some = topi.max(topi.cast(finite, "int8"), axis=-1, keepdims=True)
    none = topi.logical_not(topi.cast(some, "bool"))
    p = topi.cast(topi.where(none, topi.full_like(p, 0.0), p), case.dtype)
    o = topi.nn.batch_matmul(topi.cast(p, "float32"), heads(v), transpose_b=False)
    o = topi.transpose(topi.reshape(o, (case.b, case.h, case.n, case.v)), (0, 2, 1, 3))
    o = topi.cast(topi.reshape(o, (case.b, case.n, case.h * case.v)), case.dtype)
    return module(q, k, v, o)


def test_written_out_attention_with_empty_rows():
    given = values(ROWS)
    got, _ = run(hs.online(written_out(ROWS), (64, 32), 1), ROWS, given)
    want = np.nan_to_num(reference(ROWS, given)[0])
    np.testing.assert_allclose(got, want, atol=3e-3)
    assert not got[:, :30].any()


def test_symbolic_lengths():
    n, m = te.var("n"), te.var("m")
    case = Case(
        b=1,
        n=n,
        m=m,
        score=lambda s, p, t: tirx.Select(p[3] <= p[2], s, tirx.const(-INF, "float32")),
    )
    mod = hs.online(program(case), (64, 32), 1)
    for n, m in ((70, 40), (64, 96)):
        sized = Case(n=n, m=m, reference=lambda s, p, t: np.where(p[3] <= p[2], s, -INF))
        given = values(sized)
        np.testing.assert_allclose(run(mod, sized, given)[0], reference(sized, given)[0], atol=2e-3)


def test_sink_as_a_last_column():
    """Scores with one more column, whose weights nothing multiplies, shifted twice."""
    case = Case(
        h=3,
        kv=3,
        n=20,
        m=40,
        sink=True,
        tensors={"sink": ((3,), "float16")},
        reference=lambda s, p, t: s,
    )
    q, k, v = (
        te.placeholder((case.h, length, case.d), case.dtype, name)
        for name, length in zip("QKV", (case.n, case.m, case.m), strict=True)
    )
    sink = te.placeholder((case.h,), case.dtype, "sink")
    s = topi.nn.batch_matmul(topi.cast(q, "float32"), topi.cast(k, "float32"))
    column = te.compute((case.h, case.n, 1), lambda h, i, j: sink[h].astype("float32"), "column")
    s = topi.concatenate([s, column], axis=-1)
    s = topi.subtract(s, topi.max(s, axis=-1, keepdims=True))
    p = topi.strided_slice(topi.nn.softmax(s, axis=-1), [0, 0, 0], [case.h, case.n, case.m])
    p = topi.cast(p, case.dtype)
    o = topi.nn.batch_matmul(topi.cast(p, "float32"), topi.cast(v, "float32"), transpose_b=False)
    mod = module(q, k, v, sink, topi.cast(topi.reshape(o, (1, *o.shape)), case.dtype))
    given = values(case)
    for name in "QKV":
        given[name] = given[name][0]
    got, _ = run(hs.online(mod, (64, 32), 1), case, given)
    for name in "QKV":
        given[name] = given[name][None]
    np.testing.assert_allclose(got, reference(case, given)[0], atol=2e-3)
