"""Layers of a Llama-3-8B against TVM's own pipeline and PyTorch: `python -m benchmarks.relax`.

First each layer alone, on the same input, against float32: the error of ours beside that of stock
TVM and of PyTorch. Then all layers one after another, for a prefill and for decode steps, weights
read from memory in every pass, contenders in turn in one process; what can be captured is replayed
from a graph. Without attention a layer is its norms, products, and gate. With it, TVM computes it
by its paged cache ("paged", the host's planning of a step left out) or by hand ("plain"), PyTorch
by `scaled_dot_product_attention` on keys and values that lie in place.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.relax_models import (
    PASSES,
    PagedCache,
    Pass,
    Step,
    TorchCache,
    build_library,
    caller,
    draw_weights,
    load,
    run_torch,
)
from tvm_hopper.testing.llama import LlamaShape

RESULTS = Path(__file__).parent / "results"
OURS, STOCK, EAGER, COMPILED = "tvm_hopper", "stock TVM", "eager", "torch.compile"
SLOW_US = 50_000.0  # a contender that takes longer is timed few times


# -- measuring --------------------------------------------------------------------------------


def errors(
    one: LlamaShape, dtype: str, builds: Builds, weights: list[Any], layers: int
) -> list[dict[str, Any]]:
    """Return the error of each layer alone, as a part of what float32 gives, for each contender."""
    import torch

    models = builds.models(one, dtype, "none")
    table = []
    for rows in (Pass(1, 256), Pass(16, 1)):
        x = torch.randn(rows.batch, rows.length, one.hidden, device="cuda").to(
            getattr(torch, dtype)
        )
        for layer in range(layers):
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


def captured(step: Step) -> Step:
    """Capture a step, where it can be; else return it as it is, and say so."""
    import torch

    call = step.call
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
        return step

    def replay(_: Any = kept) -> None:
        graph.replay()

    return replace(step, call=replay)


def measure(steps: dict[str, Step], seconds: float) -> dict[str, float]:
    """Return the median time of each, taken in turn, in microseconds."""
    import torch

    def one(step: Step) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        step.before()
        torch.cuda.synchronize()
        start.record()
        step.call()
        end.record()
        torch.cuda.synchronize()
        step.after()
        return 1000 * float(start.elapsed_time(end))

    for step in steps.values():
        one(step)
    samples: dict[str, list[float]] = {name: [one(x)] for name, x in steps.items()}
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        for name, step in steps.items():
            if samples[name][-1] < SLOW_US or len(samples[name]) < 3:
                samples[name].append(one(step))
    return {name: statistics.median(times) for name, times in samples.items()}


@dataclass(frozen=True)
class Plan:
    """What is run: sizes, type, attention, and how long."""

    shape: LlamaShape
    dtype: str
    attention: str
    seconds: float
    mode: str  # of torch.compile; "no" leaves it out


def steps_of(
    one: Pass, plan: Plan, builds: Builds, weights: list[Any]
) -> dict[str, Callable[[], Step]]:
    """Return what makes the step of each contender; models are waited for by theirs."""
    import torch

    shape, attention = plan.shape, plan.attention
    made: dict[str, Any] = {"device": "cuda", "dtype": getattr(torch, plan.dtype)}
    x = torch.randn(one.batch, one.length, shape.hidden, **made)
    past: list[Any] = []
    given: dict[str, Any] = {}
    if attention == "plain":
        kept = (one.batch, one.past, shape.kv_heads, shape.head)
        past = [torch.randn(kept, **made) for _ in range(2 * shape.layers)]
    if attention == "paged":
        before = torch.randn(one.batch, one.past, shape.hidden, **made)
        cache = TorchCache(shape, one, made["dtype"])
        run_torch(shape, before, weights, [], cache)
        given = {"cache": cache, "start": one.past}
    found: dict[str, Callable[[], Step]] = {}
    if plan.mode != "no":
        compiled = torch.compile(run_torch, mode=plan.mode, dynamic=False)
        found[COMPILED] = lambda: Step(lambda: compiled(shape, x, weights, past, **given))
    found[EAGER] = lambda: Step(lambda: run_torch(shape, x, weights, past, **given))

    def of_model(name: str) -> Step:
        model = builds.models(shape, plan.dtype, attention)[name]
        if attention == "paged":
            return PagedCache(model, one).step(x, weights, before)
        return Step(caller(model, one, x, weights, past))

    for name in builds.pipelines:
        found[name] = partial(of_model, name)
    return found


def check(steps: dict[str, Step]) -> str:
    """Return how far what ours returns is from what PyTorch returns, as a part of it."""
    import torch

    found = {}
    for name in (OURS, EAGER):
        if name not in steps:
            return ""
        steps[name].before()
        found[name] = torch.from_dlpack(steps[name].call()).clone()
        steps[name].after()
    return _relative(found[OURS], found[EAGER])


def run(one: Pass, plan: Plan, builds: Builds, weights: list[Any]) -> dict[str, Any]:
    """Time one pass; return its row of the table."""
    import torch

    ready: dict[str, Step] = {}
    with torch.no_grad():
        for name, make in steps_of(one, plan, builds, weights).items():
            begin = time.monotonic()
            try:
                ready[name] = make()
                ready[name].before()
                ready[name].call()
                torch.cuda.synchronize()
                ready[name].after()
            except Exception as error:
                print(
                    f"  {one.name}, {name}: {type(error).__name__} {str(error)[:300]}", flush=True
                )
                ready.pop(name, None)
            if name == COMPILED:
                print(f"  compiled in {time.monotonic() - begin:.1f} s", flush=True)
        apart = check(ready)
        times = measure({name: captured(x) for name, x in ready.items()}, plan.seconds)
    row: dict[str, Any] = {"dtype": plan.dtype, "attention": plan.attention, "pass": one.name}
    for name in (OURS, STOCK, EAGER, COMPILED):
        row[f"{name}, us"] = round(times[name], 1) if name in times else ""
    for name in (STOCK, EAGER, COMPILED):
        known = name in times and OURS in times
        row[f"of {name}"] = round(times[name] / times[OURS], 3) if known else ""
    return {**row, "ours from eager": apart}


class Builds:
    """Models built beside each other, each by a process of its own, while others are timed."""

    def __init__(self, folder: str, pipelines: dict[str, Any]) -> None:
        self.folder, self.pipelines = Path(folder), pipelines
        context = multiprocessing.get_context("spawn")
        self.pool = ProcessPoolExecutor(os.cpu_count(), context)
        self.begun: dict[tuple[Any, ...], tuple[Future[float], str]] = {}

    def begin(self, shape: LlamaShape, dtype: str, attention: str) -> None:
        """Begin to build a model by each of the pipelines."""
        for name, pipeline in self.pipelines.items():
            key = shape.layers, dtype, attention, name
            library = str(self.folder / f"{len(self.begun)}.so")
            given = shape, dtype, attention, pipeline
            self.begun[key] = self.pool.submit(build_library, library, *given), library

    def models(self, shape: LlamaShape, dtype: str, attention: str) -> dict[str, Any]:
        """Return what could be built, loaded on the device."""
        return self._models(shape.layers, dtype, attention)

    @cache  # noqa: B019 (lives as long as the run)
    def _models(self, layers: int, dtype: str, attention: str) -> dict[str, Any]:
        found = {}
        for name in self.pipelines:
            built, library = self.begun[layers, dtype, attention, name]
            about = f"  {layers} layers, {dtype}, attention {attention}, {name}"
            try:
                print(f"{about}: built in {built.result():.1f} s of a processor", flush=True)
                found[name] = load(library)
            except Exception as error:
                print(f"{about} does not build: {type(error).__name__} {str(error)[-200:]}")
        return found


def main(argv: list[str]) -> int:
    """Print the tables and write them to `results/`; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.relax", description=__doc__)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dtype", default="float16,bfloat16", help="one or both of them")
    parser.add_argument("--attention", default="none,paged", help="of none, paged and plain")
    parser.add_argument(
        "--torch-compile",
        default="max-autotune-no-cudagraphs",
        help="mode of torch.compile; no leaves it out, since it takes long to start",
    )
    parser.add_argument(
        "--budget", type=float, default=40, help="seconds after which torch.compile is left out"
    )
    parser.add_argument(
        "--limit", type=float, default=3600, help="seconds after which no row is begun"
    )
    parser.add_argument("--no-stock", action="store_true", help="leave TVM's own pipeline out")
    parser.add_argument("--no-errors", action="store_true", help="leave errors of layers out")
    parser.add_argument("--classes", default="1,16,128,2048", help="bounds of size classes")
    parser.add_argument(
        "--only", default="", help="passes whose names this finds; none: errors alone"
    )
    parser.add_argument("--seconds", type=float, default=0.4, help="of each row")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args(argv)
    begin = time.monotonic()
    shape = LlamaShape(layers=arguments.layers, vocabulary=0)
    single = replace(shape, layers=1)
    classes = tuple(map(int, arguments.classes.split(","))) if arguments.classes else None
    pipelines: dict[str, Any] = {OURS: {"classes": classes}}
    if not arguments.no_stock:
        pipelines[STOCK] = "default"
    table: list[dict[str, Any]] = []
    wrong: list[dict[str, Any]] = []
    dtypes, attentions = arguments.dtype.split(","), arguments.attention.split(",")
    wanted = [x for x in PASSES if re.search(arguments.only, x.name)]
    with tempfile.TemporaryDirectory() as folder:
        builds = Builds(folder, pipelines)
        for dtype, attention in itertools.product(dtypes, attentions):
            builds.begin(shape, dtype, attention)
            if attention == "none" and not arguments.no_errors:
                builds.begin(single, dtype, attention)
        for dtype in dtypes:
            weights = draw_weights(shape, dtype)
            if "none" in attentions and not arguments.no_errors:
                for row in errors(single, dtype, builds, weights, shape.layers):
                    wrong.append({"dtype": dtype, **row})
                    print(*row.values(), sep="  ", flush=True)
            # With attention and without, products are the same: torch.compile tunes them once.
            for one, attention in itertools.product(wanted, attentions):
                spent = time.monotonic() - begin
                if spent > arguments.limit:
                    print(f"  {one.name}, attention {attention}: no time left", flush=True)
                    continue
                mode = arguments.torch_compile if spent <= arguments.budget else "no"
                plan = Plan(shape, dtype, attention, arguments.seconds, mode)
                table.append(run(one, plan, builds, weights))
                print(
                    *table[-1].values(),
                    f"at {time.monotonic() - begin:.0f} s",
                    sep="  ",
                    flush=True,
                )
    title = f"{arguments.layers} layers of Llama-3-8B"
    if table:
        print(machine.save(arguments.out, "relax", title, list(table[0]), table))
    if wrong:
        title = f"Errors of each layer alone against float32, {title}"
        print(machine.save(arguments.out, "relax_errors", title, list(wrong[0]), wrong))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
