"""Registers and variables that control flow or synchronisation depends on.

    i = idx[0] & 7          idx: an index of memory follows from it
    x = A[i] * scale        x, scale: nothing follows from them
    if x > 0:               now x steers, too, and so does scale

Steering values are addresses, indices, conditions, extents, predicates and operands of
instructions, and all values that they are computed from. A run that compares no numbers may skip
all other values, as long as it still accesses memory and shuffles.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from tvm import ir, tirx

from tvm_hopper.sim.tir import (
    PTX,
    decode_ptx,
    dtype_of,
    numpy_dtype,
    op_name,
    short_name,
    split_lanes,
)
from tvm_hopper.sim.translate.device_math import MATH, plain_name
from tvm_hopper.sim.translate.questions import viewed
from tvm_hopper.sim.walk import walk_nodes

LOADS, STORES = ("ld", "ld_vec", "ld_vec256"), ("st", "st_vec", "st_vec256")
# Operands that hold values, not addresses: only the place of their registers matters.
VALUE_OPERANDS: Mapping[str, tuple[str, ...]] = {
    "wgmma_": ("d", "a", "scale_d", "scale_a", "scale_b"),  # factors of values too
    "mma": ("d", "a", "b", "c"),
    "ldmatrix": ("r",),
    "stmatrix": ("r",),
    "mov": ("d", "a"),
    "st_async": ("b",),
    "red_async": ("value",),
    **dict.fromkeys(LOADS, ("d",)),
    **dict.fromkeys(STORES, ("value",)),
}
VALUE_CALLS = ("noop_barrier", "hold_")  # they leave registers as they are
SHUFFLES = ("tvm_warp_shuffle", "cuda.__shfl")
_CHOOSES = (tirx.Select, tirx.And, tirx.Or)
_COMPUTES = ("bitwise_", "shift_", "reinterpret", "if_then_else", "cuda.uint_as", "cuda.float_as")
_MAY_FAIL = ("Div", "Mod", "FloorDiv", "FloorMod")  # integer division by zero


def named(table: Mapping[str, Any], name: str) -> Any:
    """Return the entry of a table whose key an instruction's name begins with."""
    return next((value for prefix, value in table.items() if name.startswith(prefix)), None)


def steering_of(func: tirx.PrimFunc) -> set[Any]:
    """Return the register arrays and the variables from which more than numbers may follow."""
    reader = _Steering(func)
    todo, found = list(reader.roots), set(reader.roots)
    while todo:
        for source in reader.sources.get(todo.pop(), ()):
            if source not in found:
                found.add(source)
                todo.append(source)
    return found | {view for view in reader.views if reader.root(view) in found}


def only_computes(*nodes: Any) -> bool:
    """Return whether expressions access registers at constant places and only compute."""
    loads: list[ir.TensorLoad] = []
    calls: list[ir.Call] = []
    others: list[Any] = []
    kinds = [(ir.TensorLoad, loads.append), (ir.Call, calls.append)]
    kinds += [(getattr(tirx, name), others.append) for name in _MAY_FAIL]
    for node in nodes:
        walk_nodes(node, kinds)
    return (
        all(load.source.scope().startswith("local") for load in loads)
        and all(constant_place(load.source, load.indices) for load in loads)
        and all(map(_computes, calls))
        and all("float" in str(other.ty) for other in others)
    )


def constant_place(buffer: Any, indices: Any) -> bool:
    """Return whether indices are constants, and inside of a register array."""
    if len(indices) != 1:
        return False
    index, count = indices[0], 1
    if isinstance(index, tirx.Ramp) and isinstance(index.lanes, (int, tirx.IntImm)):
        index, count = index.base, int(index.lanes)
    shape = buffer.shape
    if not isinstance(index, tirx.IntImm) or not all(isinstance(e, tirx.IntImm) for e in shape):
        return False
    return 0 <= int(index) <= math.prod(map(int, shape)) - count


def _computes(call: ir.Call) -> bool:
    short = short_name(call)
    if short in ("call_pure_extern", "call_extern"):
        return plain_name(str(call.args[0].value)) is not None
    return short.startswith(_COMPUTES) or short.removeprefix("cuda.") in MATH


class _Steering:
    """Walks a function once.

    - `roots` (set): values that steer by themselves.
    - `sources` (dict): sources of each register array and variable.
    """

    def __init__(self, func: tirx.PrimFunc) -> None:
        self.roots: set[Any] = set()
        self.sources: dict[Any, set[Any]] = {}
        self.views: dict[Any, Any] = {}
        walk_nodes(func.body, (tirx.DeclBuffer, self._declare))
        walk_nodes(
            func.body,
            [
                (tirx.Bind, lambda node: self._computed(node.var, [node.value])),
                (tirx.Let, lambda node: self._computed(node.var, [node.value])),
                (tirx.BufferStore, self._store),
                (tirx.IfThenElse, lambda node: self._steers(node.condition)),
                (tirx.While, lambda node: self._steers(node.condition)),
                (tirx.For, lambda node: self._steers(node.min, node.extent)),
                (tirx.Evaluate, self._evaluate),
                (ir.Call, self._call),
                (ir.TensorLoad, lambda node: self._steers(*node.indices)),
                *((kind, self._choice) for kind in _CHOOSES),
            ],
        )

    def root(self, buffer: Any) -> Any:
        """Return the array that a view looks at."""
        while buffer in self.views:
            buffer = self.views[buffer]
        return buffer

    def _declare(self, node: tirx.DeclBuffer) -> None:
        source = viewed(node.data)
        if source is not None and node.buffer.scope().startswith("local"):
            self.views[node.buffer] = source
        else:
            self._steers(node.data)

    def _named_in(self, nodes: Iterable[Any]) -> set[Any]:
        found: list[Any] = []
        loads: list[ir.TensorLoad] = []
        for node in nodes:
            if isinstance(node, ir.Expr):
                walk_nodes(node, [(ir.Var, found.append), (ir.TensorLoad, loads.append)])
        return {self.root(each) for each in (*found, *(load.source for load in loads))}

    def _steers(self, *nodes: Any) -> None:
        self.roots |= self._named_in(nodes)

    def _computed(self, target: Any, nodes: Iterable[Any]) -> None:
        self.sources.setdefault(self.root(target), set()).update(self._named_in(nodes))

    def _store(self, node: tirx.BufferStore) -> None:
        self._steers(*node.indices)
        if node.buffer.scope().startswith("local"):
            self._computed(node.buffer, [node.value])

    def _choice(self, node: Any) -> None:
        self._steers(node.condition if isinstance(node, tirx.Select) else node.a)

    def _evaluate(self, node: tirx.Evaluate) -> None:
        call = node.value
        if not isinstance(call, ir.Call):
            return
        ptx = decode_ptx(call)
        if ptx is None:
            if not self._leaves(short_name(call)):
                self._steers(*call.args)
            return
        numbers = [x for x in named(VALUE_OPERANDS, ptx.name) or () if not x.startswith("scale")]
        values: list[Any] = []
        for operand, expressions in ptx.operands.items():
            if operand in numbers:
                values += expressions
            else:
                self._steers(*expressions)
        self._steers(ptx.pred)
        for target in ptx.results:
            self._computed(target.source, values)

    @staticmethod
    def _leaves(short: str) -> bool:
        return any(word in short for word in VALUE_CALLS)

    def _call(self, call: ir.Call) -> None:
        """Visit a call inside of an expression: operands of shuffles steer."""
        short = short_name(call)
        if op_name(call).startswith(PTX) and short != "ptx.addr":
            return  # a statement: its operands are separate
        if short.startswith(SHUFFLES):
            self._steers(call.args[0], *call.args[2:])
        elif short == "if_then_else":
            self._steers(call.args[0])
        elif short != "buffer_data" and not _computes(call) and not self._leaves(short):
            self._steers(*call.args)


class SteeringEmitter:
    """A part of `StmtEmitter`: skips steps that affect only numbers, in runs without values."""

    scope: Any
    site: int
    steering: set[Any]

    def code(self, node: Any) -> str:
        """Return the text of an expression."""
        raise NotImplementedError

    def stored(self, node: tirx.BufferStore, text: str) -> str:
        """Return the text of a store to registers."""
        kept = node.buffer in self.steering or not constant_place(node.buffer, node.indices)
        return text if kept or not only_computes(node.value) else f"if computes: {text}"

    def bound(self, node: tirx.Bind, text: str) -> str:
        """Return the text of a value that lanes differ in; of a shuffle, that the lanes meet."""
        value = node.value
        scalar, vector = split_lanes(dtype_of(value))
        if node.var in self.steering or vector > 1:
            return text
        nothing = f"K_no_{scalar}"
        self.scope.constants[nothing] = np.zeros(32, numpy_dtype(scalar))
        if only_computes(value):
            return f"{text} if computes else {nothing}"
        if not (isinstance(value, ir.Call) and short_name(value).startswith(SHUFFLES)):
            return text
        if not only_computes(*value.args[1:]):
            return text
        meets = (
            f"w.members({self.site}, {self.scope.mask}, {self.code(value.args[0])}, 'shfl.sync')"
        )
        return f"{text} if computes else ({meets}, {nothing})[1]"
