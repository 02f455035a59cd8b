"""Evaluate an integer expression at many points at once with numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm import tirx

from tvm_hopper import ir

WIDENED = ("int32", "int64")
OPERATIONS = {
    tirx.Add: np.add,
    tirx.Sub: np.subtract,
    tirx.Mul: np.multiply,
    tirx.FloorDiv: np.floor_divide,
    tirx.FloorMod: np.mod,
    tirx.Min: np.minimum,
    tirx.Max: np.maximum,
    tirx.LT: np.less,
    tirx.LE: np.less_equal,
    tirx.GT: np.greater,
    tirx.GE: np.greater_equal,
    tirx.EQ: np.equal,
    tirx.NE: np.not_equal,
    tirx.And: np.logical_and,
    tirx.Or: np.logical_or,
}


def at_places(expr: Any, values: Mapping[ir.Var, Any]) -> Any:
    """Return the values of an expression, an array like those of its variables.

    - `expr` (expression): of integers; a comparison of such is true or false.
    - `values` (mapping): of each variable an array, all of one shape.
    - raises KeyError: for another variable, or another operation.
    """
    if isinstance(expr, ir.Var):
        return values[expr]
    if isinstance(expr, (int, tirx.IntImm)):
        return int(expr)
    if isinstance(expr, tirx.Cast) and (ir.dtype_of(expr.value), ir.dtype_of(expr)) == WIDENED:
        return at_places(expr.value, values)
    if isinstance(expr, tirx.Not):
        return np.logical_not(at_places(expr.a, values))
    return OPERATIONS[type(expr)](at_places(expr.a, values), at_places(expr.b, values))
