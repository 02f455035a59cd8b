"""`kernel_pass`: make a TIR pass from a plan function and a rewrite function.

    LegalizeVectors = kernel_pass("LegalizeVectors", plan_vectors, rewrite_vectors)

`LegalizeVectors()` is a pass for `tvm.transform.Sequential`, named "tvm_hopper.LegalizeVectors".
A pass of several steps names them in order:

    LowerWarpMemory = function_pass("LowerWarpMemory", split_warps, own_parts)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import tvm
from tvm import tirx
from tvm.ir.transform import Pass
from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.requests.keys import PREFIX

from .common.explain_notes import Note, note_kernels

Maker = Callable[[], Pass]
Step = Callable[[tirx.PrimFunc], tirx.PrimFunc]
Plan = TypeVar("Plan")


def kernel_pass(name: str, *plan_and_rewrite: Any, **more: Any) -> Maker:
    """Return a maker of the pass that is one `kernel_step`; takes a name, and what that takes."""
    return function_pass(name, kernel_step(*plan_and_rewrite, **more))


def kernel_step(
    plan: Callable[..., Plan | None],
    rewrite: Callable[[Any, Plan], ir.Stmt],
    *,
    when: Callable[[ir.For], bool] | None = None,
    given: Callable[[tirx.PrimFunc], Any] | None = None,
    notes: Callable[[Plan], Iterable[Note]] | None = None,
) -> Step:
    """Return the step that rewrites each kernel for which there is a plan.

    - `plan`: takes a kernel and the result of `given`; raises errors. A falsy plan leaves the
      kernel.
    - `rewrite` (callable): takes the kernel and its plan. Planning the result again must find
      nothing.
    - `when`: selects kernels.
    - `given` (callable): a fact about the function that plans need, as `arch_of`.
    - `notes`: notes on a plan, for `explain`.
    """

    def change(func: tirx.PrimFunc) -> tirx.PrimFunc:
        known = () if given is None else (given(func),)

        def apply(kernel: ir.For, told: list[Note]) -> ir.Stmt:
            if when is not None and not when(kernel):
                return kernel
            if not (planned := plan(kernel, *known)):
                return kernel
            after = rewrite(kernel, planned)
            assert not any(plan(x, *known) for x in ir.statements(after)), (
                f"{rewrite.__name__} left something to do"
            )
            if notes is not None:
                told += notes(planned)
            return after

        return map_noted(func, apply)

    return change


def planned_pass(
    name: str,
    plan: Callable[[tirx.PrimFunc], Plan | None],
    rewrite: Callable[[tirx.PrimFunc, Plan], tirx.PrimFunc],
) -> Maker:
    """Return a maker of the pass that is one `planned_step`."""
    return function_pass(name, planned_step(plan, rewrite))


def planned_step(
    plan: Callable[[tirx.PrimFunc], Plan | None],
    rewrite: Callable[[tirx.PrimFunc, Plan], tirx.PrimFunc],
) -> Step:
    """Return the step that rewrites a function as a whole where there is a plan."""

    def change(func: tirx.PrimFunc) -> tirx.PrimFunc:
        if not (planned := plan(func)):
            return func
        after = rewrite(func, planned)
        assert not plan(after), f"{rewrite.__name__} left something to do"
        return after

    return change


def function_pass(name: str, *steps: Step) -> Maker:
    """Return a maker of the pass that applies these steps to each function, in order."""
    return function_in_module_pass(
        name, lambda func, _: functools.reduce(lambda done, step: step(done), steps, func)
    )


def function_in_module_pass(
    name: str, change: Callable[[tirx.PrimFunc, tvm.IRModule], tirx.PrimFunc]
) -> Maker:
    """Return a maker of the pass that applies `change` to each function and its module."""

    def transform(func: tirx.PrimFunc, mod: tvm.IRModule, _: Any) -> tirx.PrimFunc:
        return change(func, mod)

    def make() -> Pass:
        return prim_func_pass(transform, opt_level=0, name=PREFIX + name)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"Return the pass {PREFIX}{name}."
    return make


def map_noted(
    func: tirx.PrimFunc,
    change: Callable[[Any, list[Note]], Any],
    over: Callable[..., tirx.PrimFunc] = ir.map_kernels,
) -> tirx.PrimFunc:
    """Apply `change` to each kernel, with a list that collects its notes for `explain`.

    `over` is `map_bodies` for passes that act on processors without threads, too.
    """
    notes: dict[int, list[Note]] = {}

    def apply(kernel: Any) -> Any:
        return change(kernel, notes.setdefault(ir.number_of(func, kernel), []))

    return note_kernels(over(func, apply), notes)
