"""Epilogues: what follows a product, and how its output leaves: `python -m benchmarks.epilogues`.

Products in half precision, float32 sums, C = A B^T, and at 8192x14336x4096 what networks have
behind them. Each variant is built, checked against float64 products of sampled rows, then timed in
turn with all others of its size and with `torch.matmul(out=)` in this one process.

    python -m benchmarks.epilogues --variant "" --variant store=tma --variant store=tma,stages=3
    python -m benchmarks.epilogues --size 8192x14336x4096 --dtype bfloat16 --variant ""
    python -m benchmarks.epilogues --variant functions=library,store=threads      (as it was)
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.gemm import read_variant
from benchmarks.matmul_case import TARGET, register
from benchmarks.timing import Contender, measure

ACTIVATED = "8192x14336x4096"
SIZES = ("4096x4096x4096", "8192x8192x8192", ACTIVATED)
EPILOGUES = (
    "none",
    "bias, relu",
    "bias, gelu (tanh)",
    "bias, gelu (erf)",
    "silu",
    "residual, relu",
)
VARIANTS = ("", "store=tma", "store=tma,stages=4", "functions=library,store=threads")
SAMPLED_ROWS = 64
TOLERANCE = {"float16": 1e-3, "bfloat16": 6e-3}  # relative Frobenius error of the outputs
RESULTS = Path(__file__).parent / "results"


def program(m: int, n: int, k: int, epilogue: str, dtype: str = "float16") -> Any:
    """Return a product as a module, with one of EPILOGUES behind it."""
    import tvm
    from tvm import te

    a = te.placeholder((m, k), dtype, name="A")
    b = te.placeholder((n, k), dtype, name="B")
    bias = te.placeholder((n,), dtype, name="bias")
    residual = te.placeholder((m, n), dtype, name="residual")
    axis = te.reduce_axis((0, k), "k")

    def product(i: Any, j: Any) -> Any:
        return te.sum(a[i, axis].astype("float32") * b[j, axis].astype("float32"), axis=axis)

    c = te.compute((m, n), product, name="C")

    def number(value: float) -> Any:
        return te.const(value, "float32")

    def activated(i: Any, j: Any) -> Any:
        x = c[i, j]
        if "bias" in epilogue:
            x = x + bias[j].astype("float32")
        if "residual" in epilogue:
            x = x + residual[i, j].astype("float32")
        if "relu" in epilogue:
            x = te.max(x, number(0))
        elif "tanh" in epilogue:
            inner = number(0.7978845608) * (x + number(0.044715) * x * x * x)
            x = number(0.5) * x * (number(1) + te.tanh(inner))
        elif "erf" in epilogue:
            x = number(0.5) * x * (number(1) + te.erf(number(0.5**0.5) * x))
        elif "silu" in epilogue:
            x = x * te.sigmoid(x)
        return x.astype(dtype)

    extra = [bias] * ("bias" in epilogue) + [residual] * ("residual" in epilogue)
    func = te.create_prim_func([a, b, *extra, te.compute((m, n), activated, name="D")])
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def build(size: str, epilogue: str, dtype: str, variant: str) -> Any:
    """Schedule and compile one variant; returns the kernel."""
    import tvm
    from tvm import s_tir

    from tvm_hopper import schedule as hs

    register()
    fields = read_variant(variant)
    options = {"tvm_hopper.functions": fields.pop("functions", "short")}
    m, n, k = (int(x) for x in size.split("x"))
    sch = s_tir.Schedule(program(m, n, k, epilogue, dtype))
    hs.matmul(sch, "C", hs.MatmulConfig(**fields))
    with tvm.transform.PassContext(config=options):
        return tvm.compile(sch.mod, target=TARGET)["main"]


def expected(value: Any, epilogue: str, bias: Any, residual: Any) -> Any:
    """Return some rows of the result in float64, of those of the product."""
    import torch

    if "bias" in epilogue:
        value = value + bias.double()
    if "residual" in epilogue:
        value = value + residual.double()
    if "gelu" in epilogue:
        form = "tanh" if "tanh" in epilogue else "none"
        return torch.nn.functional.gelu(value, approximate=form)
    if "silu" in epilogue:
        return torch.nn.functional.silu(value)
    return torch.relu(value) if "relu" in epilogue else value


def run_one(
    size: str, dtype: str, epilogues: list[str], variants: list[str], repeats: int
) -> list[Any]:
    """Build, check and time every variant of one size; return a row for each."""
    import torch

    m, n, k = (int(x) for x in size.split("x"))
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    a, b, residual, bias, out = (
        torch.randn(*x, device="cuda", dtype=kind) for x in ((m, k), (n, k), (m, n), (n,), (m, n))
    )
    plain = torch.empty_like(out)
    rows = torch.randperm(m, device="cuda")[:SAMPLED_ROWS]
    product = a[rows].double() @ b.double().T
    contenders, right = [], {}
    usual = EPILOGUES if size == ACTIVATED else EPILOGUES[:1]
    for epilogue in epilogues or usual:
        want = expected(product, epilogue, bias, residual[rows])
        given = (a, b, *[bias] * ("bias" in epilogue), *[residual] * ("residual" in epilogue))
        for variant in variants:
            name = f"{epilogue}; {variant or 'default'}"
            try:
                kernel = build(size, epilogue, dtype, variant)
            except Exception as error:  # a variant that one epilogue does not take
                print(f"{size} {name}: {str(error)[:300]}", file=sys.stderr)
                continue
            print(f"{size} {name}", file=sys.stderr, flush=True)  # of one that hangs
            out.fill_(float("nan"))
            kernel(*given, out)
            torch.cuda.synchronize()
            error = float((out[rows].double() - want).norm() / want.norm())
            right[name] = error < TOLERANCE[dtype] and not bool(out.isnan().any())
            if not right[name]:
                print(f"{size} {name}: error {error:.2e}", file=sys.stderr)
            contenders.append(Contender(name, lambda _, f=kernel, x=given: f(*x, out)))
    contenders.append(Contender("none; torch.matmul", lambda _: torch.matmul(a, b.T, out=plain)))
    times = {t.name: t for t in measure(contenders, 1, repeats)}
    first = times[contenders[0].name].median_us
    return [
        {
            "size": size,
            "type": dtype,
            "epilogue": name.split("; ")[0],
            "variant": name.split("; ")[1],
            "right": right.get(name, True),
            "us": round(t.median_us, 1),
            "p10": round(t.p10_us, 1),
            "p90": round(t.p90_us, 1),
            "TFLOP/s": round(2 * m * n * k / t.median_us / 1e6, 1),
            "over the plain product": f"{100 * (t.median_us / first - 1):+.2f}%",
        }
        for name, t in times.items()
    ]


def main(argv: list[str]) -> int:
    """Print the table and write it to `results/`; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.epilogues", description=__doc__)
    parser.add_argument("--variant", action="append", help="fields of a MatmulConfig")
    parser.add_argument("--size", action="append", help="only these, e.g. 4096x4096x4096")
    parser.add_argument("--dtype", action="append", help="float16 or bfloat16; float16 by default")
    parser.add_argument("--epilogue", action="append", help="only these, e.g. 'residual, relu'")
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args(argv)
    problems = [
        (x, dtype) for dtype in arguments.dtype or ["float16"] for x in arguments.size or SIZES
    ]
    variants = arguments.variant or list(VARIANTS)
    table = [
        row
        for one in problems
        for row in run_one(*one, arguments.epilogue, variants, arguments.repeats)
    ]
    print(machine.save(arguments.out, "epilogues", "Epilogues", list(table[0]), table))
    return 0 if all(row["right"] for row in table) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
