"""Memory-bound kernels against a copy and others' kernels: `python -m benchmarks.memory`.

Each case moves `--gib` of bytes read and written, and is checked against float64 before it is
timed, on inputs drawn anew and outputs poisoned. The baseline is the faster one of `copy_` and
`torch.add(x, 0, out=y)` of as many bytes; beside it PyTorch eager, torch.compile and, where it is
installed, Liger. What reads alone stands beside a kernel that only reads, too. All of a case take
turns in one process. Kernels of few rows are replayed from a
graph, on as many sets of tensors as exceed the cache, and on one set, beside a copy kernel of ours
of the same bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import signal
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine, memory_programs
from benchmarks.memory_programs import PROGRAMS
from benchmarks.timing import Contender, measure, measure_cold
from tvm_hopper.testing import memory_bound

TARGET = "nvidia/nvidia-h200"
RESULTS = Path(__file__).parent / "results"
BASELINES = ("copy_", "torch.add")
OURS = "tvm_hopper"
AS_EVER = "not early"  # ours of few rows, launched when the kernel in front of it has ended
EARLY_COPY = "early copy"  # launched as ours of few rows are
READER = "reads only"
WARM = ", warm"
CACHE_BYTES = 110 << 20  # of all sets of a small case: twice the cache, so that none stays there
WARM_CALLS = 400  # of a graph that has one set alone
ROWS_CHECKED = 48  # from the start, the middle and the end
TOLERANCE = {"bfloat16": 0.02, "float16": 0.003, "float32": 2e-4}  # relative, of an element
SIZES = {"bfloat16": 2, "float16": 2, "float32": 4}
COLUMNS = {
    **dict.fromkeys(
        ("rms_norm", "softmax"), (1024, 2048, 4096, 8192, 16384, 32768, 131072, 262144)
    ),
    "layer_norm": (1024, 4096, 8192, 16384, 32768, 131072, 262144),
    "add_rms_norm": (1024, 4096, 8192, 32768, 131072, 262144),
}
OTHER_TYPES = {"float16": (4096, 32768), "float32": (4096, 32768)}
SMALL = (1, 8, 32, 128, 512)


@dataclass(frozen=True)
class Case:
    """One program, its size, and how many tensors of all elements it reads and writes."""

    program: str
    rows: int
    columns: int
    dtype: str = "bfloat16"

    @property
    def name(self) -> str:
        """Name in the table."""
        dtype = "" if self.dtype == "bfloat16" else f" {self.dtype}"
        return f"{self.program} {self.rows} x {self.columns}{dtype}"

    @property
    def is_small(self) -> bool:
        """Whether it is replayed from a graph."""
        return self.rows <= max(SMALL)


FULL_TENSORS = {"add_rms_norm": 4, "gelu_mul": 3, "silu_mul": 3, "copy": 2}
INPUTS = {
    "rms_norm": "XW",
    "add_rms_norm": "XRW",
    "layer_norm": "XWB",
    "softmax": "X",
    "gelu_mul": "XZ",
    "silu_mul": "XZ",
    "copy": "X",
}
COLUMN_TENSORS = "WB"


def cases(gib: float, only: list[str]) -> list[Case]:
    """List the cases whose name contains one of some words; all, if there are none."""
    found = []
    for program, lengths in COLUMNS.items():
        found += [_sized(program, columns, gib) for columns in lengths]
    found += [_sized(program, 14336, gib) for program in ("gelu_mul", "silu_mul")]
    for dtype, lengths in OTHER_TYPES.items():
        found += [_sized(x, columns, gib, dtype) for x in COLUMNS for columns in lengths]
    found += [Case(x, 10007, 4104) for x in ("rms_norm", "softmax", "gelu_mul")]
    found += [Case("rms_norm", rows, 4096) for rows in SMALL]
    found += [_sized(name, length, gib) for name, x in PROGRAMS.items() for length in x.columns]
    return [x for x in found if not only or any(word in x.name for word in only)]


def _sized(program: str, columns: int, gib: float, dtype: str = "bfloat16") -> Case:
    elements = int(gib * 2**30) // (SIZES[dtype] * full_tensors(program))
    rows = elements // columns
    whole = memory_programs.GROUPS if program == "group_norm" else 1
    if program == "transpose":
        rows = columns
    return Case(program, rows // whole * whole, columns, dtype)


def full_tensors(program: str) -> int:
    """Return how many tensors of all elements a program reads and writes."""
    if program in PROGRAMS:
        return PROGRAMS[program].full
    return FULL_TENSORS.get(program, 2)


def build(case: Case, early: bool | None = None) -> Callable[..., None]:
    """Compile one program; `early` says whether it begins before the launch in front has ended."""
    kernel: Callable[..., None] = executable(case, early)["main"]
    return kernel


def executable(case: Case, early: bool | None = None) -> Any:
    """Compile one program, for a library, too."""
    import tvm
    from tvm import s_tir

    from tvm_hopper import schedule as hs

    if case.program in PROGRAMS:
        program = PROGRAMS[case.program]
        sch = s_tir.Schedule(program.build(case.rows, case.columns))
        getattr(hs, program.helper)(sch)
        return tvm.compile(sch.mod, target=TARGET)
    if case.program == "copy":
        module = memory_bound.copy(case.rows, case.columns, case.dtype)
    else:
        module = getattr(memory_bound, case.program)(case.rows, case.columns, case.dtype)
    sch = s_tir.Schedule(module)
    if case.program in memory_bound.ROW_REDUCTIONS:
        hs.row_reduction(sch, config=hs.RowReductionConfig(early_launch=early))
    else:
        hs.pointwise(sch, config=hs.PointwiseConfig(early_launch=early))
    return tvm.compile(sch.mod, target=TARGET)


# -- what others compute, and what is right -------------------------------------------------------


def formula(case: Case) -> Callable[..., Any]:
    """Return the program as PyTorch has it: of inputs, to outputs."""
    from torch.nn import functional as f

    shape, epsilon = (case.columns,), memory_bound.EPSILON

    def add_rms_norm(x: Any, r: Any, w: Any) -> Any:
        h = x + r
        return h, f.rms_norm(h, shape, w, epsilon)

    return {
        "rms_norm": lambda x, w: f.rms_norm(x, shape, w, epsilon),
        "add_rms_norm": add_rms_norm,
        "layer_norm": lambda x, w, b: f.layer_norm(x, shape, w, b, epsilon),
        "softmax": lambda x: f.softmax(x, -1),
        "gelu_mul": lambda x, z: f.gelu(x) * z,
        "silu_mul": lambda x, z: f.silu(x) * z,
        "copy": lambda x: x.clone(),
    }[case.program]


def others(case: Case, inputs: list[Any]) -> dict[str, Callable[[], Any]]:
    """Return what else computes the same, by name."""
    import torch

    if case.program in PROGRAMS:
        return memory_programs.others(case.program, inputs)
    eager = formula(case)
    compiled = torch.compile(eager, dynamic=False)
    found: dict[str, Callable[[], Any]] = {
        "eager": lambda: eager(*inputs),
        "torch.compile": lambda: compiled(*inputs),
    }
    with contextlib.suppress(ImportError):
        found |= _liger(case, inputs)
    return found


def _liger(case: Case, inputs: list[Any]) -> dict[str, Callable[[], Any]]:
    from liger_kernel.ops.layer_norm import layer_norm_forward
    from liger_kernel.ops.rms_norm import rms_norm_forward

    x, *more = inputs
    epsilon = memory_bound.EPSILON
    known: dict[str, Callable[[], Any]] = {
        "rms_norm": lambda: rms_norm_forward(x, more[0], epsilon, 0.0, "llama", None),
        "layer_norm": lambda: layer_norm_forward(x, more[0], more[1], epsilon),
    }
    return {"Liger": known[case.program]} if case.program in known else {}


def is_right(
    case: Case, kernel: Callable[..., None], inputs: list[Any], outputs: list[Any]
) -> bool:
    """Run a kernel on poisoned outputs and compare some rows with float64."""
    import torch

    for out in outputs:
        out.fill_(float("nan") if out.is_floating_point() else -1)
    kernel(*inputs, *outputs)
    torch.cuda.synchronize()
    if case.program in PROGRAMS:
        return memory_programs.are_right(case.program, inputs, outputs)
    part = max(1, ROWS_CHECKED // 3)
    for start in (0, case.rows // 2, max(0, case.rows - part)):
        rows = slice(start, min(case.rows, start + part))
        exact = [
            (x if name in COLUMN_TENSORS else x[rows]).double()
            for name, x in zip(INPUTS[case.program], inputs, strict=True)
        ]
        got = [out[rows].double() for out in outputs]
        if case.program == "add_rms_norm":  # of the sum as it is rounded
            wanted = [exact[0] + exact[1], _rms_norm(got[0], exact[2])]
        else:
            wanted = [formula(case)(*exact)]
        for one, want in zip(got, wanted, strict=True):
            kind = torch.finfo(outputs[0].dtype)  # the last place of what is nearly 0
            error = (one - want).abs() - kind.tiny * kind.eps
            error /= want.abs() + want.abs().mean() / 100
            if not bool((error < TOLERANCE[case.dtype]).all()):  # what is no number is not
                return False
    return not any(bool(torch.isnan(out).any()) for out in outputs)


def _rms_norm(x: Any, w: Any) -> Any:
    return x / ((x * x).mean(-1, keepdim=True) + memory_bound.EPSILON).sqrt() * w


# -- measuring ------------------------------------------------------------------------------------


def tensors(case: Case) -> tuple[list[Any], list[Any]]:
    """Draw the inputs of a case, and make room for its outputs."""
    import torch

    if case.program in PROGRAMS:
        return memory_programs.draw(case.program, case.rows, case.columns)

    def new(name: str) -> Any:
        shape = (case.columns,) if name in COLUMN_TENSORS else (case.rows, case.columns)
        return torch.randn(shape, device="cuda", dtype=getattr(torch, case.dtype))

    inputs = [new(name) for name in INPUTS[case.program]]
    count = 2 if case.program == "add_rms_norm" else 1
    return inputs, [torch.empty_like(inputs[0]) for _ in range(count)]


def compile_others(case: Case) -> str:
    """Run others' kernels of a case once: what they compile stays in caches on the disk."""
    import torch

    try:
        for call in others(case, tensors(case)[0]).values():
            call()
        torch.cuda.synchronize()
    except Exception as error:  # told again where it is timed
        return f"{case.name}: {type(error).__name__}\n"
    return ""


def built(
    table: list[Case], workers: int, folder: Path | None = None, alone: bool = False
) -> dict[Case, Callable[..., None]]:
    """Return the kernels of all cases."""
    import tvm

    if not workers and folder is None:
        return {x: build(x) for x in table}
    with tempfile.TemporaryDirectory() as other:
        paths = compiled(table, workers, folder or Path(other), alone)
        return {x: tvm.runtime.load_module(str(path))["main"] for x, path in paths.items()}


def compiled(table: list[Case], workers: int, folder: Path, alone: bool) -> dict[Case, Path]:
    """Compile libraries of ours that a folder lacks, and others' kernels unless alone.

    In some processes; others' kernels stay in caches of their own.
    """
    paths = {x: folder / f"{x.name.replace(' ', '_')}.so" for x in table}
    todo = {x: path for x, path in paths.items() if not path.exists()}
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(max(1, workers), multiprocessing.get_context("spawn")) as pool:
        ours = [pool.submit(export, x, str(path)) for x, path in todo.items()]
        theirs = [pool.submit(compile_others, x) for x in todo if not (alone or x.is_small)]
        for job in ours:
            job.result()
        for said in theirs:
            print(said.result(), end="", file=sys.stderr)
    return paths


def export(case: Case, path: str) -> None:
    """Compile the kernel of a case to a library."""
    executable(case).export_library(path)


def run(
    case: Case,
    repeats: int,
    alone: bool = False,
    kernel: Callable[..., None] | None = None,
    warm_up: float = 0.5,
) -> dict[str, Any]:
    """Check and time one case; return its row of the table."""
    kernel = kernel or build(case)
    inputs, outputs = tensors(case)
    right = is_right(case, kernel, inputs, outputs)
    if not right:
        print(f"{case.name}: wrong", file=sys.stderr)
    if case.is_small:
        return _row(case, right, _small(case, kernel, repeats))
    calls = {} if alone else others(case, inputs)
    return _row(case, right, _large(case, kernel, inputs, outputs, calls, (repeats, warm_up)))


def _large(
    case: Case,
    kernel: Callable[..., None],
    inputs: list[Any],
    outputs: list[Any],
    more: dict[str, Callable[[], Any]],
    often: tuple[int, float],
) -> dict[str, float]:
    import torch

    moved = full_tensors(case.program) * inputs[0].numel()
    x = torch.zeros(moved // 2, device="cuda", dtype=inputs[0].dtype)
    y = torch.empty_like(x)
    calls: dict[str, Callable[[int], Any]] = {
        "copy_": lambda _: y.copy_(x),
        "torch.add": lambda _: torch.add(x, 0, out=y),
        OURS: lambda _: kernel(*inputs, *outputs),
    }
    if case.program in PROGRAMS and PROGRAMS[case.program].reads_only:
        with contextlib.suppress(ImportError):
            from benchmarks import read_only

            more = {READER: read_only.reader(inputs[0]), **more}
    for name, call in more.items():
        try:
            call()
        except Exception as error:  # another's kernel may not take the shape
            print(f"{case.name}, {name}: {type(error).__name__}", file=sys.stderr)
            continue
        calls[name] = lambda _, call=call: call()
    contenders = [Contender(*one) for one in calls.items()]
    part = slice(0, CACHE_BYTES)  # of bytes twice as many: each begins behind the end of a copy
    times = measure(contenders, 1, *often, before=lambda: torch.add(x[part], 0, out=y[part]))
    return {t.name: t.median_us for t in times}


def _small(case: Case, kernel: Callable[..., None], repeats: int) -> dict[str, float]:
    import torch
    import tvm_ffi

    kernels = {
        OURS: kernel,
        AS_EVER: build(case, early=False),
        "copy_": build(Case("copy", case.rows, case.columns)),
        EARLY_COPY: build(Case("copy", case.rows, case.columns), early=True),
    }
    bytes_of_set = 4 * case.rows * case.columns
    count = CACHE_BYTES // bytes_of_set + 1
    inputs, outputs = tensors(Case(case.program, case.rows * count, case.columns, case.dtype))
    parts = [x.split(case.rows) if x.dim() > 1 else (x,) * count for x in (*inputs, *outputs)]
    sets = [(x[: len(inputs)], x[len(inputs) :]) for x in zip(*parts, strict=True)]

    def call(run: Callable[..., None], count: int | None) -> Callable[[int], None]:
        def one(i: int) -> None:
            inputs, outputs = sets[i % len(sets)]
            run(*inputs[:count], *outputs)

        return one

    def added(i: int) -> None:
        inputs, outputs = sets[i % len(sets)]
        torch.add(inputs[0], 0, out=outputs[0])

    capture = tvm_ffi.use_torch_stream
    copies = ("copy_", EARLY_COPY)
    contenders = [
        Contender("torch.add", added),
        *(Contender(k, call(x, 1 if k in copies else None), capture) for k, x in kernels.items()),
    ]
    cold = measure_cold(contenders, len(sets), repeats, WARM_CALLS)
    warm = measure_cold(contenders, 1, repeats, WARM_CALLS)
    found = {t.name: t.median_us for t in cold}
    return found | {f"{t.name}{WARM}": t.median_us for t in warm}


def _row(case: Case, right: bool, times: dict[str, float]) -> dict[str, Any]:
    base = min(times[x] for x in BASELINES)
    moved = SIZES[case.dtype] * full_tensors(case.program) * case.rows * case.columns
    row: dict[str, Any] = {
        "case": case.name,
        "right": right,
        "copy, us": round(base, 2),
        "copy, TB/s": round(moved / base / 1e6, 3),
        "ours, us": round(times[OURS], 2),
        "ours": round(base / times[OURS], 4),
    }
    for name in ("torch.compile", "eager", "Liger", READER):
        row[name] = round(base / times[name], 3) if name in times else ""
    warm = [times[x + WARM] for x in BASELINES if x + WARM in times]
    row["warm: copy, us"] = round(min(warm), 2) if warm else ""
    row["warm: ours, us"] = round(times[OURS + WARM], 2) if warm else ""
    for name in (AS_EVER, EARLY_COPY):
        for state in ("", WARM):
            row[f"{name}{state}, us"] = round(times[name + state], 3) if warm else ""
    return row


def main(argv: list[str]) -> int:
    """Print the table and write it to `results/`; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--gib", type=float, default=2.0, help="bytes read and written")
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--warm-up", type=float, default=0.5, help="seconds before each case")
    parser.add_argument("--only", nargs="*", default=[], help="cases whose name contains one")
    parser.add_argument("--alone", action="store_true", help="time no others' kernels of a case")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--workers", type=int, default=0, help="processes that compile")
    text = "a folder for libraries of ours; those that are there are not compiled again"
    parser.add_argument("--kernels", type=Path, help=text)
    parser.add_argument("--build-only", action="store_true", help="compile, for --kernels")
    arguments = parser.parse_args(argv)
    if arguments.build_only and arguments.kernels is None:
        parser.error("--build-only needs --kernels")
    table = []
    wanted = cases(arguments.gib, arguments.only)
    if arguments.build_only:
        compiled(wanted, arguments.workers, arguments.kernels, arguments.alone)
        return 0
    kernels = built(wanted, arguments.workers, arguments.kernels, arguments.alone)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):  # the table of what was timed until then
        for case in wanted:
            kernel, often = kernels.pop(case), (arguments.repeats, arguments.alone)
            table.append(run(case, *often, kernel, arguments.warm_up))
            print(*table[-1].values(), sep="  ", flush=True)
    title = f"Memory-bound kernels, {arguments.gib:g} GiB read and written, as shares of a copy"
    print(machine.save(arguments.out, "memory", title, list(table[0]), table))
    return 0 if all(row["right"] for row in table) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
