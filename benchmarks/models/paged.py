"""Layers of a Llama-3-8B in TVM's own frontend, and in PyTorch on the same weights.

With attention, TVM has it on its paged cache, whose planning of a step by the host is left out, and
PyTorch by `scaled_dot_product_attention` on keys and values that lie in place. Without it, queries
go on as they are: norms, products and gates are left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tvm_hopper.testing.llama import SMALL, LlamaShape, llama

from .cases import Case
from .imported import TARGET

EPSILON = 1e-5
LAYERS = 4
PAST = 16  # tokens before a prefill
CONTEXT = 1024  # tokens before a decode step
PAGE = 16  # tokens of a page of the paged cache
PAGED = "paged"


class PagedSubject:
    """The layers as `measure` wants them: built by a pipeline, called on a GPU."""

    num_sets = 1  # weights of four layers are 1.7 GB: a pass leaves nothing of them in the L2 cache

    def __init__(self, case: Case, tiny: bool) -> None:
        given = case.given
        self.batch, self.length = int(given["batch"]), int(given["length"])
        self.attention, self.dtype = str(given["attention"]), case.dtype
        shape = SMALL if tiny else LlamaShape(layers=LAYERS)
        self.shape = replace(shape, vocabulary=0)
        self.past = PAST if self.length > 1 else CONTEXT
        self.method = "prefill" if self.length > 1 else "decode"
        self.notes: list[str] = []

    def build(self, pipeline: str) -> Any:
        """Compile the model by a pipeline's name."""
        from tvm import relax

        mod = llama(self.shape, self.dtype, self.attention)
        return relax.build(mod, target=TARGET, relax_pipeline=pipeline)

    def report(self, executable: Any) -> Any:
        """Return the report of what was built, of this pass alone."""
        from tvm_hopper.relax import report

        sizes = {"batch": self.batch}
        if self.method == "prefill":
            sizes["length"] = self.length
        if self.attention == PAGED:
            sizes["context"] = self.past + self.length
        said = report(executable, sizes=sizes)
        functions = (
            replace(x, calls=tuple(y for y in x.calls if y.caller == self.method))
            for x in said.functions
        )
        return replace(said, functions=tuple(functions))

    def to_gpu(self) -> None:
        """Draw weights and inputs."""
        import torch

        self.weights = draw_weights(self.shape, self.dtype)
        made: dict[str, Any] = {"device": "cuda", "dtype": getattr(torch, self.dtype)}
        self.x = torch.randn(self.batch, self.length, self.shape.hidden, **made)
        self.before = torch.randn(self.batch, self.past, self.shape.hidden, **made)

    def of_tvm(self, executable: Any) -> Callable[[int], Any]:
        """Return calls of what was built."""
        import tvm
        import tvm_ffi
        from tvm import relax

        machine = relax.VirtualMachine(executable, tvm.cuda(0))
        if self.attention == PAGED:
            return PagedCache(machine, self).step()
        function, x = machine[self.method], tvm_ffi.from_dlpack(self.x)
        given = [tvm_ffi.from_dlpack(y) for y in self.weights]

        def call(_: int) -> Any:
            with tvm_ffi.use_torch_stream():
                return function(x, given)

        return call

    def of_torch(self, compile_: Any = None) -> Callable[[int], Any]:
        """Return calls of PyTorch's layers."""
        run = run_torch if compile_ is None else compile_(run_torch)
        return self._torch_call(run, self.x, self.before, self.weights)

    def reference(self) -> Any:
        """Return the result in float64."""
        wide = [x.double() for x in self.weights]
        return self._torch_call(run_torch, self.x.double(), self.before.double(), wide)(0)

    def _torch_call(self, run: Any, x: Any, before: Any, weights: Any) -> Callable[[int], Any]:
        cache, start = None, 0
        if self.attention == PAGED:
            cache, start = TorchCache(self, x.dtype), self.past
            run_torch(self.shape, before, weights, cache)
        return lambda _: run(self.shape, x, weights, cache, start)


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


def run_torch(
    shape: LlamaShape, x: Any, weights: Sequence[Any], cache: Any = None, start: int = 0
) -> Any:
    """Run the layers as PyTorch has them; without a cache queries go on as they are.

    Products take rows of tokens: of three dimensions that are a part of larger rows, as queries
    are, PyTorch makes a product for each sequence, which takes 128 sequences four times as long.
    """
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
        x = x + f.linear(q.reshape(x.shape[0], -1), out)
        gate, up = f.linear(f.rms_norm(x, size, norm2, EPSILON), gate_up).chunk(2, -1)
        x = x + f.linear(f.silu(gate) * up, down)
    return f.rms_norm(x, size, weights[-1], EPSILON).view(*tokens, -1)


# -- TVM --------------------------------------------------------------------------------


class PagedCache:
    """TVM's paged cache of keys and values, filled for one pass."""

    def __init__(self, machine: Any, one: PagedSubject) -> None:
        import tvm_ffi

        total = (one.past + one.length + PAGE) * one.batch
        chunk = max(one.past, one.length) * one.batch
        numbers = (one.batch, total, chunk, PAGE, 0)
        self.cache = machine["create"](*(tvm_ffi.Shape([x]) for x in numbers))
        self.machine, self.one = machine, one
        self.sequences = tvm_ffi.Shape(range(one.batch))
        for sequence in range(one.batch):
            _kv_state("add_sequence")(self.cache, sequence)

    def begin(self, length: int) -> None:
        """Make room for some tokens of each sequence."""
        import tvm_ffi

        lengths = tvm_ffi.Shape([length] * self.one.batch)
        _kv_state("begin_forward")(self.cache, self.sequences, lengths)

    def step(self) -> Callable[[int], Any]:
        """Return the step behind the tokens before.

        It is planned once and never ended: each call stores the same tokens in the same places.
        """
        import tvm_ffi

        given = [tvm_ffi.from_dlpack(y) for y in self.one.weights]

        def run(name: str, tokens: Any) -> Any:
            with tvm_ffi.use_torch_stream():
                return self.machine[name](tvm_ffi.from_dlpack(tokens), self.cache, given)[0]

        self.begin(self.one.past)
        run("prefill", self.one.before.view(1, -1, self.one.before.shape[-1]))
        _kv_state("end_forward")(self.cache)
        self.begin(self.one.length)
        return lambda _: run(self.one.method, self.one.x)


def _kv_state(name: str) -> Any:
    import tvm

    return tvm.get_global_func(f"vm.builtin.kv_state_{name}")


class TorchCache:
    """Keys and values in place, as PyTorch's users keep them, for `run_torch`."""

    def __init__(self, one: PagedSubject, dtype: Any) -> None:
        import torch

        shape = one.shape
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
