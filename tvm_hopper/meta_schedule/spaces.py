"""Design spaces for MetaSchedule's own entry points.

    ms.tir_integration.tune_tir(mod, target, work_dir, 64, space=tvm_hopper.meta_schedule.space(),
                                cost_model="random", builder=..., runner=...)

space()                a product's tile and ring are sampled, so that TVM's evolutionary search
                       mutates them; `RefuseIllegal` refuses what no chip holds before it is built
space(explicit=True)   one design, for `ConfigurationStrategy`, which schedules by itself

Functions that are no kernels of ours get the schedule that TVM's dlight has for them.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from tvm import s_tir
from tvm.ir.utils import derived_object
from tvm.s_tir import dlight as dl, meta_schedule as ms

from tvm_hopper import ir, schedule as hs
from tvm_hopper.errors import HopperError, cannot_tune
from tvm_hopper.requests import keys
from tvm_hopper.schedule import MatmulConfig
from tvm_hopper.schedule.products.config import ARCH, find_violations

from .matmul_problems import MatmulProblem
from .problems import Problem
from .scheduling import reductions_of
from .strategies import find_problem
from .tasks import symbols_of

STRUCTURES = ((64, 1), (128, 1), (128, 2), (192, 3), (256, 2))  # rows of a tile and consumers
COLUMNS = (32, 64, 96, 128, 192, 256)
DEPTHS = (64, 128)
LAST_STAGES = (1, 2, 3, 4, 5, 6, 7)
MOST_DESIGNS = 24  # of a kernel over rows or elements


def space(explicit: bool = False) -> Any:
    """Return the space for TVM's own entries, with what belongs to it.

    Parameters
    ----------
    explicit : bool
        One design of each function, the package's choice, for `ConfigurationStrategy`, which
        schedules the rest by itself; else sizes are sampled, for TVM's evolutionary search.
    """
    return KernelSpace(explicit)


@derived_object
class KernelSpace(ms.space_generator.PySpaceGenerator):
    """Designs of kernels of ours; see `space`."""

    def __init__(self, explicit: bool) -> None:
        super().__init__()
        self._explicit = explicit
        self.sch_rules: list[Any] = []
        self.postprocs = [] if explicit else [RefuseIllegal()]
        self.mutator_probs = {} if explicit else {MutateSample(): 1.0}
        self._target: Any = None

    def _initialize_with_tune_context(self, context: Any) -> None:
        self._target = context.target

    def generate_design_space(self, mod: Any) -> list[s_tir.Schedule]:
        """Return the designs of a function."""
        refuse_symbolic(mod)
        problem = find_problem(mod, self._target)
        if problem is None:
            return [by_dlight(mod, self._target)]
        if self._explicit:
            return [problem.schedule(problem.built_in())]
        if isinstance(problem, MatmulProblem):
            return sampled_products(mod, problem) or [problem.schedule(problem.built_in())]
        return explicit_designs(problem)

    def clone(self) -> Any:
        """Return a space like this one."""
        return KernelSpace(self._explicit)


def refuse_symbolic(mod: Any) -> None:
    """Say what TVM's entries cannot say themselves: they describe arguments by numbers alone.

    - raises TuningError: an extent is symbolic.
    """
    func = mod["main"]
    if names := [x.name for x in symbols_of(func)]:
        raise cannot_tune(
            "design space",
            f"symbolic extents {', '.join(names)}",
            "a function with static ones",
            "tvm_hopper.tune tunes symbolic rows by size classes",
        )


def sampled_products(mod: Any, problem: MatmulProblem) -> list[s_tir.Schedule]:
    """Return a schedule for each structure, whose sizes are random variables.

    All four are sampled, rows among one candidate: so a trace tells them in this order, see
    `sampled_sizes`.
    """
    m, n, k = problem.extents
    columns = [x for x in COLUMNS if x < 2 * n] or [COLUMNS[0]]
    depths = [x for x in DEPTHS if x < 2 * k] or [DEPTHS[0]]
    designs = []
    for rows, consumers in STRUCTURES:
        if rows >= 2 * max(m, 64):
            continue
        for name in reductions_of(s_tir.Schedule(mod)):
            sch = s_tir.Schedule(mod)
            sizes = [_sample(sch, x) for x in ([rows], columns, depths, LAST_STAGES)]
            config = hs.MatmulConfig(
                tile=(sizes[0], sizes[1], sizes[2]),
                consumers=consumers,
                stages=sizes[3] + 1,
                accumulate=problem.accumulate,
            )
            try:
                with problem.target:
                    hs.matmul(sch, name, config)
            except HopperError:
                continue
            designs.append(sch)
            break
    return designs


def _sample(sch: s_tir.Schedule, values: Any) -> Any:
    return sch.sample_categorical(list(values), [1 / len(values)] * len(values))


def explicit_designs(problem: Problem) -> list[s_tir.Schedule]:
    """Return the package's choice and the configurations nearest to it, a schedule each."""
    configs = problem.configurations()
    order = np.argsort(problem.estimates(configs), kind="stable")
    designs = [problem.schedule(problem.built_in())]
    for place in order.tolist():
        if len(designs) == MOST_DESIGNS:
            break
        try:
            designs.append(problem.schedule(configs[place]))
        except HopperError:
            continue
    return designs


def by_dlight(mod: Any, target: Any) -> s_tir.Schedule:
    """Return TVM's default schedule of a function for GPUs."""
    with target:
        for rule in (dl.gpu.Reduction(), dl.gpu.GeneralReduction(), dl.gpu.Fallback()):
            designs = rule.apply(mod["main"], target, False)
            if designs is not None:
                return designs[0] if isinstance(designs, list) else designs
    return s_tir.Schedule(mod)


SIZES = 4  # samples of a product: rows, columns, depth of a tile, last stage


@derived_object
class RefuseIllegal(ms.postproc.PyPostproc):
    """Passes what `sampled_sizes` finds legal, and every schedule that it finds no sizes of."""

    def __init__(self) -> None:
        super().__init__()

    def _initialize_with_tune_context(self, context: Any) -> None:
        pass

    def apply(self, sch: Any) -> bool:
        """Tell whether a schedule is worth a build."""
        return not violations(sch)

    def clone(self) -> Any:
        """Return a postproc like this one."""
        return RefuseIllegal()


def violations(sch: s_tir.Schedule) -> list[str]:
    """Return every rule that the sampled sizes of a product break."""
    body = sch.mod["main"].body
    loops = ir.find_all(body, ir.For, lambda x: keys.CONSUMERS in x.annotations)
    sizes = sampled_sizes(sch.trace)
    if len(loops) != 1 or sizes is None:
        return []
    rows, columns, depth, last = sizes
    config = MatmulConfig(consumers=int(loops[0].annotations[keys.CONSUMERS]))
    copies = ir.find_all(body, ir.SBlock, lambda x: keys.ASYNC_COPY in x.annotations)
    dtype = ir.dtype_of(copies[0].writes[0].source) if copies else "float16"
    return find_violations((rows, columns, depth), last + 1, config, dtype, ARCH)


def sampled_sizes(trace: Any) -> tuple[int, int, int, int] | None:
    """Return what a trace of `spaces.space()` decided, None for any other trace."""
    sizes = []
    for instruction in trace.insts:
        if instruction.kind.name == "SampleCategorical":
            values = [int(x) for x in instruction.attrs[0]]
            sizes.append(values[int(trace.decisions[instruction])])
    return (sizes[0], sizes[1], sizes[2], sizes[3]) if len(sizes) == SIZES else None


@derived_object
class MutateSample(ms.mutator.PyMutator):
    """Takes another candidate of one sample that has several."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._random = random.Random(seed)

    def _initialize_with_tune_context(self, context: Any) -> None:
        pass

    def apply(self, trace: Any, *_: Any) -> Any:
        """Return a trace with another decision, None if there is nothing to decide."""
        open_ = [
            x for x in trace.insts if x.kind.name == "SampleCategorical" and len(x.attrs[0]) > 1
        ]
        if not open_:
            return None
        chosen = self._random.choice(open_)
        old = int(trace.decisions[chosen])
        others = [i for i in range(len(chosen.attrs[0])) if i != old]
        return trace.with_decision(chosen, self._random.choice(others), True)

    def clone(self) -> Any:
        """Return a mutator that goes on by itself."""
        return MutateSample(self._random.randrange(1 << 30))
