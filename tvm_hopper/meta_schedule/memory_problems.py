"""Search space of memory-bound kernels: row reductions, elementwise programs.

There is no model of a single configuration here that could order them: the choice of the package
comes first, and what is close to it next, until measured times say more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, tirx

from tvm_hopper import ir, schedule as hs
from tvm_hopper.errors import HopperError
from tvm_hopper.facts.programming_model import MAX_THREADS, THREADS_PER_WARP
from tvm_hopper.schedule import ColumnReductionConfig, PointwiseConfig, RowReductionConfig
from tvm_hopper.schedule.column_reduction.apply import chosen_columns
from tvm_hopper.schedule.pointwise.apply import chosen_elements
from tvm_hopper.schedule.row_reduction.apply import chosen_rows
from tvm_hopper.schedule.row_reduction.choice import CLUSTERS
from tvm_hopper.schedule.row_reduction.config import THREADS_PER_SM, fits_block

from .configurations import CLASSES, Configuration
from .problems import Floats, Problem, bytes_of
from .scheduling import canonical, schedule_with

ROW_THREADS = (4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024)
ROWS = (1, 2, 4, 8)
ELEMENT_THREADS = (64, 128, 256, 512, 1024)
CHUNKS = (1, 2, 3, 4, 8)
RECOMPUTE_AND_RELOAD = ((False, False), (True, False), (True, True))
BLOCKS_PER_SM = (1, 2, 3, 4, 6, 8)
UNROLLS = (1, 2, 4)  # rows of a thread, where a warp or less shares one
TOGETHER = (1, 2, 4)  # large thread blocks that begin at the same time
AHEAD = (0, 1, 2, 4)  # rows of a persistent kernel that are requested in advance
STREAM_THREADS, STREAM_CHUNKS = (256, 512, 768, 1024), (1, 2, 4, 8, 16)
COLUMN_THREADS, FLIGHT = (16, 32, 64, 128, 256), (1, 2, 4, 8, 16)
PARTS = (0.25, 0.5, 1, 2, 4)  # thread blocks of a strip of columns, in those of the choice
FAR = 0.03  # by which a configuration is taken to be slower for each doubling away from the choice
EFFICIENCY = 0.85  # share of the bound that a kernel reaches
CHOOSERS: dict[str, Callable[[s_tir.Schedule], Any]] = {  # in the order of the rules for dlight
    "row_reduction": chosen_rows,
    "column_reduction": chosen_columns,
    "pointwise": chosen_elements,
}


@dataclass(frozen=True, eq=False)
class MemoryProblem(Problem):
    """A program of reductions of rows or of columns, or of elementwise blocks.

    - `choice` (configuration): what the package chooses, with what is known of it.
    """

    choice: Any

    def built_in(self) -> Configuration:
        """Return what leaves all choices to the package."""
        made: Configuration = type(self.choice)()
        return made

    def resolved(self, config: Configuration) -> Configuration:
        """Return the choice of the package with what is given instead."""
        given = {f.name: v for f in fields(config) if (v := getattr(config, f.name)) is not None}
        try:
            made: Configuration = replace(self.choice, **given)
        except HopperError:  # the choice's thread blocks of an SM do not fit other threads
            made = replace(self.choice, **{"blocks": None, **given})
        return made

    def configurations(self) -> list[Configuration]:
        """List threads, rows or vectors, and what is loaded or computed when."""
        choice = self.choice
        if isinstance(choice, PointwiseConfig):
            return list(_of_elements(choice))
        if isinstance(choice, ColumnReductionConfig):
            return list(_of_columns(choice))
        if choice.persistent is not None:
            return list(_of_gradients(choice, self.extents[0], self.chip.num_sms))
        if choice.chunks is not None and not choice.stage:
            return list(_of_streams(choice))
        return list(_of_rows(choice))

    def estimates(self, configs: list[Configuration]) -> Floats:
        """Return the bound, and more the further a configuration is from the package's choice."""
        here = self.features([self.choice])[0]
        away = np.abs(self.features(configs) - here).sum(axis=1)
        least = max(self.bound_us, 1.5 + self.moved_bytes / (4.8e6 * self.chip.memory_rate))
        return np.asarray(least / EFFICIENCY * (1 + FAR * away), dtype=np.float64)

    def features(self, configs: list[Configuration]) -> Floats:
        """Return threads, vectors in flight, thread blocks and flags, as logarithms."""
        rows = [self._row(config) for config in (*configs, self.choice)]  # a table, if of no row
        return np.array(rows)[:-1]

    def _row(self, config: Any) -> list[float]:
        rows, columns = self.extents
        threads, vector = config.threads or 128, config.vector or 1
        if isinstance(config, PointwiseConfig):
            chunks = float(config.chunks or 1)
            blocks = max(1.0, rows * columns / (threads * vector * chunks))
            together = np.log2(config.together or 1) / 4
            rest = [np.log2(chunks), 0.5 * bool(config.hint) + together]
        elif isinstance(config, ColumnReductionConfig):
            chunks, below = float(config.flight or 1), config.rows or 1
            blocks = max(1.0, columns / (threads * vector)) * (config.blocks or 1)
            rest = [np.log2(chunks), np.log2(below)]
        else:
            below = config.rows or 1
            blocks = float(config.persistent or max(1.0, rows / below))
            chunks = float(
                config.chunks or max(1.0, columns / (threads * vector * (config.cluster or 1)))
            )
            flags = 0.7 * bool(config.preload) + 2 * bool(config.recompute) + bool(config.reload)
            flags += 0.5 * bool(config.hint) + 0.4 * float(config.ahead or 0)
            held = [np.log2(config.blocks or 1) / 2, np.log2(config.unroll or 1) / 2]
            rest = [np.log2(below), flags, *held]
        waves = blocks / self.chip.num_sms
        return [
            np.log2(threads),
            np.log2(vector),
            np.log2(chunks) / 2,
            np.log2(waves) / 4,
            float(np.ceil(waves) / waves - 1) / 2 if waves < 16 else 0.0,
            *rest,
        ]


def _of_elements(choice: PointwiseConfig) -> Iterator[Configuration]:
    """Yield threads, vectors and hints; a transposition has tiles of one size."""
    if choice.chunks is None:
        for threads, hint in product(ELEMENT_THREADS, (False, True)):
            yield PointwiseConfig(threads=threads, hint=hint)
        return
    for threads, chunks, vector in product(ELEMENT_THREADS, CHUNKS, _vectors(choice.vector)):
        yield PointwiseConfig(threads=threads, chunks=chunks, vector=vector)
    for threads, chunks in product(ELEMENT_THREADS, CHUNKS):
        yield PointwiseConfig(threads, chunks, choice.vector, hint=not choice.hint)
    for together in TOGETHER:  # two blocks fill an SM
        yield PointwiseConfig(MAX_THREADS, 1, choice.vector, blocks=2, together=together)


def _of_rows(choice: RowReductionConfig) -> Iterator[Configuration]:
    """Yield rows in registers; how many thread blocks an SM has next to the flags of the choice."""
    if (choice.cluster or 1) > 1:
        yield from _of_clusters(choice)
        return
    flags = (choice.preload, choice.recompute, choice.reload)
    for threads, rows, vector, preload, (recompute, reload) in product(
        ROW_THREADS, ROWS, _vectors(choice.vector), (True, False), RECOMPUTE_AND_RELOAD
    ):
        if not fits_block(threads, rows):
            continue
        plain = RowReductionConfig(threads, rows, vector, preload, recompute, reload)
        yield plain
        if (preload, recompute, reload) == flags and vector == choice.vector:
            for blocks in BLOCKS_PER_SM:
                if blocks * threads * rows <= THREADS_PER_SM:
                    yield replace(plain, blocks=blocks)
            yield replace(plain, hint=not choice.hint)
            for unroll in UNROLLS if threads <= THREADS_PER_WARP else ():
                yield replace(plain, unroll=unroll)


def _of_clusters(choice: RowReductionConfig) -> Iterator[Configuration]:
    """Yield rows that thread blocks of a cluster share, half of its size and twice as many."""
    chosen = choice.cluster or 1
    for size in sorted({max(1, chosen // 2), chosen, min(CLUSTERS[-1], 2 * chosen)}):
        for threads, vector, preload, (recompute, reload) in product(
            ROW_THREADS, _vectors(choice.vector), (True, False), RECOMPUTE_AND_RELOAD
        ):
            if threads >= THREADS_PER_WARP:
                yield RowReductionConfig(
                    threads, 1, vector, preload, recompute, reload, cluster=size
                )


def _of_streams(choice: RowReductionConfig) -> Iterator[Configuration]:
    """Yield rows that no thread block holds: vectors in flight, thread blocks of an SM."""
    for threads, chunks, blocks, hint in product(
        STREAM_THREADS, STREAM_CHUNKS, (1, 2, 4), (False, True)
    ):
        if blocks * threads <= THREADS_PER_SM:
            yield RowReductionConfig(
                threads, vector=choice.vector, blocks=blocks, hint=hint, chunks=chunks
            )


def _of_gradients(choice: RowReductionConfig, rows: int, sms: int) -> Iterator[Configuration]:
    """Yield persistent kernels: thread blocks that share all rows, and rows requested ahead."""
    for threads, below, vector, ahead, per_sm in product(
        ROW_THREADS, ROWS, _vectors(choice.vector), AHEAD, (1, 2, 3, 4)
    ):
        count = per_sm * sms
        if fits_block(threads, below) and count * below <= rows:
            yield RowReductionConfig(threads, below, vector, persistent=count, ahead=ahead)


def _of_columns(choice: ColumnReductionConfig) -> Iterator[Configuration]:
    """Yield strips of columns and parts of their rows."""
    if choice.group is not None:
        yield choice
        return
    counts = sorted({max(1, round((choice.blocks or 1) * x)) for x in PARTS})
    for threads, rows, flight, blocks, vector in product(
        COLUMN_THREADS, ROWS, FLIGHT, counts, _vectors(choice.vector)
    ):
        if fits_block(threads, rows) and blocks * rows > 1:
            yield ColumnReductionConfig(threads, rows, flight, blocks, vector)


def _vectors(most: int | None) -> tuple[int, ...]:
    """Return the widest vector and the one of half of it."""
    widest = most or 1
    return (widest, widest // 2) if widest > 1 else (1,)


def as_memory_bound(func: Any, target: Any) -> MemoryProblem | None:
    """Return the problem of a static function that is a kernel over rows or elements, or None."""
    mod = canonical(func)
    for kind in kinds_that_serve(mod, target):
        try:
            with target:
                choice = CHOOSERS[kind](s_tir.Schedule(hs.widen_sums(mod)))
        except HopperError:
            continue
        func, form = mod["main"], f"{kind} {_signature(mod['main'])}"
        return MemoryProblem(mod, target, form, _largest(func), bytes_of(func), 0, choice)
    return None


def kinds_that_serve(mod: tvm.IRModule, target: Any) -> Iterator[str]:
    """Yield the kinds of kernels over rows or elements that serve a function, symbolic or not."""
    for kind in CHOOSERS:
        try:
            with target:
                schedule_with(mod, CLASSES[kind]())
        except HopperError:
            continue
        yield kind


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
