"""Integer expressions of a device function, evaluated for all threads of a CTA at once.

An expression is compiled once to a closure over an environment; a value is a Python integer, an
array with one entry per thread, an address, or `UNKNOWN` (it depends on data).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir, tirx

from tvm_hopper.sim.integers import BINARY, CALLS
from tvm_hopper.sim.protocol.given import load_given
from tvm_hopper.sim.tir import numpy_dtype, short_name

Env = dict[Any, Any]
Value = Any
Closure = Callable[[Env], Value]


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()


@dataclass(frozen=True)
class Address:
    """A byte of shared memory: `space` names the allocation, `rank` the CTA (None: the own one)."""

    space: str
    offset: Any
    rank: Any = None

    def __add__(self, other: Any) -> Address:
        return Address(self.space, self.offset + other, self.rank)

    __radd__ = __add__


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    **BINARY,
    "And": np.logical_and,
    "Or": np.logical_or,
}
_BINARY_CALLS: dict[str, Callable[[Any, Any], Any]] = {
    **CALLS,
    "handle_add_byte_offset": operator.add,
    "ptx.addr": operator.add,
}
_IDENTITY = ("likely", "cuda.cvta_generic_to_shared", "reinterpret", "cuda.smem_addr_from_uint64")


def scalar(value: Any) -> Any:
    """Convert numpy scalars into Python ones; return other values as they are."""
    return value.item() if isinstance(value, np.generic) else value


def compile_expr(node: Any) -> Closure:
    """Compile one expression; other arithmetic than of integers becomes `UNKNOWN`."""
    kind = type(node)
    if kind is int:
        return lambda env: node
    if kind.__name__ in _BINARY:
        return _binary(_BINARY[kind.__name__], node.a, node.b)
    if isinstance(node, tirx.IntImm):
        # `&` of a constant and a mask of threads is a mask, not a number for each thread
        number = bool(node.value) if str(node.ty) == "bool" else int(node.value)
        return lambda env: number
    if isinstance(node, ir.Var):
        return lambda env: env.get(node, UNKNOWN)
    if kind is tirx.Cast:
        return compile_expr(node.value) if not str(node.ty).startswith("float") else _unknown
    if kind is tirx.Not:
        inner = compile_expr(node.a)
        return lambda env: _negate(inner(env))
    if kind is tirx.Select:
        return _choose(node.condition, node.true_value, node.false_value)
    if kind is tirx.Let:
        return _let(node)
    if isinstance(node, ir.TensorLoad):
        return _load(node)
    if isinstance(node, ir.Call):
        return _call(node)
    return _unknown


def _unknown(env: Env) -> Value:
    return UNKNOWN


def _negate(value: Any) -> Any:
    if value is UNKNOWN:
        return UNKNOWN
    return ~value if isinstance(value, np.ndarray) else not value


def _binary(function: Callable[[Any, Any], Any], a: Any, b: Any) -> Closure:
    left, right = compile_expr(a), compile_expr(b)

    def evaluate(env: Env) -> Value:
        x, y = left(env), right(env)
        if x is UNKNOWN or y is UNKNOWN:
            return UNKNOWN
        try:
            return scalar(function(x, y))
        except (TypeError, ZeroDivisionError):
            return UNKNOWN

    return evaluate


def _choose(condition: Any, yes: Any, no: Any) -> Closure:
    parts = [compile_expr(part) for part in (condition, yes, no)]

    def evaluate(env: Env) -> Value:
        which, a, b = (part(env) for part in parts)
        if which is UNKNOWN:
            return UNKNOWN
        if not isinstance(which, np.ndarray):
            return a if which else b
        if a is UNKNOWN or b is UNKNOWN or isinstance(a, Address) or isinstance(b, Address):
            return UNKNOWN
        return np.where(which, a, b)

    return evaluate


def _let(node: tirx.Let) -> Closure:
    var, value, body = node.var, compile_expr(node.value), compile_expr(node.body)

    def evaluate(env: Env) -> Value:
        env[var] = value(env)
        return body(env)

    return evaluate


def register_key(buffer: Any, indices: Sequence[Any]) -> tuple[Any, int] | None:
    """Name a register by buffer and constant index; None if that is not constant."""
    if len(indices) == 1 and isinstance(indices[0], tirx.IntImm):
        return buffer, int(indices[0].value)
    return None


def _load(node: ir.TensorLoad) -> Closure:
    if node.source.scope() in ("", "global"):
        one = len(node.indices) == 1
        return load_given(node, compile_expr(node.indices[0]), UNKNOWN) if one else _unknown
    key = register_key(node.source, node.indices)
    if key is None or not node.source.scope().startswith("local"):
        return _unknown
    return lambda env: env.get(key, UNKNOWN)


def _call(node: ir.Call) -> Closure:
    name = short_name(node)
    if name in _BINARY_CALLS:
        return _binary(_BINARY_CALLS[name], node.args[0], node.args[1])
    if name in _IDENTITY:
        return compile_expr(node.args[0])
    if name == "if_then_else":
        return _choose(*node.args[:3])
    if name == "address_of":
        return _address_of(node.args[0])
    if name == "buffer_data":
        source = node.args[0]
        return lambda env: env.get(("space", source), UNKNOWN)
    if name == "tvm_access_ptr":
        size = numpy_dtype(str(node.args[0].ty.dtype)).itemsize
        return _binary(lambda start, count: start + count * size, node.args[1], node.args[2])
    if name == "cuda.elect_sync":
        return lambda env: env["lane"] == 0
    if name == "cuda.thread_rank":
        return lambda env: env["thread"]
    return _unknown


def _address_of(target: Any) -> Closure:
    if isinstance(target, ir.Var):  # address of a parameter: a tensor map
        return lambda env: target
    if not isinstance(target, ir.TensorLoad) or len(target.indices) != 1:
        return _unknown
    index, buffer = compile_expr(target.indices[0]), target.source
    try:
        size = numpy_dtype(str(buffer.ty.dtype.dtype)).itemsize
    except KeyError:
        return _unknown

    def evaluate(env: Env) -> Value:
        base, position = env.get(("space", buffer), UNKNOWN), index(env)
        if base is UNKNOWN or position is UNKNOWN:
            return UNKNOWN
        return base + position * size

    return evaluate


def bounds_of(
    indices: Sequence[Any], width: int, loops: Sequence[tuple[Any, Any]]
) -> tuple[int, int] | None:
    """Half-open range of a register index over loops, (variable, extent); None if not known."""
    if len(indices) != 1:
        return None
    index = indices[0]
    if isinstance(index, tirx.IntImm):
        return int(index.value), int(index.value) + width
    lanes = 1
    if isinstance(index, tirx.Ramp):
        lanes = int(index.lanes) if isinstance(index.lanes, (int, tirx.IntImm)) else width
        index = index.base
    evaluate = compile_expr(index)
    corners: list[Env] = [{}]
    for var, extent in loops:
        if not isinstance(extent, tirx.IntImm):
            continue
        last = max(int(extent) - 1, 0)
        corners = [{**c, var: v} for c in corners for v in {0, last}][:64]
    values = [evaluate(corner) for corner in corners]
    if not all(isinstance(v, int) for v in values):
        return None
    return min(values), max(values) + max(lanes, width)
