"""Fit the constants of memory-bound kernels to measured times; say how good a choice they make.

    python -m benchmarks.calibration.fit_row_rates benchmarks/results/row_times_*.json [--write]

A file has rows of a program, its size, configurations, and for each the share of a copy's rate that
it reached, or microseconds. Least squares of the logarithm of the time: configurations far from a
program's best one count little, and constants of which the times do not tell stay. The loss is how
many times the best measured one the chosen configuration takes; held out: of programs that the
constants were not fitted to (six folds). `--write` rewrites `memory_bound/row_rates.py`. Constants
that fit better may choose worse for a named kernel: compare by `python -m benchmarks.choices`.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.calibration.fit_choice import FOLDS, WEIGHTS, least_squares, mean
from tvm_hopper.errors import HopperError
from tvm_hopper.facts.devices import Chip
from tvm_hopper.schedule import RowReductionConfig
from tvm_hopper.schedule.memory_bound.estimate import MemoryModel
from tvm_hopper.schedule.memory_bound.row_rates import MEASURED, RowRates
from tvm_hopper.schedule.memory_bound.work import PersistentWork, RowWork
from tvm_hopper.schedule.row_reduction.apply import work_of
from tvm_hopper.schedule.row_reduction.model import choose_rows
from tvm_hopper.schedule.row_reduction.persistent_model import choose_persistent

Work = RowWork | PersistentWork

# Counts of bytes and of SMs by which thread blocks are counted: the time jumps with them, and the
# slope is none. `elementwise_bytes` is of kernels without rows.
STEPS = {"enough_bytes", "enough_reloaded", "prefetched_bytes", "staged_bytes", "paired_sms"}
STEPS |= {"elementwise_bytes", "resident_bytes", "least_bytes", "memory_bytes"}
NAMES = [x.name for x in dataclasses.fields(RowRates) if x.name not in STEPS]
TARGET = Path(__file__).parents[2] / "tvm_hopper/schedule/memory_bound/row_rates.py"
PRIOR = 0.5  # weight of a constant's logarithm: what the times do not tell stays as it is


@dataclass(frozen=True, eq=False)
class Measured:
    """One program, and its configurations with their times, in shares of a copy's."""

    name: str
    works: tuple[Work, ...]
    configs: tuple[RowReductionConfig, ...]
    times: Any

    @property
    def slower(self) -> Any:
        """How many times the best one each of them takes."""
        return self.times / self.times.min()

    def guess(self, rates: RowRates) -> Any:
        """Return the estimated times."""
        model = MemoryModel(Chip(), rates)
        pairs = zip(self.works, self.configs, strict=True)
        return np.array([1 / share(*pair, model) for pair in pairs])


def share(work: Work, config: RowReductionConfig, model: MemoryModel) -> float:
    """Estimate the share of memory's rate that a configuration reaches."""
    if isinstance(work, RowWork):
        return choose_rows("", work, config, model).rate / model.loaded_bytes
    one = choose_persistent("", work, config, model)
    return model.persistent_rate(work, one.tile, one.on_one, one.ahead, one.is_staged)


def read(path: Path) -> list[Measured]:
    """Read a file; what is no legal configuration any more is left out."""
    found = []
    for row in json.loads(path.read_text())["rows"]:
        shape, dtype = (row["rows"], row["columns"]), row["dtype"]
        function = program_of(row["program"], *shape, dtype)
        values = row["share"] if "share" in row else [1 / x for x in row["us"]]
        kept: dict[RowReductionConfig, float] = {}
        works: dict[tuple[bool, int | None], Work] = {}
        for config, value in zip(row["configs"], values, strict=True):
            try:
                legal = RowReductionConfig(**config)
                kind = legal.persistent is None, legal.vector
                if kind not in works:
                    works[kind] = work_of(function, legal)
                share(works[kind], legal, MemoryModel(Chip()))
            except (HopperError, TypeError):
                continue
            kept[legal] = min(1 / value, kept.get(legal, np.inf))
        if len(kept) > 1:
            of_each = tuple(works[x.persistent is None, x.vector] for x in kept)
            name = f"{row['program']} {shape[0]} x {shape[1]} {dtype}, {row['run']}"
            found.append(Measured(name, of_each, tuple(kept), np.array(list(kept.values()))))
    return found


def program_of(name: str, rows: int, columns: int, dtype: str) -> Any:
    """Return a named program in plain loops."""
    from benchmarks.memory_programs import PROGRAMS
    from tvm_hopper.testing import memory_bound

    if name in PROGRAMS:
        return PROGRAMS[name].build(rows, columns)
    return getattr(memory_bound, name)(rows, columns, dtype)


def residuals(logs: Any, data: list[Measured]) -> Any:
    """Return the weighted errors of the time's logarithm; a program's scale is left open."""
    rates = dataclasses.replace(MEASURED, **dict(zip(NAMES, np.exp(logs).tolist(), strict=True)))
    limits, weights = map(np.array, zip(*WEIGHTS, strict=True))
    errors = []
    for one in data:
        weight = np.sqrt(weights[np.searchsorted(limits, one.slower)])
        error = np.log(one.guess(rates) / one.times)
        errors.append(weight * (error - np.average(error, weights=weight)))
    kept = PRIOR * (logs - start_logs())
    return np.concatenate([*errors, kept])


def start_logs() -> Any:
    """Return the logarithms of the constants of now."""
    return np.log([max(getattr(MEASURED, name), 1e-6) for name in NAMES])


def fit(data: list[Measured], rounds: int = 8) -> RowRates:
    """Return the constants with the least squares."""
    logs = least_squares(lambda x: residuals(x, data), start_logs(), rounds)
    return dataclasses.replace(MEASURED, **dict(zip(NAMES, np.exp(logs).tolist(), strict=True)))


def losses(data: list[Measured], rates: RowRates) -> list[float]:
    """Return how many times the best measured time the chosen one takes, for each program."""
    return [float(x.slower[np.argmin(x.guess(rates))]) for x in data]


def held_out(data: list[Measured]) -> list[float]:
    """Return the losses of programs that the constants were not fitted to."""
    order = np.random.default_rng(0).permutation(len(data)).tolist()
    found = [0.0] * len(data)
    for fold in range(FOLDS):
        left_out = order[fold::FOLDS]
        rates = fit([data[i] for i in order if i not in left_out], 3)
        for i, loss in zip(left_out, losses([data[i] for i in left_out], rates), strict=True):
            found[i] = loss
    return found


def module(rates: RowRates, source: str) -> str:
    """Return the source of `row_rates.py` with other constants."""
    for name in NAMES:
        value = float(f"{getattr(rates, name):.4g}")
        source = re.sub(rf"(?m)^(    {name}: float = )[^ \n]+", rf"\g<1>{value!r}", source)
    return source


def main(arguments: list[str]) -> int:
    """Fit, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--worst", type=int, default=0, help="print so many programs")
    parser.add_argument("--no-fit", action="store_true", help="say how good the constants are")
    options = parser.parse_args(arguments)
    data = list(itertools.chain.from_iterable(map(read, options.files)))
    count = sum(len(x.times) for x in data)
    now = losses(data, MEASURED)
    print(f"{count} times of {len(data)} programs; constants of now: loss {mean(now):.4f}")
    for loss, one in sorted(zip(now, data, strict=True), key=lambda x: -x[0])[: options.worst]:
        print(f"  {loss:.3f} {one.name}: {one.configs[int(np.argmin(one.guess(MEASURED)))]}")
    if options.no_fit:
        return 0
    rates = fit(data)
    for name in NAMES:
        print(f"{name}: {getattr(MEASURED, name):.4g} -> {getattr(rates, name):.4g}")
    inside, outside = mean(losses(data, rates)), mean(held_out(data))
    print(f"loss {inside:.4f}, of programs that were held out {outside:.4f}")
    if options.write:
        TARGET.write_text(module(rates, TARGET.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
