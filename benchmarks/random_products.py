"""Run random products on the GPU for a time: values, what is written, and that each one ends.

    python -m benchmarks.random_products --seed 1 --seconds 600
    python -m benchmarks.random_products --forms --seed 1 --count 1000

Problems, types, layouts, epilogues and configurations are drawn from a seed; processes build them,
and one process runs them, each several times, on integer and on normal inputs between margins of
poison, against float64. `--forms` draws products of all types and axes (`random_forms`). A product
that does not answer in time is a hang: its process is ended, and it is told by name. Exits with 0
where all were right and none hung.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import functools
import itertools
import multiprocessing
import os
import random
import sys
import tempfile
import time
from typing import Any

from . import random_forms
from .matmul_case import Case, build, check, register

EPILOGUES = ((), (), ("relu",), ("bias_col",), ("bias_row",), ("residual",), ("bias_col", "gelu"))
SPECIAL = (*("split_k", "cluster", "schedule", "store", "form", "early_launch"),)
LARGEST = 1 << 31  # multiply-adds: a product in float64 to compare with takes milliseconds
MOST_EXACT = 16384  # terms of a sum that tensor cores take within float32's tolerance
RUNS = 3  # of the same product, with other values
ANSWER_SECONDS = 40.0  # the first one also starts CUDA
AHEAD = 3  # builds in hand for each process
TELL_SECONDS = 10.0  # how often it prints how far it is: a run that is cut has said so much


def draw_size(rng: random.Random, low: int, high: int) -> int:
    """Return a multiple of 8, even in its logarithm."""
    return max(8, round(low * (high / low) ** rng.random() / 8) * 8)


def draw(rng: random.Random) -> Case:
    """Draw a problem, and for most of them a part of a configuration or a whole one."""
    kind = rng.choice(("any", "any", "any", "few rows", "deep", "symbolic"))
    layout = rng.choice(("NT", "NT", "NN", "TN", "TT"))
    m, n, k = (draw_size(rng, 8, 2048) for _ in range(3))
    if kind == "few rows":
        m, n, k = rng.randint(1, 64), draw_size(rng, 8, 8192), draw_size(rng, 8, 8192)
    elif kind == "deep":
        m, n, k = draw_size(rng, 8, 512), draw_size(rng, 8, 512), draw_size(rng, 1024, 65536)
    while m * n * k > LARGEST:
        m, n, k = (max(8, x // 16 * 8) if x == max(m, n, k) else x for x in (m, n, k))
    if layout[0] == "T":
        m = -(-m // 8) * 8
    elif rng.random() < 0.3:
        m = max(1, m - rng.randrange(8))
    dtype = rng.choice(("float16", "bfloat16"))
    form: dict[str, Any] = {"epilogue": rng.choice(EPILOGUES)}
    if layout[1] == "T" and rng.random() < 0.2:
        n -= rng.randrange(8)
    sizes: tuple[int, ...] = ()
    config = draw_config(rng, kind == "few rows" and m <= 32 and rng.random() < 0.7)
    if kind == "symbolic" and layout[0] == "N":
        sizes, m = tuple(sorted({0, 1, rng.randint(2, 64), rng.randint(65, 1024), m})), 0
        config = rng.choice(({}, {"batch_invariant": True}))
    out_dtype = dtype if k > MOST_EXACT else rng.choice(("float32", dtype))
    split = config.get("split_k")
    if (
        isinstance(split, dict) and split["mode"] == "atomic"
    ):  # rounds each part to the output's type
        out_dtype, form["epilogue"], k = "float32", (), min(k, MOST_EXACT)
    return Case(None if sizes else m, n, k, layout, dtype, out_dtype, config, form, sizes)


def draw_config(rng: random.Random, few: bool) -> dict[str, Any]:
    """Draw fields of a `MatmulConfig`; not all go together, and some serve few rows alone.

    A field of several values is a dictionary of them: cases are written down as JSON.
    """
    if few:
        columns = rng.choice((16, 32, 64, 128))
        warps, depth = rng.choice((1, 2, 4, 8, 16)), rng.choice((16, 32, 64, 128, 256))
        shape = {"warps": warps, "columns": columns, "depth": depth}
        way = {"form": rng.choice(("dots", "direct", shape))}
        return way | ({"early_launch": "weights"} if rng.random() < 0.3 else {})
    if rng.random() < 0.35:
        return {}
    given: dict[str, Any] = {
        "tile": (
            rng.choice((64, 128, 192, 256)),
            rng.randrange(8, 257, 8),
            rng.choice((16, 32, 64, 128)),
        ),
        "stages": rng.randint(1, 6),
        "consumers": rng.choice((1, 2, 3)),
        "wgmma_pending": rng.choice((None, None, 0, 1)),
        "raster": {
            "group": rng.choice((None, 1, 2, 3, 8)),
            "curve": rng.choice((None, None, None, "hilbert")),
        },
        "persistent": rng.choice((None, 0, 1, 7, 132)),
        "swizzle": rng.choice((None, None, 0, 32, 64, 128)),
    }
    special = rng.randrange(8)
    if special == 0:
        given |= {"split_k": rng.randint(2, 8), "persistent": None}
    elif special == 1:
        mode = rng.choice(("workspace", "workspace", "serial", "serial", "atomic"))
        given |= {"split_k": {"parts": rng.randint(2, 40), "mode": mode}, "persistent": None}
    elif special == 2:
        given["cluster"] = rng.choice(((1, 2), (2, 1), (2, 2), (1, 4), (4, 1), (2, 4)))
    elif special == 3:
        given |= {"schedule": "pingpong", "persistent": None}
    elif special == 4:
        given["form"] = "transposed"
    elif special == 5:
        given["store"] = "tma"
    elif special == 6:
        blocks = rng.choice((None, 3, 7, 131, 132, 200))
        given |= {"split_k": "stream", "persistent": blocks}
    return {name: value for name, value in given.items() if value is not None}


def build_one(number: int, seed: int, folder: str, forms: bool) -> tuple[Any, str, int]:
    """Draw until a product is accepted; return it, its library and how many were refused."""
    from tvm_hopper.errors import ScheduleError

    rng = random.Random(f"{seed}/{number}")
    for refused in itertools.count():
        case: Any = random_forms.draw(rng) if forms else draw(rng)
        try:
            executable = random_forms.build(case) if forms else build(case)
        except ScheduleError:
            continue
        except Exception as error:  # what is accepted has to build
            return case, f"not built, {type(error).__name__}: {str(error)[-400:]}", refused
        path = os.path.join(folder, f"case{number}.so")
        executable.export_library(path)
        return case, path, refused
    raise AssertionError  # a loop without end


def serve(pipe: Any) -> None:
    """Answer for each case that comes what is wrong with it, nothing if it is right."""
    import tvm

    register()
    while (work := pipe.recv()) is not None:
        case, path = work
        judge: Any = check if isinstance(case, Case) else random_forms.check
        try:
            run = tvm.runtime.load_module(path)["main"]
            for seed in range(RUNS):
                judge(case, run, seed)
            answer = ""
        except Exception as error:  # whatever it is, it is told, with the case
            answer = f"{type(error).__name__}: {str(error)[-400:]}"
        pipe.send(answer)
        os.remove(path)


class Server:
    """A process that runs products, and is replaced when it does not answer."""

    def __init__(self) -> None:
        self.process: Any = None

    def ask(self, case: Any, path: str) -> str:
        """Return what is wrong with a product."""
        if self.process is None:
            context = multiprocessing.get_context("spawn")
            self.pipe, theirs = context.Pipe()
            self.process = context.Process(target=serve, args=(theirs,), daemon=True)
            self.process.start()
        self.pipe.send((case, path))
        try:
            if self.pipe.poll(ANSWER_SECONDS):
                answer: str = self.pipe.recv()
                if "CUDA" in answer:  # nothing that follows in this process can be trusted
                    self.end()
                return answer
            found = f"no answer in {ANSWER_SECONDS:.0f} s"
        except EOFError:
            found = "its process ended"
        self.end()
        return found

    def end(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
        self.process = None


def _kind(case: Any) -> str:
    """Return what a case counts as in the summary."""
    if not isinstance(case, Case):
        return str(case.kind)
    special = [x for x in SPECIAL if x in case.config]
    return ", ".join(special) or ("classes" if case.m is None else "plain")


def _work(case: Any) -> int:
    """Return the multiply-adds of all runs of a seed: those of 16 bits are two."""
    if not isinstance(case, Case):
        return int(case.work)
    return 2 * sum(case.n * case.k * m for m in case.sizes or (case.m or 0,))


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--count", type=int, default=sys.maxsize, help="end after so many")
    parser.add_argument("--forms", action="store_true", help="all types and axes")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Build and run until the time is over; print what was wrong, and how many there were."""
    options = parse(argv)
    begun = time.monotonic()
    count: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    flops, busy, told = 0, 0.0, 0.0
    server = Server()
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        concurrent.futures.ProcessPoolExecutor(options.workers, context) as pool,
    ):
        make = functools.partial(build_one, seed=options.seed, folder=folder, forms=options.forms)
        numbers = iter(range(options.count))
        first = itertools.islice(numbers, AHEAD * options.workers)
        waiting = {pool.submit(make, number) for number in first}
        while waiting and time.monotonic() < begun + options.seconds:
            done, waiting = concurrent.futures.wait(
                waiting, timeout=1, return_when=concurrent.futures.FIRST_COMPLETED
            )
            for job in done:
                waiting |= {pool.submit(make, number) for number in itertools.islice(numbers, 1)}
                case, path, refused = job.result()
                started = time.monotonic()
                answer = path if path.startswith("not built") else server.ask(case, path)
                busy += time.monotonic() - started
                count["products"] += 1
                count["refused"] += refused
                count[_kind(case)] += 1
                flops += 2 * RUNS * _work(case)
                if answer:
                    wrong.append(f"{case}: {answer}")
                    print("WRONG", wrong[-1], flush=True)
                if time.monotonic() > told + TELL_SECONDS:
                    told = time.monotonic()
                    print(
                        f"{told - begun:.0f} s: {count['products']}, wrong {len(wrong)}", flush=True
                    )
                if time.monotonic() > begun + options.seconds:
                    break
        for job in waiting:
            job.cancel()
        server.end()
    times = RUNS if options.forms else 2 * RUNS  # on integers, and on normal numbers
    hung = sum("no answer" in x for x in wrong)
    print(
        f"seed {options.seed}: {count.pop('products')} products, each {times} times, "
        f"{flops / 1e12:.1f} TFLOP, {time.monotonic() - begun:.0f} s of which the GPU's process "
        f"had work for {busy:.0f}; {len(wrong)} wrong, {hung} of them hung; "
        + ", ".join(f"{name}: {number}" for name, number in sorted(count.items()))
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
