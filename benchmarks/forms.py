"""Products of float8, int8, tf32 and batches against PyTorch: `python -m benchmarks.forms`.

Weights of 4 and 8 bits are set next to our own product of 16-bit weights, and not clipped.

    python -m benchmarks.forms --forms fp8 bmm --seed 3 --count 60

All kernels are built first, in parallel. Then each is checked against float64 and timed in turn
with PyTorch's functions, by graph replay with cold caches. A ratio is the time of the faster of
these over ours; before a mean it is clipped at 1.5, and times below 3 us count as 3 us. Each result
is printed as it comes, so that a run that is cut has said so much.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import functools
import math
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from . import form_groups, form_weights, machine, timing
from .cold import COLD_BYTES, LONG_BYTES, MOST_SETS, SHORT_CALLS
from .form_population import FORMS, WEIGHTS, FormProblem, problems
from .matmul_case import register
from .population_table import percentile

RESULTS = Path(__file__).parent / "results"
TARGET = "nvidia/nvidia-h200"
CLIP, LEAST_US = 1.5, 3.0
COLUMNS = ["problem", "ours us", "PyTorch us", "by", "ratio", "TFLOP/s", "error of its bound"]
WORST = 10
# An instruction of 32 float8 products cuts them and the sum so far to 13 bits below the largest
# exponent of them, and its result to 13 bits of fraction: bit for bit so on an H200, k 32 to 4096.
FP8_SUM, FP8_STEP = 2.0**-13, 32  # of the sum of absolute products; products of an instruction
FP8_MOST = 7.0  # times FP8_SUM: 5.02 is the most that was seen (6144x13824x9216 of seed 907)
OUTPUTS = {"int8": "int32", "tf32": "float32"}  # of the others bfloat16
ROUNDING = {"int8": 0.0, "tf32": 2.0**-9}  # of the largest product and of the output; else 16 bits


def module(problem: FormProblem) -> Any:
    """Return the plain program of a problem."""
    from tvm_hopper.testing.contractions import contraction

    if problem.form == "grouped":
        return form_groups.module(problem)
    if problem.form in WEIGHTS:
        return form_weights.module(problem)
    batch = "b" if problem.form == "bmm" else ""
    right = "nk" if problem.layout == "NT" else "kn"
    formula = f"{batch}mk,{batch}{right}->{batch}mn"
    extents = {x: getattr(problem, x) for x in f"{batch}mnk"}
    if problem.form in OUTPUTS:
        return contraction(formula, extents, (problem.dtype,) * 2, OUTPUTS[problem.form])
    if problem.form == "bmm":
        return contraction(
            formula, extents, (problem.dtype,) * 2, "float32",
            lambda total, *i: total(*i).astype("bfloat16"),
        )  # fmt: skip
    axes = {"S": "m", "T": "n"} if problem.form == "fp8 rows" else {"S": "1", "T": "1"}

    def scaled(total: Any, i: Any, j: Any, S: Any, T: Any) -> Any:
        s, t = (S[i], T[j]) if problem.form == "fp8 rows" else (S[0], T[0])
        return (total(i, j) * (s * t)).astype("bfloat16")

    return contraction(formula, extents, (problem.dtype,) * 2, "float32", scaled, axes)


def schedule(problem: FormProblem, plain: bool = False) -> Any:
    """Return the product's default schedule; `plain`: of its weights in 16 bits."""
    from tvm import s_tir
    from tvm.target import Target

    from tvm_hopper import schedule as hs

    sch = s_tir.Schedule(form_weights.module(problem, True) if plain else module(problem))
    with Target(TARGET):
        config = hs.MatmulConfig(operands="tf32") if problem.form == "tf32" else None
        hs.matmul(sch, "C", config)
    return sch


def build_library(problem: FormProblem, path: str) -> None:
    """Build a problem into a shared library, for the process that times."""
    import tvm

    register()
    tvm.compile(schedule(problem).mod, target=TARGET).export_library(path)
    if problem.form in WEIGHTS:
        plain = tvm.compile(schedule(problem, plain=True).mod, target=TARGET)
        plain.export_library(path + form_weights.PLAIN)


class Tensors:
    """One set of tensors of a problem, normal values."""

    def __init__(self, problem: FormProblem) -> None:
        import torch

        self.problem = problem
        b, m, n, k = problem.b, problem.m, problem.n, problem.k
        lead = (b,) if problem.form == "bmm" else ()
        right = (n, k) if problem.layout == "NT" else (k, n)
        self.a, self.b = (_normal(problem.dtype, (*lead, *size)) for size in ((m, k), right))
        rows, columns = ((m,), (n,)) if problem.form == "fp8 rows" else ((1,), (1,))
        self.scales = []
        if problem.form.startswith("fp8"):
            made: dict[str, Any] = {"device": "cuda", "dtype": torch.float32}
            self.scales = [torch.rand(x, **made) + 0.5 for x in (rows, columns)]
        out = OUTPUTS.get(problem.form, "bfloat16")
        self.out = torch.empty((*lead, m, n), device="cuda", dtype=getattr(torch, out))
        self.arguments = [as_argument(x) for x in (self.a, self.b, *self.scales, self.out)]

    @property
    def right(self) -> Any:
        """B with rows along the sum."""
        return self.b if self.problem.layout == "NN" else self.b.transpose(-1, -2)

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        every = (self.a, self.b, self.out)
        return int(sum(x.numel() * x.element_size() for x in every))


def _normal(dtype: str, shape: tuple[int, ...]) -> Any:
    import torch

    if dtype == "int8":
        return torch.randint(-128, 128, shape, device="cuda", dtype=torch.int8)
    return torch.randn(shape, device="cuda").to(getattr(torch, dtype))


def as_argument(tensor: Any) -> Any:
    """Return what a function of TVM takes: float8 travels as bytes, whatever PyTorch exports."""
    import torch
    import tvm

    name = str(tensor.dtype).removeprefix("torch.")
    if not name.startswith("float8"):
        return tensor
    raw = tvm.runtime.from_dlpack(tensor.view(torch.uint8))
    return raw._create_view(tuple(tensor.shape), name)


def opponents(problem: FormProblem, sets: list[Tensors]) -> dict[str, Callable[[int], Any]]:
    """Return PyTorch's functions for a problem by name."""
    import torch

    def scaled(fast: bool) -> Callable[[int], Any]:
        def call(i: int) -> Any:
            x = sets[i]
            s, t = x.scales
            if problem.form == "fp8 rows":
                s, t = s[:, None], t[None, :]
            return torch._scaled_mm(
                x.a, x.right, scale_a=s, scale_b=t, out_dtype=torch.bfloat16, use_fast_accum=fast
            )

        return call

    if problem.form.startswith("fp8"):
        return {"_scaled_mm": scaled(False), "_scaled_mm, fast": scaled(True)}
    if problem.form == "int8":
        return {"_int_mm": lambda i: torch._int_mm(sets[i].a, sets[i].right)}
    if problem.form == "tf32":
        torch.backends.cuda.matmul.allow_tf32 = True
        return {"mm": lambda i: torch.mm(sets[i].a, sets[i].right, out=sets[i].out)}
    return {"bmm": lambda i: torch.bmm(sets[i].a, sets[i].right, out=sets[i].out)}


def check(run: Any, tensors: Tensors) -> float:
    """Return the largest error of a result as a part of its bound, against float64; 1 is too much.

    A part of the rows is compared where the whole would not fit into memory in float64.
    """
    import torch

    problem = tensors.problem
    tensors.out.fill_(-77)
    run(*tensors.arguments)
    torch.cuda.synchronize()
    worst = 0.0
    step = max(1, int(2**27 // max(problem.n, problem.k)))
    for b in range(0, problem.b, max(1, problem.b // 4)):
        at = (b,) if problem.form == "bmm" else ()
        for first in range(0, problem.m, step):
            rows = slice(first, first + step)
            a, right = tensors.a[(*at, rows)].double(), tensors.right[at].double()
            want, terms = a @ right, a.abs() @ right.abs()
            if tensors.scales:
                s, t = (x.double() for x in tensors.scales)
                factor = s[rows][:, None] * t if problem.form == "fp8 rows" else s * t
                want, terms = want * factor, terms * factor
            rounding = ROUNDING.get(problem.form, 2.0**-8)
            bound = rounding * want.abs() + terms * problem.k**0.5 * 2.0**-23
            if problem.form == "tf32":
                bound = bound + terms * 2.0**-9
            if problem.form.startswith("fp8"):
                lost = min(FP8_MOST, 1 + (problem.k / FP8_STEP) ** 0.5 / 2)
                bound = bound + terms * FP8_SUM * lost
            if problem.form == "int8":
                bound = torch.full_like(want, 0.5)
            error = (tensors.out[(*at, rows)].double() - want).abs()
            worst = max(worst, float((error / bound.clamp_min(1e-30)).max()))
    return worst


def row_of(problem: FormProblem, path: str, repeats: int) -> dict[str, Any]:
    """Check and time one problem."""
    flops = 2 * problem.b * problem.m * problem.n * problem.k
    made_of: tuple[Any, Any, Any] = Tensors, check, opponents
    if problem.form == "grouped":
        flops //= problem.b
        made_of = form_groups.GroupTensors, form_groups.check, form_groups.opponents
    if problem.form in WEIGHTS:
        others = functools.partial(form_weights.opponents, path)
        made_of = form_weights.WeightTensors, form_weights.check, others
    return timed_row(problem, path, repeats, flops, made_of)


def timed_row(
    problem: Any, path: str, repeats: int, flops: float, made_of: tuple[Any, Any, Any]
) -> dict[str, Any]:
    """Check a built problem and time it in turn with others; return a row of the table.

    `made_of` makes its tensors, checks them after a call, and returns the others' functions.
    """
    import torch
    import tvm
    import tvm_ffi

    make, check_one, others_of = made_of
    run = tvm.runtime.load_module(path)["main"]
    first = make(problem)
    error = check_one(run, first)
    count = min(max(2, -(-COLD_BYTES // first.num_bytes)), MOST_SETS)
    sets = [first, *(make(problem) for _ in range(count - 1))]
    others = others_of(problem, sets)
    contenders = [timing.Contender(name, call) for name, call in others.items()]
    contenders.append(
        timing.Contender("ours", lambda i: run(*sets[i].arguments), tvm_ffi.use_torch_stream)
    )
    calls = SHORT_CALLS if first.num_bytes < LONG_BYTES else 0
    times = {x.name: x.median_us for x in timing.measure_cold(contenders, count, repeats, calls)}
    ours = times.pop("ours")
    by = min(times, key=lambda x: times[x])
    sets.clear()
    torch.cuda.empty_cache()
    return {
        "problem": problem.name,
        "ours us": round(ours, 2),
        "PyTorch us": round(times[by], 2),
        "by": by,
        "ratio": round(max(times[by], LEAST_US) / max(ours, LEAST_US), 4),
        "TFLOP/s": round(flops / ours / 1e6),
        "error of its bound": round(error, 3),
    }


def rows(
    chosen: Sequence[Any],
    workers: int,
    repeats: int,
    until: float,
    build: Callable[[Any, str], None] = build_library,
    time_one: Callable[[Any, str, int], dict[str, Any]] = row_of,
) -> Iterator[dict[str, Any]]:
    """Build problems, then check and time them one by one; a refusal is a row of its own."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / f"{i}.so") for i in range(len(chosen))]
        with concurrent.futures.ProcessPoolExecutor(workers, context) as pool:
            jobs = list(map(pool.submit, [build] * len(chosen), chosen, paths))
            concurrent.futures.wait(jobs)
        register()
        for problem, path, job in zip(chosen, paths, jobs, strict=True):
            if time.monotonic() > until:
                print(f"out of time before {problem.name}")
                return
            try:
                job.result()
                yield time_one(problem, path, repeats)
            except Exception as error:  # one bad problem must not hide the others' figures
                text = (str(error).strip().splitlines() or [""])[-1]
                yield {"problem": problem.name, "message": f"{type(error).__name__}: {text[:300]}"}


def summary(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each form, of weights by rows: how its ratios are distributed."""
    table: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(found, key=lambda x: FORMS.index(_form_of(x["problem"]))):
        form = _form_of(row["problem"])
        rows = f", {form_weights.rows_of(row['problem'])}" if form in WEIGHTS else ""
        table.setdefault(form + rows, []).append(row)
    return [{"form": form, **distribution(own)} for form, own in table.items()]


def distribution(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how the ratios of some problems are distributed."""
    ratios = sorted(x["ratio"] for x in found if "ratio" in x)
    row: dict[str, Any] = {"problems": len(found), "refused or failed": len(found) - len(ratios)}
    row["wrong"] = sum(x.get("error of its bound", 0) > 1 for x in found)
    if ratios:
        is_clipped = not any(x["problem"].startswith(tuple(WEIGHTS)) for x in found)
        logarithms = [math.log(min(x, CLIP) if is_clipped else x) for x in ratios]
        row["geometric mean"] = round(math.exp(statistics.fmean(logarithms)), 3)
        row["5th percentile"] = round(percentile(ratios, 5), 3)
        row["least"] = ratios[0]
    return row


def _form_of(name: str) -> str:
    return max((x for x in FORMS if name.startswith(f"{x} ")), key=len)


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forms", description=__doc__)
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=FORMS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=60, help="problems of each form")
    parser.add_argument("--workers", type=int, default=8, help="processes that build")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=540, help="after which no problem begins")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Time the forms; print and write what was found. 0: all were right."""
    options = parse(argv)
    until = time.monotonic() + options.seconds
    found: list[dict[str, Any]] = []
    with contextlib.suppress(KeyboardInterrupt):
        for form in options.forms:
            chosen = problems(form, options.seed, options.count)
            for row in rows(chosen, options.workers, options.repeats, until):
                print(" | ".join(map(str, row.values())), flush=True)
                found.append(row)
    timed = [x for x in found if "ratio" in x]
    for row in sorted(timed, key=lambda x: x["ratio"])[:WORST]:
        print("worst:", " | ".join(map(str, row.values())))
    for row in summary(found):
        print(row)
    title = f"Products of other types and batches, seed {options.seed}"
    if timed:
        print(machine.save(options.out, "forms", title, COLUMNS, timed).splitlines()[0])
    return int(any("message" in x or x.get("error of its bound", 0) > 1 for x in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
