"""Fix argmax and argmin of rows in which no element beats the initial value.

    argmax(X):  place, value = -1, -65504                     of float16
                for k: place, value = the better one of (place, value) and (k, X[i, k])
                Y[i] = place                           ->     Y[i] = max(place, 0)

TVM begins with the least finite number: a row of -inf, or of that number, has no better element and
its place is -1. numpy and PyTorch say 0, and -1 as an index is an access before a tensor. TVM
combines parts of a reduction by initial values that it knows, so that these stay.

Left: a row of nothing but -inf and the type's least number has place 0 also where that number comes
later; and NaN, whose place numpy returns, ends what came before it.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from .mutator_passes import mutator_pass

PLACES = {"relax.argmax": topi.argmax, "relax.argmin": topi.argmin}


@mutator
class _PlacesOfRows(PyExprMutator):  # type: ignore[misc]
    changed = False

    def visit_call_(self, call: Any) -> Any:
        """Write argmax or argmin as one function of te."""
        call = super().visit_call_(call)
        name = getattr(call.op, "name", "")
        if name not in PLACES:
            return call
        self.changed = True
        axis, keeps = call.attrs.axis, bool(call.attrs.keepdims)

        def place(x: te.Tensor) -> te.Tensor:
            index = PLACES[name](x, None if axis is None else int(axis), keeps)
            return topi.maximum(index, tvm.tirx.const(0, index.dtype))

        return self.builder_.call_te(place, call.args[0], primfunc_name_hint=name.split(".")[1])


RowPlaces = mutator_pass("RowPlaces", _PlacesOfRows)
