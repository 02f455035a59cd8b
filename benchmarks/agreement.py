"""Run the same kernels on the same inputs in the simulator and on a GPU, and compare the values.

    python -m benchmarks.agreement [--output FOLDER]

Each case is built once. Integer-valued inputs must agree bit for bit. With normal inputs both sides
sum the same products in another order: each must be close to float64, and to the other as close as
rounding of the output type allows. Findings of the simulator fail a case as well.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from . import machine
from .matmul_case import TOLERANCE, Case, build, epilogue_operands, inputs, poisoned

# fp32 sums of the same products in two orders; then one rounding each to the output type
BETWEEN = {"float32": 2e-6, "float16": 3e-4, "bfloat16": 3e-3}


def cases() -> list[Case]:
    """Return pairs of shape and configuration: majors, types, tiles, stages, roles, epilogues."""
    tile = {
        "small": {"tile": (64, 64, 64), "consumers": 1},
        "wide": {"tile": (128, 256, 64), "consumers": 2},
        "tall": {"tile": (192, 128, 64), "consumers": 3},
        "deep": {"tile": (128, 128, 128), "consumers": 2},
        "column": {"tile": (64, 128, 64), "consumers": 2},
    }
    found = []
    for layout in ("NT", "NN", "TN", "TT"):
        for dtype, out_dtype in (("float16", "float32"), ("bfloat16", "bfloat16")):
            found.append(
                Case(136, 200, 328, layout, dtype, out_dtype, {**tile["small"], "stages": 3})
            )
            found.append(
                Case(136, 264, 192, layout, dtype, out_dtype, {**tile["wide"], "stages": 4})
            )
    found += [
        Case(200, 136, 392, "NT", "float16", "float16", {**tile["tall"], "stages": 2}),
        Case(200, 136, 392, "TN", "float16", "float16", {**tile["deep"], "stages": 2}),
        Case(72, 264, 128, "NN", "float16", "float16", {**tile["column"], "stages": 1}),
        Case(300, 520, 128, "NT", "float16", "float16",
             {**tile["wide"], "stages": 4, "persistent": 3, "raster": 2}),
        Case(136, 200, 328, "NT", "float16", "float32",
             {**tile["small"], "stages": 3, "wgmma_pending": 1}),
        Case(136, 200, 328, "NT", "float16", "float32",
             {**tile["small"], "stages": 3, "swizzle": 64}),
        Case(136, 201, 328, "NT", "float16", "float16", {**tile["small"], "stages": 3}),
        Case(136, 200, 328, "NT", "float16", "float16", {**tile["small"], "stages": 3},
             {"epilogue": ("bias_col", "relu")}),
        Case(136, 200, 328, "NT", "bfloat16", "bfloat16", {**tile["small"], "stages": 3},
             {"epilogue": ("scale", "bias_row", "residual", "relu")}),
    ]  # fmt: skip
    return found


def run_gpu(executable: Any, case: Case, tensors: tuple[Any, ...]) -> np.ndarray:
    """Return the output of the GPU as float64."""
    import torch

    _, out = poisoned((case.m, case.n), case.out_dtype)
    executable["main"](*tensors, out)
    torch.cuda.synchronize()
    return out.double().cpu().numpy()


def run_simulator(executable: Any, case: Case, tensors: tuple[Any, ...]) -> tuple[np.ndarray, list]:
    """Return the output of the simulator as float64, and its findings."""
    import tvm_hopper

    names = ["A", "B", *(name for name, _ in epilogue_operands(case, case.m))]
    feed = {name: _numpy(x, case.dtype) for name, x in zip(names, tensors, strict=True)}
    result = tvm_hopper.simulate(executable, feed, policy="on_wait")
    output = list(result.outputs.values())[-1]  # every argument is there, the output last
    return np.asarray(output).astype(np.float64), list(result.findings)


def _numpy(tensor: Any, dtype: str) -> np.ndarray:
    import ml_dtypes
    import torch

    if dtype == "bfloat16":
        bits = tensor.contiguous().view(torch.int16).cpu().numpy()
        return bits.view(ml_dtypes.bfloat16)
    return tensor.cpu().numpy()


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """Return the relative Frobenius distance; NaN where either holds NaN."""
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def compare(case: Case) -> dict[str, Any]:
    """Return how far simulator, GPU and float64 lie apart, and whether that is allowed."""
    executable = build(case)
    row: dict[str, Any] = {"case": case.name}
    for kind in ("integer", "normal"):
        tensors = inputs(case, case.m, kind, seed=7)
        gpu = run_gpu(executable, case, tensors)
        start = time.perf_counter()
        simulated, findings = run_simulator(executable, case, tensors)
        row["simulator s"] = round(time.perf_counter() - start, 2)
        row["findings"] = [str(f) for f in findings]
        if kind == "integer":
            row["equal"] = bool(np.array_equal(gpu, simulated))
            continue
        row["apart"] = distance(simulated, gpu)
        if not case.form:
            a, b = (x.double().cpu().numpy() for x in tensors[:2])
            left = a if case.layout[0] == "N" else a.T
            right = b.T if case.layout[1] == "T" else b
            row["gpu error"] = distance(gpu, left @ right)
            row["simulator error"] = distance(simulated, left @ right)
    errors = [row[key] for key in ("gpu error", "simulator error") if key in row]
    row["ok"] = bool(
        row["equal"]
        and not row["findings"]
        and row["apart"] <= BETWEEN[case.out_dtype]
        and all(error <= TOLERANCE[case.out_dtype] for error in errors)
    )
    return row


def table(rows: list[dict[str, Any]], about: dict[str, str]) -> str:
    """Return the rows as a dated markdown table."""
    lines = ["# Simulator against GPU", ""]
    lines += [f"- {name}: {value}" for name, value in about.items()]
    lines += [
        "",
        "Same executable, same inputs. `equal`: integer-valued inputs, bit for bit. `apart`: "
        "relative distance of both results for normal inputs; errors against float64.",
        "",
        "| case | equal | apart | GPU error | simulator error | findings | simulator s |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        errors = [f"{row[k]:.1e}" if k in row else "" for k in ("gpu error", "simulator error")]
        equal = "yes" if row["equal"] else "**no**"
        lines.append(
            f"| {row['case']} | {equal} | {row['apart']:.1e} | {errors[0]} | {errors[1]} | "
            f"{len(row['findings'])} | {row['simulator s']} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run every case; exit non-zero unless all agree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    rows = [compare(case) for case in cases()]
    about = machine.describe()
    values = {"machine": about, "rows": rows}
    path = machine.write(options.output, "agreement", table(rows, about), values)
    wrong = [row for row in rows if not row["ok"]]
    for row in wrong:
        print("FAILED", json.dumps(row))
    print(f"{len(rows) - len(wrong)} of {len(rows)} agree -> {path}")
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
