"""Passes that are one mutator of a module's Relax functions.

WideScans = mutator_pass("WideScans", _Scans)    # WideScans()(mod)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator


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


def is_for_library(func: relax.Function) -> bool:
    """Tell a function that a library computes."""
    return bool(func.attrs) and ("Codegen" in func.attrs or "Composite" in func.attrs)


@mutator
class _EqualCalls(PyExprMutator):  # type: ignore[misc]
    """Computes equal values of a block once, except what packed functions return: they may draw."""

    changed = False

    def visit_dataflow_block_(self, block: Any) -> Any:
        """Rewrite one block by itself."""
        self.made = defaultdict[int, list[Any]](list)
        self.builder_._begin_dataflow_block()
        for binding in block.bindings:
            self.visit_binding(binding)
        return self.builder_._end_block()

    def visit_var_binding_(self, binding: Any) -> None:
        """Leave out what an earlier variable is."""
        if not isinstance(binding.var, relax.DataflowVar) or not _is_repeatable(binding.value):
            super().visit_var_binding_(binding)
            return
        call = self.visit_expr(binding.value)
        alike = self.made[tvm_ffi.structural_hash(call, skip_tensor_content=True)]
        twin = next((x for x, made in alike if tvm_ffi.structural_equal(made, call)), None)
        if twin is None:
            super().visit_var_binding_(binding)
            alike.append((self.visit_expr(binding.var), call))
        else:
            self.changed = True
            self.set_var_remap(binding.var, twin)


def _is_repeatable(value: Any) -> bool:
    """Tell a call of an operator, or of a kernel in plain loops."""
    name = str(getattr(getattr(value, "op", None), "name", "call_")).removeprefix("relax.")
    is_call = isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op)
    return is_call and (name == "call_tir" or not name.startswith(("call_", "invoke_")))


JoinEqual = mutator_pass("JoinEqual", _EqualCalls)
