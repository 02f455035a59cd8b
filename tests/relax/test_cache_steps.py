"""Steps on TVM's paged cache against float64: TVM's own cases by idea, on a processor and a GPU.

Prefills of several sequences, decoding, forks, removed and shortened sequences, chunks, windows
with sinks.
"""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import spec
from tvm.relax.frontend.nn.llm import kv_cache

from tests.relax import models

HEADS, KV_HEADS, D, LAYERS = 4, 2, 64, 2
PLACES = [
    ("llvm", "float32", 1e-4),
    pytest.param(models.H200, "float16", 5e-3, marks=pytest.mark.gpu),
]
# operations: new tokens by sequence, or a word and its arguments
STEPS = {
    "prefill and decode": [{0: 6, 1: 8}, {0: 1, 1: 1}, {2: 37}, {0: 1, 1: 1, 2: 1}],
    "chunks": [{0: 70}, {0: 33}, {0: 5, 1: 20}, {1: 40}],
    "one long among short ones": [{0: 1, 1: 300, 2: 3}, {0: 1, 1: 1, 2: 1}],
    "forks": [{0: 40}, ("fork", 0, 1, -1), {0: 3, 1: 5}, ("fork", 0, 2, 20), {2: 1, 1: 1}],
    "removed": [{0: 40, 1: 9}, ("remove", 0), {1: 1}, {0: 17}, {0: 1, 1: 1}],
    "shortened": [{0: 50, 1: 20}, ("pop", 0, 19), {0: 1, 1: 1}, {0: 30}],
    "windows with sinks": [("window", 0, 20, 5), {0: 30, 1: 12}, {0: 1, 1: 1}, {0: 9}, {0: 1}],
}


class Attention(nn.Module):
    """One layer after another on the same queries, keys and values."""

    def forward(self, qkv, cache):
        return [
            cache.attention_with_fused_qkv(i, qkv, HEADS, sm_scale=D**-0.5) for i in range(LAYERS)
        ]


def machine_of(target, dtype):
    def create(batch: int, total: int, chunk: int, page: int, sliding: int):
        return kv_cache.TIRPagedKVCache(
            "mha", batch, total, chunk, page, sliding, relax.ShapeExpr([0, LAYERS]), LAYERS, HEADS,
            KV_HEADS, D, D, 0, 0, kv_cache.RopeMode.NONE, 1, 10000, {"rope_type": "gptj"},
            tirx.IntImm("int64", 0), D, False, dtype, tvm.target.Target(target),
        )  # fmt: skip

    names = ("batch", "total", "chunk", "page", "sliding")
    shape = ["b", "s", HEADS + 2 * KV_HEADS, D]
    given = [spec.Tensor(shape, dtype), spec.Object(object_type=kv_cache.PagedKVCache)]
    module = Attention()
    methods = {
        "step": spec.MethodSpec(module.forward, ["qkv", "cache"], given, "none", "none"),
        "create": spec.MethodSpec(create, list(names), [spec.Int()] * 5, "none", "none"),
    }
    mod = module.export_tvm(spec.ModuleSpec(module, list(methods), list(methods.values())))[0]
    ours = target == models.H200
    ex = relax.build(mod, target, relax_pipeline="tvm_hopper" if ours else "default")
    device = tvm.cuda(0) if ours else tvm.cpu(0)
    return relax.VirtualMachine(ex, device), device


class Steps:
    """The cache, and what it holds in float64."""

    def __init__(self, target, dtype):
        self.machine, self.device = machine_of(target, dtype)
        self.dtype, self.held, self.windows = dtype, {}, {}
        self.rng = np.random.default_rng(0)
        numbers = (5, 1024, 512, 16, 1)
        self.cache = self.machine["create"](*(tvm_ffi.Shape([x]) for x in numbers))

    def call(self, name, *args):
        tvm.get_global_func(f"vm.builtin.{name}")(self.cache, *args)

    def add(self, sequence):
        if sequence not in self.held:
            self.call("kv_state_add_sequence", sequence)
            self.held[sequence] = np.zeros((0, 2, KV_HEADS, D))

    def fork(self, parent, child, place):
        self.call("kv_state_fork_sequence", parent, child, place)
        self.held[child] = self.held[parent][: None if place < 0 else place]

    def remove(self, sequence):
        self.call("kv_state_remove_sequence", sequence)
        del self.held[sequence]

    def pop(self, sequence, count):
        self.call("kv_state_popn", sequence, count)
        self.held[sequence] = self.held[sequence][:-count]

    def window(self, sequence, size, sink):
        self.add(sequence)
        self.call("attention_kv_cache_enable_sliding_window_for_seq", sequence, size, sink)
        self.windows[sequence] = size, sink

    def step(self, lengths):
        """Add tokens; return the results of the layers, and what they should be."""
        for x in lengths:
            self.add(x)
        total = sum(lengths.values())
        qkv = self.rng.standard_normal((total, HEADS + 2 * KV_HEADS, D)).astype(self.dtype)
        shapes = tvm_ffi.Shape(list(lengths)), tvm_ffi.Shape(list(lengths.values()))
        self.call("kv_state_begin_forward", *shapes)
        many = (len(lengths), 1) if set(lengths.values()) == {1} else (1, total)
        given = tvm.runtime.tensor(qkv.reshape(*many, *qkv.shape[1:]), self.device)
        found = [
            x.numpy().reshape(total, HEADS, D) for x in self.machine["step"](given, self.cache)
        ]
        self.call("kv_state_end_forward")
        first, want = 0, []
        for x, n in lengths.items():
            want.append(self.attend(x, qkv[first : first + n].astype("float64")))
            first += n
        return found, np.concatenate(want)

    def attend(self, sequence, qkv):
        q, kv = qkv[:, :HEADS], qkv[:, HEADS:].reshape(len(qkv), 2, KV_HEADS, D)
        self.held[sequence] = held = np.concatenate([self.held[sequence], kv])
        k, v = (np.repeat(held[:, x], HEADS // KV_HEADS, 1).swapaxes(0, 1) for x in (0, 1))
        score = q.swapaxes(0, 1) @ k.swapaxes(1, 2) * D**-0.5
        row, key = np.arange(len(q))[:, None], np.arange(len(held))
        score = np.where(key <= len(held) - len(q) + row, score, -np.inf)
        weights = np.exp(score - score.max(2, keepdims=True))
        if sequence in self.windows:
            size, sink = self.windows[sequence]
            over = max(0, len(held) - size)
            self.held[sequence] = np.concatenate([held[:sink], held[sink + over :]])
        return (weights @ v / weights.sum(2, keepdims=True)).swapaxes(0, 1)


@pytest.mark.parametrize(("target", "dtype", "tolerance"), PLACES, ids=["processor", "gpu"])
def test_steps(target, dtype, tolerance):
    if target == models.H200 and not tvm.cuda(0).exist:
        pytest.skip("no GPU")
    steps = Steps(target, dtype)
    for name, each in STEPS.items():
        for one in each:
            if isinstance(one, tuple):
                getattr(steps, one[0])(*one[1:])
                continue
            found, want = steps.step(one)
            for layer in found:
                np.testing.assert_allclose(
                    layer, want, atol=tolerance, rtol=tolerance, err_msg=f"{name}: {one}"
                )
        for x in list(steps.held):
            steps.remove(x)
        steps.windows.clear()
