"""Epilogues by plain stores against those by TMA: `python -m benchmarks.epilogues`.

Products in half precision, float32 sums, C = A B^T; at 8192x14336x4096 also with a bias and the
tanh form of gelu. Each variant is built, checked against float64 products of sampled rows, then
timed in turn with the others and with `torch.matmul(out=)` in this one process.

    python -m benchmarks.epilogues --variant "" --variant store=tma --variant store=tma,stages=3
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.matmul_case import TARGET, register
from benchmarks.timing import Contender, measure

PROBLEMS = (
    ("4096x4096x4096", False),
    ("8192x8192x8192", False),
    ("8192x14336x4096", False),
    ("8192x14336x4096", True),
)
VARIANTS = ("", "store=tma", "store=tma,store_parts=1,stages=3", "store=tma,store_parts=4")
SAMPLED_ROWS = 64
TOLERANCE = 1e-3  # relative Frobenius error of float16 outputs
RESULTS = Path(__file__).parent / "results"


def program(m: int, n: int, k: int, is_activated: bool) -> Any:
    """Return a product as a module, with a bias and the tanh form of gelu behind it or without."""
    import tvm
    from tvm import te

    a = te.placeholder((m, k), "float16", name="A")
    b = te.placeholder((n, k), "float16", name="B")
    bias = te.placeholder((n,), "float16", name="bias")
    axis = te.reduce_axis((0, k), "k")

    def product(i: Any, j: Any) -> Any:
        return te.sum(a[i, axis].astype("float32") * b[j, axis].astype("float32"), axis=axis)

    c = te.compute((m, n), product, name="C")

    def activated(i: Any, j: Any) -> Any:
        x = c[i, j] + bias[j].astype("float32")
        inner = te.const(0.7978845608, "float32") * (x + te.const(0.044715, "float32") * x * x * x)
        y = te.const(0.5, "float32") * x * (te.const(1, "float32") + te.tanh(inner))
        return y.astype("float16")

    if is_activated:
        arguments = [a, b, bias, te.compute((m, n), activated, name="D")]
    else:
        arguments = [a, b, te.compute((m, n), lambda i, j: c[i, j].astype("float16"), name="D")]
    func = te.create_prim_func(arguments).with_attr("global_symbol", "main")
    return tvm.IRModule({"main": func})


def read_variant(text: str) -> dict[str, Any]:
    """Return the fields of a MatmulConfig from "store=tma,tile=128x256x64"."""
    fields: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, value = part.split("=")
        if not value.replace("x", "").isdigit():
            fields[name] = value
            continue
        numbers = tuple(int(v) for v in value.split("x"))
        fields[name] = numbers if len(numbers) > 1 else numbers[0]
    return fields


def build(m: int, n: int, k: int, is_activated: bool, variant: str) -> Any:
    """Schedule and compile one variant; returns the kernel."""
    import tvm
    from tvm import s_tir

    from tvm_hopper import schedule as hs

    register()
    sch = s_tir.Schedule(program(m, n, k, is_activated))
    hs.matmul(sch, "C", hs.MatmulConfig(**read_variant(variant)))
    return tvm.compile(sch.mod, target=TARGET)["main"]


def expected(a: Any, b: Any, bias: Any, rows: Any, is_activated: bool) -> Any:
    """Return some rows of the result in float64."""
    import torch

    value = a[rows].double() @ b.double().T
    if is_activated:
        value = torch.nn.functional.gelu(value + bias.double(), approximate="tanh")
    return value


def run_one(size: str, is_activated: bool, variants: list[str], repeats: int) -> list[Any]:
    """Build, check and time every variant of one problem; return a row for each."""
    import torch

    m, n, k = (int(x) for x in size.split("x"))
    torch.manual_seed(0)
    a, b = (torch.randn(x, k, device="cuda", dtype=torch.float16) for x in (m, n))
    bias = torch.randn(n, device="cuda", dtype=torch.float16)
    out = torch.empty(m, n, device="cuda", dtype=torch.float16)
    plain = torch.empty_like(out)
    rows = torch.randperm(m, device="cuda")[:SAMPLED_ROWS]
    want = expected(a, b, bias, rows, is_activated)
    given = (a, b, bias) if is_activated else (a, b)
    contenders, right = [], {}
    for variant in variants:
        kernel = build(m, n, k, is_activated, variant)
        out.fill_(float("nan"))
        kernel(*given, out)
        torch.cuda.synchronize()
        error = float((out[rows].double() - want).norm() / want.norm())
        right[variant] = error < TOLERANCE and not bool(out.isnan().any())
        if not right[variant]:
            print(f"{size} {variant or 'default'}: error {error:.2e}", file=sys.stderr)
        contenders.append(Contender(variant, lambda _, f=kernel: f(*given, out)))
    contenders.append(Contender("torch.matmul", lambda _: torch.matmul(a, b.T, out=plain)))
    times = {t.name: t for t in measure(contenders, 1, repeats)}
    first = times[variants[0]].median_us
    return [
        {
            "size": size,
            "epilogue": "bias, gelu (tanh)" if is_activated else "none",
            "variant": name or "default",
            "right": right.get(name, True),
            "us": round(t.median_us, 1),
            "p10": round(t.p10_us, 1),
            "p90": round(t.p90_us, 1),
            "TFLOP/s": round(2 * m * n * k / t.median_us / 1e6, 1),
            "times the first": round(first / t.median_us, 4),
        }
        for name, t in times.items()
    ]


def main(argv: list[str]) -> int:
    """Print the table and write it to `results/`; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.epilogues", description=__doc__)
    parser.add_argument("--variant", action="append", help="fields of a MatmulConfig")
    parser.add_argument("--size", action="append", help="only these, e.g. 4096x4096x4096")
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args(argv)
    problems = [x for x in PROBLEMS if not arguments.size or x[0] in arguments.size]
    variants = arguments.variant or list(VARIANTS)
    about = machine.describe()
    table = [row for one in problems for row in run_one(*one, variants, arguments.repeats)]
    lines = ["# Epilogues", "", *(f"* {key}: {value}" for key, value in about.items()), ""]
    lines += ["| " + " | ".join(table[0]) + " |", "|---" * len(table[0]) + "|"]
    lines += ["| " + " | ".join(map(str, row.values())) + " |" for row in table]
    text = "\n".join(lines) + "\n"
    print(text)
    stamp = about["date"].replace(":", "").replace(" UTC", "").replace(" ", "_")
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / f"epilogues_{stamp}.md").write_text(text)
    record = json.dumps({"machine": about, "table": table}, indent=1)
    (arguments.out / f"epilogues_{stamp}.json").write_text(record)
    return 0 if all(row["right"] for row in table) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
