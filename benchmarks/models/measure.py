"""Measure one case: errors, times, shares and kernels; each part may fail by itself."""

from __future__ import annotations

import contextlib
import fcntl
import signal
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import timing

from .cases import NN, Case
from .imported import first_tensor, one_line
from .rows import COMPILED, EAGER, MODES, OURS, STOCK, Row, weighted_share

REPEATS, FEW_REPEATS = 15, 5  # of all, and of stock TVM
COSTLIEST = 10
# PyTorch's operators by class; functions of a model have the same classes.
PRODUCTS, BATCHED, CONVOLUTIONS, REST = "products", "attention", "convolutions", "rest"
OPERATORS = {
    PRODUCTS: ("aten::mm", "aten::addmm", "aten::linear"),
    BATCHED: ("bmm", "attention", "_grouped_mm"),
    CONVOLUTIONS: ("conv",),
}


@dataclass(frozen=True)
class Options:
    """How a case is measured."""

    row: Path  # where the row goes, whole after each part
    lock: Path  # held while the GPU is used: several cases are imported and built at once
    tiny: bool = False
    with_stock: bool = True
    compile_seconds: float = 90.0  # after which the next mode is tried; 0: no torch.compile
    compile_modes: tuple[str, ...] = MODES
    compile_together: bool = False  # torch.compile of several cases at once: it picks under load


class Parts:
    """Runs parts of a case; what fails becomes a line of the row."""

    def __init__(self, row: Row, save: Callable[[Row], None]) -> None:
        self.row, self.save = row, save

    def do(self, part: str, call: Callable[[], Any], seconds: float = 0.0) -> Any:
        """Return what a part returns; None if it failed."""
        try:
            with within(seconds):
                return call()
        except Exception as error:
            self.row.failures[part] = one_line(error)
            return None
        finally:
            self.save(self.row)


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in this thread after some seconds; 0: never."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"found nothing after {seconds:.0f} s")

    if not seconds:
        yield
        return
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def holding(lock: Path, shared: bool = False) -> Iterator[None]:
    """Have the GPU for oneself, or with others that share it: the rest of this run waits."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


def measure_case(case: Case, options: Options, save: Callable[[Row], None]) -> Row:
    """Measure a case; `save` gets its row after each part."""
    begin = time.monotonic()
    row = Row(case.name)
    parts = Parts(row, save)
    subject = parts.do("import", lambda: _subject(case, options.tiny))
    if subject is None:
        return row
    row.notes += subject.notes
    executables = {OURS: parts.do("build", lambda: subject.build("tvm_hopper"))}
    if executables[OURS] is not None:
        said = parts.do("report", lambda: subject.report(executables[OURS]))
    else:
        said = None
    if options.with_stock and case.is_timed:
        executables[STOCK] = parts.do("stock TVM, build", lambda: subject.build("default"))
    compiled = None
    with holding(options.lock, shared=options.compile_together):
        parts.do("copies to the GPU", subject.to_gpu)
        if case.is_timed and options.compile_seconds:
            compiled = parts.do("torch.compile", lambda: _compiled(subject, row, options))
    with holding(options.lock):
        parts.do("GPU", lambda: _on_gpu(case, subject, executables, compiled, said, parts))
    row.seconds = round(time.monotonic() - begin, 1)
    save(row)
    return row


def _subject(case: Case, tiny: bool) -> Any:
    if case.way == NN:
        from .paged import PagedSubject

        return PagedSubject(case, tiny)
    from .subjects import ImportedSubject

    return ImportedSubject(case, tiny)


def _on_gpu(
    case: Case,
    subject: Any,
    executables: dict[str, Any],
    compiled: Callable[[int], Any] | None,
    said: Any,
    parts: Parts,
) -> None:
    import torch

    row = parts.row
    with torch.no_grad():
        calls: dict[str, Callable[[int], Any]] = {}
        for name, make in (
            (OURS, lambda: subject.of_tvm(executables[OURS])),
            (EAGER, lambda: subject.of_torch()),
        ):
            if executables.get(name, True) is not None:
                found = parts.do(f"{name}, first call", lambda make=make: _tried(make()))
                if found is not None:
                    calls[name] = found
        parts.do("errors", lambda: _errors(case, subject, calls, row))
        if said is not None and OURS in calls:
            parts.do("profile", lambda: _profiles(calls, said, row))
        if not case.is_timed:
            return
        if compiled is not None:
            calls[COMPILED] = compiled
        parts.do("times", lambda: row.times.update(_times(calls, subject.num_sets, row, REPEATS)))
        if executables.get(STOCK) is not None:
            parts.do("stock TVM", lambda: _time_stock(subject, executables[STOCK], row))


def _tried(call: Callable[[int], Any]) -> Callable[[int], Any]:
    import torch

    call(0)
    torch.cuda.synchronize()
    return call


def _errors(case: Case, subject: Any, calls: dict[str, Callable[[int], Any]], row: Row) -> None:
    want = first_tensor(subject.reference()).double()
    for name, call in calls.items():
        got = first_tensor(call(0)).double()
        row.errors[name] = relative_error(got, want, case.is_routed)


def relative_error(got: Any, want: Any, is_routed: bool = False) -> float:
    """Return the norm of a difference as a part of the result's; of the median token if routed."""
    if tuple(got.shape) != tuple(want.shape):
        raise ValueError(f"found shape {tuple(got.shape)}; need {tuple(want.shape)}")
    if not bool(got.isfinite().all()):
        raise ValueError("found values that are no numbers in the result")
    if is_routed:
        return float(((got - want).norm(dim=-1) / want.norm(dim=-1)).median())
    return float((got - want).norm() / want.norm())


def _compiled(subject: Any, row: Row, options: Options) -> Callable[[int], Any]:
    import torch

    found: Exception | None = None
    for mode in options.compile_modes:
        begin = time.monotonic()
        try:
            with torch.no_grad(), within(options.compile_seconds):
                call = _tried(
                    subject.of_torch(
                        lambda x, mode=mode: torch.compile(x, mode=mode, dynamic=False)
                    )
                )
            row.compiled_by = mode
            return call
        except Exception as error:  # the end of its time comes as an error of inductor's, too
            torch._dynamo.reset()
            late = time.monotonic() - begin >= options.compile_seconds
            why = f"took over {options.compile_seconds:.0f} s" if late else one_line(error)
            row.notes.append(f"torch.compile: {mode} {why}")
            found = error
    raise ValueError(f"found no mode that compiles: {'; '.join(row.notes)}") from found


def _times(
    calls: dict[str, Callable[[int], Any]], num_sets: int, row: Row, repeats: int
) -> dict[str, float]:
    """Return the median time of each, taken in turn, each second time in the opposite order."""
    steps: dict[str, tuple[Callable[[int], Any], int]] = {}
    for name, call in calls.items():
        for i in range(num_sets):
            call(i)
        steps[name] = captured(call, num_sets, name, row)
    samples = timing.by_events([step for step, _ in steps.values()], 2)
    samples = timing.by_events([step for step, _ in steps.values()], repeats)
    return {
        name: round(statistics.median(found) / count, 2)
        for (name, (_, count)), found in zip(steps.items(), samples, strict=True)
    }


def captured(
    call: Callable[[int], Any], num_sets: int, name: str, row: Row
) -> tuple[Callable[[int], Any], int]:
    """Return a graph of one call a set, and their number; the call as it is if there is none."""
    import torch

    torch.cuda.synchronize()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="relaxed"):  # TVM allocates as it runs
            kept = [call(i) for i in range(num_sets)]
        graph.replay()
        torch.cuda.synchronize()
    except Exception as error:
        torch.cuda.synchronize()
        row.notes.append(f"{name}: no graph ({one_line(error, 80)})")
        return lambda i: call(i % num_sets), 1

    def replay(_: int, kept: Any = kept) -> None:
        graph.replay()

    return replay, num_sets


def _time_stock(subject: Any, executable: Any, row: Row) -> None:
    call = _tried(subject.of_tvm(executable))
    row.times.update(_times({STOCK: call}, subject.num_sets, row, FEW_REPEATS))


# -- where the time goes ------------------------------------------------------------------


def _profiles(calls: dict[str, Callable[[int], Any]], said: Any, row: Row) -> None:
    row.kernels = kernels_of(calls[OURS])[:COSTLIEST]
    section = said.sections[0]
    row.served.update({k: v for k, v in section.served.items() if k != "microseconds"})
    rows = section.rows
    row.others = [(x.function.name, why_not(x)) for x in rows if not x.is_served][:3]
    if EAGER in calls:
        work = [(class_of(x), work_of(x), x.is_served) for x in rows]
        row.served["torch_time"] = weighted_share(torch_classes(calls[EAGER]), work)


def why_not(row: Any) -> str:
    """Return the reason why a function is not ours, in one line."""
    from tvm_hopper.relax.model_table import reason

    return one_line(reason(row.function))


def class_of(row: Any) -> str:
    """Return the class of a function's operators."""
    function = row.function
    if function.kind == "attention":
        return BATCHED
    if function.kind != "product":
        return REST
    if "conv" in function.name:
        return CONVOLUTIONS
    ranks = sorted(len(x.shape) for x in function.tensors)
    return PRODUCTS if 2 in ranks or function.product is not None else BATCHED


def work_of(row: Any) -> float:
    """Return what a function's time goes by: FLOPs of products, bytes of others."""
    is_product = class_of(row) != REST
    return float((row.cost.flops if is_product else row.cost.num_bytes) or 0)


def class_of_operator(name: str) -> str:
    """Return the class of an operator of PyTorch's, by its name."""
    for kind, parts in OPERATORS.items():
        if any(part in name for part in parts):
            return kind
    return REST


def torch_classes(call: Callable[[int], Any]) -> dict[str, float]:
    """Return the microseconds of PyTorch's kernels by class of operators."""
    found: dict[str, float] = defaultdict(float)
    for event in _profiled(call, 1).key_averages():
        if event.device_type.name == "CPU":  # operators; kernels are their children
            found[class_of_operator(event.key)] += float(event.self_device_time_total)
    return dict(found)


def kernels_of(call: Callable[[int], Any], repeats: int = 3) -> list[tuple[str, int, float]]:
    """Return each kernel's name, calls and microseconds in one pass, the longest first."""
    times: dict[str, list[float]] = defaultdict(list)
    for event in _profiled(call, repeats).events():
        if event.device_type.name == "CUDA":
            times[event.name].append(float(event.device_time_total))
    rows = [
        (name, max(1, len(x) // repeats), round(sum(x) / repeats, 2)) for name, x in times.items()
    ]
    return sorted(rows, key=lambda x: -x[2])


def _profiled(call: Callable[[int], Any], repeats: int) -> Any:
    import torch
    from torch.profiler import ProfilerActivity

    call(0)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        for _ in range(repeats):
            call(0)
        torch.cuda.synchronize()
    return found
