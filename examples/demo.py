"""One GEMM of a transformer layer, from plain loops to a checked Hopper kernel.

    python examples/demo.py                 # or: make demo

Without a GPU: schedules it, compiles it to a cubin, explains it, shows the Hopper instructions in
the machine code, and runs an interior, an edge and a corner CTA of that same kernel in the
simulator, against float64. With an H100 or H200 and PyTorch it is also timed against cuBLAS.

The problem is the fused query-key-value projection of a 4544-wide model over 4000 tokens: neither
extent of the output is a multiple of the tile.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from rich.console import Console
from rich.table import Table
from tvm import s_tir

import tvm_hopper
from tvm_hopper import schedule as hs
from tvm_hopper.testing import workloads

ROOT = Path(__file__).resolve().parent.parent
TARGET = "nvidia/nvidia-h200"
TILE = (128, 256, 64)
# One thread block an output tile, in the hardware's order, so that a block is named by its place;
# the default would be a persistent kernel here.
CONFIG = hs.MatmulConfig(tile=TILE, stages=4, consumers=2, raster=1, persistent=0)
SCHEDULES = (("on_wait", 0), ("lifo", 0), ("random", 1))  # of the simulator
# What a Hopper kernel must contain: mnemonic in the machine code, what it is.
EVIDENCE = {
    "UTMALDG": "tensor copy, global to shared memory (TMA)",
    "SYNCS": "mbarrier: init, arrive, expect bytes, wait",
    "HGMMA": "warp-group matrix multiply (WGMMA)",
    "WARPGROUP": "WGMMA fence and wait",
    "USETMAXREG": "registers moved from the producer to the consumers",
}
console = Console(highlight=False)


@contextlib.contextmanager
def step(text: str) -> Iterator[None]:
    """Say what is being done, and how long it took."""
    start = time.monotonic()
    with console.status(f"{text} ..."):
        yield
    console.print(f"[green]ok[/] {text} ({time.monotonic() - start:.1f} s)")


def show_machine_code(executable: Any) -> bool:
    """Print which of the Hopper instructions the kernel holds; tell whether all are there."""
    try:
        text = tvm_hopper.sass(executable)
    except tvm_hopper.HopperError as error:
        console.print(f"machine code not shown: {error}")
        return True
    mnemonics = collections.Counter(re.findall(r"^\s+/\*\w+\*/\s+(?:@!?\w+\s+)?(\w+)", text, re.M))
    table = Table("instruction", "number", "what it is", title="machine code (sm_90a)")
    for name, meaning in EVIDENCE.items():
        table.add_row(name, str(mnemonics[name] or "none"), meaning)
    console.print(table)
    return all(mnemonics[name] for name in EVIDENCE)


def simulate_ctas(executable: Any, plain: Any, m: int, n: int, k: int) -> bool:
    """Run three CTAs of the kernel in the simulator; tell whether all are clean and right."""
    rng = np.random.default_rng(0)
    with step(f"inputs: A {m}x{k}, B {n}x{k}, bfloat16"):
        a = rng.standard_normal((m, k), np.float32).astype(ml_dtypes.bfloat16)
        b = rng.standard_normal((n, k), np.float32).astype(ml_dtypes.bfloat16)
    # The output starts as NaN, as would be seen in what a block fails to write.
    arrays = {"A": a, "B": b, "D": np.full((m, n), np.nan, ml_dtypes.bfloat16)}
    last_row, last_column = (m - 1) // TILE[0], (n - 1) // TILE[1]
    ctas = {
        "interior": (0, 0),
        "edge": (0, last_row),
        "corner": (last_column, last_row),
    }
    table = Table("CTA", "blockIdx", "output", "error", "findings", title="simulator")
    good = True
    for name, (x, y) in ctas.items():
        with step(f"simulate the {name} CTA, {-(-k // TILE[2])} trips of the ring"):
            result = tvm_hopper.simulate(executable, arrays, blocks=[(x, y, 0)])
        rows = slice(y * TILE[0], min((y + 1) * TILE[0], m))
        columns = slice(x * TILE[1], min((x + 1) * TILE[1], n))
        got = result.outputs["D"][rows, columns].astype(np.float64)
        want = a[rows].astype(np.float64) @ b[columns].astype(np.float64).T
        error = np.linalg.norm(got - want) / np.linalg.norm(want)
        shape = f"{rows.stop - rows.start} x {columns.stop - columns.start}"
        table.add_row(name, f"({x}, {y})", shape, f"{error:.1e}", result.verdict)
        good &= bool(error < 4e-3) and result.verdict == "clean"  # bfloat16 has 8 bits
    console.print(table)
    with step("verify: three schedules, every interleaving, every CTA's indices, values"):
        inputs = {"A": a, "B": b}
        report = tvm_hopper.verify(executable, inputs, SCHEDULES, against=plain)
    console.print(str(report))
    return good and report.verdict == "clean"


def run_on_gpu(m: int, n: int, k: int) -> bool:
    """Check and time the kernel against cuBLAS where there is a GPU and PyTorch."""
    try:
        import torch
    except ImportError:
        console.print("no PyTorch here: the run against cuBLAS is left out")
        return True
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        console.print("no Hopper GPU here: the run against cuBLAS is left out")
        return True
    command = [sys.executable, "-m", "benchmarks.gemm", "--sizes", f"{m}x{n}x{k}"]
    command += ["--dtypes", "bfloat16", "--output", str(ROOT / "build")]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def main(argv: list[str]) -> int:
    """Run the demo; 0 when everything was as it must be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="4000x4672x4544", metavar="MxNxK")
    parser.add_argument("--cubin", type=Path, default=ROOT / "build" / "demo.cubin")
    options = parser.parse_args(argv)
    m, n, k = map(int, options.shape.split("x"))

    with step(f"schedule C[{m}, {n}] = A[{m}, {k}] B[{n}, {k}]^T, bfloat16"):
        module = workloads.matmul(m, n, k, "NT", "bfloat16", "bfloat16")
        sch = s_tir.Schedule(module)
        hs.matmul(sch, "C", CONFIG)
    with step("lower and compile"):
        executable = tvm.compile(sch.mod, target=TARGET)
        code = tvm_hopper.cubin(executable)
    options.cubin.parent.mkdir(parents=True, exist_ok=True)
    options.cubin.write_bytes(code)
    console.print(f"cubin: {options.cubin} ({len(code)} bytes)")
    console.print(tvm_hopper.explain(executable))
    good = show_machine_code(executable)
    good &= simulate_ctas(executable, module, m, n, k)
    good &= run_on_gpu(m, n, k)
    console.print(
        "[green]all as it must be[/]" if good else "[red]something is wrong, see above[/]"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
