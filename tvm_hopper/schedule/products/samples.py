"""Sampled tile and stage sizes, as random variables of the schedule."""

from __future__ import annotations

from tvm.ir import Expr

from tvm_hopper.errors import cannot_schedule

from .config import MatmulConfig


def is_sampled(config: MatmulConfig) -> bool:
    """Tell whether a tuner decides on a part: what one decision breaks, another one may not."""
    return any(isinstance(size, Expr) for size in (*(config.tile or ()), config.stages))


def check_nothing_sampled(config: MatmulConfig, rewritten: str) -> None:
    """Refuse samples of a schedule that begins again: they would be void.

    Raises
    ------
    ScheduleError
        The tile or the stages are sampled; `rewritten` is the module to begin with instead.
    """
    if is_sampled(config):
        raise cannot_schedule(
            "matmul",
            "a sampled tile or stages for a product that has to be rewritten first",
            "a schedule of what it becomes",
            f"make it: s_tir.Schedule({rewritten}), and sample there",
        )
