"""Memory-bound programs of a seed through the Relax pipeline, against torch.compile.

    python -m benchmarks.memory_population SEED COUNT [--first N] [--kind KIND] [--out FILE]

All programs are built first, in parallel. Each is compared with float64, then timed cold in turn
with torch.compile (default mode, in a graph) and with a copy of as many bytes. A row is appended to
`--out` as soon as it is known; programs that are in it already are not run again. `--several` also
times the kernels that TVM's fusion alone leaves of a program. `--table` prints
the summary alone; `--kernels` builds and counts kernels without a GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tvm_hopper.relax.records import OURS

from .building import build, libraries, path_of_several
from .frameworks import draw, to_torch
from .problems import KINDS, Problem, population

SET_BYTES = 150 << 20  # of the sets of inputs that one graph visits
MOST_SETS = 64
LEAST_US = 3.0  # times below count as this
CLIP = 1.5  # of a ratio in a mean
LEAST_OF_SEVERAL = 0.9  # of the speed of several kernels: below, one is slower
REPEATS = 15
WORST = 10  # that are printed by name


def check(problem: Problem, run: Any, generator: Any, device: str = "cuda") -> str:
    """Compare a run with float64; return "" or what is wrong.

    An error may be three times PyTorch's own largest one, two roundings of the output's type, and
    a rounding in float32 of the largest output: a sum in another order than PyTorch's. An integer
    may be off by one, and by PyTorch's own largest error.
    """
    import torch

    given = draw(problem, generator, device)
    in_float64 = [x.double() if x.is_floating_point() else x for x in given]
    exactly = to_torch(problem, exact=True)(*in_float64)
    results = zip(exactly, to_torch(problem)(*given), run(*given), strict=True)
    for number, (exact, plain, ours) in enumerate(results):
        if ours.shape != exact.shape or ours.dtype != plain.dtype:
            return f"output {number}: {ours.dtype} {tuple(ours.shape)}"
        dtype = plain.dtype
        if problem.steps[-1].op == "argmax":  # of equal values any place is right
            reduced = replace(problem, outputs=list(problem.steps[-1].operands))
            (row,) = to_torch(reduced, exact=True)(*in_float64)
            dtype = getattr(torch, problem.inputs[0][1])
            found = (exact, plain, ours)
            exact, plain, ours = (row.gather(-1, x.long().unsqueeze(-1)) for x in found)
        exact, plain, ours = (x.double() for x in (exact, plain, ours))
        allowed = (plain - exact).abs().max()
        if dtype.is_floating_point:
            step = torch.finfo(dtype).eps * exact.abs().clamp(min=1.0)
            largest = torch.finfo(torch.float32).eps * exact.abs().max()
            allowed = 3 * allowed + 2 * step + largest
        else:
            allowed = allowed.clamp(min=1.0)
        wrong = ~((ours - exact).abs() <= allowed)
        if bool(wrong.any()):
            place = int(wrong.flatten().nonzero()[0])
            one, other = float(ours.flatten()[place]), float(exact.flatten()[place])
            return f"output {number}: {int(wrong.sum())} wrong, the first {one} for {other}"
    return ""


def measure(problem: Problem, path: str, computed_by: Sequence[str]) -> dict[str, Any]:
    """Check and time a problem that a library holds; return its row."""
    import torch
    import tvm
    import tvm_ffi
    from tvm import relax

    from benchmarks import timing

    def load(path: str) -> Any:
        return relax.VirtualMachine(tvm.runtime.load_module(path), tvm.cuda(0))["main"]

    main = load(path)

    def ours(*given: Any) -> tuple[Any, ...]:
        made = main(*map(tvm.runtime.from_dlpack, given))
        parts = [made] if hasattr(made, "shape") else list(made)
        return tuple(map(torch.from_dlpack, parts))

    generator = torch.Generator("cuda").manual_seed(1)
    with tvm_ffi.use_torch_stream():
        wrong = check(problem, ours, generator)
    outputs = to_torch(problem)(*draw(problem, generator))
    num_bytes = problem.num_bytes(sum(x.numel() * x.element_size() for x in outputs))
    del outputs
    count = min(MOST_SETS, max(2, math.ceil(SET_BYTES / num_bytes)))
    sets = [draw(problem, generator) for _ in range(count)]
    views = [list(map(tvm.runtime.from_dlpack, some)) for some in sets]
    # The functions of all problems share their code, of which dynamo compiles eight forms only.
    torch._dynamo.reset()
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    compiled = torch.compile(to_torch(problem), dynamic=False)
    copied = max(1, num_bytes // 4)  # elements of 2 bytes, read and written
    pairs = [torch.ones((2, copied), dtype=torch.int16, device="cuda") for _ in sets]
    contenders = [
        timing.Contender("ours_us", lambda i: main(*views[i]), tvm_ffi.use_torch_stream),
        timing.Contender("compile_us", lambda i: compiled(*sets[i])),
        timing.Contender("copy_us", lambda i: torch.add(pairs[i][0], 0, out=pairs[i][1])),
    ]
    if Path(path_of_several(path)).exists():
        several = load(path_of_several(path))
        run = timing.Contender("several_us", lambda i: several(*views[i]), tvm_ffi.use_torch_stream)
        contenders.append(run)
    calls = 20 if num_bytes < 40 << 20 else 0
    times = timing.measure_cold(contenders, count, REPEATS, calls, 0.2)
    row: dict[str, Any] = {"name": problem.name, "kind": problem.kind, "wrong": wrong}
    row |= {"functions": len(computed_by), "served": computed_by.count(OURS), "bytes": num_bytes}
    row |= {x.name: round(x.median_us, 2) for x in times}
    row["ratio"] = round(ratio(row["compile_us"], row["ours_us"]), 4)
    row["copy_share"] = round(ratio(row["copy_us"], row["ours_us"]), 4)
    if "several_us" in row:
        row["several_ratio"] = round(ratio(row["several_us"], row["ours_us"]), 4)
    return row


def ratio(theirs: float, ours: float) -> float:
    """Return an opponent's time over ours, each at least that of the smallest kernel."""
    return max(theirs, LEAST_US) / max(ours, LEAST_US)


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Return the figures of many rows as text."""
    done = [x for x in rows if "ours_us" in x]
    lines = [f"{len(rows)} programs, {len(done)} timed"]
    failed = [x for x in rows if x.get("error") or x.get("wrong")]
    lines += [f"  FAILED {x['name']}: {x.get('error') or x['wrong']}" for x in failed]
    for kind in ["all", *KINDS]:
        some = [x for x in done if kind in ("all", x["kind"])]
        if some:
            lines.append(f"  {kind}: {_figures(some)}")
    whole = [x for x in rows if x.get("functions") == 1 and x.get("served") == 1]
    lines.append(f"one kernel of ours: {len(whole)} of {len(rows)}")
    if apart := sorted(x["several_ratio"] for x in done if "several_ratio" in x):
        slower = sum(x < LEAST_OF_SEVERAL for x in apart)
        lines.append(
            f"against several kernels: {len(apart)} programs, {slower} slower, least {apart[0]:.2f}"
        )
    for x in sorted(done, key=lambda x: x["ratio"])[:WORST]:
        lines.append(f"  {x['ratio']:.2f} {x['copy_share']:.2f} of a copy: {x['name']}")
    return "\n".join(lines)


def _figures(rows: Sequence[dict[str, Any]]) -> str:
    found = sorted(x["ratio"] for x in rows)
    mean = math.exp(statistics.fmean(math.log(min(x, CLIP)) for x in found))
    share = math.exp(statistics.fmean(math.log(x["copy_share"]) for x in rows))
    fifth = found[int(0.05 * (len(found) - 1))]
    return (
        f"{len(found)} programs, geometric mean {mean:.3f}, 5th percentile {fifth:.3f}, "
        f"least {found[0]:.3f}; {share:.3f} of a copy"
    )


def read_rows(path: Path | None) -> list[dict[str, Any]]:
    """Read the rows of a file, if it is there."""
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def run(
    problems: Iterable[Problem],
    out: Path | None,
    workers: int,
    seconds: float,
    several: bool = False,
) -> list[dict[str, Any]]:
    """Measure problems that are not in the file yet; return all rows."""
    rows = read_rows(out)
    until = time.monotonic() + seconds
    known = {x["name"] for x in rows}
    new = [x for x in problems if x.name not in known]
    for problem, path, built in libraries(new, workers, several):
        if time.monotonic() > until:
            print(f"out of time before {problem.name}; the same command goes on")
            break
        try:
            row = measure(problem, path, built.result())
        except Exception as error:
            row = {"name": problem.name, "kind": problem.kind}
            row["error"] = f"{type(error).__name__}: {error}"[:300]
        rows.append(row)
        print(json.dumps(row), flush=True)
        if out is not None:
            with out.open("a") as file:
                file.write(json.dumps(row) + "\n")
    return rows


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return 1 where a program failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory_population")
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--first", type=int, default=0, help="number of the first program")
    parser.add_argument("--kind", choices=[*KINDS], help="only these")
    parser.add_argument("--out", type=Path, help="rows as JSON lines")
    parser.add_argument("--workers", type=int, default=8, help="processes that build")
    parser.add_argument("--seconds", type=float, default=3600, help="after which none is begun")
    parser.add_argument("--several", action="store_true", help="time what TVM leaves apart, too")
    parser.add_argument("--table", action="store_true", help="print the summary of --out alone")
    parser.add_argument("--kernels", action="store_true", help="build and count kernels, no GPU")
    given = parser.parse_args(arguments)
    problems = population(given.seed, given.count)[given.first :]
    problems = [x for x in problems if given.kind in (None, x.kind)]
    if given.kernels:
        for problem in problems:
            print(json.dumps({"name": problem.name, "computed_by": build(problem)[1]}), flush=True)
        return 0
    if given.table:
        rows = read_rows(given.out)
    else:
        rows = run(problems, given.out, given.workers, given.seconds, given.several)
    print(summary(rows))
    return int(any(x.get("error") or x.get("wrong") for x in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
