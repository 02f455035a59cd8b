"""Find a program's reductions: axes, parameters and operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, tirx

from .functions import EXACT_CALLS
from .plain import PlainProgram, PlainStore, StorePlace, dtype_of, nodes_in, op_name, variables
from .rounding import FORMATS

CHOOSING = (tirx.Max, tirx.Min, tirx.Select)
LINEAR = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Cast, tirx.FloatImm, ir.TensorLoad)


def reduced_axes(program: PlainProgram) -> dict[Any, set[int]]:
    """Return the axes of float parameters along which the program reduces.

    Loads of the reducing stores tell, and through buffers of the program's own what these hold.
    """
    axes: dict[Any, set[int]] = {}
    for place in program.places:
        if _replaces_itself(place):
            kept = set(variables(*place.store.indices))
            _add(axes, place, {loop.var for loop in place.loops} - kept)
    grown = True
    while grown:
        before = sum(map(len, axes.values()))
        for place in program.places:
            along = axes.get(place.store.buffer, set())
            _add(axes, place, set(variables(*(place.store.indices[axis] for axis in along))))
        grown = sum(map(len, axes.values())) > before
    return {
        buffer: some
        for buffer, some in axes.items()
        if buffer in program.params and dtype_of(buffer) in FORMATS
    }


def is_linear(program: PlainProgram, others: tuple[type, ...] = ()) -> bool:
    """Tell whether floats are only added, multiplied and converted, but for other operations."""
    return all(
        isinstance(node, (*LINEAR, *others)) or dtype_of(node) not in FORMATS
        for place in program.places
        for node in _inside(place)
    )


def extremes(program: PlainProgram) -> tuple[int, ...]:
    """Return which extremes the reductions keep: 1 for maxima, -1 for minima, none for sums."""
    found: set[int] = set()
    for place in filter(_replaces_itself, program.places):
        for node in _inside(place):
            found |= {1} if isinstance(node, tirx.Max) else set()
            found |= {-1} if isinstance(node, tirx.Min) else set()
            found |= {1, -1} if isinstance(node, tirx.Select) else set()
    return tuple(sorted(found, reverse=True))


def added_term(store: PlainStore) -> tuple[Any, int] | None:
    """Return what a store adds to the float that it replaces, and the sign; None: it is no sum."""
    value = store.value
    if not isinstance(value, (tirx.Add, tirx.Sub)) or dtype_of(store.buffer) not in FORMATS:
        return None
    if _is_element(value.a, store):
        return value.b, -1 if isinstance(value, tirx.Sub) else 1
    if isinstance(value, tirx.Add) and _is_element(value.b, store):
        return value.a, 1
    return None


def _add(axes: dict[Any, set[int]], place: StorePlace, along: set[Any]) -> None:
    """Add the axes of what a store loads whose indices mention some variables."""
    for load in _inside(place):
        if isinstance(load, ir.TensorLoad) and not load.source.same_as(place.store.buffer):
            found = {i for i, x in enumerate(load.indices) if along & set(variables(x))}
            if found:
                axes.setdefault(load.source, set()).update(found)


def _inside(place: StorePlace) -> list[Any]:
    """Return the operations and loads of what a store computes, with names written out."""
    found = nodes_in(ir.Expr, place.store.value, *(let.value for let in place.lets))
    return [x for x in found if not isinstance(x, (ir.Var, ir.Op))]


def _replaces_itself(place: StorePlace) -> bool:
    loads = (x for x in _inside(place) if isinstance(x, ir.TensorLoad))
    return any(load.source.same_as(place.store.buffer) for load in loads)


def _is_element(expr: Any, store: PlainStore) -> bool:
    return (
        isinstance(expr, ir.TensorLoad)
        and expr.source.same_as(store.buffer)
        and all(map(tvm_ffi.structural_equal, expr.indices, store.indices))
    )


KEEP = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Min, tirx.Max)


def integral_buffers(program: PlainProgram, arguments: Mapping[Any, Any]) -> set[Any]:
    """Return the float buffers whose elements are integers whenever the program computes them."""
    integral = {b for b in program.buffers if dtype_of(b) in FORMATS}
    read_only = {p for p in program.params if tirx.is_buffer_var(p)} - set(program.outputs)
    for buffer in read_only & integral:
        if not _all_integers(arguments[buffer]):
            integral.discard(buffer)
    shrinks = True
    while shrinks:
        shrinks = False
        for place in program.places:
            buffer = place.store.buffer
            names = {let.var: let.value for let in place.lets}
            if buffer in integral and not _is_integral(place.store.value, integral, names):
                integral.discard(buffer)
                shrinks = True
    return integral


def _all_integers(array: Any) -> bool:
    sample = np.asarray(array)
    if sample.size > 1 << 16:  # one plane tells: arrays are made all alike, or given
        sample = sample.reshape(-1)[:: sample.size >> 16] if sample.flags.c_contiguous else sample
    wide = sample.astype(np.float64)
    return bool((wide == np.floor(wide)).all())


def _is_integral(expr: Any, buffers: set[Any], names: Mapping[Any, Any]) -> bool:
    if isinstance(expr, ir.TensorLoad):
        return expr.source in buffers or dtype_of(expr.source) not in FORMATS
    if isinstance(expr, tirx.FloatImm):
        return float(expr.value).is_integer()
    if isinstance(expr, ir.Var) and expr in names:
        return _is_integral(names[expr], buffers, names)
    if dtype_of(expr) not in FORMATS:
        return True
    if isinstance(expr, KEEP):
        return _is_integral(expr.a, buffers, names) and _is_integral(expr.b, buffers, names)
    if isinstance(expr, tirx.Cast):
        return _is_integral(expr.value, buffers, names)
    if isinstance(expr, tirx.Select):
        return all(_is_integral(x, buffers, names) for x in (expr.true_value, expr.false_value))
    if isinstance(expr, ir.Call):
        if op_name(expr) == "if_then_else":
            return all(_is_integral(x, buffers, names) for x in expr.args[1:])
        return op_name(expr) in EXACT_CALLS - {"fabs"} or (
            op_name(expr) == "fabs" and _is_integral(expr.args[0], buffers, names)
        )
    return False
