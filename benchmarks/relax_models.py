"""Layers of a Llama-3-8B as PyTorch and TVM have them, on the same weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm_hopper.testing.llama import THETA, LlamaShape, llama

TARGET = "nvidia/nvidia-h200"
EPSILON = 1e-5
PAST = 16  # tokens before a prefill
CONTEXT = 1024  # tokens before a decode step
PAGE = 16  # tokens of a page of the paged cache


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Step:
    """A pass of one contender: what is timed, and what goes before and behind."""

    call: Callable[[], Any]
    before: Callable[[], Any] = field(default=_nothing)
    after: Callable[[], Any] = field(default=_nothing)


@dataclass(frozen=True)
class Pass:
    """One pass through the layers: so many sequences of so many new tokens behind `past`."""

    batch: int
    length: int

    @property
    def is_prefill(self) -> bool:
        """Whether a sequence has several new tokens."""
        return self.length > 1

    @property
    def past(self) -> int:
        """Tokens before the new ones, where there is attention."""
        return PAST if self.is_prefill else CONTEXT

    @property
    def name(self) -> str:
        """Name in the table."""
        return f"prefill {self.length}" if self.is_prefill else f"decode batch {self.batch}"

    @property
    def method(self) -> str:
        """The function of the model."""
        return "prefill" if self.is_prefill else "decode"


PASSES = (Pass(1, 2048), Pass(1, 1), Pass(16, 1), Pass(128, 1))


# -- PyTorch --------------------------------------------------------------------------------


def draw_weights(shape: LlamaShape, dtype: str) -> list[Any]:
    """Draw the weights, in the order in which the exported model takes them."""
    import torch

    made = {"device": "cuda", "dtype": getattr(torch, dtype)}
    heads = (shape.heads + 2 * shape.kv_heads) * shape.head
    sizes = [(heads, shape.hidden), (shape.hidden, shape.heads * shape.head)]
    sizes += [(2 * shape.inner, shape.hidden), (shape.hidden, shape.inner)]
    found: list[Any] = []
    for _ in range(shape.layers):
        found += [torch.rand(shape.hidden, **made) + 0.5 for _ in range(2)]
        found += [torch.randn(size, **made) * size[1] ** -0.5 for size in sizes]
    return [*found, torch.rand(shape.hidden, **made) + 0.5]


def _turned(x: Any, start: int) -> Any:
    import torch

    places = torch.arange(start, start + x.shape[1], device=x.device, dtype=torch.float32)
    half = x.shape[-1] // 2
    powers = torch.arange(half, device=x.device, dtype=torch.float32) / half
    angles = (places[:, None] * THETA ** -powers[None, :])[:, None, :]
    one, other = x[..., :half].float(), x[..., half:].float()
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([one * cos - other * sin, other * cos + one * sin], -1).to(x.dtype)


def run_torch(
    shape: LlamaShape, x: Any, weights: Sequence[Any], past: Sequence[Any],
    cache: Any = None, start: int = 0,
) -> Any:  # fmt: skip
    """Run the layers as PyTorch has them; without `past` and cache queries go on as they are.

    Products take rows of tokens: of three dimensions that are a part of larger rows, as queries
    are, PyTorch makes a product for each sequence, which takes 128 sequences four times as long.
    """
    import torch
    from torch.nn import functional as f

    size, tokens = (shape.hidden,), x.shape[:2]
    x = x.reshape(-1, shape.hidden)
    for i in range(shape.layers):
        norm1, norm2, qkv, out, gate_up, down = weights[6 * i : 6 * i + 6]
        heads = f.linear(f.rms_norm(x, size, norm1, EPSILON), qkv)
        heads = heads.view(*tokens, -1, shape.head)
        q, k, v = heads.split([shape.heads, shape.kv_heads, shape.kv_heads], 2)
        if cache is not None:
            q = cache.attend(i, start, q, k, v)
        if past:
            start = past[2 * i].shape[1]
            k = torch.cat([past[2 * i], _turned(k, start)], 1)
            v = torch.cat([past[2 * i + 1], v], 1)
            q = _turned(q, start)
            mask = _mask(q, start) if tokens[1] > 1 else None
            q = f.scaled_dot_product_attention(
                *(y.transpose(1, 2) for y in (q, k, v)), attn_mask=mask, enable_gqa=True
            ).transpose(1, 2)
        x = x + f.linear(q.reshape(x.shape[0], -1), out)
        gate, up = f.linear(f.rms_norm(x, size, norm2, EPSILON), gate_up).chunk(2, -1)
        x = x + f.linear(f.silu(gate) * up, down)
    return f.rms_norm(x, size, weights[-1], EPSILON).view(*tokens, -1)


# -- TVM --------------------------------------------------------------------------------


def build(shape: LlamaShape, dtype: str, attention: str, pipeline: Any) -> Any:
    """Compile the model, by TVM's pipeline of a name or by ours with options."""
    from tvm import relax

    if not isinstance(pipeline, str):
        pipeline = relax.get_pipeline("tvm_hopper", **pipeline)
    return relax.build(llama(shape, dtype, attention), target=TARGET, relax_pipeline=pipeline)


def build_library(path: str, *given: Any) -> float:
    """Compile the model into a library; return how many seconds of a processor that took."""
    begin = time.process_time()
    ex = build(*given)
    seconds = time.process_time() - begin
    ex.export_library(path)
    return seconds


def load(library: str) -> Any:
    """Load what `build` made on the device."""
    import tvm
    from tvm import relax

    return relax.VirtualMachine(tvm.runtime.load_module(library), tvm.cuda(0))


def caller(machine_: Any, one: Pass, x: Any, weights: Sequence[Any], past: Sequence[Any]) -> Any:
    """Return a call of a TVM model on PyTorch's tensors."""
    import tvm_ffi

    function = machine_[one.method]
    given = [tvm_ffi.from_dlpack(y) for y in weights]
    arguments: list[Any] = [tvm_ffi.from_dlpack(x)]
    if past:
        arguments.append(tvm_ffi.Shape([one.past + one.length]))
        arguments += [tvm_ffi.from_dlpack(y) for y in past]

    def call() -> Any:
        with tvm_ffi.use_torch_stream():
            found = function(*arguments, given)
        return found if not past else found[0]

    return call


class PagedCache:
    """TVM's paged cache of keys and values, filled for one pass."""

    def __init__(self, machine_: Any, one: Pass) -> None:
        import tvm_ffi

        total = (one.past + one.length + PAGE) * one.batch
        chunk = max(one.past, one.length) * one.batch
        numbers = (one.batch, total, chunk, PAGE, 0)
        self.cache = machine_["create"](*(tvm_ffi.Shape([x]) for x in numbers))
        self.machine, self.one = machine_, one
        self.sequences = tvm_ffi.Shape(range(one.batch))
        for sequence in range(one.batch):
            _kv_state("add_sequence")(self.cache, sequence)

    def begin(self, length: int) -> None:
        """Make room for some tokens of each sequence."""
        import tvm_ffi

        lengths = tvm_ffi.Shape([length] * self.one.batch)
        _kv_state("begin_forward")(self.cache, self.sequences, lengths)

    def end(self) -> None:
        """End a step, and keep its tokens."""
        _kv_state("end_forward")(self.cache)

    def step(self, x: Any, weights: Sequence[Any], before: Any) -> Step:
        """Return the step on PyTorch's tensors, behind the tokens `before`.

        It is planned once and never ended: each call stores the same tokens in the same places.
        """
        import tvm_ffi

        given = [tvm_ffi.from_dlpack(y) for y in weights]

        def run(name: str, tokens: Any) -> Any:
            with tvm_ffi.use_torch_stream():
                return self.machine[name](tvm_ffi.from_dlpack(tokens), self.cache, given)[0]

        self.begin(self.one.past)
        run("prefill", before.view(1, -1, before.shape[-1]))
        self.end()
        self.begin(self.one.length)
        return Step(lambda: run(self.one.method, x))


def _kv_state(name: str) -> Any:
    import tvm

    return tvm.get_global_func(f"vm.builtin.kv_state_{name}")


class TorchCache:
    """Keys and values in place, as PyTorch's users keep them, for `run_torch`."""

    def __init__(self, shape: LlamaShape, one: Pass, dtype: Any) -> None:
        import torch

        size = (one.batch, one.past + one.length, shape.kv_heads, shape.head)
        made = {"device": "cuda", "dtype": dtype}
        self.tensors = [torch.zeros(size, **made) for _ in range(2 * shape.layers)]

    def attend(self, layer: int, start: int, q: Any, k: Any, v: Any) -> Any:
        """Store new keys and values; return what the heads sum."""
        from torch.nn import functional as f

        length = start + q.shape[1]
        keys, values = self.tensors[2 * layer : 2 * layer + 2]
        keys[:, start:length], values[:, start:length] = k, v
        given = [x.transpose(1, 2) for x in (q, keys[:, :length], values[:, :length])]
        mask = _mask(q, start) if start and q.shape[1] > 1 else None
        causal = mask is None and q.shape[1] > 1
        return f.scaled_dot_product_attention(
            *given, attn_mask=mask, is_causal=causal, enable_gqa=True
        ).transpose(1, 2)


def _mask(q: Any, start: int) -> Any:
    import torch

    shape = q.shape[1], start + q.shape[1]
    return torch.ones(shape, dtype=torch.bool, device=q.device).tril(diagonal=start)
