"""What `benchmarks.tuning` tunes: products of the population, norms, gradients and others."""

from __future__ import annotations

import importlib
from typing import Any

from .population import Problem, population

SEED = 3
NORMS = (
    ("rms_norm", 4096, 4096),
    ("layer_norm", 8192, 5120),
    ("softmax", 16384, 2048),
    ("add_rms_norm", 2048, 8192),
)
OTHERS = (  # gradients, sums of columns, rows in parts, and a norm of any number of rows
    ("backward", "rms_norm_backward", 4096, 4096),
    ("backward", "layer_norm_backward", 4096, 4096),
    ("columns", "column_sum", 16384, 4096),
    ("memory_bound", "softmax", 64, 300000),
    ("memory_bound", "rms_norm", "n", 8192),
)
SWEPT = ("4x5120x29568", "16x29568x4096", "3000x9104x128", "2792x2088x168")  # by their spaces
Module = tuple[Any, Problem | None]


def products(count: int) -> dict[str, Module]:
    """Return products of the population by name."""
    from tvm_hopper.testing import workloads

    return {
        p.name: (workloads.matmul(p.m, p.n, p.k, p.layout, p.dtype, p.dtype), p)
        for p in population(SEED, count)
    }


def norms(count: int) -> dict[str, Module]:
    """Return norms by name."""
    from tvm_hopper.testing import memory_bound

    return {
        f"{name} {rows}x{columns}": (getattr(memory_bound, name)(rows, columns), None)
        for name, rows, columns in NORMS[:count]
    }


def others(count: int) -> dict[str, Module]:
    """Return gradients and others by name."""
    made = {kind: importlib.import_module(f"tvm_hopper.testing.{kind}") for kind, *_ in OTHERS}
    return {
        f"{name} {rows}x{columns}": (getattr(made[kind], name)(rows, columns), None)
        for kind, name, rows, columns in OTHERS[:count]
    }
