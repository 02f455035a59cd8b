"""Layers of a Llama-3-8B against TVM's own pipeline and PyTorch: `python -m benchmarks.relax`.

First each layer alone, on the same input, against float32: the error of ours beside that of stock
TVM and of PyTorch. Then all layers one after another, for a prefill and for decode steps, weights
read from memory in every pass, contenders in turn in one process; what can be captured is replayed
from a graph. Without attention a layer is its norms, products, and gate; with it, attention by
hand, which PyTorch computes by `scaled_dot_product_attention`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import machine
from tvm_hopper.testing.llama import THETA, LlamaShape, llama

TARGET = "nvidia/nvidia-h200"
RESULTS = Path(__file__).parent / "results"
OURS, STOCK, EAGER, COMPILED = "tvm_hopper", "stock TVM", "eager", "torch.compile"
EPSILON = 1e-5
PAST = 16  # tokens before a prefill
CONTEXT = 1024  # tokens before a decode step
SLOW_US = 50_000.0  # a contender that takes longer is timed few times


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


def run_torch(shape: LlamaShape, x: Any, weights: Sequence[Any], past: Sequence[Any]) -> Any:
    """Run the layers as PyTorch has them; without `past` queries go on as they are."""
    import torch
    from torch.nn import functional as f

    size = (shape.hidden,)
    for i in range(shape.layers):
        norm1, norm2, qkv, out, gate_up, down = weights[6 * i : 6 * i + 6]
        heads = f.linear(f.rms_norm(x, size, norm1, EPSILON), qkv)
        heads = heads.view(*x.shape[:2], -1, shape.head)
        q, k, v = heads.split([shape.heads, shape.kv_heads, shape.kv_heads], 2)
        if past:
            start = past[2 * i].shape[1]
            k = torch.cat([past[2 * i], _turned(k, start)], 1)
            v = torch.cat([past[2 * i + 1], v], 1)
            q = _turned(q, start)
            mask = None
            if x.shape[1] > 1:
                ones = torch.ones(x.shape[1], k.shape[1], dtype=torch.bool, device=x.device)
                mask = ones.tril(diagonal=start)
            q = f.scaled_dot_product_attention(
                *(y.transpose(1, 2) for y in (q, k, v)), attn_mask=mask, enable_gqa=True
            ).transpose(1, 2)
        x = x + f.linear(q.reshape(*x.shape[:2], -1), out)
        gate, up = f.linear(f.rms_norm(x, size, norm2, EPSILON), gate_up).chunk(2, -1)
        x = x + f.linear(f.silu(gate) * up, down)
    return f.rms_norm(x, size, weights[-1], EPSILON)


# -- TVM --------------------------------------------------------------------------------


def build(shape: LlamaShape, dtype: str, attention: str, pipeline: Any) -> Any:
    """Compile the model and load it on the device."""
    import tvm
    from tvm import relax

    mod = llama(shape, dtype, attention)
    begin = time.process_time()
    ex = relax.build(mod, target=TARGET, relax_pipeline=pipeline)
    machine_ = relax.VirtualMachine(ex, tvm.cuda(0))
    seconds = time.process_time() - begin
    print(f"  {shape.layers} layers, attention {attention}: built in {seconds:.1f} s", flush=True)
    return machine_


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


# -- measuring --------------------------------------------------------------------------------


def errors(shape: LlamaShape, dtype: str, models: dict[str, Any], weights: list[Any]) -> list[Any]:
    """Return the error of each layer alone, as a part of what float32 gives, for each contender."""
    import torch

    one = replace(shape, layers=1)
    table = []
    for rows in (Pass(1, 256), Pass(16, 1)):
        x = torch.randn(rows.batch, rows.length, shape.hidden, device="cuda").to(
            getattr(torch, dtype)
        )
        for layer in range(shape.layers):
            own = [*weights[6 * layer : 6 * layer + 6], weights[-1]]
            exact = run_torch(one, x.float(), [w.float() for w in own], [])
            row: dict[str, Any] = {"pass": rows.name, "layer": layer}
            for name, machine_ in models.items():
                got = torch.from_dlpack(caller(machine_, rows, x, own, [])())
                row[name] = _relative(got, exact)
            row[EAGER] = _relative(run_torch(one, x, own, []), exact)
            table.append(row)
    return table


def _relative(got: Any, exact: Any) -> str:
    error = (got.double() - exact.double()).norm() / exact.double().norm()
    return f"{float(error):.2e}"


def _graph(call: Callable[[], Any]) -> Callable[[], Any]:
    """Capture a call, where it can be; else return it as it is."""
    import torch

    call()
    torch.cuda.synchronize()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="relaxed"):  # TVM allocates as it runs
            kept = call()
        graph.replay()
        torch.cuda.synchronize()
    except Exception as error:
        print(f"  no graph: {type(error).__name__} {str(error)[:120]}", flush=True)
        torch.cuda.synchronize()
        return call

    def replay(_: Any = kept) -> None:
        graph.replay()

    return replay


def measure(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Return the median time of each, taken in turn, in microseconds."""
    import torch

    def one(call: Callable[[], Any]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return 1000 * float(start.elapsed_time(end))

    for call in calls.values():
        call()
    samples: dict[str, list[float]] = {name: [one(call)] for name, call in calls.items()}
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        for name, call in calls.items():
            if samples[name][-1] < SLOW_US or len(samples[name]) < 3:
                samples[name].append(one(call))
    return {name: statistics.median(times) for name, times in samples.items()}


def run(
    one: Pass, shape: LlamaShape, dtype: str, attention: str, models: dict[str, Any],
    weights: list[Any], mode: str, seconds: float,
) -> dict[str, Any]:  # fmt: skip
    """Time one pass; return its row of the table."""
    import torch

    made = {"device": "cuda", "dtype": getattr(torch, dtype)}
    x = torch.randn(one.batch, one.length, shape.hidden, **made)
    past = []
    if attention == "plain":
        kept = (one.batch, one.past, shape.kv_heads, shape.head)
        past = [torch.randn(kept, **made) for _ in range(2 * shape.layers)]
    calls: dict[str, Callable[[], Any]] = {
        name: caller(machine_, one, x, weights, past) for name, machine_ in models.items()
    }
    calls[EAGER] = lambda: run_torch(shape, x, weights, past)
    if mode != "no":
        compiled = torch.compile(run_torch, mode=mode, dynamic=False)
        calls[COMPILED] = lambda: compiled(shape, x, weights, past)
    ready = {}
    for name, call in calls.items():
        try:
            with torch.no_grad():
                ready[name] = _graph(call)
        except Exception as error:
            print(f"  {one.name}, {name}: {type(error).__name__} {str(error)[:200]}", flush=True)
    times = measure(ready, seconds)
    row: dict[str, Any] = {"pass": one.name, "attention": "in" if past else "out"}
    for name in (OURS, STOCK, EAGER, COMPILED):
        row[f"{name}, us"] = round(times[name], 1) if name in times else ""
    for name in (STOCK, EAGER, COMPILED):
        known = name in times and OURS in times
        row[f"of {name}"] = round(times[name] / times[OURS], 3) if known else ""
    return row


def main(argv: list[str]) -> int:
    """Print the tables and write them to `results/`; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.relax", description=__doc__)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dtype", default="float16", choices=("float16", "bfloat16"))
    parser.add_argument("--attention", default="none,plain", help="none, plain, or both")
    parser.add_argument(
        "--torch-compile",
        default="max-autotune-no-cudagraphs",
        help="mode of torch.compile; no leaves it out, since it takes long to start",
    )
    parser.add_argument("--no-stock", action="store_true", help="leave TVM's own pipeline out")
    parser.add_argument("--classes", default="", help="bounds of size classes; by the model")
    parser.add_argument("--only", default="", help="passes whose name contains this")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each row")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args(argv)
    from tvm.relax import get_pipeline

    shape = LlamaShape(layers=arguments.layers, vocabulary=0)
    weights = draw_weights(shape, arguments.dtype)
    classes = tuple(map(int, arguments.classes.split(","))) if arguments.classes else None
    pipelines: dict[str, Any] = {OURS: get_pipeline("tvm_hopper", classes=classes)}
    if not arguments.no_stock:
        pipelines[STOCK] = "default"
    table, wrong = [], []
    for attention in arguments.attention.split(","):
        models, single = {}, {}
        for name, pipeline in pipelines.items():
            try:
                models[name] = build(shape, arguments.dtype, attention, pipeline)
                if attention == "none":
                    alone = replace(shape, layers=1)
                    single[name] = build(alone, arguments.dtype, attention, pipeline)
            except Exception as error:
                print(f"  {name} does not build: {type(error).__name__} {str(error)[-200:]}")
        if single:
            wrong = errors(shape, arguments.dtype, single, weights)
            for row in wrong:
                print(*row.values(), sep="  ", flush=True)
        for one in PASSES:
            if arguments.only in one.name:
                mode = arguments.torch_compile
                seconds = arguments.seconds
                table.append(
                    run(one, shape, arguments.dtype, attention, models, weights, mode, seconds)
                )
                print(*table[-1].values(), sep="  ", flush=True)
    title = f"{arguments.layers} layers of Llama-3-8B, {arguments.dtype}"
    print(machine.save(arguments.out, "relax", title, list(table[0]), table))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
