"""Cost model: the package's estimate, corrected by measurements.

    log(time) = log(estimate) + offset + f(features)          f: a Gaussian process

What is near a measured configuration is corrected as that one was, what is far is left as it was
estimated, and the model knows how sure it is. Its length and noise are those under which the
measured times are likeliest, out of a small grid. Problems of the same form lend their
measurements, with an offset of their own: the clock of another day does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]

LENGTHS = (1.0, 2.0, 4.0)  # in units of the features' spread
NOISES = (0.005, 0.03)  # of log(time): a kernel timed twice
SPREAD = 0.25  # of log(time / estimate): how far the estimate is off
MOST_POINTS = 400  # that are solved for; the latest ones
WORST = 1.0  # log of time / estimate, at which a failed configuration is counted


@dataclass(frozen=True)
class Residuals:
    """Measurements of one problem: features, and log(time / estimate)."""

    features: Floats
    residuals: Floats


class CostModel:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._features: Floats | None = None
        self._offset = 0.0
        self._length, self._noise = LENGTHS[1], NOISES[1]

    def fit(self, residuals: Residuals, others: Sequence[Residuals] = ()) -> None:
        """Learn from the measurements of a problem, and from those of problems like it.

        - `residuals`: of the problem that is predicted.
        - `others`: of problems of the same form.
        """
        offsets = [float(np.median(x.residuals)) for x in (residuals, *others) if len(x.residuals)]
        self._offset = offsets[0] if offsets else 0.0
        rows = [residuals.features] * bool(len(residuals.residuals))
        values = [residuals.residuals - self._offset] * bool(len(residuals.residuals))
        for other in others:
            if len(other.residuals):
                rows.append(other.features)
                values.append(other.residuals - float(np.median(other.residuals)))
        if not rows:
            self._features = None
            return
        # Own points come first: those are kept where there are too many.
        self._features = np.concatenate(rows)[:MOST_POINTS]
        self._values = np.clip(np.concatenate(values)[:MOST_POINTS], -WORST, WORST)
        if len(self._values) >= 4:
            grid = [(length, noise) for length in LENGTHS for noise in NOISES]
            self._length, self._noise = max(grid, key=lambda x: self._likelihood(*x))
        self._factor = self._cholesky(self._length, self._noise)
        self._weights = _solve(self._factor, self._values)

    def predict(self, features: Floats) -> tuple[Floats, Floats]:
        """Return what log(time / estimate) is expected to be, and how sure that is."""
        if self._features is None:
            return np.zeros(len(features)), np.full(len(features), SPREAD)
        near = _kernel(features, self._features, self._length)
        mean = self._offset + near @ self._weights
        reached = np.linalg.solve(self._factor, near.T)
        left = np.maximum(SPREAD**2 - (reached**2).sum(axis=0), 1e-8)
        return np.asarray(mean), np.asarray(np.sqrt(left))

    def _cholesky(self, length: float, noise: float) -> Floats:
        assert self._features is not None
        both = _kernel(self._features, self._features, length)
        return np.asarray(np.linalg.cholesky(both + (noise**2 + 1e-8) * np.eye(len(both))))

    def _likelihood(self, length: float, noise: float) -> float:
        factor = self._cholesky(length, noise)
        misfit = float(self._values @ _solve(factor, self._values))
        return -misfit / 2 - float(np.log(np.diag(factor)).sum())


def _kernel(left: Floats, right: Floats, length: float) -> Floats:
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None, :]
    distances = np.maximum(squares - 2 * left @ right.T, 0)
    return np.asarray(SPREAD**2 * np.exp(-distances / (2 * length**2)))


def _solve(factor: Floats, values: Floats) -> Floats:
    return np.asarray(np.linalg.solve(factor.T, np.linalg.solve(factor, values)))
