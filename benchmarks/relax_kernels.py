"""Where the time of a model's layers goes: `python -m benchmarks.relax_kernels`.

The passes of `benchmarks.relax` without attention, each kernel's time on the device by PyTorch's
profiler, ours beside PyTorch's.  Sums say how much of a pass is kernels, and what is left of a
graph's time is what lies between them.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.relax import COMPILED, EAGER, OURS, RESULTS
from benchmarks.relax_models import PASSES, Pass, build, caller, draw_weights, run_torch
from tvm_hopper.testing.llama import LlamaShape

COLUMNS = ["pass", "contender", "kernel", "calls", "us a call", "us a pass"]
MOST_TEXT = 60  # of a kernel's name


def profile(call: Callable[[], Any], repeats: int) -> list[tuple[str, int, float]]:
    """Return each kernel's name, calls and microseconds in one pass, the longest first."""
    import torch
    from torch.profiler import ProfilerActivity

    for _ in range(3):
        call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(repeats):
            call()
        torch.cuda.synchronize()
    times: dict[str, list[float]] = defaultdict(list)
    for event in found.events():
        if event.device_type.name == "CUDA":
            times[event.name].append(float(event.device_time_total))
    rows = [(name, len(x) // repeats, sum(x) / repeats) for name, x in times.items()]
    return sorted(rows, key=lambda x: -x[2])


def rows_of(one: Pass, name: str, call: Callable[[], Any], repeats: int) -> list[dict[str, Any]]:
    """Return the table's rows of one contender in one pass."""
    found = profile(call, repeats)
    rows = [
        dict(
            zip(
                COLUMNS,
                (one.name, name, _short(kernel), count, round(us / max(count, 1), 2), round(us, 1)),
                strict=True,
            )
        )
        for kernel, count, us in found
        if count
    ]
    total = sum(us for _, count, us in found if count)
    calls = sum(count for _, count, _ in found)
    return [
        *rows,
        dict(zip(COLUMNS, (one.name, name, "sum", calls, "", round(total, 1)), strict=True)),
    ]


def _short(name: str) -> str:
    return re.sub(r"[|<>]", " ", name)[:MOST_TEXT]


def main(argv: list[str]) -> int:
    """Print the table and write it to `results/`; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.relax_kernels", description=__doc__)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dtype", default="float16", choices=("float16", "bfloat16"))
    parser.add_argument("--classes", default="1,16,128,2048", help="bounds of size classes")
    parser.add_argument("--only", default="", help="passes whose name contains this")
    parser.add_argument("--torch-compile", default="no", help="mode of torch.compile")
    parser.add_argument("--compiled", default="prefill,decode batch 1$", help="passes it runs")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args(argv)
    import torch
    import tvm
    from tvm import relax

    shape = LlamaShape(layers=arguments.layers, vocabulary=0)
    weights = draw_weights(shape, arguments.dtype)
    classes = tuple(map(int, arguments.classes.split(",")))
    ex = build(shape, arguments.dtype, "none", {"classes": classes})
    model = relax.VirtualMachine(ex, tvm.cuda(0))
    table: list[dict[str, Any]] = []
    for one in PASSES:
        if arguments.only not in one.name:
            continue
        made = {"device": "cuda", "dtype": getattr(torch, arguments.dtype)}
        x = torch.randn(one.batch, one.length, shape.hidden, **made)
        calls = {OURS: caller(model, one, x, weights, [])}
        calls[EAGER] = lambda x=x: run_torch(shape, x, weights, [])
        wanted = arguments.compiled.split(",")
        if arguments.torch_compile != "no" and any(re.match(y, one.name) for y in wanted):
            compiled = torch.compile(run_torch, mode=arguments.torch_compile, dynamic=False)
            calls[COMPILED] = lambda x=x, f=compiled: f(shape, x, weights, [])
        for name, call in calls.items():
            with torch.no_grad():
                table += rows_of(one, name, call, arguments.repeats)
    for row in table:
        print(*row.values(), sep="  ", flush=True)
    title = f"Kernels of {arguments.layers} layers of Llama-3-8B, {arguments.dtype}"
    print(machine.save(arguments.out, "relax_kernels", title, COLUMNS, table))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
