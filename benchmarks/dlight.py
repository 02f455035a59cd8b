"""What dlight's rules make of functions that Relax legalises: ours against TVM's, in one process.

    python -m benchmarks.dlight

Each function is scheduled twice, by `tvm_hopper.dlight.rules()` and by `tvm_hopper.dlight.stock()`.
Both are compared with float64 on outputs that hold NaN before, then timed in turn by graph replay,
on tensors that are not in the L2 cache. The error is the largest one over all elements, relative to
the element and the mean magnitude together.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.s_tir import dlight as dl
from tvm.target import Target

from tvm_hopper import dlight
from tvm_hopper.testing.relax_forms import NORM, Tensor, legalize

from . import machine
from .cold import COLD_BYTES
from .timing import Contender, measure_cold

RESULTS = Path(__file__).with_name("results")
TARGET = "nvidia/nvidia-h200"
LARGEST_ERROR = {"bfloat16": 1e-2, "float16": 1.5e-3, "float32": 1e-3}
MOST_SETS, REPEATS = 40, 7
op = relax.op


@dataclass(frozen=True)
class Case:
    """One function: how Relax says it, and torch; `rows` are the sizes of s to run it with."""

    name: str
    build: Callable[..., Any]
    tensors: tuple[Tensor, ...]
    formula: Callable[..., Any]
    rows: tuple[int, ...] = (0,)


def _silu_of_split(x: Any) -> Any:
    gate, up = (relax.TupleGetItem(op.split(x, 2, -1), i) for i in range(2))
    return op.multiply(op.nn.silu(gate), up)


def _rms(x: Any, w: Any) -> Any:
    return x / ((x * x).mean(-1, keepdim=True) + NORM["epsilon"]).sqrt() * w


def _layer(x: Any, w: Any, b: Any) -> Any:
    import torch

    return torch.nn.functional.layer_norm(x, x.shape[-1:], w, b, NORM["epsilon"])


def _silu(x: Any) -> Any:
    import torch

    gate, up = x.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def _linear(x: Any, w: Any) -> Any:
    return op.matmul(x, op.permute_dims(w))


def _product(name: str, n: int, k: int, rows: tuple[int, ...], dtype: str) -> Case:
    shape: tuple[int | str, ...] = (1, "s", k) if rows != (0,) else (1, 1, k)
    return Case(name, _linear, ((shape, dtype), ((n, k), dtype)), lambda x, w: x @ w.mT, rows)


def cases() -> list[Case]:
    """Return the functions of a layer as wide as Llama-3-8B's, and some beside them."""
    half, brain = "float16", "bfloat16"
    big, column = ((2048, 4096), brain), ((4096,), brain)
    prefill = (1, 16, 128, 2048)
    return [
        Case("rms_norm", lambda x, w: op.nn.rms_norm(x, w, **NORM), (big, column), _rms),
        Case(
            "rms_norm, one row",
            lambda x, w: op.nn.rms_norm(x, w, **NORM),
            (((1, 1, 4096), brain), column),
            _rms,
        ),
        Case(
            "layer_norm",
            lambda x, w, b: op.nn.layer_norm(x, w, b, **NORM),
            (((2048, 4096), half), ((4096,), half), ((4096,), half)),
            _layer,
        ),
        Case(
            "softmax",
            lambda x: op.nn.softmax(x, axis=-1),
            (((8192, 2048), brain),),
            lambda x: x.softmax(-1),
        ),
        Case(
            "log_softmax",
            lambda x: op.nn.log_softmax(x, axis=-1),
            (((1024, 32000), brain),),
            lambda x: x.log_softmax(-1),
        ),
        Case("split, silu, times", _silu_of_split, (((2048, 28672), half),), _silu),
        Case("residual", op.add, (big, big), lambda x, y: x + y),
        Case(
            "heads first",
            lambda x: op.permute_dims(x, [0, 2, 1, 3]),
            (((1, 2048, 32, 128), half),),
            lambda x: x.permute(0, 2, 1, 3),
        ),
        Case("transposed", lambda x: op.permute_dims(x), (((4096, 4096), half),), lambda x: x.mT),
        Case(
            "heads repeated",
            lambda x: op.repeat(x, 4, 2),
            (((1, 2048, 8, 128), half),),
            lambda x: x.repeat_interleave(4, 2),
        ),
        Case(
            "rows by index",
            lambda x, i: op.take(x, i, axis=0),
            (((32000, 4096), half), ((2048,), "int32")),
            lambda x, i: x[i.long()],
        ),
        _product("qkv", 6144, 4096, prefill, half),
        _product("qkv, decode", 6144, 4096, (0,), half),
        _product("gate and up, decode", 28672, 4096, (0,), half),
        _product("down, decode", 4096, 14336, (0,), brain),
        Case(
            "o, residual",
            lambda x, w, r: op.add(_linear(x, w), r),
            (((1, "s", 4096), half), ((4096, 4096), half), ((1, "s", 4096), half)),
            lambda x, w, r: x @ w.mT + r,
            (16, 2048),
        ),
    ]


def scheduled(case: Case, ours: bool) -> tuple[Any, str, str]:
    """Schedule the one function of a case by one list of rules; return it and what was decided."""
    mod = legalize(case.build, *case.tensors)
    (name,) = (gv.name_hint for gv in mod.functions)
    decisions: list[dlight.Decision] = []
    rules = dlight.rules(decisions) if ours else dlight.stock(decisions)
    with Target(TARGET):
        mod = dl.ApplyDefaultSchedule(*rules)(mod)
    return tvm.compile(mod, TARGET)[name], decisions[-1].rule, decisions[-1].reason


def draw(case: Case, rows: int) -> tuple[list[Any], list[Any]]:
    """Draw the inputs of a case, and make room for its outputs."""
    import torch

    inputs = []
    for shape, dtype in case.tensors:
        sizes = [rows if isinstance(n, str) else n for n in shape]
        if "int" in dtype:
            most = case.tensors[0][0][0]
            inputs.append(torch.randint(0, int(most), sizes, dtype=torch.int32, device="cuda"))
            continue
        scale = sizes[-1] ** -0.5 if len(inputs) == 1 and len(sizes) == 2 else 1.0
        made = torch.randn(sizes, dtype=torch.float32, device="cuda") * scale
        inputs.append(made.to(getattr(torch, dtype)))
    with torch.device("meta"):
        shape = case.formula(*(torch.empty_like(x, device="meta") for x in inputs)).shape
    return inputs, [torch.empty(shape, dtype=inputs[0].dtype, device="cuda")]


def error_of(call: Callable[..., Any], inputs: list[Any], out: Any, want: Any) -> float:
    """Return the largest error of a kernel; what it does not write counts as infinite."""
    import torch

    out.fill_(float("nan"))
    call(*map(tvm_ffi.from_dlpack, (*inputs, out)))
    torch.cuda.synchronize()
    size = want.abs()
    error = float(((out.double() - want).abs() / (size + size.mean())).max())
    return error if error == error else float("inf")


def run(case: Case, rows: int, kernels: dict[str, Any]) -> dict[str, Any]:
    """Check and time a case with so many rows; return its row of the table."""
    inputs, outputs = draw(case, rows)
    want = case.formula(*(x if "int" in str(x.dtype) else x.double() for x in inputs))
    row: dict[str, Any] = {"case": case.name + (f", {rows} rows" if rows else "")}
    limit = LARGEST_ERROR[str(outputs[0].dtype).removeprefix("torch.")]
    right = []
    for name, (call, rule, _) in kernels.items():
        error = error_of(call, inputs, outputs[0], want)
        right.append(name == "TVM" or error < limit)
        row |= {f"{name}: rule": rule, f"{name}: error": f"{error:.1e}"}
    del want
    row["right"] = all(right)
    num_bytes = sum(x.numel() * x.element_size() for x in (*inputs, *outputs))
    count = min(MOST_SETS, max(2, -(-COLD_BYTES // num_bytes)))
    sets = [[*inputs, *outputs], *([*x, *y] for x, y in (draw(case, rows) for _ in range(count)))]
    views = [[tvm_ffi.from_dlpack(x) for x in tensors] for tensors in sets]
    contenders = [
        Contender(name, lambda i, call=call: call(*views[i]), tvm_ffi.use_torch_stream)
        for name, (call, *_) in kernels.items()
    ]
    times = {t.name: t.median_us for t in measure_cold(contenders, len(sets), REPEATS)}
    row |= {f"{name}, us": round(time, 2) for name, time in times.items()}
    row["TVM / ours"] = round(times["TVM"] / times["ours"], 2)
    return row


def main(argv: list[str]) -> int:
    """Print the table and write it to `results/`; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dlight", description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args(argv)
    table: list[dict[str, Any]] = []
    failed = False
    for case in cases():
        if arguments.only not in case.name:
            continue
        try:
            kernels = {name: scheduled(case, name == "ours") for name in ("ours", "TVM")}
            for rows in case.rows:
                table.append(run(case, rows, kernels))
                print(*table[-1].values(), sep="  ", flush=True)
        except Exception as error:  # the other cases are still wanted
            failed = True
            print(f"{case.name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    title = "Functions as Relax legalises them, by our rules and by TVM's own"
    print(machine.save(arguments.out, "dlight", title, list(table[0]), table))
    return int(failed or not all(row["right"] for row in table))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
