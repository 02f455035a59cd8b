"""Search strategy: choose the next configurations to measure.

    trial 0      the choice of the package, as it is without tuning
    trials 1..3  the best of problems like this one, as far as they are legal here
    the rest     by expected improvement: the model's time, and how unsure it is of it

No kernel is measured twice: two configurations that make the same one are known by it. What was
measured before, by this run or another one, is learnt from in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import s_tir

from .configurations import Configuration
from .cost_model import WORST, CostModel, Residuals
from .problems import Floats, Problem
from .schedulers import Schedule, scheduled_here

MOST_STARTS = 3  # configurations of other problems that are tried before the model is asked
UNLIKE = 3  # every so manyth trial is of an untried shape, whatever was learnt
FARTHEST = 6.0  # standard deviations, beyond which all of a distribution lies on one side
MOST_REFUSED = 64  # illegal configurations in a row before the search gives up


@dataclass(frozen=True, eq=False)
class Candidate:
    """A configuration that is worth a trial.

    - `kernel`: names the kernel, whatever configuration made it.
    - `predicted_us`: what the model expected before the trial, in microseconds.
    - `sch`: of `mod`, where this process made it.
    """

    config: Configuration
    mod: tvm.IRModule
    kernel: str
    predicted_us: float
    sch: s_tir.Schedule | None = None


@dataclass(frozen=True)
class Measured:
    """A configuration that was tried, and its time in microseconds; None: it failed."""

    config: Configuration
    kernel: str
    microseconds: float | None


class Search:
    """The search of one problem.

    - `problem`: what is searched.
    - `known`: trials of this problem, of earlier runs.
    - `near`: trials of problems of the same form, the nearest one first.
    - `schedule`: schedules configurations, see `schedulers.scheduled_here`.
    """

    def __init__(
        self,
        problem: Problem,
        known: Iterable[Measured] = (),
        near: Sequence[tuple[Problem, Sequence[Measured]]] = (),
        schedule: Schedule = scheduled_here,
    ) -> None:
        self.problem = problem
        self._schedule = schedule
        self.refused = 0
        self._space = problem.configurations()
        self._estimates = problem.estimates(self._space)
        self._features = problem.features(self._space)
        self._open = np.ones(len(self._space), dtype=bool)
        self._order: list[int] = self._estimates.argsort(kind="stable").tolist()
        self._shapes = [problem.shape_of(x) for x in self._space]
        self._known_shapes: set[Any] = set()
        self._picks = 0
        self._place = {config: i for i, config in enumerate(self._space)}
        self._kernels: set[str] = set()
        self._flying: dict[str, int] = {}  # places of what was proposed and not reported yet
        self._measured: list[Measured] = []
        self._model = CostModel()
        self._is_stale = True
        self._gain: float | None = None
        self._near = [points_of(other, trials) for other, trials in near]
        built_in = problem.built_in()
        self._first = [built_in]
        self._starts = [x for x in _starts(near) if x in self._place]
        for trial in known:
            self.report(trial)
        if any(trial.config == built_in for trial in self._measured):
            self._first = []

    @property
    def best(self) -> Measured | None:
        """The fastest configuration so far."""
        timed = [x for x in self._measured if x.microseconds is not None]
        return min(timed, key=lambda x: x.microseconds or math.inf, default=None)

    @property
    def first_us(self) -> float | None:
        """The time of the package's own choice, if it was measured."""
        built_in = self.problem.built_in()
        times = (x.microseconds for x in self._measured if x.config == built_in)
        return next(times, None)

    @property
    def is_exhausted(self) -> bool:
        """Whether every configuration was tried or refused."""
        return not self._first and not self._open.any()

    def report(self, trial: Measured) -> None:
        """Learn from a trial."""
        self._measured.append(trial)
        self._kernels.add(trial.kernel)
        self._flying.pop(trial.kernel, None)
        if (place := self._place.get(trial.config)) is not None:
            self._open[place] = False
            self._known_shapes.add(self._shapes[place])
        self._is_stale = True

    def expected_gain(self) -> float:
        """Return the part of the best time that the next trial is expected to save."""
        if self._first or self.best is None:
            return math.inf
        if not self._open.any():
            return 0.0
        self._refit()
        if self._gain is None:  # every step of a run requests it of all functions
            self._gain = float(self._improvements().max())
        return self._gain

    def propose(self, count: int) -> list[Candidate]:
        """Return up to so many candidates; fewer where no more are left.

        - `count`: how many.
        """
        candidates: list[Candidate] = []
        refused = 0
        pending = list(self._flying.values())
        while len(candidates) < count and refused < MOST_REFUSED:
            picked = self._pick(min(count - len(candidates), MOST_REFUSED), pending)
            if not picked:
                break
            refused += len(picked) - self._take(picked, candidates)
        return candidates

    def _pick(self, count: int, pending: list[int]) -> list[Configuration]:
        """Return configurations that come next, which are open no more."""
        picked: list[Configuration] = []
        while len(picked) < count and (self._first or self._starts):
            config = (self._first or self._starts).pop(0)
            if (place := self._place.get(config)) is not None:
                self._open[place] = False
            picked.append(config)
        while len(picked) < count and self._open.any():
            self._picks += 1
            place = self._unlike() if self._picks % UNLIKE == 0 else None
            if place is None:
                scores = np.where(self._open, self._improvements(pending), -np.inf)
                place = int(scores.argmax())
            pending.append(place)
            self._open[place] = False
            self._known_shapes.add(self._shapes[place])
            picked.append(self._space[place])
        return picked

    def _unlike(self) -> int | None:
        """Return the best estimated configuration of an untried shape."""
        for place in self._order:
            if self._open[place] and self._shapes[place] not in self._known_shapes:
                return place
        return None

    def _take(self, picked: list[Configuration], candidates: list[Candidate]) -> int:
        """Schedule configurations; take those that are legal and make separate kernels."""
        # The choice of the package is none of the space: all is to be as usual there.
        requests = [(config, config in self._place) for config in picked]
        taken = 0
        for config, made in zip(picked, self._schedule(self.problem, requests), strict=True):
            if made is None:
                self.refused += 1
                continue
            if made.kernel in self._kernels:
                continue
            self._kernels.add(made.kernel)
            if (place := self._place.get(config)) is not None:
                self._flying[made.kernel] = place
            predicted = self.predicted_us(config)
            candidates.append(Candidate(config, made.mod, made.kernel, predicted, made.sch))
            taken += 1
        return taken

    def predicted_us(self, config: Configuration) -> float:
        """Return the time that the model expects of a configuration, in microseconds."""
        self._refit()
        complete = [self.problem.resolved(config)]
        (mean,), _ = self._model.predict(self.problem.features(complete))
        return float(self.problem.estimates(complete)[0] * np.exp(mean))

    def _refit(self) -> None:
        if self._is_stale:
            residuals = Residuals(self._features[:0], np.zeros(0))
            if self._measured:
                residuals = points_of(self.problem, self._measured)
            self._model.fit(residuals, self._near)
            self._predicted = self._model.predict(self._features)
            self._is_stale, self._gain = False, None

    def _improvements(self, pending: Sequence[int] = ()) -> Floats:
        """Return the part of the best time that each configuration is expected to save.

        Neighbours of a running trial are worth less: its time will predict theirs.
        """
        self._refit()
        mean, deviation = self._predicted
        for place in pending:
            away = ((self._features - self._features[place]) ** 2).sum(axis=1)
            deviation = deviation * np.sqrt(1 - 0.98 * np.exp(-away / 2))
        times = np.log(self._estimates) + mean
        best = self.best.microseconds if self.best is not None else None
        least = float(np.log(best)) if best else float(times.min())
        score = (least - times) / deviation
        gain = deviation * (score * _below(score) + np.exp(-(score**2) / 2) / math.sqrt(2 * np.pi))
        # All but certain losses: the smaller loss first.
        return np.asarray(np.maximum(gain, 0) + 1e-9 / (1 + np.exp(np.clip(-score, -50, 50))))


def _below(score: Floats) -> Floats:
    """Return the share of a normal distribution below each score."""
    shares = np.where(score > 0, 1.0, 0.0)
    near = np.abs(score) < FARTHEST
    shares[near] = [0.5 * math.erfc(-x / math.sqrt(2)) for x in score[near].tolist()]
    return np.asarray(shares)


def points_of(problem: Problem, trials: Sequence[Measured]) -> Residuals:
    """Return trials as the cost model takes them: failures count as slow as anything."""
    configs = [problem.resolved(x.config) for x in trials]
    if not configs:
        return Residuals(np.zeros((0, 1)), np.zeros(0))
    estimates = problem.estimates(configs)
    timed = [
        math.log(x.microseconds / estimate)
        for x, estimate in zip(trials, estimates.tolist(), strict=True)
        if x.microseconds is not None
    ]
    worst = (float(np.median(timed)) if timed else 0.0) + WORST
    residuals = [
        worst if x.microseconds is None else math.log(x.microseconds / estimate)
        for x, estimate in zip(trials, estimates.tolist(), strict=True)
    ]
    return Residuals(problem.features(configs), np.array(residuals))


def _starts(near: Sequence[tuple[Problem, Sequence[Measured]]]) -> list[Configuration]:
    """Return the best configurations of other problems, without repetition."""
    configs: dict[Any, None] = {}
    for other, trials in near:
        timed = [x for x in trials if x.microseconds is not None]
        best = min(timed, key=lambda x: x.microseconds or math.inf, default=None)
        if best is not None:
            configs[best.config] = None
            configs[other.resolved(best.config)] = None
    return list(configs)[: 2 * MOST_STARTS]
