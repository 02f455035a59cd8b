"""Find float buffers that hold integers if some arguments do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm import ir, tirx

from .functions import EXACT_CALLS
from .plain import PlainProgram, dtype_of, op_name
from .rounding import FORMATS

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
