"""Rule for attention: `hs.online`, then `hs.attention`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import tvm
from tvm import s_tir, tirx
from tvm.target import Target

from tvm_hopper import ir
from tvm_hopper.facts.dtypes import HALF_DTYPES
from tvm_hopper.schedule.arguments import check_type
from tvm_hopper.schedule.attention.conditions import call_name
from tvm_hopper.schedule.attention.config import AttentionConfig
from tvm_hopper.schedule.attention.factors import EXPONENTIALS
from tvm_hopper.schedule.attention.online import online
from tvm_hopper.schedule.attention.recognize import recognize

from .decisions import NOT_APPLICABLE, Decision, is_scheduled
from .rule import HopperRule

# Fields that decide the order of sums over keys; the choice would depend on rows and heads.
INVARIANT: dict[str, Any] = {"consumers": 2, "splits": 1, "packs": False}


class AttentionRule(HopperRule):
    """One softmax attention a function, on tensor cores.

    - `config` (AttentionConfig): fixed fields of all configurations.
    - `round_weights`: true: weights multiply values in the values' 16-bit type, also where the
      program does not round them. False: refuse such functions.
    - `batch_invariant`: true: the bits of a row do not depend on the number of rows, heads and
      sequences.
    - `decisions`: list that records each decision.
    - raises ScheduleError: an argument is illegal.
    """

    name: ClassVar[str] = "Attention"
    is_lowered: ClassVar[bool] = True

    def __init__(
        self,
        config: Any = None,
        *,
        round_weights: bool = True,
        batch_invariant: bool = False,
        decisions: list[Decision] | None = None,
    ) -> None:
        super().__init__(decisions)
        check_type(self.name, "round_weights", round_weights, bool, "True, False")
        self.config, self.round_weights = config, round_weights
        if batch_invariant:
            self.config = replace(config or AttentionConfig(), **INVARIANT)

    def _try(self, func: Any, target: Target) -> tuple[s_tir.Schedule | None, str]:
        if not (is_scheduled(func) or may_be_attention(func)):
            return None, NOT_APPLICABLE
        return super()._try(func, target)

    def schedule(self, sch: s_tir.Schedule) -> str:
        """Schedule the attention of a function."""
        from tvm_hopper.schedule.attention.apply import attention

        func = sch.mod["main"]
        found = recognize(func)
        dtype = ir.dtype_of(found.values)
        rounds = self.round_weights and dtype in HALF_DTYPES and found.probabilities != dtype
        form = online(tvm.IRModule({"main": func}), probabilities=dtype if rounds else None)
        fresh = s_tir.Schedule(form)
        fresh.work_on("main")
        attention(fresh, self.config)
        ir.replace_schedule(sch, fresh)
        return f"weights in {dtype} instead of {found.probabilities}" if rounds else ""


def may_be_attention(func: tirx.PrimFunc) -> bool:
    """Tell exponentials next to several reductions, so that other functions are refused at once."""
    return has_softmax(func, 3)


def has_softmax(func: tirx.PrimFunc, fewest: int = 2) -> bool:
    """Tell exponentials next to so many reductions."""
    blocks = ir.find_all(func.body, ir.SBlock, lambda x: x.init is not None)
    return len(blocks) >= fewest and ir.has_any(
        func.body, ir.Call, lambda x: call_name(x) in EXPONENTIALS
    )
