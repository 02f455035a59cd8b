"""Attention on a paged cache against PyTorch's on dense keys: `python -m benchmarks.serving`.

    python -m benchmarks.serving --groups many few pages --seconds 200

All kernels are built first, in parallel: TVM's functions, replaced by `hs.paged_attention`. Each
problem is checked against float64, with what no key fills poisoned. Then it is timed in turn with
`scaled_dot_product_attention` by cuDNN and by its flash kernels on as many dense keys, and with a
copy of as many bytes, by graph replay with cold caches. Rows are printed and appended to a file as
they come.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import itertools
import json
import math
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import machine, timing
from .attention import ROUNDING
from .cold import COLD_BYTES, LONG_BYTES, SHORT_CALLS
from .forms import LEAST_US, RESULTS, TARGET, WORST, distribution
from .matmul_case import register
from .serving_problems import DECODE, PREFILL, RAGGED, ServingProblem, problems

MAKERS = {
    DECODE: "_attention_decode",
    PREFILL: "_attention_prefill",
    RAGGED: "_attention_prefill_ragged",
}
MOST_SETS = 256
CHECKED, CHECKED_ROWS = 3, 128  # sequences and heads, and rows of each, compared with float64
LSE_ERROR = 1e-3  # in base 2
POISON = -77
COLUMNS = [
    *("problem", "ours us", "PyTorch us", "by", "ratio", "of a copy's rate", "GB/s", "TFLOP/s"),
    "error of its bound",
]


def build_library(problem: ServingProblem, path: str) -> None:
    """Build a kernel into a shared library, for the process that times."""
    import tvm
    from tvm.target import Target

    from tvm_hopper import schedule as hs
    from tvm_hopper.relax.cache_kernels import unwrapped

    register()
    target, p = Target(TARGET, host="llvm"), problem
    shape: list[Any] = [p.kv_heads, p.heads, p.depth]
    shape += [p.depth, p.dtype] if p.kind == RAGGED else [p.dtype, False]
    named = {} if p.kind == RAGGED else {"page_size": p.page}
    theirs = unwrapped(MAKERS[p.kind])(*shape, {"rope_type": "gptj"}, target, **named)
    with target:
        ours = hs.paged_attention(theirs, "of_tvm").with_attr("global_symbol", "main")
    mod = tvm.IRModule({"main": ours, "of_tvm": theirs.with_attr("global_symbol", "of_tvm")})
    tvm.compile(mod, target=target).export_library(path)


class Tensors:
    """One set of tensors of a problem: ours in pages of any order, PyTorch's dense."""

    def __init__(self, problem: ServingProblem) -> None:
        import torch

        self.problem = p = problem
        self.lengths, self.queries = p.lengths(), p.queries()
        made: dict[str, Any] = {"device": "cuda", "dtype": getattr(torch, p.dtype)}
        rows = sum(self.queries)
        self.q = torch.randn((rows, p.heads, p.depth), **made)
        self.out = torch.empty_like(self.q)
        self.lse = torch.empty((rows, p.heads), device="cuda")
        self.q_starts, self.k_starts = _starts(self.queries), _starts(self.lengths)
        scalars = [0, 1.0, 1e4, p.depth**-0.5]
        rope = [_ints([0] * p.sequences), _ints([0] * rows)]
        if p.kind == RAGGED:
            size = (sum(self.lengths), p.kv_heads, p.depth)
            self.k, self.v = (torch.randn(size, **made) for _ in range(2))
            keys = [self.k, self.v, _ints(self.k_starts)]
            given = [self.q, _ints(self.q_starts), *keys, *rope[::-1]]
        else:
            given = [self.q, *self._pages(made), *rope]
            if p.kind == PREFILL:
                given.insert(1, _ints(self.q_starts))
        given += [self.out, self.lse]
        self.arguments = [*given, *([] if p.kind == DECODE else [1]), *scalars]
        self._dense(made)

    def _pages(self, made: dict[str, Any]) -> list[Any]:
        """Return pages, offsets, table and lengths of the last pages."""
        import torch

        p = self.problem
        counts = [-(-x // p.page) for x in self.lengths]
        total = sum(counts)
        self.pages = torch.randn((total + 1, 2, p.kv_heads, p.page, p.depth), **made)
        self.table = torch.randperm(total + 1, device="cuda")[:total].int()
        self.page_starts = _starts(counts)
        last = [(x - 1) % p.page + 1 for x in self.lengths]
        return [self.pages, _ints(self.page_starts), self.table, _ints(last)]

    def poison(self) -> None:
        """Fill outputs, and what no key of ours fills."""
        import torch

        self.out.fill_(POISON)
        self.lse.fill_(POISON)
        if self.problem.kind == RAGGED:
            return
        used = torch.zeros(self.pages.shape[0], dtype=torch.bool, device="cuda")
        used[self.table.long()] = True
        self.pages[~used] = torch.nan
        for end, length in zip(self.page_starts[1:], self.lengths, strict=True):
            self.pages[self.table[end - 1], :, :, (length - 1) % self.problem.page + 1 :] = (
                torch.nan
            )

    def keys_of(self, sequence: int, head: int) -> tuple[Any, Any]:
        """Return keys and values of a sequence and a head of theirs, in float64."""
        if self.problem.kind == RAGGED:
            part = slice(*self.k_starts[sequence : sequence + 2])
            return self.k[part, head].double(), self.v[part, head].double()
        first, last = self.page_starts[sequence : sequence + 2]
        own = self.pages[self.table[first:last].long(), :, head].double()
        k, v = (own[:, x].flatten(0, 1)[: self.lengths[sequence]] for x in (0, 1))
        return k, v

    def _dense(self, made: dict[str, Any]) -> None:
        """Make PyTorch's tensors: of drawn lengths those of the mean, but of a prefill themselves.

        A copy reads half of the bytes and writes the other half.
        """
        import torch

        p = self.problem
        half = p.num_bytes // 2 // 2
        self.copy = [torch.zeros(half, **made) for _ in range(2)]
        if p.drawn and p.kind != DECODE:
            size: tuple[int, ...] = (sum(self.lengths), p.kv_heads, p.depth)
            self.dense = [self.q, *(torch.randn(size, **made) for _ in range(2))]
            self.starts = [_ints(self.q_starts), _ints(self.k_starts)]
            return
        keys = -(-sum(self.lengths) // p.sequences)
        size = (p.sequences, p.kv_heads, keys, p.depth)
        q = self.q.view(p.sequences, -1, p.heads, p.depth).transpose(1, 2).contiguous()
        self.dense = [q, *(torch.randn(size, **made) for _ in range(2))]


def _starts(counts: list[int]) -> list[int]:
    return [0, *itertools.accumulate(counts)]


def _ints(values: list[int]) -> Any:
    import torch

    return torch.tensor(values, dtype=torch.int32, device="cuda")


def opponents(problem: ServingProblem, sets: list[Tensors]) -> dict[str, Callable[[int], Any]]:
    """Return PyTorch's backends that take a problem, by name."""
    import torch
    from torch.nn.attention import SDPBackend, bias, sdpa_kernel

    p = problem
    whole = p.kind != DECODE and p.queries() == p.lengths()
    mask = None
    if p.kind != DECODE and not whole:
        mask = bias.causal_lower_right(p.rows, p.keys)

    def by(backend: Any) -> Callable[[int], Any]:
        def call(i: int) -> Any:
            with sdpa_kernel([backend]):
                return torch.nn.functional.scaled_dot_product_attention(
                    *sets[i].dense, attn_mask=mask, is_causal=whole, enable_gqa=p.group > 1
                )

        return call

    def varlen(i: int) -> Any:
        x = sets[i]
        most = max(x.queries), max(x.lengths)
        return torch.ops.aten._flash_attention_forward(*x.dense, *x.starts, *most, 0.0, True, False)

    found = {"cuDNN": by(SDPBackend.CUDNN_ATTENTION), "flash": by(SDPBackend.FLASH_ATTENTION)}
    if p.drawn and p.kind != DECODE:
        found = {"flash, ragged": varlen}
    working = {}
    for name, call in found.items():
        with contextlib.suppress(RuntimeError, TypeError, ValueError):
            call(0)
            torch.cuda.synchronize()
            working[name] = call
    return working


def check(run: Any, tensors: Tensors) -> float:
    """Return the largest error of a result as a part of its bound, against float64; 1 is too much.

    Some sequences, heads and rows of them are compared.
    """
    import torch

    p = tensors.problem
    tensors.poison()
    run(*tensors.arguments)
    torch.cuda.synchronize()
    unit, worst = ROUNDING[p.dtype], 0.0
    lengths = tensors.lengths
    chosen = {0, p.sequences - 1, lengths.index(max(lengths)), lengths.index(min(lengths))}
    for sequence in chosen:
        rows, first = tensors.queries[sequence], tensors.q_starts[sequence]
        for head in {x * (p.kv_heads - 1) // (CHECKED - 1) for x in range(CHECKED)}:
            k, v = tensors.keys_of(sequence, head)
            for at in {0, max(0, rows - CHECKED_ROWS)}:
                end = min(rows, at + CHECKED_ROWS)
                part = slice(first + at, first + end), slice(head * p.group, (head + 1) * p.group)
                row = torch.arange(at, end, device="cuda")[:, None, None] + len(k) - rows
                seen = torch.arange(len(k), device="cuda") <= row
                scores = torch.einsum("ihd,jd->ihj", tensors.q[part].double(), k) * p.depth**-0.5
                scores = scores.masked_fill(~seen, -torch.inf)
                weights = scores.softmax(-1)
                want, terms = weights @ v, weights @ v.abs()
                bound = unit * want.abs() + 2 * unit * terms + 2.0**-24
                error = (tensors.out[part].double() - want).abs() / bound
                log_sum = scores.logsumexp(-1) * math.log2(math.e)
                lse = (tensors.lse[part].double() - log_sum).abs() / LSE_ERROR
                worst = max(worst, *(float(x.nan_to_num(torch.inf).max()) for x in (error, lse)))
    return worst


def row_of(problem: ServingProblem, path: str, repeats: int) -> dict[str, Any]:
    """Check and time one problem."""
    import torch
    import tvm
    import tvm_ffi

    run = tvm.runtime.load_module(path)["main"]
    first = Tensors(problem)
    error = check(run, first)
    count = min(-(-COLD_BYTES // problem.num_bytes), MOST_SETS)
    sets = [first, *(Tensors(problem) for _ in range(count - 1))]
    others = opponents(problem, sets)
    others["copy"] = lambda i: torch.add(sets[i].copy[0], 0, out=sets[i].copy[1])
    contenders = [timing.Contender(name, call) for name, call in others.items()]
    contenders.append(
        timing.Contender("ours", lambda i: run(*sets[i].arguments), tvm_ffi.use_torch_stream)
    )
    calls = SHORT_CALLS if problem.num_bytes < LONG_BYTES else 0
    times = {x.name: x.median_us for x in timing.measure_cold(contenders, count, repeats, calls)}
    ours, copy = times.pop("ours"), times.pop("copy")
    by = min(times, key=lambda x: times[x]) if times else "none"
    theirs = times.get(by, 0.0)
    del first, sets[:]
    torch.cuda.empty_cache()
    row = {"problem": problem.name, "ours us": round(ours, 2), "PyTorch us": round(theirs, 2)}
    row |= {"by": by, "ratio": round(max(theirs, LEAST_US) / max(ours, LEAST_US), 4)}
    row |= {
        "of a copy's rate": round(copy / ours, 3),
        "GB/s": round(problem.num_bytes / ours / 1e3),
    }
    return row | {
        "TFLOP/s": round(problem.flops / ours / 1e6),
        "error of its bound": round(error, 3),
    }


def floors(found: list[tuple[ServingProblem, dict[str, Any]]]) -> list[str]:
    """Say how the rows stand to the floors."""
    many = [
        (y["of a copy's rate"], y["problem"])
        for x, y in found
        if x.kind == DECODE and x.sequences >= 16 and x.keys >= 1024
    ]
    few = [(y["ratio"], y["problem"]) for x, y in found if x.kind == DECODE and x.sequences < 16]
    said = []
    for what, rows, floor in (("of a copy's rate", many, 0.85), ("of PyTorch", few, 1.0)):
        if rows:
            below = sum(x < floor for x, _ in rows)
            said.append(f"{what}: {below} of {len(rows)} below {floor}; least {min(rows)}")
    return said


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    groups = list(problems())
    parser.add_argument("--groups", nargs="+", default=groups, choices=groups)
    parser.add_argument("--workers", type=int, default=8, help="processes that build")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=540, help="after which no problem begins")
    parser.add_argument("--rows", type=Path, help="file that rows are appended to as they come")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Time attention on caches; print and write what was found. 0: all were right."""
    options = parse(argv)
    until = time.monotonic() + options.seconds
    groups = problems()
    chosen = list(dict.fromkeys(x for name in options.groups for x in groups[name]))
    kernels = list(dict.fromkeys(x.kernel for x in chosen))
    found: list[tuple[ServingProblem, dict[str, Any]]] = []
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        paths = {x: str(Path(folder) / f"{i}.so") for i, x in enumerate(kernels)}
        with concurrent.futures.ProcessPoolExecutor(options.workers, context) as pool:
            jobs = {x: pool.submit(build_library, x, path) for x, path in paths.items()}
            concurrent.futures.wait(jobs.values())
        register()
        for problem in chosen:
            if time.monotonic() > until:
                print(f"out of time before {problem.name}")
                break
            try:
                jobs[problem.kernel].result()
                row = row_of(problem, paths[problem.kernel], options.repeats)
            except Exception as error:  # one bad problem must not hide the others' figures
                text = (str(error).strip().splitlines() or [""])[-1]
                row = {"problem": problem.name, "message": f"{type(error).__name__}: {text[:300]}"}
            print(" | ".join(map(str, row.values())), flush=True)
            if options.rows:
                with options.rows.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            found.append((problem, row))
    timed = [(x, y) for x, y in found if "ratio" in y]
    for _, row in sorted(timed, key=lambda x: x[1]["ratio"])[:WORST]:
        print("worst:", " | ".join(map(str, row.values())))
    print(distribution([y for _, y in found]))
    print(*floors(timed), sep="\n")
    if timed:
        text = machine.save(
            options.out, "serving", "Attention on paged caches", COLUMNS, [y for _, y in timed]
        )
        print(text.splitlines()[0])
    return int(any("message" in y or y.get("error of its bound", 0) > 1 for _, y in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
