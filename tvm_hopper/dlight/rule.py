"""Base class of our rules: which functions they look at, and how they refuse."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Hashable, Iterator
from contextvars import ContextVar
from typing import Any, ClassVar

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir.transform import PassContext
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from tvm_hopper import ir, pipeline
from tvm_hopper.errors import HopperError, warn
from tvm_hopper.requests.tags import ARCH, GENERIC_ARCH
from tvm_hopper.requests.targets import is_ours, name_target, target_arch
from tvm_hopper.schedule.dry_run import LAST, outside_of_kernels
from tvm_hopper.schedule.reasons import TVM_ERRORS, in_words
from tvm_hopper.schedule.trial import thrown_away_if_refused
from tvm_hopper.transforms.common.explain_notes import ElementsNote, read_notes

from .decisions import Decision, crash_text, is_scheduled, name_of

_known: ContextVar[dict[Any, Any] | None] = ContextVar("tvm_hopper.dlight.known", default=None)


@contextlib.contextmanager
def remember_schedules() -> Iterator[None]:
    """Let rules schedule equal functions once, for passes that ask about one after another."""
    token = _known.set({})
    try:
        yield
    finally:
        _known.reset(token)


def _names(func: tirx.PrimFunc) -> tuple[str, ...]:
    """Return the names that notes may say; functions that differ in them alone are equal."""
    if not isinstance(func, tirx.PrimFunc):
        return ()
    blocks = ir.find_all(func.body, ir.SBlock)
    return (*(x.name for x in func.params), *(str(x.name_hint) for x in blocks))


class HopperRule(ScheduleRule):
    """A rule that applies a schedule helper; functions that it refuses go to the next rule.

    - `decisions`: list that records each decision; None: a new list.
    """

    name: ClassVar[str]
    is_lowered: ClassVar[bool] = False  # whether the helper lowers what it accepts, for a look

    def __init__(self, decisions: list[Decision] | None = None) -> None:
        self.decisions: list[Decision] = [] if decisions is None else decisions

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        """Schedule a function, or return None and record the reason.

        Parameters
        ----------
        func : PrimFunc
            Plain loops. One that is scheduled already (`tirx.is_scheduled`) is left alone.
        target : Target
            The target; our kernels need sm_90a.
        tunable : bool
            Ignored: there is one schedule.
        """
        self._elements: tuple[ElementsNote, ...] = ()
        known, key = _known.get(), self.memo_key
        if known is None or key is None:
            sch, reason = self._try(func, target)
        else:
            place = (key, str(target), *_names(func), tvm_ffi.structural_hash(func))
            if place not in known:
                known[place] = (func, *self._try(func, target), self._elements)
            same, sch, reason, self._elements = known[place]
            if not tvm_ffi.structural_equal(func, same):  # another one of this hash
                self._elements = ()
                sch, reason = self._try(func, target)
        decision = Decision(name_of(func), self.name, sch is not None, reason, func, self._elements)
        self.decisions.append(decision)
        return sch

    def _try(self, func: Any, target: Target) -> tuple[s_tir.Schedule | None, str]:
        if is_scheduled(func):
            return None, "scheduled already"
        if not self.is_target_available(target):
            if target_arch(target) == GENERIC_ARCH:
                warn_of_generic_arch()
            return None, f"target {name_target(target)}; need cuda {ARCH}"
        try:
            with target, thrown_away_if_refused() if self.tries_once else contextlib.nullcontext():
                sch = s_tir.Schedule(func)
                reason = self.schedule(sch)
                if not self.is_lowered:
                    self._elements = check_function(sch.mod["main"], target)
        except HopperError as error:
            return None, str(error)
        except TVM_ERRORS as error:
            return None, f"what TVM cannot schedule{in_words(error)}"
        except Exception as error:  # a fault of ours: the build goes on, and that is said
            reason = crash_text(error)
            warn(f"tvm_hopper.dlight.{self.name}: {reason}", stacklevel=3)
            return None, reason
        left = [str(x.name_hint) for x in outside_of_kernels(sch.mod["main"])]
        if left:
            return None, f"block {', '.join(left)}: found no kernel around it; need one for each"
        return sch, reason

    @property
    def tries_once(self) -> bool:
        """Whether the first refusal of a schedule is the last: no other way is tried on a copy."""
        return False

    @property
    def memo_key(self) -> Hashable:
        """Return what a decision depends on next to function and target; None: do not keep any."""
        return None

    def is_target_available(self, target: Target) -> bool:
        """Tell whether kernels of ours run on a target."""
        return is_ours(target)

    def schedule(self, sch: s_tir.Schedule) -> str:
        """Schedule the one function of a schedule; return what should be known of it.

        - raises HopperError: the rule does not take the function.
        """
        raise NotImplementedError


def check_function(func: tirx.PrimFunc, target: Target) -> tuple[ElementsNote, ...]:
    """Lower a scheduled function for a look: what a build would refuse, the rule refuses.

    - returns: what is noted of tensors that its kernels access element by element.
    - raises LoweringError: what the build would raise.
    """
    with PassContext():
        lowered = pipeline.lower(tvm.IRModule({"main": func}), target, until=LAST)
    known = read_notes(lowered["main"])
    notes = [x for own in known.kernels.values() for x in own] if known is not None else []
    return tuple(x for x in notes if isinstance(x, ElementsNote))


@functools.cache
def warn_of_generic_arch() -> None:
    """Say once what a Hopper target without the `a` costs."""
    warn(
        f"target cuda {GENERIC_ARCH}: no kernel of tvm_hopper is made for it. WGMMA and setmaxnreg "
        f"exist on {ARCH} alone, with which TVM's own schedules work, too: take "
        f'Target("nvidia/nvidia-h200") or {{"kind": "cuda", "arch": "{ARCH}"}}',
        stacklevel=4,
    )
