"""Our search as a MetaSchedule search strategy.

    ms.tir_integration.tune_tir(
        mod, target, work_dir, 64, space=space(explicit=True), strategy=ConfigurationStrategy(),
        cost_model="random", builder=..., runner=...)

It asks no cost model: the search has its own. What a database has of the function is learnt from,
and not measured again.
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from tvm_hopper.errors import TuningError
from tvm_hopper.requests.keys import CONFIGURATION

from .configurations import Configuration, from_text
from .problems import Problem
from .search import Candidate, Measured, Search
from .tasks import KINDS


@derived_object
class ConfigurationStrategy(ms.search_strategy.PySearchStrategy):
    """Proposes explicit configurations; of a function that is not ours, its designs as they are."""

    def __init__(self) -> None:
        super().__init__()
        self._search: Search | None = None

    def _initialize_with_tune_context(self, context: Any) -> None:
        self._mod, self._target = context.mod, context.target

    def pre_tuning(
        self,
        max_trials: int,
        num_trials_per_iter: int,
        design_spaces: Any,
        database: Any = None,
        cost_model: Any = None,
    ) -> None:
        """Begin: look at the function, and at what is known of it."""
        self._left, self._batch = int(max_trials), int(num_trials_per_iter)
        self._designs = list(design_spaces)
        self._arguments = ms.arg_info.ArgInfo.from_entry_func(self._mod, True)
        self._flying: list[Candidate] = []
        problem = find_problem(self._mod, self._target)
        if problem is not None:
            self._search = Search(problem, _known(database, self._mod))

    def post_tuning(self) -> None:
        """End; there is nothing to give back."""

    def generate_measure_candidates(self) -> Any:
        """Return the next batch, None when there is nothing left to try."""
        count = min(self._batch, self._left)
        if self._search is None:
            schedules = [self._designs.pop(0) for _ in range(min(count, len(self._designs)))]
        else:
            self._flying = self._search.propose(count) if count else []
            schedules = [x.sch for x in self._flying]
        self._left -= len(schedules)
        made = ms.search_strategy.MeasureCandidate
        return [made(sch, self._arguments) for sch in schedules] or None

    def notify_runner_results(self, candidates: Any, results: Any) -> None:
        """Learn from the batch."""
        if self._search is None:
            return
        for candidate, result in zip(self._flying, results, strict=False):
            times = None if result.run_secs is None else [float(x) for x in result.run_secs]
            time = None if times is None else 1e6 * sorted(times)[len(times) // 2]
            self._search.report(Measured(candidate.config, candidate.kernel, time))

    def clone(self) -> Any:
        """Return a strategy that has seen nothing."""
        return ConfigurationStrategy()


def find_problem(mod: Any, target: Any) -> Problem | None:
    """Return the problem of a module with one function, None if that is not for this package."""
    func = mod["main"]
    return next((x for kind in KINDS if (x := kind(func, target)) is not None), None)


def configuration_in(trace: s_tir.Trace) -> Configuration | None:
    """Return the configuration that a trace of ours annotates; None in any other."""
    for instruction in trace.insts:
        if instruction.kind.name == "Annotate" and str(instruction.attrs[0]) == CONFIGURATION:
            try:
                return from_text(
                    str(getattr(instruction.inputs[1], "value", instruction.inputs[1]))
                )
            except TuningError:
                return None
    return None


def _known(database: Any, mod: Any) -> list[Measured]:
    """Return what a stock database has of a function."""
    if database is None or not database.has_workload(mod):
        return []
    trials = []
    for record in database.get_top_k(database.commit_workload(mod), 1 << 20):
        config = configuration_in(record.trace)
        times = sorted(float(x) for x in record.run_secs or [])
        if config is not None and times:
            failed = times[0] > 1e9
            time = None if failed else 1e6 * times[len(times) // 2]
            trials.append(Measured(config, f"of {config}", time))
    return trials
