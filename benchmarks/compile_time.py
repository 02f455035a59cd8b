"""How long a kernel takes to build in a warm process: our passes alone, and schedule to cubin.

    python -m benchmarks.compile_time
    python -m benchmarks.compile_time --size 8192x8192x8192 --rounds 9
    python -m benchmarks.compile_time --population 1 40
    python -m benchmarks.compile_time --memory layer_norm softmax

Memory-bound kernels are built by a process each, the first thing that it does, one after another.
Needs no GPU. Medians, in seconds; what is aimed at is 0.15 for the passes and 1 for the whole.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TARGET = "nvidia/nvidia-h200"


def seconds(step: Callable[[], Any], rounds: int) -> float:
    """Return the median time of a step that has run before."""
    step()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def passes_seconds(mod: Any) -> float:
    """Return the time that our passes take, out of one run of the whole list."""
    import tvm
    from tvm.tirx.transform import BindTarget

    from tvm_hopper.pipeline import passes
    from tvm_hopper.requests.marks import mark_requests

    every = (passes.hook_passes, passes.late_passes, passes.host_passes)
    own = set(passes.names(p for some in every for p in some()))
    target = tvm.target.Target(TARGET).with_host(tvm.target.Target("llvm"))
    mod, total = mark_requests(BindTarget(target)(mod)), 0.0
    for one in passes.full_list():
        start = time.perf_counter()
        mod = one(mod)
        total += (time.perf_counter() - start) * (one.info.name in own)
    return total


def time_population(seed: int, count: int) -> None:
    """Time problems drawn like users', each once, on the clock and of the processor."""
    import tvm
    from tvm import s_tir

    import tvm_hopper
    from tvm_hopper import schedule as hs
    from tvm_hopper.testing import workloads

    from .population import population

    rows = []
    for number, p in enumerate([*population(seed, 1), *population(seed, count)]):
        plain = workloads.matmul(p.m, p.n, p.k, p.layout, p.dtype, p.dtype)
        clock, work = time.perf_counter(), time.process_time()
        sch = s_tir.Schedule(plain)
        hs.matmul(sch, "C")
        tvm_hopper.cubin(executable := tvm.compile(sch.mod, target=TARGET))
        times = time.perf_counter() - clock, time.process_time() - work
        if number:  # the first one warms up what is imported late
            rows.append((*times, len(tvm_hopper.explain(executable).kernels), p))
    for clock, work, kernels, p in sorted(rows, key=lambda x: x[0])[-5:]:
        name = f"{p.m}x{p.n}x{p.k} {p.layout} {p.dtype}"
        print(f"{name}: {clock:.2f} s, {work:.2f} s of a core, {kernels} kernels")
    for what, at in (("schedule to cubin", 0), ("of a core", 1)):
        column = [x[at] for x in rows]
        print(f"{what}: median {statistics.median(column):.2f} s, most {max(column):.2f} s")


def time_memory(words: list[str]) -> None:
    """Time the cases of `benchmarks.memory` whose names contain one of some words; all, if none."""
    from . import memory

    rows = []
    for case in memory.cases(2, words):
        command = [sys.executable, "-m", "benchmarks.compile_time", "--case", case.name]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        clock, work = map(float, done.stdout.split())
        rows.append((work, clock, case.name))
    rows.sort(reverse=True)
    for work, clock, name in rows[:10]:
        print(f"{name}: {clock:.2f} s, {work:.2f} s of a core")
    for at, what in enumerate(("of a core", "schedule to cubin")):
        column = [x[at] for x in rows]
        print(f"{what}: median {statistics.median(column):.2f} s, most {max(column):.2f} s")


def time_case(name: str) -> None:
    """Print how long one of them takes in a process that has built nothing."""
    import tvm_hopper
    import tvm_hopper.schedule
    from tvm_hopper.testing import memory_bound

    from . import memory

    case = next(x for x in memory.cases(2, []) if x.name == name)
    memory_bound.copy(8, 8)  # TVM is loaded: it is not what is timed
    clock, work = time.perf_counter(), time.process_time()
    tvm_hopper.cubin(memory.executable(case))
    print(time.perf_counter() - clock, time.process_time() - work)


def main() -> None:
    """Time the default kernel of one product, or of a population."""
    import tvm
    from tvm import s_tir

    import tvm_hopper
    from tvm_hopper import schedule as hs
    from tvm_hopper.testing import workloads

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="4096x4096x4096", help="MxNxK")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--population", type=int, nargs=2, metavar=("SEED", "COUNT"))
    parser.add_argument("--memory", nargs="*", metavar="NAME", help="memory-bound kernels")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        time_case(arguments.case)
        return
    if arguments.memory is not None:
        time_memory(arguments.memory)
        return
    if arguments.population:
        time_population(*arguments.population)
        return
    plain = workloads.matmul(*map(int, arguments.size.split("x")))

    def scheduled() -> Any:
        sch = s_tir.Schedule(plain)
        hs.matmul(sch, "C")
        return sch.mod

    def built() -> Any:
        return tvm_hopper.cubin(tvm.compile(scheduled(), target=TARGET))

    mod = scheduled()
    passes_seconds(mod)
    ours = statistics.median(passes_seconds(mod) for _ in range(arguments.rounds))
    print(f"{arguments.size}, tvm_hopper {tvm_hopper.__version__}, TVM {tvm.__version__}")
    print(f"our passes         {ours:.3f} s")
    print(f"schedule           {seconds(scheduled, arguments.rounds):.3f} s")
    print(f"schedule to cubin  {seconds(built, arguments.rounds):.3f} s")


if __name__ == "__main__":
    main()
