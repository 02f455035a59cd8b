"""Compare artifacts of one function: are they right, and which is fastest.

A search ranks single calls of different times and GPUs, each after a pause that lifts the clock.
The finalists are compared in one process, alternating, in both ways in which kernels are used:

    sustained    calls back to back, as graphs, after a while at full load; each call meets tensors
                 that the calls before it have driven out of the L2 cache: six times its bytes,
                 since it does not forget the oldest first
    single       the same as in the search: clock kernel, memset of twice the L2 cache, one call

Before that each result is compared with that of a reference: the program as TVM schedules it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tvm_hopper.errors import HopperError

from . import artifact, library, tensors

WARM_SECONDS = 0.4  # of full load before the first time is taken
SECONDS = 1.2  # of sustained rounds
FEWEST_ROUNDS, MOST_ROUNDS = 15, 150
SINGLES = 15
GRAPH_SECONDS = 2e-4  # that one graph takes at least
MOST_CALLS = 200  # of a graph
MOST_SETS, SETS_BYTES = 16, 4 << 30  # of tensors, that calls go through
FLUSHES = 3  # that tensors of all sets are at least, each twice the L2 cache
# An element may be off by so many roundings of its type, of its own size and of the root mean
# square of all: sums of thousands of float32 products in another order are far below.
ROUNDINGS = 4
DIGITS = {
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float32": 2.0**-17,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
}

PIECE = 1 << 16  # elements that are compared at once: they stay in a cache of the CPU

Function = Callable[..., Any]
Arguments = tuple[artifact.TensorArgument, ...]


def answer(bench: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Compare the artifacts of a request.

    The request has `contest`, paths; `reference`, a path or None; `library`, the layout of a
    product that a library computes too, or None.

    - returns (dict): `verdicts`, for each contender "equal", "wrong" or "unchecked" and why;
      `sustained` and `single`, its times in seconds, round by round (none of one that is wrong);
      `library`, the name of the last contender where that is a library.
    """
    reference = request.get("reference")
    paths = [*request["contest"], *([reference] if reference else [])]
    loaded = [artifact.load_checked(path) for path in paths]
    arguments = loaded[0][1].arguments
    for path, (_, manifest) in zip(paths, loaded, strict=True):
        if _shapes(manifest.arguments) != _shapes(arguments):
            raise HopperError(f"contest: found other arguments in {path}; need the same ones")
    functions = [function for function, _ in loaded[: len(request["contest"])]]
    contest = Contest(bench, arguments)
    verdicts = contest.compare(functions, loaded[-1][0] if reference else None)
    sound = [f for f, (v, _) in zip(functions, verdicts, strict=True) if v != "wrong"]
    name, call = library.find(request.get("library"), arguments)
    if call is not None:
        sound.append(call)
    times = contest.times(sound) if sound else {"sustained": [], "single": []}
    reply: dict[str, Any] = {"verdicts": verdicts, "library": name}
    for way, rows in times.items():
        rest = iter(rows)
        reply[way] = [[] if v == "wrong" else next(rest) for v, _ in verdicts] + list(rest)
    return reply


def _shapes(arguments: Arguments) -> list[tuple[Any, ...]]:
    return [(x.shape, x.dtype) for x in arguments]


class Contest:
    """Functions of the same arguments on the GPU of this process.

    - `bench` (GpuBench): with the driver, and what measurements share.
    """

    def __init__(self, bench: Any, arguments: Arguments) -> None:
        self._bench, self._driver, self._arguments = bench, bench.driver, arguments
        each = sum(num_bytes(x) for x in arguments)
        wanted = -(-FLUSHES * bench.flush_bytes // max(each, 1))
        count = max(1, min(wanted, MOST_SETS, SETS_BYTES // max(each, 1)))
        self._sets = [bench.tensors(arguments, number) for number in range(count)]

    def compare(
        self, functions: Sequence[Function], reference: Function | None
    ) -> list[tuple[str, str]]:
        """Compare what functions write with what the reference writes."""
        wanted = self._results(reference) if reference is not None else None
        verdicts = []
        for function in functions:
            try:
                results = self._results(function)
            except HopperError as error:  # it left a part of an output as it was
                verdicts.append(("wrong", str(error)))
                continue
            if wanted is None:
                verdicts.append(("unchecked", "there is no reference"))
                continue
            names = [x.name for x in self._arguments if x.is_written]
            dtypes = [x.dtype for x in self._arguments if x.is_written]
            differences = [differ(*x) for x in zip(names, results, wanted, dtypes, strict=True)]
            wrong = "; ".join(text for is_wrong, text in differences if is_wrong)
            verdicts.append(
                ("wrong", wrong) if wrong else ("equal", "; ".join(x for _, x in differences))
            )
        return verdicts

    def _results(self, function: Function) -> list[Any]:
        values = self._sets[0]
        self._bench.poison(self._arguments, values)
        function(*values)
        self._driver.synchronize()
        self._bench.check_written(self._arguments, values)
        pairs = zip(self._arguments, values, strict=True)
        return [
            np.frombuffer(
                self._driver.download(value.data_ptr(), num_bytes(x)), tensors.numpy_type(x.dtype)
            )
            for x, value in pairs
            if x.is_written
        ]

    def times(self, functions: Sequence[Function]) -> dict[str, list[list[float]]]:
        """Return the times of each in seconds, by the way in which they were taken."""
        first = self._sets[0]
        calls = [lambda f=f: f(*first) for f in functions]
        single = self._singles(calls, 3)
        longest = max(min(x) for x in single)
        sets = len(self._sets)
        most = max(sets, MOST_CALLS // sets * sets)
        count = min(most, sets * max(1, math.ceil(GRAPH_SECONDS / max(longest, 1e-7) / sets)))
        with self._driver.new_stream() as stream:
            graphs: list[Any] = []
            for function in functions:

                def all_calls(function: Function = function) -> None:
                    for number in range(count):
                        function(*self._sets[number % sets])

                first_call = calls[len(graphs)]
                graphs.append(self._driver.capture(stream, first_call, all_calls))
            sustained = self._sustained(graphs, stream, count * longest)
        return {
            "sustained": [[t / count for t in row] for row in sustained],
            "single": self._singles(calls, SINGLES),
        }

    def _singles(self, calls: Sequence[Callable[[], Any]], rounds: int) -> list[list[float]]:
        times: list[list[float]] = [[] for _ in calls]
        for number in range(rounds):
            for place in _order(len(calls), number):
                (seconds,), _ = self._bench.repeat(calls[place], 1)
                times[place].append(seconds)
        return times

    def _sustained(self, graphs: Sequence[Any], stream: Any, seconds: float) -> list[list[float]]:
        driver = self._driver
        end = time.monotonic() + WARM_SECONDS
        while time.monotonic() < end:
            for graph in graphs:
                driver.launch(graph, stream)
            driver.synchronize()
        rounds = int(SECONDS / max(seconds * len(graphs), 1e-6))
        rounds = max(FEWEST_ROUNDS, min(MOST_ROUNDS, rounds))
        times: list[list[float]] = [[] for _ in graphs]
        events = [(driver.event(), driver.event()) for _ in graphs]
        for number in range(rounds):
            order = _order(len(graphs), number)
            for place in order:
                driver.record(events[place][0], stream)
                driver.launch(graphs[place], stream)
                driver.record(events[place][1], stream)
            driver.synchronize()
            for place in order:
                times[place].append(driver.seconds_between(*events[place]))
        return times


def _order(count: int, number: int) -> list[int]:
    """Return the order of a round: over the rounds each comes first, and after each other one."""
    order = [(number + i) % count for i in range(count)]
    return order if number // count % 2 == 0 else order[::-1]


def num_bytes(argument: artifact.TensorArgument) -> int:
    """Return the bytes of a tensor."""
    return math.prod(argument.shape) * tensors.numpy_type(argument.dtype).itemsize


def differ(name: str, result: Any, wanted: Any, dtype: str) -> tuple[bool, str]:
    """Tell whether two results differ by more than roundings, and in what."""
    if dtype not in DIGITS:  # integers and bool
        count = int((result.view(np.uint8) != wanted.view(np.uint8)).sum())
        return bool(count), f"{name}: {count} bytes differ" if count else f"{name}: the same bytes"
    pairs = [(result[i : i + PIECE], wanted[i : i + PIECE]) for i in range(0, len(wanted), PIECE)]
    squares, count, ill = 0.0, 0, 0
    for pair in pairs:
        _, b, odd = _finite(*pair)
        squares, count, ill = squares + _squares(b), count + len(b), ill + odd
    if ill:
        return True, f"{name}: {ill} elements are not finite"
    if not count:
        return False, f"{name}: nothing that is finite"
    size = math.sqrt(squares / count)
    errors, wrong, seen, first = 0.0, 0, 0, ""
    for pair in pairs:
        a, b, _ = _finite(*pair)
        off = np.abs(a - b)
        far = off > ROUNDINGS * DIGITS[dtype] * (np.abs(b) + size)
        errors += _squares(off)
        if far.any():
            place = int(far.argmax())
            text = f"the first one {seen + place}: {a[place]:g}, of the reference {b[place]:g}"
            first, wrong = first or text, wrong + int(far.sum())
        seen += len(b)
    if wrong:
        return True, f"{name}: {wrong} of {count} elements differ, {first}"
    error = math.sqrt(errors / count) / max(size, 1e-30)
    return False, f"{name}: within roundings of the program as TVM schedules it, {error:.1e}"


def _finite(result: Any, wanted: Any) -> tuple[Any, Any, int]:
    """Return two results where the second one is finite, and in how many places that differs."""
    a, b = (np.asarray(x, dtype=np.float32) for x in (result, wanted))
    whole, same = np.isfinite(b), np.isfinite(a)
    if whole.all() and same.all():
        return a, b, 0
    return a[whole], b[whole], int((whole != same).sum())


def _squares(values: Any) -> float:
    return float(np.square(values, dtype=np.float64).sum())
