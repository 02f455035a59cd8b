"""Verify matmuls of random shapes, types, layouts, epilogues and configurations, with values.

    python -m benchmarks.verify_random --seed 1 --count 300 --jobs 2
    python -m benchmarks.verify_random --population --seed 1 --count 60 --jobs 8    (by default)

Needs no GPU. What `hs.matmul` refuses is drawn again. Prints what is not clean.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import multiprocessing
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from benchmarks.population import population

EPILOGUES = ((), ("relu",), ("bias_col",), ("bias_row",), ("residual",), ("bias_col", "gelu"))
TRIES = 200  # draws for one configuration that is legal
BUDGET_S = 120.0
DEFAULT_BUDGET_S = 300.0  # of a kernel of a real size, for each of the ways to call it


class Drawn(NamedTuple):
    """One problem and the arguments of its `MatmulConfig`."""

    problem: dict[str, Any]
    config: dict[str, Any]


class Outcome(NamedTuple):
    """What `verify` said of one problem."""

    drawn: Drawn
    verdict: str
    text: str
    seconds: float
    has_values: bool


def _size(rng: random.Random, low: int, high: int) -> int:
    return max(8, round(low * (high / low) ** rng.random() / 8) * 8)


def draw(rng: random.Random) -> Drawn:
    """Draw a problem of a real size with the default configuration, or a small one with any."""
    large = rng.random() < 0.3
    problem = {
        "m": _size(rng, 64, 8192 if large else 700),
        "n": _size(rng, 64, 8192 if large else 700),
        "k": _size(rng, 64, 8192 if large else 700),
        "layout": rng.choice(("NT", "NT", "NN", "TN", "TT")),
        "dtype": rng.choice(("float16", "bfloat16")),
        "epilogue": rng.choice(EPILOGUES),
    }
    problem["out_dtype"] = rng.choice(("float32", problem["dtype"]))
    if rng.random() < 0.3:
        problem["m"] -= rng.randrange(8) * (problem["layout"][0] == "N")
    if large or rng.random() < 0.3:
        return Drawn(problem, {})
    rows, columns = rng.choice((64, 128, 192, 256)), rng.randrange(8, 257, 8)
    config = {
        "tile": (rows, columns, rng.choice((16, 32, 64, 128))),
        "stages": rng.randint(1, 6),
        "consumers": rng.choice((1, 2, 3)),
        "wgmma_pending": rng.choice((None, None, 0, 1)),
        "raster": rng.choice((None, 1, 2, 3, 8)),
        "persistent": rng.choice((None, 0, 1, 7, 132)),
        "swizzle": rng.choice((None, None, 0, 32, 64, 128)),
    }
    return Drawn(problem, config)


def judge_default(problem: Any) -> Outcome:
    """Verify the default kernels of one problem of the population."""
    from tvm import s_tir

    from tvm_hopper import schedule as hs
    from tvm_hopper.simulation import verify
    from tvm_hopper.testing import workloads

    given = dataclasses.asdict(problem)
    sizes = [given.pop(name) for name in "mnk"]
    sch = s_tir.Schedule(workloads.matmul(*sizes, out_dtype=problem.dtype, **given))
    hs.matmul(sch, "C")
    begun = time.monotonic()
    report = verify(sch, budget_s=DEFAULT_BUDGET_S, progress=False)
    seconds = time.monotonic() - begun
    drawn = Drawn(dataclasses.asdict(problem), {})
    print(f"{problem.name}: {report.verdict}, {seconds:.0f} s", flush=True)
    return Outcome(drawn, report.verdict, str(report), seconds, report.values.checked)


def judge(number: int, seed: int) -> Outcome:
    """Draw until a problem is accepted, and verify it."""
    from tvm import s_tir

    from tvm_hopper import schedule as hs
    from tvm_hopper.errors import HopperError
    from tvm_hopper.simulation import verify
    from tvm_hopper.testing import workloads

    rng = random.Random(f"{seed}/{number}")
    refused = ""
    for _ in range(TRIES):
        drawn = draw(rng)
        problem = dict(drawn.problem)
        sizes = [problem.pop(name) for name in "mnk"]
        sch = s_tir.Schedule(workloads.matmul(*sizes, **problem))
        try:
            hs.matmul(sch, "C", hs.MatmulConfig(**drawn.config) if drawn.config else None)
        except HopperError as error:
            refused = str(error)
            continue
        begun = time.monotonic()
        report = verify(sch, budget_s=BUDGET_S, progress=False)
        return Outcome(
            drawn, report.verdict, str(report), time.monotonic() - begun, report.values.checked
        )
    raise RuntimeError(f"case {number}: {TRIES} draws were refused, the last one with {refused}")


def main() -> int:
    """Judge the cases and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--population", action="store_true", help="default kernels of users' sizes")
    arguments = parser.parse_args()
    begun = time.monotonic()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, mp_context=context) as pool:
        if arguments.population:
            problems = population(arguments.seed, arguments.count)
            found = list(pool.map(judge_default, problems))
        else:
            found = list(pool.map(partial(judge, seed=arguments.seed), range(arguments.count)))
    for one in found:
        if one.verdict != "clean" or not one.has_values:
            print(one.drawn, one.text, sep="\n")
    verdicts = [one.verdict for one in found]
    counts = ", ".join(f"{name}: {verdicts.count(name)}" for name in sorted(set(verdicts)))
    flops = sum(2 * math.prod(one.drawn.problem[x] for x in "mnk") for one in found)
    print(
        f"seed {arguments.seed}, {len(found)} configurations ({flops / 1e12:.1f} TFLOP): {counts}; "
        f"values checked in {sum(one.has_values for one in found)}; "
        f"{time.monotonic() - begun:.0f} s, at most {max(one.seconds for one in found):.0f} s each"
    )
    return int(verdicts.count("clean") < len(found))


if __name__ == "__main__":
    sys.exit(main())
