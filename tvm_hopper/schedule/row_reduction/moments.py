"""Find mean and variance, which a cluster exchanges together."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.schedule.memory_bound.program import Part


def are_moments(parts: list[Part]) -> bool:
    """Tell whether a program's reductions are a sum of rows, and the squares around its mean.

    Parameters
    ----------
    parts : list of Part
        The program, inlined.
    """
    sums = [p for p in parts if p.reduced]
    if len(sums) != 2:
        return False
    one, other = (_added(p) for p in sums)
    if one is None or not isinstance(other, tirx.Mul) or not isinstance(other.a, tirx.Sub):
        return False
    names = dict(zip(_variables(sums[1]), _variables(sums[0]), strict=False))
    alike = tvm_ffi.structural_equal(ir.substitute(other.a.a, names), one)
    squares = tvm_ffi.structural_equal(other.a, other.b)
    return bool(alike and squares and _reads(other.a.b, sums[0].outputs[0], parts))


def _added(part: Part) -> Any:
    """Return what a part adds up, in float32; None if it does something else."""
    value = getattr(part.store, "value", None)  # none: several values are reduced as one
    if not isinstance(value, tirx.Add) or ir.dtype_of(value) != "float32":
        return None
    own = isinstance(value.a, ir.TensorLoad) and value.a.source.same_as(part.outputs[0])
    return value.b if own else None


def _variables(part: Part) -> list[Any]:
    return [x.var for x in part.node.iter_vars]


def _reads(value: Any, result: Any, parts: list[Part]) -> bool:
    """Tell whether a value is computed of a result, or read from what is."""
    read = [x.source for x in ir.find_all(value, ir.TensorLoad)]
    made = [p for p in parts if not p.reduced and any(p.outputs[0].same_as(x) for x in read)]
    read += [x.source for p in made for x in ir.find_all(p.store.value, ir.TensorLoad)]
    return any(x.same_as(result) for x in read)
