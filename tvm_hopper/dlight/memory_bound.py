"""Rules for reductions and elementwise functions: `hs.row_reduction` and the like."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, ClassVar

from tvm import s_tir

from tvm_hopper import ir, schedule as hs
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.schedule.arguments import check_type
from tvm_hopper.schedule.memory_bound.widen import WIDE, half_sums
from tvm_hopper.schedule.memory_bound.widen_integers import widen_integers

from .decisions import Decision
from .reshapes import is_reshape
from .rule import HopperRule


class MemoryBoundRule(HopperRule):
    """Functions without a product."""

    accumulate: str | None
    config: Any

    @property
    def tries_once(self) -> bool:
        """They have one way to schedule a function."""
        return True

    @property
    def memo_key(self) -> Hashable:
        """Return the rule's name and options."""
        return self.name, self.accumulate, repr(self.config)


class SumRule(MemoryBoundRule):
    """Functions that reduce: what rules of rows and of columns share.

    - `accumulate`: "float32": functions that reduce in 16 bits do so in float32, see
      `hs.widen_sums`. None: they are refused.
    - `config`: fixed fields of all configurations.
    - `decisions`: list that records each decision.
    """

    helper: ClassVar[Callable[..., object]]
    kind: ClassVar[type]  # of its configurations

    def __init__(
        self,
        accumulate: str | None = WIDE,
        *,
        config: hs.RowReductionConfig | hs.ColumnReductionConfig | None = None,
        decisions: list[Decision] | None = None,
    ) -> None:
        super().__init__(decisions)
        check_type(self.name, "config", config, self.kind, f"an hs.{self.kind.__name__}")
        self.accumulate, self.config = checked_type(self.name, accumulate), config

    def schedule(self, sch: s_tir.Schedule) -> str:
        """Schedule a whole function."""
        said = widen(sch, self.accumulate)
        type(self).helper(sch, config=self.config)
        return said


class RowReductionRule(SumRule):
    """Reductions of rows and what surrounds them, each tensor read once.

    - `accumulate` (str): "float32": functions that reduce in 16 bits do so in float32, see
      `hs.widen_sums`. None: they are refused.
    - `config` (RowReductionConfig): fixed fields of all configurations.
    - `decisions` (list of Decision): list that records each decision.
    """

    name: ClassVar[str] = "RowReduction"
    helper = staticmethod(hs.row_reduction)
    kind = hs.RowReductionConfig


class ColumnReductionRule(SumRule):
    """Reductions of columns and what surrounds them: the same bits in every run.

    - `accumulate` (str): "float32": functions that reduce in 16 bits do so in float32, see
      `hs.widen_sums`. None: they are refused.
    - `config` (ColumnReductionConfig): fixed fields of all configurations.
    - `decisions` (list of Decision): list that records each decision.
    """

    name: ClassVar[str] = "ColumnReduction"
    helper = staticmethod(hs.column_reduction)
    kind = hs.ColumnReductionConfig


class PointwiseRule(MemoryBoundRule):
    """Elementwise functions, pooling and depthwise convolutions.

    - `decisions`: list that records each decision.
    - `config`: fixed fields of all configurations.
    - `accumulate`: "float32": windows that reduce in 16 bits do so in float32. None: they are
      refused.
    """

    name: ClassVar[str] = "Pointwise"

    def __init__(
        self,
        decisions: list[Decision] | None = None,
        *,
        config: hs.PointwiseConfig | None = None,
        accumulate: str | None = WIDE,
    ) -> None:
        super().__init__(decisions)
        check_type(self.name, "config", config, hs.PointwiseConfig, "an hs.PointwiseConfig")
        self.accumulate, self.config = checked_type(self.name, accumulate), config

    def schedule(self, sch: s_tir.Schedule) -> str:
        """Schedule a whole elementwise function.

        A reshape is left alone: relax recognises its plain form, and copies nothing.
        """
        if is_reshape(sch.mod["main"]):
            raise cannot_schedule(
                "function", "a reshape, which relax does without a kernel", "a computation"
            )
        said = widen(sch, self.accumulate)
        hs.pointwise(sch, config=self.config)
        return said


def checked_type(rule: str, accumulate: str | None) -> str | None:
    """Return a type in which sums can be made, or None."""
    if accumulate not in (None, WIDE):
        raise cannot_schedule(rule, f"{accumulate=}", f"{WIDE!r} or None")
    return accumulate


def widen(sch: s_tir.Schedule, accumulate: str | None) -> str:
    """Let a function reduce in 32 bits; return what was done, where it rounds otherwise."""
    func = sch.mod["main"]
    halves = half_sums(func) if accumulate else []
    wide = hs.widen_sums(func) if halves else widen_integers(func)
    if not wide.same_as(func):
        ir.replace_schedule(sch, s_tir.Schedule(wide))
    return f"reductions in {accumulate} instead of {', '.join(halves)}" if halves else ""
