"""Kernels whose time is that of their bytes: reductions of rows, and elementwise programs.

There is no model of a single configuration here that could order them: the choice of the package
comes first, and what is close to it next, until measured times say more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.errors import HopperError
from tvm_hopper.facts.programming_model import THREADS_PER_WARP
from tvm_hopper.requests import keys
from tvm_hopper.schedule import PointwiseConfig, RowReductionConfig
from tvm_hopper.schedule.row_reduction.config import fits_block
from tvm_hopper.schedule.row_reduction.model import CLUSTERS

from .configurations import CLASSES, Configuration, kind_of
from .problems import Floats, Problem, bytes_of
from .scheduling import canonical, schedule_with

ROW_THREADS = (4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 1024)
ROWS = (1, 2, 4, 8)
ELEMENT_THREADS = (64, 128, 256, 512, 1024)
CHUNKS = (1, 2, 3, 4, 8)
AGAIN = ((False, False), (True, False), (True, True))  # what is computed again, and loaded again
FAR = 0.03  # by which a configuration is taken to be slower for each doubling away from the choice
EFFICIENCY = 0.85  # share of the bound that a kernel reaches
CHOSEN = (  # what `explain` says of a choice, and the fields of it
    (r"(\d+) threads", "threads"),
    (r"(\d+) vectors? of \d+", "chunks"),
    (r"\d+ vectors? of (\d+)", "vector"),
    (r"(\d+) rows a thread block", "rows"),
    (r"(\d+) thread blocks an SM", "blocks"),
    (r"each of (\d+) thread blocks of a cluster", "cluster"),
)


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
        found = [
            RowReductionConfig(threads, rows, vector, preload, recompute, reload)
            for threads, rows, vector, preload, (recompute, reload) in product(
                ROW_THREADS, ROWS, vectors, (True, False), AGAIN
            )
            if fits_block(threads, rows)
        ]
        one = self.choice.cluster
        sizes = sorted({max(1, one // 2), one, min(CLUSTERS[-1], 2 * one)}) if one else []
        alone = [x for x in found if x.rows == 1 and (x.threads or 0) >= THREADS_PER_WARP]
        of_clusters = [replace(x, cluster=size) for size in sizes for x in alone]
        return [*(of_clusters or found)]

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
            chunks = max(1.0, self.extents[1] / (threads * vector * (config.cluster or 1)))
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
    for kind in ("row_reduction", "pointwise"):
        made = CLASSES[kind]
        try:
            with target:
                sch = schedule_with(func, made())
        except HopperError:
            continue
        choice = _choice_of(sch.mod["main"], made)
        mod = canonical(func)
        shape = _largest(mod["main"])
        form = f"{kind} {_signature(mod['main'])}"
        return MemoryProblem(mod, target, form, shape, bytes_of(mod["main"]), 0, choice)
    return None


def _choice_of(func: tirx.PrimFunc, made: type[Any]) -> Any:
    """Read the choice of the package off the sentence that it leaves for `explain`."""
    loops = ir.find_all(func.body, ir.For, lambda x: keys.CHOSEN in x.annotations)
    text = str(loops[0].annotations[keys.CHOSEN]).split("; then")[0] if loops else ""
    names = {field.name for field in fields(made)}
    given: dict[str, Any] = {}
    for pattern, name in CHOSEN:
        found = re.search(pattern, text)
        if found and name in names:
            given[name] = int(found[1])
    if made is RowReductionConfig:
        given.setdefault("rows", 1)
        given["preload"] = "share first" in text
        given["recompute"] = "and the like twice" in text
        given["reload"] = "loaded twice" in text
        if "by each pass" not in text:  # else a row has more vectors than are in flight together
            given.pop("chunks", None)
    choice = made(**given)
    assert kind_of(choice)
    return choice


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
