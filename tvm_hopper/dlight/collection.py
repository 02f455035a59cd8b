"""The list of all rules in order; TVM's own are guarded so that none breaks a build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir import dlight as dl
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from tvm_hopper import ir, schedule as hs
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.programming_model import MAX_EXTENTS

from .attention import AttentionRule
from .decisions import NOT_APPLICABLE, Decision, crash_text, is_scheduled, name_of
from .memory_bound import ColumnReductionRule, PointwiseRule, RowReductionRule
from .product import MatmulRule

STOCK = ("Matmul", "GEMV", "Reduction", "GeneralReduction", "Fallback")  # TVM's order for CUDA


class GuardedRule(ScheduleRule):
    """A rule whose crash, or launch beyond CUDA's limits, counts as a refusal.

    - `rule`: the rule; its result is passed on as it is.
    - `name`: what it is called in decisions.
    - `decisions`: where to note what becomes of each function; None: a list of the rule's own.
    """

    def __init__(
        self, rule: ScheduleRule, name: str, decisions: list[Decision] | None = None
    ) -> None:
        self.rule, self.name = rule, name
        self.decisions: list[Decision] = [] if decisions is None else decisions

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> Any:
        """Apply the rule; where it fails in any way, return None and note how."""
        result: s_tir.Schedule | list[s_tir.Schedule] | None = None
        reason = "scheduled already"
        if not is_scheduled(func):
            try:
                result, reason = self.rule.apply(func, target, tunable), ""
                if (beyond := _beyond_limits(result)) is not None:
                    result, reason = None, beyond
            except Exception as error:  # whatever it is: the build goes on without this rule
                reason = crash_text(error)
        taken = result is not None
        reason = reason or ("" if taken else NOT_APPLICABLE)
        self.decisions.append(Decision(name_of(func), self.name, taken, reason, func))
        return result


def _beyond_limits(result: Any) -> str | None:
    """Name a static axis of a launch with more thread blocks than the driver takes."""
    mods = [x.mod for x in (result if isinstance(result, list) else [result]) if x is not None]
    for loop in (x for mod in mods for f in mod.functions.values() for x in ir.find_all(f, ir.For)):
        if loop.kind == ir.ForKind.THREAD_BINDING:
            tag, extent = str(loop.thread_binding.thread_tag), ir.static_int(loop.extent)
            if extent is not None and extent > MAX_EXTENTS.get(tag, extent):
                return f"found {tag} of {extent}; need at most {MAX_EXTENTS[tag]}"
    return None


def stock(decisions: list[Decision] | None = None) -> list[GuardedRule]:
    """Return TVM's rules for CUDA in TVM's order, each guarded: a crash is a refusal.

    Parameters
    ----------
    decisions : list of Decision, optional
        List that records each decision.
    """
    decisions = [] if decisions is None else decisions
    return [GuardedRule(getattr(dl.gpu, x)(), f"dl.gpu.{x}", decisions) for x in STOCK]


def rules(
    decisions: list[Decision] | None = None,
    *,
    accumulate: str | None = "float32",
    classes: Sequence[int] | Mapping[int, hs.MatmulConfig | int] | None = None,
    config: Any = None,
    batch_invariant: bool = False,
) -> list[ScheduleRule]:
    """Return all rules in their order: Attention, Matmul, rows, columns, Pointwise, TVM's.

    Parameters
    ----------
    decisions : list of Decision, optional
        List that records each decision.
    accumulate, classes
        Options of `Matmul`; the other rules take `accumulate`, too.
    config : configuration, optional
        Fixed fields of all configurations of its class.
    batch_invariant : bool
        Option of `Matmul` and `Attention`.

    Raises
    ------
    ScheduleError
        An argument is illegal.
    """
    decisions = [] if decisions is None else decisions
    kinds = (
        *(hs.MatmulConfig, hs.AttentionConfig, hs.PointwiseConfig),
        *(hs.RowReductionConfig, hs.ColumnReductionConfig),
    )
    if config is not None and not isinstance(config, kinds):
        names = ", ".join(f"hs.{x.__name__}" for x in kinds)
        raise cannot_schedule("rules", f"config={config!r}", f"one of {names} or None")
    product = config if isinstance(config, hs.MatmulConfig) else None
    rows = config if isinstance(config, hs.RowReductionConfig) else None
    columns = config if isinstance(config, hs.ColumnReductionConfig) else None
    elements = config if isinstance(config, hs.PointwiseConfig) else None
    attention = config if isinstance(config, hs.AttentionConfig) else None
    return [
        AttentionRule(
            attention,
            round_weights=accumulate is not None,
            batch_invariant=batch_invariant,
            decisions=decisions,
        ),
        MatmulRule(
            accumulate,
            classes=classes,
            config=product,
            batch_invariant=batch_invariant,
            decisions=decisions,
        ),
        RowReductionRule(accumulate, config=rows, decisions=decisions),
        ColumnReductionRule(accumulate, config=columns, decisions=decisions),
        PointwiseRule(decisions, config=elements, accumulate=accumulate),
        *stock(decisions),
    ]
