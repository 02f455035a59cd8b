"""Models as a user may write them, of what the others here do not have: each by operators.

Each takes a type of floats and returns a module whose `main` takes tensors; SIZES are what its
symbols may be.
"""

import math

import numpy as np
import tvm
from tvm import relax, tirx

op = relax.op


class Model:
    """A builder of one function: what it takes, and short names for what models do."""

    def __init__(self, dtype):
        self.dtype, self.given = dtype, []
        self.builder = relax.BlockBuilder()

    def take(self, *shape, dtype=None):
        name = f"x{len(self.given)}"
        self.given.append(relax.Var(name, relax.TensorType(shape, dtype or self.dtype)))
        return self.given[-1]

    def done(self, build):
        with self.builder.function("main", self.given):
            with self.builder.dataflow():
                out = build()
                out = relax.Tuple(out) if isinstance(out, (list, tuple)) else out
                out = self.builder.emit_output(self.emit(out))
            self.builder.emit_func_output(out)
        return self.builder.finalize()

    def emit(self, value):
        return self.builder.emit(value)

    def const(self, value):
        return relax.const(value, self.dtype)

    def linear(self, x, w, bias=None):
        y = self.emit(op.matmul(x, self.emit(op.permute_dims(w))))
        return y if bias is None else self.emit(op.add(y, bias))

    def heads(self, x, count):
        b, s, width = x.ty.shape
        x = self.emit(op.reshape(x, (b, s, count, width // count)))
        return self.emit(op.permute_dims(x, [0, 2, 1, 3]))

    def attend(self, q, k, v, bias=None):
        scale = self.const(1 / math.sqrt(int(q.ty.shape[-1])))
        turned = self.emit(op.permute_dims(k, [0, 1, 3, 2]))
        scores = self.emit(op.multiply(self.emit(op.matmul(q, turned)), scale))
        if bias is not None:
            scores = self.emit(op.add(scores, bias))
        mixed = self.emit(op.matmul(self.emit(op.nn.softmax(scores, -1)), v))
        b, h, s, d = mixed.ty.shape
        return self.emit(op.reshape(self.emit(op.permute_dims(mixed, [0, 2, 1, 3])), (b, s, h * d)))


def symbols(*names):
    return [tirx.Var(x, "int64") for x in names]


def vision(dtype):
    """Patches by a convolution, a class token, three heads of 32."""
    (b,) = symbols("b")
    m, width = Model(dtype), 96
    x, patch, token = m.take(b, 3, 32, 32), m.take(width, 3, 8, 8), m.take(1, 1, width)
    place, gain, shift = m.take(1, 17, width), m.take(width), m.take(width)
    qkv, out = m.take(3 * width, width), m.take(width, width)
    up, up_bias, down, head = m.take(384, width), m.take(384), m.take(width, 384), m.take(10, width)

    def build():
        y = m.emit(op.nn.conv2d(x, patch, strides=8))
        y = m.emit(op.permute_dims(m.emit(op.reshape(y, (b, width, 16))), [0, 2, 1]))
        y = m.emit(op.concat([m.emit(op.broadcast_to(token, (b, 1, width))), y], 1))
        y = m.emit(op.add(y, place))
        n = m.emit(op.nn.layer_norm(y, gain, shift, [-1]))
        parts = m.emit(op.split(m.linear(n, qkv), 3, -1))
        q, k, v = (m.heads(m.emit(relax.TupleGetItem(parts, i)), 3) for i in range(3))
        y = m.emit(op.add(y, m.linear(m.attend(q, k, v), out)))
        n = m.emit(op.nn.layer_norm(y, gain, shift, [-1]))
        n = m.emit(op.nn.gelu_tanh(m.linear(n, up, up_bias)))
        y = m.emit(op.add(y, m.linear(n, down)))
        first = m.emit(op.strided_slice(y, [1], [0], [1]))
        return m.linear(m.emit(op.reshape(first, (b, width))), head)

    return m.done(build)


def encoder_decoder(dtype):
    """Tokens embedded by the weight that scores them, relative places, gated gelu, two lengths."""
    b, s, t = symbols("b", "s", "t")
    m, width, heads = Model(dtype), 64, 4
    source, target = m.take(b, s, dtype="int64"), m.take(b, t, dtype="int64")
    table, near = m.take(200, width), m.take(1, heads, 1, 1)
    g1, g2, g3 = (m.take(width) for _ in range(3))
    q, k, v, o = (m.take(width, width) for _ in range(4))
    gate, up, down = m.take(96, width), m.take(96, width), m.take(width, 96)

    def block(y, other, n, length):
        own = m.emit(op.nn.rms_norm(y, n, [-1]))
        read = own if other is None else other
        hq, hk, hv = (m.heads(m.linear(i, w), heads) for i, w in ((own, q), (read, k), (read, v)))
        y = m.emit(op.add(y, m.linear(m.attend(hq, hk, hv, near), o)))
        n = m.emit(op.nn.rms_norm(y, g3, [-1]))
        opened = m.emit(op.multiply(m.emit(op.nn.gelu(m.linear(n, gate))), m.linear(n, up)))
        return m.emit(op.add(y, m.linear(opened, down)))

    def embed(ids, length):
        flat = m.emit(op.reshape(ids, (b * length,)))
        return m.emit(op.reshape(m.emit(op.take(table, flat, 0)), (b, length, width)))

    def build():
        known = block(embed(source, s), None, g1, s)
        y = block(embed(target, t), None, g1, t)
        y = block(y, known, g2, t)
        scores = m.linear(y, table)
        return [scores, m.emit(op.argmax(scores, -1))]

    return m.done(build)


def state_space(dtype):
    """Sum so far what a depthwise convolution along time gives, in float32, behind a gate."""
    b, s = symbols("b", "s")
    m, width, inner = Model(dtype), 64, 128
    x, gain, into = m.take(b, s, width), m.take(width), m.take(2 * inner, width)
    taps, step, back = m.take(inner, 1, 4), m.take(inner, inner), m.take(width, inner)
    rate = m.take(inner)

    def build():
        n = m.emit(op.nn.rms_norm(x, gain, [-1]))
        parts = m.emit(op.split(m.linear(n, into), 2, -1))
        y, gate = (m.emit(relax.TupleGetItem(parts, i)) for i in range(2))
        y = m.emit(op.permute_dims(y, [0, 2, 1]))
        y = m.emit(op.nn.conv1d(y, taps, padding=(3, 0), groups=inner))
        y = m.emit(op.nn.silu(m.emit(op.permute_dims(y, [0, 2, 1]))))
        d = m.emit(op.astype(m.linear(y, step), "float32"))
        d = m.emit(op.log(m.emit(op.add(relax.const(1.0, "float32"), m.emit(op.exp(d))))))
        decay = m.emit(op.multiply(d, m.emit(op.negative(m.emit(op.exp(
            m.emit(op.astype(rate, "float32"))))))))  # fmt: skip
        weight = m.emit(op.exp(m.emit(op.multiply(decay, relax.const(0.05, "float32")))))
        before = m.emit(op.tril(m.emit(op.ones(relax.ShapeExpr((s, s)), "float32"))))
        total = m.emit(op.multiply(weight, m.emit(op.astype(y, "float32"))))
        total = m.emit(op.matmul(before, total))  # a cumsum of symbols is one that TVM cannot build
        y = m.emit(op.astype(total, dtype))
        y = m.emit(op.multiply(y, m.emit(op.nn.silu(gate))))
        return m.emit(op.add(x, m.linear(y, back)))

    return m.done(build)


def grouped(dtype):
    """Seven heads of queries, one of keys and values; products and norm of the last token alone."""
    b, s = symbols("b", "s")
    m, head, heads = Model(dtype), 24, 7
    width = head * heads
    x, gain = m.take(b, s, width), m.take(width)
    q, k, v, o = (
        m.take(width, width),
        m.take(head, width),
        m.take(head, width),
        m.take(width, width),
    )

    def build():
        n = m.emit(op.nn.rms_norm(x, gain, [-1]))
        hq = m.heads(m.linear(n, q), heads)
        hk, hv = (m.heads(m.linear(n, w), 1) for w in (k, v))
        hk, hv = (m.emit(op.broadcast_to(y, (b, heads, s, head))) for y in (hk, hv))
        y = m.emit(op.add(x, m.linear(m.attend(hq, hk, hv), o)))
        last = m.emit(op.strided_slice(y, [1], [-1], [2**31 - 1]))
        return [m.linear(m.emit(op.nn.rms_norm(last, gain, [-1])), q), hk]

    return m.done(build)


def quantised(dtype):
    """Weights of int8 with a scale a row; a weight from both sides; a Gram matrix; a constant."""
    (b,) = symbols("b")
    m, width = Model(dtype), 128
    x, w8, scale = m.take(b, width), m.take(256, width, dtype="int8"), m.take(256, 1)
    tied = m.take(256, 256)
    fixed = np.random.default_rng(0).standard_normal((width, 256)) * 256**-0.5

    def build():
        w = m.emit(op.multiply(m.emit(op.astype(w8, dtype)), scale))
        y = m.emit(op.nn.relu(m.linear(x, w)))
        y = m.linear(m.emit(op.tanh(m.linear(y, tied))), m.emit(op.permute_dims(tied)))
        y = m.linear(y, relax.const(fixed.astype(dtype), dtype))
        gram = m.linear(y, y)
        return [y, gram, x, y]

    return m.done(build)


def branches(dtype):
    """Functions that call functions, a branch by data, a product under it, no rows at times."""
    (b,) = symbols("b")
    builder = relax.BlockBuilder()
    c = tirx.Var("c", "int64")
    x, w = (relax.Var("x", relax.TensorType(s, dtype)) for s in ((c, 64), (64, 64)))
    with builder.function("layer", [x, w]):
        with builder.dataflow():
            y = builder.emit(op.matmul(x, builder.emit(op.permute_dims(w))))
            out = builder.emit_output(builder.emit(op.nn.silu(y)))
        layer = builder.emit_func_output(out)
    x = relax.Var("x", relax.TensorType((b, 64), dtype))
    w = relax.Var("w", relax.TensorType((64, 64), dtype))
    flag = relax.Var("flag", relax.TensorType((), "bool"))
    kind = relax.TensorType((b, 64), dtype)
    with builder.function("main", [x, w, flag]):
        once = builder.emit(relax.Call(layer, [x, w], ty_args=[]))
        twice = builder.emit(relax.Call(layer, [once, w], ty_args=[]))
        del kind
        builder.emit_func_output(builder.emit(op.add(once, twice)))
    return builder.finalize()


MODELS = {
    x.__name__: x for x in (vision, encoder_decoder, state_space, grouped, quantised, branches)
}
SIZES = {
    "vision": [{"b": 1}, {"b": 5}],
    "encoder_decoder": [{"b": 1, "s": 1, "t": 1}, {"b": 3, "s": 37, "t": 5}],
    "state_space": [{"b": 1, "s": 1}, {"b": 2, "s": 67}],
    "grouped": [{"b": 1, "s": 1}, {"b": 3, "s": 45}],
    "quantised": [{"b": 1}, {"b": 19}, {"b": 300}],
    "branches": [{"b": 1}, {"b": 130}],
}


def arguments(mod, sizes, seed=0):
    """Draw what `main` takes: weights small, tokens of any value, other integers small."""
    rng = np.random.default_rng(seed)
    found = []
    for x in mod["main"].params:
        shape = [sizes[str(i)] if isinstance(i, tirx.Var) else int(i) for i in x.ty.shape.values]
        dtype = str(x.ty.dtype)
        if dtype == "int64":
            found.append(rng.integers(0, 200, shape))
        elif dtype == "int8":
            found.append(rng.integers(-9, 9, shape).astype("int8"))
        elif dtype == "bool":
            found.append(np.array(True))
        else:
            scale = 1.0 if len(shape) != 2 else (shape or [1])[-1] ** -0.5
            found.append((scale * rng.standard_normal(shape)).astype(dtype))
    return found


def built(name, dtype, target, **options):
    return relax.build(
        MODELS[name](dtype), target=tvm.target.Target(target),
        relax_pipeline=relax.get_pipeline("tvm_hopper", **options),
    )  # fmt: skip
