"""Reductions of rows and elementwise functions, by `hs.row_reduction` and `hs.pointwise`."""

from __future__ import annotations

from typing import ClassVar

from tvm import relax, s_tir

from tvm_hopper import ir
from tvm_hopper import schedule as hs
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.schedule.memory_bound.widen import WIDE, half_sums

from .decisions import Decision
from .rule import HopperRule


class RowReductionRule(HopperRule):
    """Reductions of rows and what surrounds them, each tensor read once.

    Parameters
    ----------
    accumulate : str, optional
        "float32": functions that reduce in 16 bits do so in float32, see `hs.widen_sums`. None:
        they are refused.
    config : RowReductionConfig, optional
        What is decided of every one.
    decisions : list of Decision, optional
        Where to note what becomes of each function.
    """

    name: ClassVar[str] = "RowReduction"

    def __init__(
        self,
        accumulate: str | None = WIDE,
        *,
        config: hs.RowReductionConfig | None = None,
        decisions: list[Decision] | None = None,
    ) -> None:
        super().__init__(decisions)
        if accumulate not in (None, WIDE):
            raise cannot_schedule("RowReduction", f"{accumulate=}", f"{WIDE!r} or None")
        self.accumulate, self.config = accumulate, config

    def schedule(self, sch: s_tir.Schedule) -> str:
        """Schedule a whole function of row reductions."""
        func = sch.mod["main"]
        halves = half_sums(func) if self.accumulate else []
        if halves:
            ir.replace_schedule(sch, s_tir.Schedule(hs.widen_sums(func)))
        hs.row_reduction(sch, config=self.config)
        return f"reductions in {self.accumulate} instead of {', '.join(halves)}" if halves else ""


class PointwiseRule(HopperRule):
    """Elementwise functions.

    Parameters
    ----------
    decisions : list of Decision, optional
        Where to note what becomes of each function.
    config : PointwiseConfig, optional
        What is decided of every one.
    """

    name: ClassVar[str] = "Pointwise"

    def __init__(
        self,
        decisions: list[Decision] | None = None,
        *,
        config: hs.PointwiseConfig | None = None,
    ) -> None:
        super().__init__(decisions)
        self.config = config

    def schedule(self, sch: s_tir.Schedule) -> str:
        """Schedule a whole elementwise function.

        What only reshapes is left alone: relax recognises it by its plain form, and copies nothing.
        """
        if relax.analysis.has_reshape_pattern(sch.mod["main"]):
            raise cannot_schedule(
                "function", "a reshape, which relax does without a kernel", "a computation"
            )
        hs.pointwise(sch, config=self.config)
        return ""
