"""Attention against PyTorch's backends: `python -m benchmarks.attention --seed 3 --count 60`.

    python -m benchmarks.attention --marks              the grid of head dimensions and lengths

All kernels are built first, in parallel. Then each is checked against float64 and timed in turn
with `scaled_dot_product_attention` by cuDNN and by its flash kernels, by graph replay with cold
caches. A ratio is the time of the faster of these over ours.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import machine
from .attention_population import AttentionProblem, marks, problems
from .forms import COLUMNS, RESULTS, TARGET, WORST, distribution, rows, timed_row
from .matmul_case import register

ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}  # of a weight, and of the output
CHECKED = 4  # heads that are compared with float64


def build_library(
    problem: AttentionProblem, path: str, fields: dict[str, Any] | None = None
) -> None:
    """Build a problem into a shared library, for the process that times.

    - `fields`: of its `hs.AttentionConfig`.
    """
    import tvm
    from tvm import s_tir

    from tvm_hopper import schedule as hs
    from tvm_hopper.testing.attention import softmax_attention

    register()
    p = problem
    mod = softmax_attention(
        (p.batch, p.heads, p.key_heads),
        (p.rows, p.keys),
        (p.depth, p.columns),
        p.dtype,
        p.causal,
        p.window,
    )
    sch = s_tir.Schedule(hs.online(mod))
    hs.attention(sch, hs.AttentionConfig(**fields or {}))
    tvm.compile(sch.mod, target=TARGET).export_library(path)


class Tensors:
    """One set of tensors of a problem, normal values."""

    def __init__(self, problem: AttentionProblem) -> None:
        import torch

        self.problem = p = problem
        made: dict[str, Any] = {"device": "cuda", "dtype": getattr(torch, p.dtype)}
        self.q = torch.randn((p.batch, p.heads, p.rows, p.depth), **made)
        self.k = torch.randn((p.batch, p.key_heads, p.keys, p.depth), **made)
        self.v = torch.randn((p.batch, p.key_heads, p.keys, p.columns), **made)
        self.out = torch.empty((p.batch, p.heads, p.rows, p.columns), **made)
        self.arguments = [self.q, self.k, self.v, self.out]

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return int(sum(x.numel() * x.element_size() for x in self.arguments))


def opponents(problem: AttentionProblem, sets: list[Tensors]) -> dict[str, Callable[[int], Any]]:
    """Return PyTorch's backends that take a problem, by name."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    mask = None
    if problem.window:
        mask = _seen(problem, slice(0, problem.rows))

    def by(*backends: Any) -> Callable[[int], Any]:
        def call(i: int) -> Any:
            x = sets[i]
            with sdpa_kernel(list(backends)):
                return torch.nn.functional.scaled_dot_product_attention(
                    x.q,
                    x.k,
                    x.v,
                    attn_mask=mask,
                    is_causal=problem.causal and mask is None,
                    enable_gqa=problem.heads != problem.key_heads,
                )

        return call

    found = {
        "cuDNN": by(SDPBackend.CUDNN_ATTENTION),
        "flash": by(SDPBackend.FLASH_ATTENTION),
        "memory efficient": by(SDPBackend.EFFICIENT_ATTENTION),
    }
    working = {}
    for name, call in found.items():
        with contextlib.suppress(RuntimeError):
            call(0)
            torch.cuda.synchronize()
            working[name] = call
    return {x: y for x, y in working.items() if x != "memory efficient" or len(working) == 1}


def _seen(problem: AttentionProblem, part: slice) -> Any:
    """Return which keys some rows see."""
    import torch

    last = torch.arange(problem.rows, device="cuda")[part, None] + problem.keys - problem.rows
    keys = torch.arange(problem.keys, device="cuda")[None]
    seen = torch.ones_like(last < keys)
    if problem.causal:
        seen = keys <= last
    return seen & (last - problem.window < keys) if problem.window else seen


def check(run: Any, tensors: Tensors) -> float:
    """Return the largest error of a result as a part of its bound, against float64; 1 is too much.

    A few heads are compared where the whole would not fit into memory in float64.
    """
    import torch

    problem = tensors.problem
    tensors.out.fill_(-77)
    run(*tensors.arguments)
    torch.cuda.synchronize()
    worst, group = 0.0, problem.heads // problem.key_heads
    step = max(1, 2**26 // problem.keys)
    for number in range(CHECKED):
        b = number * (problem.batch - 1) // (CHECKED - 1)
        h = number * (problem.heads - 1) // (CHECKED - 1)
        k, v = (x[b, h // group].double() for x in (tensors.k, tensors.v))
        for first in range(0, problem.rows, step):
            part = slice(first, first + step)
            scores = tensors.q[b, h, part].double() @ k.T * problem.depth**-0.5
            scores = scores.masked_fill(~_seen(problem, part), -torch.inf)
            weights = scores.softmax(-1)
            want, terms = weights @ v, weights @ v.abs()
            unit = ROUNDING[problem.dtype]
            bound = unit * want.abs() + 2 * unit * terms + 2.0**-24
            error = (tensors.out[b, h, part].double() - want).abs()
            worst = max(worst, float((error / bound).nan_to_num(torch.inf).max()))
    return worst


def row_of(problem: AttentionProblem, path: str, repeats: int) -> dict[str, Any]:
    """Check and time one problem."""
    return timed_row(problem, path, repeats, problem.flops, (Tensors, check, opponents))


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention", description=__doc__)
    parser.add_argument("--marks", action="store_true", help="the grid in place of drawn problems")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--workers", type=int, default=8, help="processes that build")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=540, help="after which no problem begins")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Time attention; print and write what was found. 0: all were right."""
    options = parse(argv)
    until = time.monotonic() + options.seconds
    chosen = list(marks()) if options.marks else problems(options.seed, options.count)
    found: list[dict[str, Any]] = []
    with contextlib.suppress(KeyboardInterrupt):
        for row in rows(chosen, options.workers, options.repeats, until, build_library, row_of):
            print(" | ".join(map(str, row.values())), flush=True)
            found.append(row)
    timed = [x for x in found if "ratio" in x]
    for row in sorted(timed, key=lambda x: x["ratio"])[:WORST]:
        print("worst:", " | ".join(map(str, row.values())))
    print(distribution(found))
    title = "the grid" if options.marks else f"seed {options.seed}"
    if timed:
        text = machine.save(options.out, "attention", f"Attention, {title}", COLUMNS, timed)
        print(text.splitlines()[0])
    return int(any("message" in x or x.get("error of its bound", 0) > 1 for x in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
