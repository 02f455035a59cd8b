"""Passes that are one mutator of a module's Relax functions.

WideScans = mutator_pass("WideScans", _Scans)    # WideScans()(mod)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax


def mutator_pass(name: str, mutator: Callable[[tvm.IRModule], Any]) -> Callable[[], Any]:
    """Return the maker of a pass that lets a mutator rewrite what no library computes."""

    @tvm.transform.module_pass(opt_level=0, name=f"tvm_hopper.{name}")
    def rewrite(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_functions(mod, mutator(mod), is_for_library)

    return lambda: rewrite


def rewrite_functions(
    mod: tvm.IRModule, rewriter: Any, is_left: Callable[[Any], bool] = lambda _: False
) -> tvm.IRModule:
    """Return a module with its Relax functions rewritten, as far as the rewriter has `changed`."""
    for gv, func in mod.functions_items():
        if isinstance(func, relax.Function) and not is_left(func):
            rewriter.changed, rewriter.readers = False, readers_of(func)
            new = rewriter.visit_expr(func)
            if rewriter.changed:
                rewriter.builder_.update_func(gv, relax.analysis.remove_all_unused(new))
    return rewriter.builder_.get()


def readers_of(func: relax.Function) -> dict[Any, list[Any]]:
    """Return the bindings that read each variable of a function; none for one of a branch."""
    found = defaultdict[Any, list[Any]](list)
    for binding in (x for block in func.body.blocks for x in block.bindings):
        for var in relax.analysis.free_vars(binding.value):
            found[var].append(binding)
    return found


def leaves(var: Any, readers: dict[Any, list[Any]], is_view: Callable[[Any], bool]) -> bool:
    """Tell a variable that a function returns, or a view of it."""
    return not isinstance(var, relax.DataflowVar) or any(
        not isinstance(x.value, relax.Call)
        or (is_view(x.value) and leaves(x.var, readers, is_view))
        for x in readers[var]
    )


def is_own(rewriter: Any, var: Any, is_view: Callable[[Any], bool]) -> bool:
    """Tell a tensor whose memory nothing holds but it, and one view of it at most."""
    made = rewriter.lookup_binding(var) if isinstance(var, relax.DataflowVar) else None
    if not isinstance(made, relax.Call) or len(rewriter.readers[var]) > 1:
        return False
    sources = relax.analysis.free_vars(made) if is_view(made) else []
    return all(is_own(rewriter, x, is_view) for x in sources)


@tvm.transform.module_pass(opt_level=0, name="tvm_hopper.JoinEqual")
class JoinEqual:
    """Compute equal values once, in functions all of whose calls are of operators of Relax.

    Of equal calls of anything else, such as a packed function that draws, each has its own result.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Run TVM's EliminateCommonSubexpr, and put back the other functions."""
        joined = relax.transform.EliminateCommonSubexpr()(mod)
        for gv, func in mod.functions_items():
            if isinstance(func, relax.Function) and _calls_others(func):
                joined.update_func(gv, func)
        return joined


def _calls_others(func: relax.Function) -> bool:
    """Tell a function with a call of anything but an operator and a kernel in plain loops."""
    found: list[str] = []

    def look(x: Any) -> None:
        if isinstance(x, relax.Call):
            found.append(x.op.name if isinstance(x.op, tvm.ir.Op) else "call_")

    relax.analysis.post_order_visit(func, look)
    names = [x.removeprefix("relax.") for x in found]
    return any(x.startswith(("call_", "invoke_")) and x != "call_tir" for x in names)


def is_for_library(func: relax.Function) -> bool:
    """Tell a function that a library computes."""
    return bool(func.attrs) and ("Codegen" in func.attrs or "Composite" in func.attrs)
