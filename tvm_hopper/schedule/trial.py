"""Run a schedule helper on a copy first, so that a failure changes nothing.

Random variables of a schedule stay valid in its copy, and a copy takes microseconds: TVM copies a
schedule's trees when they are written to.  What TVM refuses in the copy becomes one error of ours.
TVM cannot copy a schedule that has been tensorized: a new one of its module stands for the copy.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import tvm
from tvm import s_tir
from tvm.ir import Expr
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_hopper.errors import cannot_schedule

from . import arguments, origins, reasons

Step = TypeVar("Step", bound=Callable[..., Any])
_inside: ContextVar[bool] = ContextVar("tvm_hopper.schedule.trial", default=False)
_thrown_away: ContextVar[bool] = ContextVar("tvm_hopper.schedule.thrown_away", default=False)


@contextlib.contextmanager
def raised(flag: ContextVar[bool]) -> Iterator[None]:
    """Set a flag while the context lasts."""
    token = flag.set(True)
    try:
        yield
    finally:
        flag.reset(token)


def as_one_step() -> AbstractContextManager[None]:
    """Let the helpers that are called here run in place at once: the whole was tried already."""
    return raised(_inside)


def thrown_away_if_refused() -> AbstractContextManager[None]:
    """Skip the trial on a copy, for callers that discard a refused schedule."""
    return raised(_thrown_away)


def is_thrown_away() -> bool:
    """Tell whether a schedule that is refused here is thrown away."""
    return _thrown_away.get()


def rehearse(
    sch: s_tir.Schedule,
    step: Callable[[s_tir.Schedule, Callable[[Any], Any]], Any],
    accept: Callable[[s_tir.Schedule, Any], None] | None = None,
) -> None:
    """Run a step on a copy of a schedule, for what it raises.

    - `sch`: left as it is.
    - `step` (callable): takes the schedule, and what finds a random variable of `sch` again in it;
      it must do the same whenever it is called.
    - `accept` (callable): takes the copy and what the step returned; raises where that will not do.
    """
    if accept is None and is_thrown_away():
        return
    with as_one_step():
        copy, same = twin(sch)
        result = step(copy, same)
        if accept is not None:
            accept(copy, result)


def twin(sch: s_tir.Schedule) -> tuple[s_tir.Schedule, Callable[[Any], Any]]:
    """Return a schedule to try a step on, and what finds random variables again in it."""
    try:
        return sch.copy(), lambda thing: thing
    except tvm.error.InternalError:  # apache-tvm 0.27.0: unordered_map::at after `tensorize`
        twin = s_tir.Schedule(sch.mod)
        twin.work_on(sch.func_working_on.name_hint)
        return twin, functools.partial(_find_again, sch, twin)


def _find_again(sch: s_tir.Schedule, twin: s_tir.Schedule, thing: Any) -> Any:
    """Return the variable of another schedule of the same module that stands for the same node."""
    if isinstance(thing, SBlockRV):
        return next(x for x in _blocks(twin) if twin.get(x).same_as(sch.get(thing)))
    if isinstance(thing, LoopRV):
        loops = (loop for block in _blocks(twin) for loop in twin.get_loops(block))
        return next(x for x in loops if twin.get(x).same_as(sch.get(thing)))
    return int(sch.get(thing)) if isinstance(thing, Expr) else thing


def _blocks(sch: s_tir.Schedule) -> Iterator[SBlockRV]:
    """Yield all blocks of a schedule, also those with equal names."""
    todo = [sch.get_sblock(sch.mod[sch.func_working_on].body.block.name_hint)]
    while todo:
        block = todo.pop()
        yield block
        todo += sch.get_child_blocks(block)


def all_or_nothing(need: str, fix: str = "") -> Callable[[Step], Step]:
    """Let a helper `step(sch, block or loop, ...)` run on a copy first.

    `need` and `fix` complete the error where TVM refuses what the helper itself did not foresee.
    """

    def wrap(step: Step) -> Step:
        signature = inspect.signature(step)

        @functools.wraps(step)
        def tried(*args: Any, **kwargs: Any) -> Any:
            sch, thing, *_ = signature.bind(*args, **kwargs).arguments.values()
            arguments.check_schedule(step.__name__, sch)

            def run(schedule: s_tir.Schedule, same: Callable[[Any], Any] | None = None) -> Any:
                bound = signature.bind(*args, **kwargs)
                if same is not None:
                    bound.arguments.update({k: same(x) for k, x in bound.arguments.items()})
                bound.arguments["sch"] = schedule
                try:
                    return step(*bound.args, **bound.kwargs)
                except reasons.TVM_ERRORS as error:
                    where = arguments.label(sch, thing) or step.__name__
                    found = f"what TVM cannot schedule{reasons.in_words(error)}"
                    raise cannot_schedule(where, found, need, fix) from error

            if _inside.get():
                return run(sch)
            with as_one_step():
                run(*twin(sch))
                with origins.noted(sch):
                    return run(sch)

        return cast(Step, tried)

    return wrap
