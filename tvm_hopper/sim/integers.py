"""TIR's integer arithmetic on Python integers and arrays, shared by all evaluators.

Whole programs are compiled to Python text (`translate`), whose operators are these.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tvm_hopper.sim.machine.lanes import tdiv, tmod


def minimum(a: Any, b: Any) -> Any:
    """Return the smaller one, element by element."""
    return np.minimum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else min(a, b)


def maximum(a: Any, b: Any) -> Any:
    """Return the larger one, element by element."""
    return np.maximum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else max(a, b)


BINARY: dict[str, Callable[[Any, Any], Any]] = {  # by the name of the node's class
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "FloorMod": operator.mod,
    "Div": tdiv,
    "Mod": tmod,
    "Min": minimum,
    "Max": maximum,
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "EQ": operator.eq,
    "NE": operator.ne,
    "BitwiseAnd": operator.and_,
    "BitwiseOr": operator.or_,
    "BitwiseXor": operator.xor,
    "LShift": operator.lshift,
    "RShift": operator.rshift,
}
CALLS: dict[str, Callable[[Any, Any], Any]] = {  # by the operator's name
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "shift_left": operator.lshift,
    "shift_right": operator.rshift,
}
