"""Kernels whose time is that of their bytes: reductions of rows, and elementwise programs.

There is no model of a single configuration here that could order them: the choice of the package
comes first, and what is close to it next, until measured times say more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
from tvm import s_tir, tirx

from tvm_hopper import ir
from tvm_hopper.errors import HopperError
from tvm_hopper.schedule import PointwiseConfig, RowReductionConfig
from tvm_hopper.schedule.pointwise.apply import chosen_elements
from tvm_hopper.schedule.row_reduction.apply import chosen_rows
from tvm_hopper.schedule.row_reduction.config import fits_block

from .configurations import CLASSES, Configuration
from .problems import Floats, Problem, bytes_of
from .scheduling import canonical, schedule_with

ROW_THREADS = (4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 1024)
ROWS = (1, 2, 4, 8)
ELEMENT_THREADS = (64, 128, 256, 512, 1024)
CHUNKS = (1, 2, 3, 4, 8)
AGAIN = ((False, False), (True, False), (True, True))  # what is computed again, and loaded again
FAR = 0.03  # by which a configuration is taken to be slower for each doubling away from the choice
EFFICIENCY = 0.85  # share of the bound that a kernel reaches
CHOOSERS: dict[str, Callable[[s_tir.Schedule], Any]] = {
    "row_reduction": chosen_rows,
    "pointwise": chosen_elements,
}


@dataclass(frozen=True, eq=False)
class MemoryProblem(Problem):
    """A program of row reductions, or of elementwise blocks.

    Attributes
    ----------
    choice : configuration
        What the package chooses, with what is known of it.
    """

    choice: Any

    def built_in(self) -> Configuration:
        """Return what leaves all choices to the package."""
        made: Configuration = type(self.choice)()
        return made

    def resolved(self, config: Configuration) -> Configuration:
        """Return the choice of the package with what is given instead."""
        given = {f.name: v for f in fields(config) if (v := getattr(config, f.name)) is not None}
        made: Configuration = replace(self.choice, **given)
        return made

    def configurations(self) -> list[Configuration]:
        """List threads, rows or vectors, and what is loaded or computed when."""
        vectors = _vectors(self.choice.vector)
        if isinstance(self.choice, PointwiseConfig):
            return [
                PointwiseConfig(threads=threads, chunks=chunks, vector=vector)
                for threads, chunks, vector in product(ELEMENT_THREADS, CHUNKS, vectors)
            ]
        return [
            RowReductionConfig(threads, rows, vector, preload, recompute, reload)
            for threads, rows, vector, preload, (recompute, reload) in product(
                ROW_THREADS, ROWS, vectors, (True, False), AGAIN
            )
            if fits_block(threads, rows)
        ]

    def estimates(self, configs: list[Configuration]) -> Floats:
        """Return the bound, and more the further a configuration is from the package's choice."""
        here = self.features([self.choice])[0]
        away = np.abs(self.features(configs) - here).sum(axis=1)
        least = max(self.bound_us, 1.5 + self.moved_bytes / (4.8e6 * self.chip.memory_rate))
        return np.asarray(least / EFFICIENCY * (1 + FAR * away), dtype=np.float64)

    def features(self, configs: list[Configuration]) -> Floats:
        """Return threads, vectors in flight, thread blocks and flags, as logarithms."""
        return np.array([self._row(config) for config in configs])

    def _row(self, config: Any) -> list[float]:
        elements = prod(self.extents)
        threads, vector = config.threads or 128, config.vector or 1
        if isinstance(config, PointwiseConfig):
            chunks = float(config.chunks or 1)
            blocks = max(1.0, elements / (threads * vector * chunks))
            rest = [np.log2(chunks), 0.0]
        else:
            rows = config.rows or 1
            blocks = max(1.0, self.extents[0] / rows)
            chunks = max(1.0, self.extents[1] / (threads * vector))
            flags = 0.7 * bool(config.preload) + 2 * bool(config.recompute) + bool(config.reload)
            rest = [np.log2(rows), flags]
        waves = blocks / self.chip.num_sms
        return [
            np.log2(threads),
            np.log2(vector),
            np.log2(chunks) / 2,
            np.log2(waves) / 4,
            float(np.ceil(waves) / waves - 1) / 2 if waves < 16 else 0.0,
            *rest,
        ]


def _vectors(most: int | None) -> tuple[int, ...]:
    """Return the widest vector and the one of half of it."""
    widest = most or 1
    return (widest, widest // 2) if widest > 1 else (1,)


def as_memory_bound(func: Any, target: Any) -> MemoryProblem | None:
    """Return the problem of a static function that is a kernel over rows or elements, or None."""
    mod = canonical(func)
    for kind, chosen in CHOOSERS.items():
        try:
            with target:
                schedule_with(mod, CLASSES[kind]())
                choice = chosen(s_tir.Schedule(mod))
        except HopperError:
            continue
        shape = _largest(mod["main"])
        form = f"{kind} {_signature(mod['main'])}"
        return MemoryProblem(mod, target, form, shape, bytes_of(mod["main"]), 0, choice)
    return None


def _largest(func: tirx.PrimFunc) -> tuple[int, int]:
    """Return rows and columns of the largest tensor."""
    shapes = [
        [ir.static_int(x) or 1 for x in param.ty.shape]
        for param in func.params
        if tirx.is_buffer_var(param)
    ]
    shape = max(shapes, key=prod)
    return prod(shape[:-1]), shape[-1] if shape else 1


def _signature(func: tirx.PrimFunc) -> str:
    """Name a program by its tensors' types and ranks and its blocks."""
    tensors = [
        f"{ir.dtype_of(param)}:{len(param.ty.shape)}"
        for param in func.params
        if tirx.is_buffer_var(param)
    ]
    blocks = [str(x.name_hint) for x in ir.find_all(func.body, ir.SBlock)]
    return " ".join([*tensors, *blocks])
