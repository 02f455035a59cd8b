r"""Fit the constants of the estimate to measured times, and say how good a choice they make.

    python -m benchmarks.calibration.fit_choice benchmarks/results/tile_times_*.json \
        benchmarks/results/population_times_*.json [--write]

Least squares of the logarithm of the time, by Levenberg's and Marquardt's method; configurations
far from a problem's best one count little. The loss is the geometric mean over problems of the time
of the chosen configuration by that of the best measured one; held out: of problems that the
constants were not fitted to (six folds). `--write` rewrites the module `products/rates.py`.

Of a population each problem has one time, that of the configuration that was chosen: such times say
where the estimate was too low, which is what configurations are chosen for.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import itertools
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvm_hopper.facts.devices import Chip
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.schedule.products.candidates import Candidates, instruction_columns
from tvm_hopper.schedule.products.estimate import KernelForm, estimate
from tvm_hopper.schedule.products.product_shape import ProductShape
from tvm_hopper.schedule.products.rate_constants import Rates
from tvm_hopper.schedule.products.rates import MEASURED
from tvm_hopper.schedule.products.ring_and_order import RASTER_GROUP, choose_raster_group
from tvm_hopper.schedule.products.split import ANYWHERE, STREAM

FOLDS = 6
EARLIER = 0.25  # weight of times from before tiles at an edge had boxes of their own
WEIGHTS = ((1.15, 1.0), (1.5, 0.5), (2.5, 0.15), (math.inf, 0.03))  # up to so many times the best
# How kernels of symbolic rows compare: fit_rows.py.
OF_ANY_ROWS = (
    "any_rows_start_saved_cycles",
    "multi_tile_cost",
    "multi_tile_split_k_cost",
    "third_consumer_cost_any_rows",
    "any_rows_workspace_cycles",
)
OF_ANY_ROWS += ("early_launch_saved_cycles", "sm_memory_bytes")
# Of which the times do not tell: edges (a kernel of symbolic rows does), and stores by TMA, which
# are none of the configurations that are read; `extra_tile_cost` is of kernels whose bound is
# known.
UNFITTED = {
    "edge_tile_cost",
    "tma_store_partial_sector_share",
    "third_consumer_cost",
    "transposed_store_bytes",
    "transposed_store_bytes_many_rows",
    "shifted_store_bytes",
    "element_store_bytes",
    "box_store_bytes",
    "pair_store_bytes",
    "single_consumer_tile_cycles",
    "shared_columns_cost",
    "run_store_cost",
    "extra_tile_cost",
    *OF_ANY_ROWS,
}
NAMES = [field.name for field in dataclasses.fields(Rates) if field.name not in UNFITTED]
STEP = 1e-4  # of a constant's logarithm
TARGET = Path(__file__).parents[2] / "tvm_hopper" / "schedule" / "products" / "rates.py"


@dataclass(frozen=True, eq=False)
class Measured:
    """One problem, its configurations and their times in us."""

    product: ProductShape
    # Multiplied one way and the other, parts of a sum that meet in clusters and in a workspace.
    parts: tuple[tuple[ProductShape, Candidates, bool], ...]
    times: Any  # of all parts, one after the other
    cublas: float
    spare: bool = False  # boxes beyond an edge were loaded from within
    turned: bool = False  # transposed tiles of many columns stored vectors
    shifted: bool = False  # tiles of any columns did

    @property
    def name(self) -> str:
        """Extents, type and the way that rows of the operands run."""
        p = self.product
        return f"{p.m}x{p.n}x{p.k} {'/'.join(p.majors)} {p.dtype}"

    @property
    def slower(self) -> Any:
        """Each time by the least one."""
        return self.times / self.times.min()

    def guess(self, rates: Rates) -> Any:
        """Estimate each time."""
        return np.concatenate(
            [
                estimate(
                    product,
                    tiles,
                    Chip(),
                    rates,
                    KernelForm(by_kernels, self.spare, turned=self.turned, shifted=self.shifted),
                )
                for product, tiles, by_kernels in self.parts
            ]
        )

    def describe(self, i: int) -> str:
        """Name one configuration."""
        for product, tiles, by_kernels in self.parts:
            if i < len(tiles):
                way = " transposed" * product.is_transposed
                way += f" in {tiles.parts[i]}" * bool(tiles.parts[i] > 1)
                way += " by kernels" * by_kernels
                blocks = tiles.rows_of_blocks[i], tiles.columns_of_blocks[i]
                way += f" cluster {blocks[0]}x{blocks[1]}" * (blocks != (1, 1))
                return f"{'x'.join(map(str, tiles.tile(i)))}/{tiles.consumers[i]}{way}"
            i -= len(tiles)
        raise IndexError(i)


def read(path: Path) -> list[Measured]:
    """Read what `tile_times` wrote; configurations with more than would be chosen are left out.

    Where a configuration was measured twice, the smaller time counts.
    """
    found = []
    content = json.loads(path.read_text())
    for row in map(as_times, content["rows"]):
        m, n, k, layout, dtype = row["problem"]
        kinds = itertools.product((False, True), repeat=2)
        times: dict[tuple[bool, bool], dict[tuple[int, ...], float]] = {x: {} for x in kinds}
        for config, time in zip(row["configs"], row["us"], strict=True):
            if time is not None and "tile" in config and is_a_choice(config, row["problem"]):
                kind = bool(config.get("transposed")), config.get("split_mode") in ANYWHERE
                part, key = times[kind], key_of(config, k, dtype)
                part[key] = min(time, part.get(key, math.inf))
        majors = ("k" if layout[0] == "N" else "mn", "k" if layout[1] == "T" else "mn")
        size, batch = dtype_bytes(row.get("out_dtype", dtype)), row.get("batch", 1)
        product = ProductShape(m, n, k, dtype, majors, size, batch=batch)
        parts = [
            (
                product.transposed if way else product,
                Candidates(*np.array(list(part)).T),
                by_kernels,
            )
            for (way, by_kernels), part in times.items()
            if part
        ]
        if parts:
            values = np.array([time for part in times.values() for time in part.values()])
            spare = "spare_rows" in content or "config" in row
            stores = "turned_stores" in content, "shifted_stores" in content
            found.append(Measured(product, tuple(parts), values, row["cublas"], spare, *stores))
    return found


def as_times(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of `tile_times`, also of one of a population whose configuration is known."""
    problem = row["problem"]
    if isinstance(problem, list):
        return row
    known = "ours" in row and row.get("config")
    return row | {
        "problem": [problem[name] for name in ("m", "n", "k", "layout", "dtype")],
        "configs": [row["config"]] if known else [],
        "us": [row["ours"]["median_us"]] if known else [],
        "cublas": row["cublas"]["median_us"] if known else math.nan,
    }


FIELDS = {
    "tile",
    "consumers",
    "wgmma_pending",
    "stages",
    "raster_group",
    "transposed",
    "split_k",
    "split_mode",
    "cluster",
}


def is_a_choice(config: dict[str, Any], problem: list[Any]) -> bool:
    """Tell whether a configuration differs from what would be chosen in its tile alone."""
    m, n, k, _, dtype = problem
    rows, columns, _ = config["tile"]
    if config.get("split_mode") == STREAM:
        return False  # on request alone
    if config.get("transposed"):
        m, n = n, m
    if tuple(config.get("cluster", (1, 1))) != (1, 1) or config.get("split_mode"):
        return set(config) <= FIELDS  # orders of clusters were not varied
    way = config.get("transposed")
    group = choose_raster_group(m, n, k, (rows, columns), dtype, Chip().num_sms, is_transposed=way)
    # What is left open is in the order that was the rule for all but transposed tiles.
    measured = config.get("raster_group", group if way else min(RASTER_GROUP, math.ceil(m / rows)))
    return set(config) <= FIELDS and (
        measured == group or n <= columns
    )  # in one column is one order


def key_of(config: dict[str, Any], k: int, dtype: str) -> tuple[int, ...]:
    """Return the columns of `Candidates` for a configuration."""
    rows, columns, depth = config["tile"]
    consumers = config["consumers"]
    by_rows = int(rows % (64 * consumers) == 0)
    parts = config.get("split_k", 1)
    steps = max(2, -(-k // (depth * parts)))
    size = dtype_bytes(dtype)
    stages = min(6, 232448 // ((rows + columns) * depth * size + 16), steps)
    width = instruction_columns(columns if by_rows else columns // consumers, consumers, dtype)
    stages = config.get("stages", stages)
    pending = config.get("wgmma_pending", 0)
    blocks = config.get("cluster", (1, 1))
    return rows, columns, depth, consumers, by_rows, width, stages, pending, parts, *blocks


def residuals(logs: Any, data: list[Measured], start: Rates, names: list[str]) -> Any:
    """Return the weighted errors of the time's logarithm."""
    rates = dataclasses.replace(start, **dict(zip(names, np.exp(logs).tolist(), strict=True)))
    errors = []
    for one in data:
        limits, weights = zip(*WEIGHTS, strict=True)
        weight = np.array(weights)[np.searchsorted(limits, one.slower)]
        weight = weight * (1.0 if one.spare else EARLIER)
        errors.append(np.sqrt(weight) * np.log(one.guess(rates) / one.times))
    return np.concatenate(errors)


def fit(
    data: list[Measured], start: Rates, rounds: int = 60, names: list[str] | None = None
) -> Rates:
    """Return the constants with the least squares; `names` are changed, None: all."""
    names = names or NAMES
    logs = np.log([max(getattr(start, name), 1e-6) for name in names])
    logs = least_squares(lambda x: residuals(x, data, start, names), logs, rounds)
    return dataclasses.replace(start, **dict(zip(names, np.exp(logs).tolist(), strict=True)))


def least_squares(errors_at: Callable[[Any], Any], logs: Any, rounds: int) -> Any:
    """Return where the squares of what a function returns are least, from a place on."""
    damping, errors = 1e-2, errors_at(logs)
    for _ in range(rounds):
        unit = np.eye(len(logs)) * STEP
        slopes = np.stack([(errors_at(logs + u) - errors) / STEP for u in unit], axis=1)
        square, slope = slopes.T @ slopes, slopes.T @ errors
        for _ in range(8):
            matrix = square + damping * np.diag(np.diag(square) + 1e-6)
            move = np.clip(-np.linalg.solve(matrix, slope), -0.7, 0.7)
            trial = errors_at(logs + move)
            if trial @ trial < errors @ errors:
                break
            damping *= 4
        else:
            break
        gain = 1 - (trial @ trial) / (errors @ errors)
        logs, errors, damping = logs + move, trial, max(damping / 5, 1e-8)
        if gain < 1e-6:
            break
    return logs


def losses(data: list[Measured], rates: Rates) -> list[float]:
    """Return how many times the best measured time the chosen one takes, for each problem."""
    return [float(x.slower[np.argmin(x.guess(rates))]) for x in data]


def with_several(data: list[Measured]) -> list[Measured]:
    """Return the problems that leave a choice."""
    return [x for x in data if len(x.times) > 1]


def held_out(data: list[Measured], start: Rates, names: list[str] | None = None) -> list[float]:
    """Return the losses of problems that the constants were not fitted to."""
    order = np.random.default_rng(0).permutation(len(data))
    found = [0.0] * len(data)
    for fold in range(FOLDS):
        left_out = set(order[fold::FOLDS].tolist())
        rates = fit([x for i, x in enumerate(data) if i not in left_out], start, 12, names)
        for i in left_out:
            (found[i],) = losses([data[i]], rates)
    return found


def mean(values: list[float]) -> float:
    """Return the geometric mean."""
    return math.exp(float(np.mean(np.log(values))))


def spread(data: list[Measured], rates: Rates) -> float:
    """Return the root mean square error of the time's logarithm near the best configurations."""
    errors = [np.log(x.guess(rates) / x.times)[x.slower < WEIGHTS[0][0]] for x in data]
    return float(np.sqrt(np.mean(np.concatenate(errors) ** 2)))


def module(rates: Rates, comment: str) -> str:
    """Return the source of `rates.py`."""
    lines = [f'"""The constants of the estimate, as fitted.\n\n{comment}"""\n']
    lines += ["from .rate_constants import Rates\n", "MEASURED = Rates("]
    lines += [f"    {name}={float(f'{getattr(rates, name):.4g}')!r}," for name in NAMES]
    return "\n".join([*lines, ")", ""])


def describe(data: list[Measured], rates: Rates, inside: list[float], outside: list[float]) -> str:
    """Say when the constants were fitted, to what, and how good a choice they make."""
    near = f"within {100 * (WEIGHTS[0][0] - 1):.0f}% of the best"
    lost, lost_outside = (f"{100 * mean(x) - 100:.1f}%" for x in (inside, outside))
    return (
        f"Fitted {datetime.date.today()} by benchmarks/calibration/fit_choice.py to\n"
        f"{sum(len(x.times) for x in data)} times of {len(data)} problems on an H200.\n\n"
        f"Root mean square error of a time {near}: {100 * spread(data, rates):.1f}%.\n"
        f"The chosen configuration takes {lost} longer than the best measured one,\n"
        f"{lost_outside} on problems that were held out (geometric means).\n"
    )


def main(arguments: list[str]) -> int:
    """Fit, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--worst", type=int, default=0, help="print so many problems")
    parser.add_argument("--only", nargs="+", choices=NAMES, help="constants; others stay")
    options = parser.parse_args(arguments)
    data = [x for path in options.files for x in read(path)]
    start = MEASURED if options.only else Rates()
    rates = fit(data, start, names=options.only)
    outside = [
        x
        for x, one in zip(held_out(data, rates, options.only), data, strict=True)
        if len(one.times) > 1
    ]
    data = with_several(data)
    inside = losses(data, rates)
    comment = describe(data, rates, inside, outside)
    print(module(rates, comment))
    worst = sorted(zip(outside, data, strict=True), key=lambda x: -x[0])[: options.worst]
    for loss, one in worst:
        guess = one.guess(rates)
        shown = [
            f"{one.describe(i)} {one.times[i]:.1f} ({guess[i]:.1f})"
            for i in (*np.argsort(one.times)[:3], *np.argsort(guess)[:2])
        ]
        print(f"{loss:.3f} {one.name}: {', '.join(shown)}")
    for name, belongs in {
        "M up to 64": lambda p: p.m <= 64,
        "deep K": lambda p: p.m > 64 and p.k >= 4 * max(p.m, p.n),
        "others": lambda p: p.m > 64 and p.k < 4 * max(p.m, p.n),
    }.items():
        part = [loss for loss, one in zip(outside, data, strict=True) if belongs(one.product)]
        print(f"{name}: {len(part)} problems, held-out loss {mean(part):.4f}")
    if options.write:
        TARGET.write_text(module(rates, comment))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
