"""JoinAttention: operators and written-out attention become one function in plain loops."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op

from tvm_hopper import schedule as hs
from tvm_hopper.relax import report
from tvm_hopper.relax.join_attention import LEFT, JoinAttention
from tvm_hopper.schedule.attention.recognize import recognize
from tvm_hopper.testing.relax_forms import model_of

B, H, KV, N, M, D = 2, 4, 2, 24, 40, 16
INF = math.inf
SCALE = 1 / math.sqrt(D)


def variable(name, *shape, dtype="float16"):
    return relax.Var(name, relax.TensorType(shape, dtype))


def operands(kv=KV, rows=N):
    return [
        variable("q", B, rows, H, D),
        variable("k", B, M, kv, D),
        variable("v", B, M, kv, D),
    ]


def module(params, make):
    """Return a function of Relax operators: `make` takes `emit` and the parameters."""
    return model_of(lambda b, *x: make(b.emit, *x), *params, takes_builder=True)


def joined(mod, count=1):
    """Apply the pass; return the module and its functions of attention."""
    out = JoinAttention()(mod)
    functions = [x for x in out.functions.values() if isinstance(x, tirx.PrimFunc)]
    assert len(functions) == count
    return out, [recognize(x) for x in functions]


def run(mod, *given):
    """Run a module on the CPU, its attention in the running form."""
    mod = mod.clone()
    for gv, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            mod.update_func(gv, hs.online(func, (64, 16), 1))
    vm = relax.VirtualMachine(relax.build(mod, target="llvm"), tvm.cpu())
    return vm["main"](*(tvm.runtime.tensor(x) for x in given)).numpy()


def arguments(kv=KV, rows=N):
    random = np.random.default_rng(0)
    shapes = (B, rows, H, D), (B, M, kv, D), (B, M, kv, D)
    return [random.standard_normal(x).astype("float16") for x in shapes]


def expected(q, k, v, mask=None, bias=0.0, scale=SCALE):
    q, k, v = (x.astype("float64").transpose(0, 2, 1, 3) for x in (q, k, v))
    k, v = (np.repeat(x, H // x.shape[1], axis=1) for x in (k, v))
    s = q @ k.transpose(0, 1, 3, 2) * scale + bias
    s = s if mask is None else np.where(mask, s, -INF)
    with np.errstate(invalid="ignore"):
        e = np.exp(s - s.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3)


def rows_and_keys(rows=N):
    return np.meshgrid(np.arange(rows), np.arange(M), indexing="ij")


OPERATORS = {
    "grouped": ({}, None),
    "scale": ({"scale": 0.5}, None),
    "top_left": ({"causal_mask": "TopLeft"}, lambda i, j: j <= i),
    "bottom_right": ({"causal_mask": "BottomRight"}, lambda i, j: j <= i + M - N),
    "window": (
        {"causal_mask": "BottomRight", "window_size": 8},
        lambda i, j: (j <= i + M - N) & (j > i + M - N - 8),
    ),
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name):
    """Grouped heads, windows and both alignments, which TVM's legalizer lacks or mistakes."""
    options, mask = OPERATORS[name]
    mod = module(operands(), lambda emit, *x: emit(op.nn.attention(*x, **options)))
    out, (found,) = joined(mod)
    given = arguments()
    masked = None if mask is None else mask(*rows_and_keys())
    want = expected(*given, masked, scale=options.get("scale", SCALE))
    np.testing.assert_allclose(run(out, *given), want, atol=2e-3)
    assert found.probabilities == "float16"
    heads = "v_h // T.int64(2)"
    assert str(found.keys) == f"p1[v_b, j, {heads}, k]"


def test_rows_of_a_batch_that_are_merged_behind_the_result():
    """The cast behind stays outside: a tile's rows are of one sequence."""

    def make(emit, *x):
        weighted = emit(op.permute_dims(emit(op.nn.attention(*x)), [1, 0, 2, 3]))
        merged = emit(op.reshape(weighted, (N * B, H * D)))
        return emit(op.astype(merged, "float32"))

    out, _ = joined(module(operands(), make))
    given = arguments()
    want = expected(*given).transpose(1, 0, 2, 3).reshape(N * B, H * D)
    np.testing.assert_allclose(run(out, *given), want, atol=2e-3)


def test_bias_of_an_operator():
    params = [*operands(), variable("bias", B, 1, N, M)]
    mod = module(params, lambda emit, *x: emit(op.nn.attention(*x)))
    out, _ = joined(mod)
    bias = np.random.default_rng(1).standard_normal((B, 1, N, M)).astype("float16")
    given = arguments()
    np.testing.assert_allclose(run(out, *given, bias), expected(*given, bias=bias), atol=2e-3)


def test_operator_between_transposes():
    """Operands are read where they lie; a bias that masks by indices is not stored."""

    def make(emit, q, k, v):
        q, k, v = (heads_first(emit, heads_first(emit, x)) for x in (q, k, v))
        bias = as_float(emit, causal(emit))
        return heads_first(
            emit, emit(op.nn.attention(q, k, v, bias=emit(op.astype(bias, "float16"))))
        )

    out, (found,) = joined(module(operands(), make))
    assert [str(x) for x in found.query.indices[:3]] == ["v_ax0", "v_ax2", "v_ax1"]
    assert str(found.score) == 'T.Select(j <= v_ax2 + T.int64(16), product, T.float32("-inf"))'
    given = arguments()
    i, j = rows_and_keys()
    want = expected(*given, j <= i + M - N).transpose(0, 2, 1, 3)
    np.testing.assert_allclose(run(out, *given), want, atol=2e-3)


def test_symbolic_lengths():
    b, n, m = (tirx.Var(x, "int64") for x in "bnm")
    given = [variable("q", b, n, H, D), *(variable(x, b, m, KV, D) for x in "kv")]
    mod = module(given, lambda emit, *x: emit(op.nn.attention(*x, causal_mask="TopLeft")))
    out, (found,) = joined(mod)
    assert str(found.score).startswith("T.Select(j <= v_i, product")
    given = arguments()
    i, j = rows_and_keys()
    np.testing.assert_allclose(run(out, *given), expected(*given, j <= i), atol=2e-3)


def heads_first(emit, x):
    return emit(op.permute_dims(x, [0, 2, 1, 3]))


def repeated(emit, x):
    """Repeat heads as importers do."""
    x = emit(op.expand_dims(x, 2))
    x = emit(op.broadcast_to(x, (B, KV, H // KV, M, D)))
    return emit(op.reshape(x, (B, H, M, D)))


def flat(emit, x):
    return emit(op.reshape(x, (B * H, *x.ty.shape.values[2:])))


def written_out(emit, q, k, v, mask=None, safe=True):
    """Write attention as PyTorch decomposes scaled_dot_product_attention, in float32."""
    q, k, v = (heads_first(emit, x) for x in (q, k, v))
    k, v = repeated(emit, k), repeated(emit, v)
    q, k, v = (emit(op.astype(x, "float32")) for x in (q, k, v))
    root = relax.const(D**-0.25, "float32")
    q = emit(op.multiply(q, root))
    k = emit(op.multiply(emit(op.permute_dims(k, [0, 1, 3, 2])), root))
    s = emit(op.matmul(flat(emit, q), flat(emit, k), out_dtype="float32"))
    s = emit(op.reshape(s, (B, H, N, M)))
    if mask is not None:
        s = emit(op.add(s, mask))
    p = emit(op.nn.softmax(s, axis=-1))
    if safe == "nan":  # as ONNX has it
        p = emit(op.where(emit(op.isnan(p)), relax.const(0.0, "float32"), p))
    elif safe:
        none = emit(op.equal(s, relax.const(-INF, "float32")))
        some = emit(op.max(emit(op.astype(emit(op.logical_not(none)), "int8")), -1, True))
        none = emit(op.logical_not(emit(op.astype(some, "bool"))))
        p = emit(op.where(none, emit(op.full_like(p, relax.const(0.0, "float32"))), p))
    o = emit(op.matmul(flat(emit, p), flat(emit, v), out_dtype="float32"))
    o = emit(op.astype(emit(op.reshape(o, (B, H, N, D))), "float16"))
    return emit(op.reshape(heads_first(emit, o), (B, N, H * D)))


def places(emit, size, shape):
    return emit(op.reshape(emit(op.arange(0, size, 1, dtype="int64")), shape))


def as_float(emit, mask):
    zero, masked = (relax.const(x, "float16") for x in (0.0, -INF))
    return emit(op.astype(emit(op.where(mask, zero, masked)), "float32"))


def causal(emit, offset=M - N):
    rows = emit(op.add(places(emit, N, (1, 1, N, 1)), relax.const(offset, "int64")))
    return emit(op.less_equal(places(emit, M, (1, 1, 1, M)), rows))


def test_written_out_attention():
    """No mask, no repeated keys and no scores are in memory."""
    mod = module(operands(), lambda emit, *x: written_out(emit, *x, as_float(emit, causal(emit))))
    out, (found,) = joined(mod)
    assert str(found.score).startswith("T.Select(j <= ")
    assert [len(x.source.shape) for x in (found.query, found.keys, found.values)] == [4, 4, 4]
    given = arguments()
    i, j = rows_and_keys()
    want = expected(*given, j <= i + M - N).reshape(B, N, H * D)
    np.testing.assert_allclose(run(out, *given), want, atol=2e-3)


@pytest.mark.parametrize("safe", [True, "nan"])
def test_mask_of_a_tensor_and_of_indices(safe):
    """Padding is read as it is passed; rows without a key are 0."""

    def make(emit, q, k, v, padding):
        kept = emit(op.reshape(emit(op.astype(padding, "bool")), (B, 1, 1, M)))
        both = emit(op.bitwise_and(causal(emit, -3), kept))
        return written_out(emit, q, k, v, as_float(emit, both), safe)

    mod = module([*operands(), variable("padding", B, M, dtype="int64")], make)
    out, (found,) = joined(mod)
    assert 'T.Cast("bool", p' in str(found.score)
    padding = (np.random.default_rng(2).random((B, M)) < 0.7).astype("int64")
    given = arguments()
    got = run(out, *given, padding)
    i, j = rows_and_keys()
    mask = (j <= i - 3) & (padding[:, None, None] > 0)
    want = np.nan_to_num(expected(*given, mask))
    np.testing.assert_allclose(got, want.reshape(got.shape), atol=2e-3)
    assert not got[:, :3].any()


def test_mask_of_minus_infinity_above_the_diagonal():
    def make(emit, q, k, v):
        masked = emit(op.full((N, M), relax.const(-INF, "float32"), "float32"))
        return written_out(emit, q, k, v, emit(op.triu(masked, 1)), safe=False)

    out, (found,) = joined(module(operands(), make))
    assert str(found.score).startswith("T.Select(v_ax1 >= j, product")
    given = arguments()
    i, j = rows_and_keys()
    want = expected(*given, j <= i).reshape(B, N, H * D)
    np.testing.assert_allclose(run(out, *given), want, atol=2e-3)


def test_bias_is_read_once():
    """What is no comparison of indices is a tensor of the scores' shape."""

    def make(emit, q, k, v, table):
        bias = emit(op.permute_dims(emit(op.tanh(table)), [2, 0, 1]))
        return written_out(emit, q, k, v, emit(op.expand_dims(bias, 0)), safe=False)

    mod = module([*operands(), variable("table", N, M, H, dtype="float32")], make)
    out, (found,) = joined(mod)
    assert "[v_ax1, j, v_ax2]" not in str(found.score)
    given = arguments()
    table = np.random.default_rng(3).standard_normal((N, M, H)).astype("float32")
    got = run(out, *given, table)
    want = expected(*given, bias=np.tanh(table).transpose(2, 0, 1))
    np.testing.assert_allclose(got, want.reshape(got.shape), atol=2e-3)


def two_layers(emit, q, k, v):
    first = written_out(emit, q, k, v)
    q = emit(op.reshape(emit(op.tanh(first)), (B, N, H, D)))
    return written_out(emit, q, k, v)


def test_layers_share_a_function():
    out, _ = joined(module(operands(), two_layers))
    assert out.script().count("R.call_tir(cls.attention, ") == 2


def other_softmax(emit, q, k, v):
    return emit(op.nn.softmax(q, axis=-1))


def across_rows(emit, q, k, v):
    """Sum values along another axis than the one of the softmax."""
    q, k, v = (heads_first(emit, x) for x in (q, k, v))
    s = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2]))))
    return emit(op.matmul(emit(op.nn.softmax(s, axis=2)), v))


def summed_scores(emit, q, k, v):
    """Make scores of a product by what is no elementwise step."""
    q, k, v = (heads_first(emit, x) for x in (q, k, v))
    s = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2]))))
    return emit(op.matmul(emit(op.nn.softmax(emit(op.cumsum(s, 3)))), v))


NO_LOOPS = "an operator that TVM has no loops for, or a constant tensor"


def stays(mod, why=""):
    """Check that a program is left as it is, for a reason if it is an attention."""
    after = JoinAttention()(mod)
    assert after["main"].script() == mod["main"].script()
    left = json.loads(str(after.attrs[LEFT])) if after.attrs else []
    assert [x for _, x in left] == ([why] if why else [])


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (other_softmax, ""),
        (across_rows, ""),
        (summed_scores, NO_LOOPS),
    ],
)
def test_other_programs_stay(make, why):
    stays(module(operands(kv=H), make), why)


def test_the_report_says_why_an_attention_is_several_kernels():

    def make(emit, q, k, v, z):
        return emit(relax.Tuple([summed_scores(emit, q, k, v), emit(op.nn.softmax(z, -1))]))

    mod = module([*operands(kv=H), variable("z", 33, 1000)], make)
    found = report(mod, tvm.target.Target("nvidia/nvidia-h200"))
    assert found["softmax"].note == f"part of an attention: {NO_LOOPS}"
    assert found["softmax1"].note == ""


def test_unknown_shapes_stay():
    """Of operands whose lengths are not known, no function is made."""
    params = [relax.Var(x, relax.TensorType(dtype="float16", ndim=4)) for x in "qkv"]

    def make(emit, q, k, v):
        s = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2]))))
        return emit(op.matmul(emit(op.nn.softmax(s)), v))

    stays(module(params, make), "a shape is not known")


def test_wide_models_stay():
    """Operands of float32 with a result of float32 are no matter of 16 bits."""
    params = [relax.Var(x.name, relax.TensorType(x.ty.shape, "float32")) for x in operands(kv=H)]

    def make(emit, q, k, v):
        q, k, v = (heads_first(emit, x) for x in (q, k, v))
        s = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2]))))
        return emit(op.matmul(emit(op.nn.softmax(s)), v))

    stays(module(params, make), "operands of float32; need one type of 16 bits")
