"""Time each call that a virtual machine makes, on a GPU or on the host.

Before a call its kernel runs several times, each behind a memset that fills the L2 cache:

    memset, event, kernel, event

The memset also hides the launch, so that the events are as far apart as the kernel takes.  Calls
that change a state, as those of a paged cache, are timed as they run, once.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Any

import tvm

from tvm_hopper.errors import HopperError

FLUSHED_BYTES = 256 << 20  # more than any L2 cache holds
CPU, CUDA = 1, 2  # DLPack's device types
_RUN, _SKIP_RUN = 0, 1  # VMInstrumentReturnKind

Timer = Callable[[Callable[[], Any]], float]  # microseconds of a call


def measure_calls(
    machine: Any, caller: str, arguments: Sequence[Any], names: Collection[str], repeats: int
) -> dict[str, float]:
    """Return the microseconds of all calls of each function in one run of a Relax function.

    - `machine` (relax.VirtualMachine): that runs the model; it is left without an instrument.
    - `caller`: the Relax function.
    - `arguments` (sequence): its arguments.
    - `names`: the functions that are timed.
    - `repeats`: how often each is timed; the median counts.
    - raises HopperError: tensors are neither on a GPU nor on the host.
    """
    times: dict[str, float] = defaultdict(float)
    timers: dict[int, Timer] = {}
    run = machine[caller]
    run(*arguments)  # what happens once, as loading kernels, is not timed

    def instrument(func: Any, name: str, before_run: bool, _result: Any, *given: Any) -> int:
        if not before_run or name not in names:
            return _RUN
        kind = next(x.device.dlpack_device_type() for x in given if hasattr(x, "device"))
        if kind not in timers:
            timers[kind] = timer_of(kind)
        count = 1 if name.startswith("vm.builtin.") else repeats
        samples = [timers[kind](lambda: func(*given)) for _ in range(count)]
        times[name] += statistics.median(samples)
        return _SKIP_RUN

    machine.set_instrument(instrument)
    try:
        run(*arguments)
    finally:
        machine.set_instrument(lambda *_: _RUN)
    return dict(times)


def timer_of(kind: int) -> Timer:
    """Return the timer of a type of devices."""
    if kind == CUDA:
        return _events()
    if kind == CPU:
        return _clock
    raise HopperError(f"report.measure: found tensors on a device of type {kind}; need a CUDA GPU")


def _clock(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return 1e6 * (time.perf_counter() - begin)


def _events() -> Timer:
    """Return a timer by events of the CUDA driver, on the stream that TVM uses."""
    from cuda.bindings import driver

    def do(name: str, *given: Any) -> Any:
        status, *results = getattr(driver, name)(*given)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise HopperError(f"report.measure: {name} says {status.name}; need a working GPU")
        return results[0] if results else None

    other = tvm.runtime.empty((FLUSHED_BYTES,), "int8", tvm.cuda(0))
    start, end = (do("cuEventCreate", 0) for _ in range(2))

    def timed(call: Callable[[], Any]) -> float:
        do("cuMemsetD8Async", other.data_ptr(), 0, FLUSHED_BYTES, 0)
        do("cuEventRecord", start, 0)
        call()
        do("cuEventRecord", end, 0)
        do("cuEventSynchronize", end)
        return 1e3 * float(do("cuEventElapsedTime", start, end))

    return timed
