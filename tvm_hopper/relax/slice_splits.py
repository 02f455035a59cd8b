"""Take parts of a split that are only looked at in another shape as slices.

    parts = split(y, 3, axis=-1); q = reshape(parts[0], (b, s, h, d)); k = reshape(parts[1], ...)
  ->
    q = reshape(strided_slice(y, [-1], [0], [n]), (b, s, h, d)); k = ...

A split is a kernel of several outputs, which TVM fuses with nothing; a slice is part of the kernel
that reads it, as attention reads queries, keys and values where a product left them.
Leaves: splits with a part that is computed with, as those of gates (`fuse_gates.py`).
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_hopper import ir

from .elements_first import VIEWS
from .mutator_passes import mutator_pass
from .simplify_operands import CAST, PERMUTE
from .to_half import ATTENTION, readers_of

SPLIT = tvm.ir.Op.get("relax.split")
READERS = [*ATTENTION, *VIEWS, PERMUTE, CAST]


@mutator
class _Slicer(PyExprMutator):  # type: ignore[misc]
    changed = False

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.splits: dict[Any, Any] = {}  # variables of splits, and their calls

    def visit_function_(self, func: relax.Function) -> Any:
        """Find the splits of one function."""
        readers = readers_of(func)
        self.splits = {
            binding.var: binding.value
            for block in func.body.blocks
            if isinstance(block, relax.DataflowBlock)
            for binding in block.bindings
            if isinstance(binding.value, relax.Call) and binding.value.op == SPLIT
            and all(_is_looked_at(x, readers) for x in readers.get(binding.var, [(None, None)]))
            and _begins(binding.value)
        }  # fmt: skip
        return super().visit_function_(func)

    def visit_tuple_getitem_(self, part: Any) -> Any:
        """Slice what is split."""
        call = self.splits.get(part.tuple_value)
        if call is None:
            return super().visit_tuple_getitem_(part)
        self.changed = True
        begins = _begins(call)
        first, last = begins[part.index], begins[part.index + 1]
        source = self.visit_expr(call.args[0])
        return relax.op.strided_slice(source, [_axis(call)], [first], [last])


SliceSplits = mutator_pass("SliceSplits", _Slicer)


def _is_looked_at(reader: tuple[Any, Any], readers: dict[Any, list[Any]]) -> bool:
    """Tell a part of a split that is viewed, cast or attended to, and no result."""
    var, part = reader
    if not isinstance(part, relax.TupleGetItem) or not isinstance(var, relax.DataflowVar):
        return False
    found = [value for _, value in readers.get(var, [])]
    return all(isinstance(x, relax.Call) and x.op in READERS for x in found)


def _axis(call: Any) -> int:
    return int(call.attrs.axis) % int(call.args[0].ty.ndim)


def _begins(call: Any) -> list[int]:
    """Return where parts begin, and the end of the last one; none where this is not known."""
    places = [0]
    for part in call.ty.fields:
        shape = getattr(part, "shape", None)
        extent = ir.static_int(shape.values[_axis(call)]) if shape is not None else None
        if extent is None:
            return []
        places.append(places[-1] + extent)
    return places
