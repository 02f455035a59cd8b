"""Reductions of rows and elementwise functions, by `hs.row_reduction` and `hs.pointwise`."""

from __future__ import annotations

from typing import ClassVar

from tvm import relax, s_tir

from tvm_hopper import schedule as hs
from tvm_hopper.errors import cannot_schedule

from .rule import HopperRule


class RowReductionRule(HopperRule):
    """Reductions of rows and what surrounds them, each tensor read once."""

    name: ClassVar[str] = "RowReduction"

    def schedule(self, sch: s_tir.Schedule) -> str:
        """Schedule a whole function of row reductions."""
        hs.row_reduction(sch)
        return ""


class PointwiseRule(HopperRule):
    """Elementwise functions."""

    name: ClassVar[str] = "Pointwise"

    def schedule(self, sch: s_tir.Schedule) -> str:
        """Schedule a whole elementwise function.

        What only reshapes is left alone: relax recognises it by its plain form, and copies nothing.
        """
        if relax.analysis.has_reshape_pattern(sch.mod["main"]):
            raise cannot_schedule(
                "function", "a reshape, which relax does without a kernel", "a computation"
            )
        hs.pointwise(sch)
        return ""
