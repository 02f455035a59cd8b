"""Compute running sums and products of bools in int32.

    cumsum(x)    ->    astype(cumsum(x, dtype="int32"), "bool")        x: bool

TVM's kernel of a scan has vectors of its elements in shared memory, and its code generator prints
vectors of bool with two bytes an element: misaligned accesses (codegen_patches/vectors.py).
"""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_hopper import ir

from .mutator_passes import mutator_pass

SCANS = {"relax.cumsum": relax.op.cumsum, "relax.cumprod": relax.op.cumprod}


@mutator
class _Scans(PyExprMutator):  # type: ignore[misc]
    changed = False

    def visit_call_(self, call: Any) -> Any:
        """Scan in int32 what is scanned as bool."""
        call = super().visit_call_(call)
        scan = SCANS.get(str(getattr(call.op, "name", "")))
        if scan is None or ir.dtype_of(call) != "bool":
            return call
        self.changed = True
        exclusive = bool(call.attrs.exclusive)
        axis = None if call.attrs.axis is None else int(call.attrs.axis)
        wide = self.builder_.emit(scan(call.args[0], axis, dtype="int32", exclusive=exclusive))
        return relax.op.astype(wide, "bool")


WideScans = mutator_pass("WideScans", _Scans)
