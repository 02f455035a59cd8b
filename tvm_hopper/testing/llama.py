"""A Llama in TVM's own frontend, as those who ship one write it: prefill and decode, any width.

Weights are arguments, products of queries, keys and values are one, and so are those of gate and
up.  Attention is written by hand ("plain": keys and values so far come in and go out as tensors),
taken from TVM's paged cache ("paged"), or left out ("none": queries go on as they are), which
leaves the linear layers and the norms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, te, tirx
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op, spec
from tvm.relax.frontend.nn.llm import kv_cache
from tvm.target import Target

THETA = 500000.0  # base of the rotary angles
ATTENTIONS = ("plain", "paged", "none")


@dataclass(frozen=True)
class LlamaShape:
    """Sizes of a Llama, in elements; those of Llama-3-8B where nothing else is said.

    - `hidden`: width of the residual stream.
    - `heads`, `kv_heads`: heads of queries, and of keys and values.
    - `head`: width of a head.
    - `inner`: width between gate, up and down.
    - `vocabulary`, `layers`: tokens, of which 0 leaves out the product that scores them; and blocks
      one after another.
    """

    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 8
    head: int = 128
    inner: int = 14336
    vocabulary: int = 128256
    layers: int = 32


SMALL = LlamaShape(128, 4, 2, 32, 192, 256, 1)


def _rotated(x: Any, total: Any) -> Any:
    """Turn each pair of a head's elements by the angle of its token's place."""

    def turned(t: te.Tensor, n: Any) -> te.Tensor:
        length, width = t.shape[1], int(t.shape[3])
        half = width // 2

        def at(b: Any, s: Any, h: Any, d: Any) -> Any:
            place = (n - length + s).astype("float32")
            power = (d % half * 2).astype("float32") / tirx.const(float(width), "float32")
            angle = place * te.exp(power * tirx.const(-math.log(THETA), "float32"))
            other = tirx.if_then_else(d < half, -t[b, s, h, d + half], t[b, s, h, d - half])
            own = t[b, s, h, d].astype("float32") * te.cos(angle)
            return (own + other.astype("float32") * te.sin(angle)).astype(t.dtype)

        return te.compute(t.shape, at, name="rope")

    return op.tensor_expr_op(turned, "rope", [x, total])


def _causal(scores: Any) -> Any:
    """Hide from each query the keys of later tokens; the last query sees all of them."""

    def masked(t: te.Tensor) -> te.Tensor:
        behind = t.shape[3] - t.shape[2]

        def at(b: Any, h: Any, i: Any, j: Any) -> Any:
            return tirx.if_then_else(j <= i + behind, t[b, h, i, j], tirx.const(-1e30, "float32"))

        return te.compute(t.shape, at, name="causal")

    return op.tensor_expr_op(masked, "causal", [scores])


class PlainAttention(nn.Module):
    """Softmax of scaled scores in float32; keys and values so far are tensors."""

    def __init__(self, shape: LlamaShape) -> None:
        self.shape = shape

    def forward(self, qkv: Any, total: Any, past: tuple[Any, Any]) -> tuple[Any, tuple[Any, Any]]:
        """Return the heads' sums, and keys and values with the new tokens' after them."""
        shape = self.shape
        q, k, v = op.split(qkv, [shape.heads, shape.heads + shape.kv_heads], 2)
        k = op.concat([past[0], _rotated(k, total)], 1)
        v = op.concat([past[1], v], 1)
        groups = shape.heads // shape.kv_heads
        q = op.permute_dims(_rotated(q, total), [0, 2, 1, 3])
        keys = op.permute_dims(op.repeat(k, groups, 2), [0, 2, 3, 1])
        values = op.permute_dims(op.repeat(v, groups, 2), [0, 2, 1, 3])
        scores = op.matmul(q, keys).astype("float32") * (shape.head**-0.5)
        if qkv.shape[1] != 1:  # a single token sees all before it
            scores = _causal(scores)
        weights = op.softmax(scores, -1).astype(qkv.dtype)
        return op.permute_dims(op.matmul(weights, values), [0, 2, 1, 3]), (k, v)


class LlamaBlock(nn.Module):
    """Norm, attention and residual; norm, gated products and residual."""

    def __init__(self, shape: LlamaShape, attention: str, index: int) -> None:
        def linear(depth: int, columns: int) -> nn.Linear:
            return nn.Linear(depth, columns, bias=False)

        self.shape, self.index = shape, index
        self.attention: Any = PlainAttention(shape) if attention == "plain" else attention
        self.norm1 = nn.RMSNorm(shape.hidden, -1, 1e-5, bias=False)
        self.norm2 = nn.RMSNorm(shape.hidden, -1, 1e-5, bias=False)
        self.qkv = linear(shape.hidden, (shape.heads + 2 * shape.kv_heads) * shape.head)
        self.out = linear(shape.heads * shape.head, shape.hidden)
        self.gate_up = linear(shape.hidden, 2 * shape.inner)
        self.down = linear(shape.inner, shape.hidden)

    def forward(self, x: Any, total: Any, state: Any) -> tuple[Any, Any]:
        """Return the residual stream after the block, and what attention keeps."""
        shape = self.shape
        batch, length, _ = x.shape
        heads = shape.heads + 2 * shape.kv_heads
        qkv = self.qkv(self.norm1(x)).reshape(batch, length, heads, shape.head)
        if self.attention == "none":
            mixed, _, _ = op.split(qkv, [shape.heads, shape.heads + shape.kv_heads], 2)
        elif self.attention == "paged":
            scale = shape.head**-0.5
            mixed = state.attention_with_fused_qkv(self.index, qkv, shape.heads, sm_scale=scale)
        else:
            mixed, state = self.attention(qkv, total, state)
        x = x + self.out(mixed.reshape(batch, length, shape.heads * shape.head))
        gate, up = op.split(self.gate_up(self.norm2(x)), 2, -1)
        return x + self.down(op.silu(gate) * up), state


class Llama(nn.Module):
    """Blocks, a norm and the products that score each token."""

    def __init__(self, shape: LlamaShape, attention: str) -> None:
        self.shape, self.attention = shape, attention
        self.blocks = nn.ModuleList(
            [LlamaBlock(shape, attention, index) for index in range(shape.layers)]
        )
        self.norm = nn.RMSNorm(shape.hidden, -1, 1e-5, bias=False)
        if shape.vocabulary:
            self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False, out_dtype="float32")

    def run(self, x: Any, total: Any, states: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Return the tokens' scores, and what each block's attention keeps."""
        kept = []
        for block, state in zip(self.blocks, states, strict=True):
            x, state = block(x, total, state)
            kept.append(state)
        x = self.norm(x)
        return (self.head(x) if self.shape.vocabulary else x), kept

    def plain(self, x: Any, total: Any, *past: Any) -> Any:
        """Run with keys and values as tensors."""
        pairs = list(zip(past[::2], past[1::2], strict=True))
        scores, kept = self.run(x, total, pairs)
        return scores, *(tensor for pair in kept for tensor in pair)

    def alone(self, x: Any) -> Any:
        """Run without attention."""
        return self.run(x, None, [None] * self.shape.layers)[0]

    def paged(self, x: Any, cache: kv_cache.PagedKVCache) -> Any:
        """Run with TVM's paged cache."""
        return self.run(x, None, [cache] * self.shape.layers)[0], cache


def _method(call: Any, inputs: dict[str, Any]) -> spec.MethodSpec:
    return spec.MethodSpec(call, list(inputs), list(inputs.values()), "packed", "none")


def _create(shape: LlamaShape, dtype: str, target: Target) -> Any:
    """Return the method that makes a paged cache; rotary angles are left to users of it."""

    def create(max_batch_size: Any, max_total: Any, chunk: Any, page: Any, sliding: Any) -> Any:
        return kv_cache.TIRPagedKVCache(
            "mha", max_batch_size, max_total, chunk, page, sliding,
            relax.ShapeExpr([0, shape.layers]), shape.layers, shape.heads, shape.kv_heads,
            shape.head, shape.head, 0, 0, kv_cache.RopeMode.NONE, 1, int(THETA),
            {"rope_type": "gptj"}, tirx.IntImm("int64", 0), shape.head, False, dtype, target,
        )  # fmt: skip

    return create


def llama(
    shape: LlamaShape = SMALL,
    dtype: str = "float16",
    attention: str = "plain",
    batch: int | str = "batch",
    target: str = "nvidia/nvidia-h200",
) -> tvm.IRModule:
    """Return a module of two functions, "prefill" and "decode", of any number of tokens.

    - `shape`: its sizes.
    - `dtype`: of weights and of what goes from block to block; scores of the tokens are float32.
    - `attention`: "plain", "paged" or "none".
    - `batch`: sequences, or the name of their symbolic number.
    - `target`: that the kernels of a paged cache are made for.
    - returns: `prefill(x, ..., weights)` takes x of (batch, tokens, hidden), `decode` of (batch, 1,
      hidden). With "plain" there follow the number of all tokens and, for each block, keys and
      values so far of (batch, past, kv_heads, head), which come back with the new ones. With
      "paged" a cache follows, which "create" makes.
    """
    if attention not in ATTENTIONS:
        raise ValueError(f"attention {attention!r}: need one of {', '.join(ATTENTIONS)}")
    model = Llama(shape, attention)
    model.to(dtype)
    methods = {}
    for name, length in (("prefill", "length"), ("decode", 1)):
        inputs: dict[str, Any] = {"x": spec.Tensor([batch, length, shape.hidden], dtype)}
        call: Any = {"plain": model.plain, "paged": model.paged, "none": model.alone}[attention]
        if attention == "plain":
            inputs["total"] = spec.Int()
            for index in range(shape.layers):
                kept = [batch, "past", shape.kv_heads, shape.head]
                inputs[f"k{index}"] = spec.Tensor(kept, dtype)
                inputs[f"v{index}"] = spec.Tensor(kept, dtype)
        elif attention == "paged":
            inputs["cache"] = spec.Object(object_type=kv_cache.PagedKVCache)
        methods[name] = _method(call, inputs)
    if attention == "paged":
        names = ("max_batch_size", "max_total", "chunk", "page", "sliding")
        create = _create(shape, dtype, Target(target, host="llvm"))
        kinds = [spec.Int() for _ in names]
        methods["create"] = spec.MethodSpec(create, list(names), kinds, "none", "none")
    whole = spec.ModuleSpec(model, list(methods), list(methods.values()))
    return model.export_tvm(spec=whole)[0]


class SeparateBlock(nn.Module):
    """A block without attention whose q, k, v, gate and up are products of their own."""

    def __init__(self, shape: LlamaShape) -> None:
        def linear(depth: int, columns: int) -> nn.Linear:
            return nn.Linear(depth, columns, bias=False)

        wide, narrow = shape.heads * shape.head, shape.kv_heads * shape.head
        self.norm1 = nn.RMSNorm(shape.hidden, -1, 1e-5, bias=False)
        self.norm2 = nn.RMSNorm(shape.hidden, -1, 1e-5, bias=False)
        self.q, self.k, self.v = (linear(shape.hidden, x) for x in (wide, narrow, narrow))
        self.out = linear(wide, shape.hidden)
        self.gate, self.up = linear(shape.hidden, shape.inner), linear(shape.hidden, shape.inner)
        self.down = linear(shape.inner, shape.hidden)

    def forward(self, x: Any) -> Any:
        """Return the residual stream after the block, keys and values."""
        y = self.norm1(x)
        q, k, v = self.q(y), self.k(y), self.v(y)
        x = x + self.out(q)
        y = self.norm2(x)
        return x + self.down(op.silu(self.gate(y)) * self.up(y)), k, v


def separate_block(
    shape: LlamaShape = SMALL, dtype: str = "float16", params: str = "packed"
) -> tvm.IRModule:
    """Return a module of one function, "main", of (batch, length, hidden) and the weights.

    - `shape`: its sizes.
    - `dtype`: of everything.
    - `params`: "packed": weights are one tuple; "plain": parameters of their own.
    """
    block = SeparateBlock(shape)
    block.to(dtype)
    given = {"x": spec.Tensor(["batch", "length", shape.hidden], dtype)}
    method = spec.MethodSpec(block.forward, list(given), list(given.values()), params, "none")
    return block.export_tvm(spec=spec.ModuleSpec(block, ["main"], [method]))[0]
