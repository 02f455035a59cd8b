"""Decide once per program which parts its runs may skip."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tvm_hopper.sim.kernel_code import compiled, touched_tensors
from tvm_hopper.sim.loop_cuts.plan import CutPlan, plan_cuts
from tvm_hopper.sim.options import NOTHING_LEFT_OUT, LoopCut, Shortcuts


class Savings(NamedTuple):
    """Parts of each kernel that the runs of a program leave out; a missing kernel runs in full.

    - `first`: parts that the first run leaves out; it runs all iterations of loops with global
      stores.
    - `others`: of the runs after it.
    - `uncut`: for a run of all iterations, which checks each finding of a shortened run.
    """

    first: Mapping[str, Shortcuts]
    others: Mapping[str, Shortcuts]
    uncut: Mapping[str, Shortcuts]


NO_SAVINGS = Savings({}, {}, {})


def plan_savings(launches: Iterable[tuple[Any, Mapping[str, Any]]]) -> Savings:
    """Decide which parts the runs of a program may leave out.

    - `launches` (iterable of (PrimFunc, dict)): device function and parameters of each launch, in
      order.
    """
    launches = list(launches)
    first: dict[str, Shortcuts] = {}
    others: dict[str, Shortcuts] = {}
    uncut: dict[str, Shortcuts] = {}
    for func, params in launches:
        scalars = {name: value for name, value in params.items() if type(value) is int}
        plan, program = plan_cuts(func, scalars), compiled(func)
        if plan.refused or program.unsupported:
            return NO_SAVINGS  # a launch may need results of another
        name = str(func.attrs["global_symbol"])
        stored, loaded = touched_tensors(func, params)
        cuts, storing = _by_site(func, plan)
        if stored & loaded or name in uncut:  # a store may change loads; two launches
            cuts = storing = {}
        if len(launches) > 1:  # a later launch may read all that this one stores
            storing = {}
        first[name] = Shortcuts(False, cuts)
        others[name] = Shortcuts(False, {**cuts, **storing})
        uncut[name] = Shortcuts(False)
    return Savings(first, others, uncut)


def of_kernel(savings: Mapping[str, Shortcuts], func: Any) -> Shortcuts:
    """Return the parts that a run of one kernel leaves out."""
    return savings.get(str(func.attrs["global_symbol"]), NOTHING_LEFT_OUT)


def _by_site(func: Any, plan: CutPlan) -> tuple[dict[int, LoopCut], dict[int, LoopCut]]:
    """Return the cuts by statement number."""
    sites = {node: site for site, node in enumerate(compiled(func).statements) if site}
    cuts, storing = (
        {sites[node]: cut for node, cut in some if node in sites}
        for some in (plan.cuts, plan.storing)
    )
    return cuts, storing
