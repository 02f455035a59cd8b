"""One problem timed with cold caches: kernels of ours in turn with cuBLAS, by graph replay.

Every call of a graph takes tensors of its own, together larger than twice the L2 cache, so that
what a call reads was last touched a cache ago.
"""

from __future__ import annotations

from typing import Any

from . import timing
from .matmul_case import Case, shapes

COLD_BYTES = 150 << 20  # of the tensors of one round; an H200's L2 has 50 MiB
MOST_SETS = 100
SHORT_CALLS = 20  # at least as many in one graph, for problems below LONG_BYTES
LONG_BYTES = 40 << 20


def tensor_sets(case: Case) -> list[tuple[Any, Any, Any]]:
    """Return sets of A, B and C with normal values, that together are larger than the cache."""
    import torch

    assert case.m is not None
    a, b = shapes(case, case.m)
    num_bytes = 2 * (case.m * case.k + case.n * case.k + case.m * case.n)
    count = min(max(2, -(-COLD_BYTES // num_bytes)), MOST_SETS)
    made: dict[str, Any] = {"dtype": getattr(torch, case.dtype), "device": "cuda"}
    return [
        (
            torch.randn(a, **made),
            torch.randn(b, **made),
            torch.empty((case.m, case.n), **made | {"dtype": getattr(torch, case.out_dtype)}),
        )
        for _ in range(count)
    ]


def time_cold(
    case: Case,
    runs: dict[str, Any],
    repeats: int = 11,
    with_cublas: bool = True,
    warmup: float = 0.0,
) -> dict[str, timing.Timing]:
    """Return the times of kernels of one problem by name, and "cublas".

    Parameters
    ----------
    case
        The problem; its configuration is not looked at.
    runs
        Functions of A, B and C, by name.
    repeats
        Replays of each graph, one contender after the other; medians are taken.
    with_cublas
        Time it, too.
    warmup
        Seconds for which all of them run before that: the clock follows power and heat.
    """
    import torch
    import tvm_ffi

    sets = tensor_sets(case)
    views = [
        (
            a if case.layout[0] == "N" else a.t(),
            b if case.layout[1] == "N" else b.t(),
            out,
        )
        for a, b, out in sets
    ]
    contenders = []
    if with_cublas:
        contenders.append(
            timing.Contender(
                "cublas", lambda i: torch.matmul(views[i][0], views[i][1], out=views[i][2])
            )
        )
    contenders += [
        timing.Contender(name, lambda i, run=run: run(*sets[i]), tvm_ffi.use_torch_stream)
        for name, run in runs.items()
    ]
    small = 2 * (case.m * case.k + case.n * case.k + case.m * case.n) < LONG_BYTES  # type: ignore[operator]
    calls = SHORT_CALLS if small else 0
    times = timing.measure_cold(contenders, len(sets), repeats, calls, warmup)
    return {t.name: t for t in times}
