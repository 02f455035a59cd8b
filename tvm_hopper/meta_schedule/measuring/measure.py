"""Runner's worker: load an artifact, call it on random tensors, time it.

One repeat, all of it queued ahead of the device:

    clock kernel     the clock of an SM, as it is just then
    memset           twice the L2 cache, so that nothing of the tensors is in it
    event, function, event

Seconds are between the events. What they would be at the highest clock is reported next to them, so
that a clock that drifts, or differs from GPU to GPU, does not rank configurations. What the memory
takes for all tensors does not depend on that clock: only what is above it is corrected.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from tvm_hopper.errors import HopperError
from tvm_hopper.meta_schedule.workers.messages import CannotGoOn
from tvm_hopper.meta_schedule.workers.turns import LOAD, RUN

from . import artifact, contest, tensors
from .driver import CLOCK_BYTES, Driver

KEPT_BYTES = 8 << 30  # of tensors, from one measurement to the next
SAMPLES, SAMPLE_BYTES = 64, 1 << 12  # of an output, that are looked at
FEWEST, MOST, SECONDS = 7, 40, 0.03  # repeats, and how long they may take together


def answerer(_settings: dict[str, Any]) -> tuple[Callable[[dict[str, Any]], dict[str, Any]], Any]:
    """Return what measures one artifact a request; the device is tried first."""
    from tvm_hopper.integration import autoload

    autoload.register()
    bench = open_gpu()
    loaded: list[Loaded] = []

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if "contest" in request:
            return contest.answer(bench, request)
        if request.get("step") == LOAD:
            loaded[:] = [load(request)]
            return {}
        if request.get("step") == RUN:
            if not loaded:
                raise CannotGoOn("found nothing loaded; need a load first")
            return measure(bench, loaded.pop())
        return measure(bench, load(request))

    return answer, bench.about


@dataclass(frozen=True)
class Loaded:
    """A function that is ready to be called; the device has seen nothing of it."""

    function: Callable[..., Any]
    arguments: tuple[artifact.TensorArgument, ...]
    repeats: int | None
    seconds: float  # that loading took


def load(request: dict[str, Any]) -> Loaded:
    """Load the artifact of a request: `artifact`, a path, and `arguments`, as MetaSchedule's."""
    begin = time.perf_counter()
    function, manifest = artifact.load_checked(request["artifact"])
    arguments = given_arguments(manifest, request.get("arguments"))
    repeats = int(request["repeats"]) if request.get("repeats") else None
    return Loaded(function, arguments, repeats, time.perf_counter() - begin)


def measure(bench: Any, loaded: Loaded) -> dict[str, Any]:
    """Time a function that is loaded."""
    begin = time.perf_counter()
    result = dict(bench.run(loaded.function, loaded.arguments, loaded.repeats))
    result["worker_seconds"] = loaded.seconds + time.perf_counter() - begin
    return result


def given_arguments(
    manifest: artifact.Manifest, given: list[Any] | None
) -> tuple[artifact.TensorArgument, ...]:
    """Compare the tensors that a trial names with those of the artifact; return these."""
    if given is None:
        return manifest.arguments
    requested = [(str(x[1]), tuple(int(e) for e in x[2])) for x in given if x[0] == "TENSOR"]
    built = [(x.dtype, x.shape) for x in manifest.arguments]
    if len(requested) != len(given) or requested != built:
        raise HopperError(f"arguments: found {given}; need those that were built for, {built}")
    return manifest.arguments


def open_gpu() -> GpuBench:
    """Return the GPU of this process; raise HopperError without one."""
    from tvm_hopper.cuda_build import runtime

    from .driver import Driver

    if not runtime.ensure():
        raise HopperError(
            "measuring: found no CUDA driver or no CUDA 13 runtime; need both; "
            "`python -m tvm_hopper doctor` says which"
        )
    return GpuBench(Driver())


class GpuBench:
    """The GPU of this process, with what measurements share: tensors, events, a flushed cache."""

    def __init__(self, driver: Driver) -> None:
        self.driver = self._driver = driver
        facts = driver.facts()
        self.about = asdict(facts)
        self._megahertz = facts.megahertz
        self._l2_bytes, self._memory_rate = facts.l2_bytes, facts.memory_rate
        self.flush_bytes = 2 * max(facts.l2_bytes, 32 << 20)
        self._flush = driver.allocate(self.flush_bytes)
        self._clocks = driver.allocate(MOST * CLOCK_BYTES)
        self._events = [(driver.event(), driver.event()) for _ in range(MOST)]
        self._kept: OrderedDict[tuple[int, int, artifact.TensorArgument], Any] = OrderedDict()
        self.repeat(lambda: None, FEWEST)  # the device answers

    def run(
        self,
        function: Callable[..., Any],
        arguments: tuple[artifact.TensorArgument, ...],
        repeats: int | None,
    ) -> dict[str, Any]:
        """Time a function; refuse one that leaves an output as it was."""
        values = self.tensors(arguments)
        self.poison(arguments, values)
        try:
            function(*values)
            self._driver.synchronize()
            self.check_written(arguments, values)
            seconds, _ = self.repeat(lambda: function(*values), 3)
            count = math.ceil(SECONDS / max(min(seconds), 1e-6))
            count = min(max(repeats or count, 1 if repeats else FEWEST), MOST)
            seconds, clocks = self.repeat(lambda: function(*values), count)
        except CannotGoOn:
            raise
        except Exception as error:  # of TVM's runtime: after most of them the context is lost
            self._driver.synchronize()
            raise error
        share = [clock / self._megahertz for clock in clocks]
        waiting = self._memory_seconds(arguments)
        return {
            "seconds": seconds,
            "corrected": [_at_full_clock(*x, waiting) for x in zip(seconds, share, strict=True)],
            "megahertz": statistics.median(clocks),
        }

    def _memory_seconds(self, arguments: tuple[artifact.TensorArgument, ...]) -> float:
        """Return what the memory takes at least for all tensors, but for what the cache keeps."""
        moved = sum(map(contest.num_bytes, arguments)) - self._l2_bytes
        return max(0, moved) / self._memory_rate if self._memory_rate else 0.0

    def repeat(self, call: Callable[[], Any], count: int) -> tuple[list[float], list[float]]:
        """Return the times of some calls, each after a flush, and the clock before each."""
        driver = self._driver
        for i in range(count):
            driver.queue_clock(self._clocks, i)
            driver.fill(self._flush, i % 256, self.flush_bytes)
            driver.record(self._events[i][0])
            call()
            driver.record(self._events[i][1])
        driver.synchronize()
        seconds = [driver.seconds_between(*pair) for pair in self._events[:count]]
        return seconds, driver.read_clocks(self._clocks, count)

    def tensors(self, arguments: tuple[artifact.TensorArgument, ...], number: int = 0) -> list[Any]:
        """Return a tensor for each argument: one that is kept, or a new one; several sets of them.

        All sets have the same values.
        """
        import tvm

        keys = [(number, index, argument) for index, argument in enumerate(arguments)]
        for key in keys:
            if key not in self._kept:
                _, index, argument = key
                values = tensors.random_values(argument.shape, argument.dtype, index)
                tensor = tvm.runtime.empty(
                    argument.shape, argument.dtype, tvm.device(self._driver.kind)
                )
                self._kept[key] = tensor.copyfrom(values)
            self._kept.move_to_end(key)
        for key in [key for key in self._kept if key not in keys]:
            if sum(contest.num_bytes(argument) for *_, argument in self._kept) <= KEPT_BYTES:
                break
            del self._kept[key]
        return [self._kept[key] for key in keys]

    def poison(self, arguments: tuple[artifact.TensorArgument, ...], values: list[Any]) -> None:
        """Fill outputs with what no kernel writes."""
        for argument, tensor in zip(arguments, values, strict=True):
            if argument.is_written:
                size = contest.num_bytes(argument)
                self._driver.fill(tensor.data_ptr(), tensors.POISON, size)

    def check_written(
        self, arguments: tuple[artifact.TensorArgument, ...], values: list[Any]
    ) -> None:
        """Refuse outputs that were not written as a whole, by samples of them."""
        for argument, tensor in zip(arguments, values, strict=True):
            kind = tensors.numpy_type(argument.dtype)
            if not argument.is_written or kind.kind in "iub":  # -1 may be a result
                continue
            size = contest.num_bytes(argument)
            step = max(size // SAMPLES // kind.itemsize, 1) * kind.itemsize
            most = SAMPLE_BYTES // kind.itemsize * kind.itemsize
            for start in range(0, size, step):
                sample = self._driver.download(tensor.data_ptr() + start, min(most, size - start))
                left = tensors.unwritten(sample, kind.itemsize)
                if left:
                    raise HopperError(
                        f"output {argument.name}: found {left} elements that the function did not "
                        f"write, at byte {start} and on; need all of them written"
                    )


def _at_full_clock(seconds: float, share: float, waiting: float) -> float:
    """Return a time at the highest clock: what memory takes stays, the rest goes with the clock."""
    fixed = min(seconds, waiting)
    return fixed + (seconds - fixed) * share
