"""Schedules for Ampere against TVM's own code: `python -m benchmarks.async_schedules`.

Each program is built three times from the same schedule: by TVM with its `cp.async`
(`tirx.use_async_copy`), and under `tvm_hopper.async_copy` for sm_90a and for sm_80 (as PTX). What
comes out is compared with what PyTorch computes, bit for bit, before it is timed in turn.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.timing import Contender, measure
from tvm_hopper.requests import keys
from tvm_hopper.testing.ampere_schedules import A100, columns, padded, vectors

H200 = "nvidia/nvidia-h200"
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Program:
    """A schedule, the shapes of its tensors, and what it computes."""

    module: Callable[[], Any]
    inputs: list[tuple[int, ...]]
    output: tuple[int, ...]
    dtype: str
    reference: Callable[..., Any]


def pad_columns(a: Any) -> Any:
    """Return a tensor between two columns of zeros."""
    import torch

    return torch.nn.functional.pad(a, (1, 1))


BIG = (131072, 4096)
PROGRAMS = {
    "columns 16x16": Program(
        lambda: columns, [(16, 16)] * 2, (16, 16), "float32", lambda a, b: a + b
    ),
    "padded 16x16": Program(lambda: padded, [(16, 14)], (16, 16), "float32", pad_columns),
    "vectors 1 GiB": Program(
        lambda: vectors(*BIG, threads=256), [BIG], BIG, "float16", lambda a: a * 2
    ),
}


def build(program: Program) -> dict[str, Any]:
    """Build a program in each way."""
    import tvm
    from tvm.ir.transform import PassContext

    ways = {
        "TVM, cp.async": (H200, {"tirx.use_async_copy": 1}),
        "ours, sm_90a": (H200, {keys.ASYNC_COPY: keys.AUTO}),
        "ours, sm_80": (A100, {keys.ASYNC_COPY: keys.AUTO}),
    }
    kernels = {}
    for name, (target, config) in ways.items():
        with PassContext(config=config):
            kernels[name] = tvm.compile(program.module(), target=target)["main"]
    return kernels


def _call(kernel: Any, tensors: tuple[Any, ...], _number: int) -> None:
    kernel(*tensors)


def run(repeats: int) -> list[dict[str, Any]]:
    """Check and time each program; return a row for each way."""
    import torch

    table = []
    for name, program in PROGRAMS.items():
        kernels = build(program)
        kind = getattr(torch, program.dtype)
        inputs = [torch.randn(x, device="cuda").to(kind) for x in program.inputs]
        outputs = {
            way: torch.full(program.output, 7.0, device="cuda", dtype=kind) for way in kernels
        }
        for way, kernel in kernels.items():
            kernel(*inputs, outputs[way])
        torch.cuda.synchronize()
        want = program.reference(*inputs)
        right = {way: bool(torch.equal(out, want)) for way, out in outputs.items()}
        calls = [
            Contender(way, partial(_call, kernel, (*inputs, outputs[way])))
            for way, kernel in kernels.items()
        ]
        runs = [{t.name: t.median_us for t in measure(calls, 1, repeats, 1.0)} for _ in range(3)]
        for way in kernels:
            ratios = sorted(one["TVM, cp.async"] / one[way] for one in runs)
            table.append(
                {
                    "program": name,
                    "built": way,
                    "right": right[way],
                    "us": round(sorted(one[way] for one in runs)[1], 2),
                    "times TVM's": round(ratios[1], 3),
                }
            )
    return table


def main(argv: list[str]) -> int:
    """Print the table and write it to `results/`; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.async_schedules")
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args(argv)
    about = machine.describe()
    table = run(arguments.repeats)
    lines = ["# Schedules for Ampere on Hopper", ""]
    lines += [f"* {key}: {value}" for key, value in about.items()]
    lines += [
        "",
        "| program | built | right | us | times as fast as TVM's |",
        "|---|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(map(str, row.values())) + " |" for row in table]
    text = "\n".join(lines) + "\n"
    print(text)
    stamp = about["date"].replace(":", "").replace(" UTC", "").replace(" ", "_")
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / f"async_schedules_{stamp}.md").write_text(text)
    return 0 if all(row["right"] for row in table if "ours" in row["built"]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
