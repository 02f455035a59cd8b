"""Time layers that each take the last one's output: tiles, few rows without tiles, and these early.

    python -m benchmarks.chains

Square layers, `C = A B^T`, as a decoder runs them one after the other, a graph of them replayed;
weights are together larger than the L2 cache. What begins early (`early_launch="weights"`) must
leave the same bits as what does not. Writes a dated table.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from . import machine
from .gemm import RESULTS
from .matmul_case import Case, build, register

COLD_BYTES = 150 << 20
RUNS = 20  # of a chain, whose bits are compared
WAYS: dict[str, dict[str, Any]] = {
    "tiles": {"form": "tiles"},
    "dots": {"form": "dots"},
    "dots, early": {"form": "dots", "early_launch": "weights"},
    "direct": {"form": "direct"},
    "direct, early": {"form": "direct", "early_launch": "weights"},
}
COLUMNS = ["rows", "width", "layers", "cuBLAS, us a layer", *WAYS]


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 2, 8])
    parser.add_argument("--widths", nargs="+", type=int, default=[2048, 4096, 8192])
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder")
    return parser.parse_args(argv)


def time_chain(rows: int, width: int, repeats: int) -> dict[str, Any]:
    """Check and time one chain in every way; returns a row of the table."""
    import torch
    import tvm_ffi

    layers = max(4, -(-COLD_BYTES // (2 * width * width)))
    made: dict[str, Any] = {"dtype": torch.bfloat16, "device": "cuda"}
    weights = [torch.randn((width, width), **made) / width**0.5 for _ in range(layers)]
    states = [torch.randn((rows, width), **made) for _ in range(layers + 1)]
    ours = [[tvm_ffi.from_dlpack(x) for x in xs] for xs in (states, weights)]

    def chain(run: Any) -> None:
        for n in range(layers):
            run(ours[0][n], ours[1][n], ours[0][n + 1])

    def library() -> None:
        for n in range(layers):
            torch.matmul(states[n], weights[n].t(), out=states[n + 1])

    graphs, bits, kept = {}, {}, []
    ways = {name: config for name, config in WAYS.items() if rows == 1 or "dots" not in name}
    for name, config in ways.items():
        run = build(Case(rows, width, width, "NT", "bfloat16", "bfloat16", config))["main"]
        kept.append(run)  # its kernels are unloaded with it, and a graph of them is nothing then
        for _ in range(RUNS):
            for state in states[1:]:
                state.fill_(float("nan"))
            chain(run)
            torch.cuda.synchronize()
            same = bits.setdefault(name.split(",")[0], states[-1].clone())
            assert torch.equal(same, states[-1]), f"{name}: found other bits"
        graphs[name] = torch.cuda.CUDAGraph()
        with tvm_ffi.use_torch_stream(torch.cuda.graph(graphs[name])):
            chain(run)
    library()
    graphs["cublas"] = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graphs["cublas"]):
        library()
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(repeats):
        for name, graph in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times[name].append(1000 * start.elapsed_time(end) / layers)
    cells = {name: f"{statistics.median(x):.2f}" for name, x in times.items()}
    ways_ = {name: cells.get(name, "") for name in WAYS}
    return {"rows": rows, "width": width, "layers": layers, "cublas": cells["cublas"]} | ways_


def main(argv: list[str]) -> int:
    """Time one chain after the other."""
    options = parse(argv)
    register()
    rows = []
    for width in options.widths:
        for count in options.rows:
            rows.append(time_chain(count, width, options.repeats))
            print(*rows[-1].values(), sep=" | ", flush=True)
    title = "Chains of layers, microseconds a layer"
    print(machine.save(options.output, "chains", title, COLUMNS, rows).splitlines()[0])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
