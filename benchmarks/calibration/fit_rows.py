r"""Fit the constants by which kernels of symbolic rows are compared, to times of such kernels.

    python -m benchmarks.calibration.fit_rows benchmarks/results/row_matrix_*.json \
        --symbolic benchmarks/results/symbolic_*.json

Least squares of the logarithm of the time, as in `fit_choice`, of kernels of one product at one
number of rows against each other; how long they all take counts little. Kernels in a file are named
by the rows that they were chosen for: the choice has to be the one that they were timed with. Of
tables of `benchmarks.symbolic` kernels count against static builds, at up to 512 rows. What
is printed are the values for `estimate.Rates`, and the error on each layer: of the constants that
there are, of those fitted to all layers, and of those fitted to the others.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvm_hopper.facts.devices import Chip
from tvm_hopper.schedule.products.class_choice import AnyRows, estimate_all
from tvm_hopper.schedule.products.model import as_product, choose_config
from tvm_hopper.schedule.products.product_shape import ProductShape
from tvm_hopper.schedule.products.rate_constants import Rates
from tvm_hopper.schedule.products.rates import MEASURED

from .fit_choice import OF_ANY_ROWS, least_squares

WEIGHTS = ((1.1, 1.0), (1.25, 0.5), (np.inf, 0.15))  # up to so many times the best
# Kernels timed by `row_matrix` may be given any number of rows: those whose bound is known take so
# much less, in us, but where parts of sums meet in clusters. Medians of 69 and 16 such pairs. Of
# several transposed tiles across they have another order too, so that these times are left out.
OPEN = 0.36
OF_ALL = 0.3  # weight of how long all kernels take, beside a factor that they share
ROUNDS = 40
MOST_ROWS = 512  # of a product for which a static build is compared


@dataclass(frozen=True, eq=False)
class Layer:
    """Kernels of one product by the rows they are for, and their times at numbers of rows."""

    n: int
    k: int
    rows: tuple[int, ...]
    configs: list[Any]
    times: Any  # rows x kernels, in us; NaN: not timed

    def errors(self, rates: Rates) -> Any:
        """Return the logarithm of estimate by time; rows x kernels."""
        types = "float16", ("k", "k"), "float16"
        wanted = [as_product(m, self.n, self.k, *types) for m in self.rows]
        guess = estimate_all(wanted, self.configs, Chip(), any_rows=True, rates=rates)
        return np.log(guess / self.times)

    @property
    def weights(self) -> Any:
        """Return what each time counts for."""
        limits, weights = zip(*WEIGHTS, strict=True)
        slower = self.times / np.nanmin(self.times, axis=1, keepdims=True)
        of_each = np.array(weights)[np.searchsorted(limits[:-1], slower)]
        return np.where(np.isnan(slower), 0, of_each)


def read(path: Path) -> list[Layer]:
    """Read what `row_matrix` wrote: kernels whose thread blocks share out all tiles."""
    times: dict[tuple[int, int], dict[int, dict[int, float]]] = {}
    for row in json.loads(path.read_text())["table"]:
        n, k = map(int, row["N x K"].split(" x "))
        found = re.findall(r"many:(\d+) ([\d.]+)", row["kernels us"])
        if found:
            times.setdefault((n, k), {})[int(row["M"])] = {int(x): float(us) for x, us in found}
    layers = []
    for (n, k), by_rows in times.items():
        rungs = sorted({x for one in by_rows.values() for x in one})
        asked = AnyRows.of("fit_rows", n, k, "float16", None, ("k", "k"), None)
        configs = asked.choose(rungs)
        table = np.array([[one.get(x, np.nan) for x in rungs] for one in by_rows.values()])
        table -= [0.0 if x.parts > 1 and x.split_mode is None else OPEN for x in configs]
        across = np.array([x.tile[1] if x.transposed else np.inf for x in configs])
        rows = np.array(list(by_rows))
        table[rows[:, None] > across] = np.nan
        timed = ~np.isnan(table).all(axis=1)
        layers.append(Layer(n, k, tuple(rows[timed].tolist()), configs, table[timed]))
    return layers


def residuals(layer: Layer, rates: Rates, scale: float = 0.0) -> tuple[Any, Any]:
    """Return weighted errors of kernels against each other, and of all kernels of a product."""
    errors, weights = np.nan_to_num(layer.errors(rates)), layer.weights
    together = (errors * weights).sum(axis=1) / weights.sum(axis=1)
    apart = (errors - together[:, None]) * np.sqrt(weights)
    return apart.ravel(), OF_ALL * (together + scale) * np.sqrt(weights.sum(axis=1))


@dataclass(frozen=True, eq=False)
class Pair:
    """A kernel of symbolic rows and a static build of one product, and the ratio of their times."""

    product: ProductShape
    configs: tuple[Any, Any]
    ratio: float  # of the static build's time to the other

    def error(self, rates: Rates) -> float:
        """Return the logarithm of the estimated ratio by the measured one."""
        types = {"any_rows": True, "rates": rates}
        ((symbolic, static),) = estimate_all([self.product], self.configs, Chip(), **types)
        return float(np.log(static / symbolic / self.ratio))


def read_pairs(path: Path) -> list[Pair]:
    """Read what `symbolic` wrote; static builds whose blocks load for one another are left out."""
    pairs = []
    for row in json.loads(path.read_text())["table"]:
        if not row["M"] or int(row["M"]) > MOST_ROWS or int(row["kernel for"]) == 1:
            continue
        (n, k), m = map(int, row["N x K"].split(" x ")), int(row["M"])
        asked = AnyRows.of("fit_rows", n, k, "float16", None, ("k", "k"), None)
        (kernel,) = asked.choose([int(row["kernel for"])])
        static = choose_config(m, n, k)
        if static.cluster in (None, (1, 1)):
            product = as_product(m, n, k, "float16", ("k", "k"), "float16")
            pairs.append(Pair(product, (kernel, static), float(row["of static"])))
    return pairs


def fit(
    layers: list[Layer], start: Rates, rounds: int = ROUNDS, pairs: Sequence[Pair] = ()
) -> Rates:
    """Return the constants with the least squares."""

    def rates_at(logs: Any) -> Rates:
        values = zip(OF_ANY_ROWS, np.exp(logs[:-1]).tolist(), strict=True)
        return dataclasses.replace(start, **dict(values))

    def errors_at(logs: Any) -> Any:
        found = [residuals(x, rates_at(logs), logs[-1]) for x in layers]
        against = np.array([x.error(rates_at(logs)) for x in pairs])
        return np.concatenate([*(part for pair in found for part in pair), against])

    logs = np.log([max(getattr(start, name), 1e-6) for name in OF_ANY_ROWS])
    return rates_at(least_squares(errors_at, np.append(logs, 0.0), rounds))


def spread(layers: list[Layer], rates: Rates) -> float:
    """Return the root mean square error of kernels against each other."""
    squares = sum(float((residuals(x, rates)[0] ** 2).sum()) for x in layers)
    return float(np.sqrt(squares / sum(float(x.weights.sum()) for x in layers)))


def main(arguments: list[str]) -> int:
    """Fit and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--symbolic", nargs="*", type=Path, default=(), help="tables of symbolic")
    options = parser.parse_args(arguments)
    layers = [x for path in options.files for x in read(path)]
    pairs = [x for path in options.symbolic for x in read_pairs(path)]
    rates = fit(layers, MEASURED, pairs=pairs)
    for name in OF_ANY_ROWS:
        print(f"    {name}: float = {getattr(rates, name):.4g}")
    print("layer, kernels' times, errors: as they are, fitted to all, to the other layers")
    for layer in layers:
        others = [x for x in layers if (x.n, x.k) != (layer.n, layer.k)]
        kinds = MEASURED, rates, fit(others, MEASURED) if others else rates
        errors = " ".join(f"{spread([layer], x):.4f}" for x in kinds)
        print(f"{layer.n}x{layer.k}", int((layer.weights > 0).sum()), errors)
    print("all", f"{spread(layers, MEASURED):.4f} {spread(layers, rates):.4f}")
    if pairs:
        before, after = (np.array([x.error(y) for x in pairs]) for y in (MEASURED, rates))
        errors = " ".join(f"{np.sqrt((x**2).mean()):.4f}" for x in (before, after))
        print("against static builds", len(pairs), errors)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
