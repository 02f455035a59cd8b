"""Trace where the float values of a kernel come from, also through registers.

    x[0] = X[i] * 0.5       LOADED
    t[0] = x[0] * s         COMPUTED, and a PRODUCT, which the compiler may fuse with a sum
    m = max(m, t[0])        COMPUTED
    t[0] = x[0] + 1         no PRODUCT any more

A constant is none of these. Registers are followed by the bytes of each element, under all names of
their array. Memory is not: what a kernel stores to some array may come out of any load of it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log2
from typing import Any

from tvm import tirx
from tvm.tirx import FloatImm, IntImm

from tvm_hopper import ir
from tvm_hopper.facts.dtypes import DTYPES
from tvm_hopper.facts.op_names import GLOBAL_LOADS, is_op

PRODUCT, LOADED, COMPUTED = 1, 2, 4
_KEPT = ("tirx.reinterpret", "tirx.tvm_hopper_upper_half", "tirx.likely")  # bits as they are
_CONSTANTS = (FloatImm, IntImm)
_PLAIN = (IntImm, ir.Var, tirx.Ramp)  # of indices: there are no sums of floats in them
_ANY = None  # the place of what no number says

Places = dict[int | None, int]  # of an array: the byte of each element, and its origin


class OriginWalk:
    """A walk over a kernel, as it is printed, in its order."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        self.body = func.body
        self.roots: dict[Any, Any] = {}
        for view in ir.find_all(func.body, tirx.DeclBuffer):
            owner = ir.pointer_of(view.data)
            self.roots[view.buffer] = self.root(view.data if owner is None else owner)
        stores = ir.find_all(func.body, ir.BufferStore, lambda x: isinstance(x.value, ir.Var))
        self.stored = {store.value: store for store in stores}  # tuples are named before
        self.memory: dict[Any, int] = {}  # what the kernel stores to an array that is no register's
        self.loaded: dict[Any, int] = {}  # what was known of it at any load
        self.scopes: dict[Any, str] = {}
        self.sizes: dict[Any, int] = {}
        self.registers: dict[Any, Places] = {}
        self.names: dict[Any, int] = {}

    def run(self, visit: Callable[[Any, int, int, Any], None]) -> None:
        """Tell `visit` what each sum is made of.

        It takes a sum or difference of floats, the origins of both operands, and the store whose
        whole value it is, also by a name, None if it is a part of one. It may be told of a sum
        several times.
        """
        self.visit = visit
        self.statement(self.body)
        while any(self.memory.get(root, 0) != seen for root, seen in self.loaded.items()):
            # what the end of a kernel stores may be loaded before it
            self.registers, self.names, self.loaded = {}, {}, {}
            self.statement(self.body)

    def root(self, buffer: Any) -> Any:
        """Return the array that a buffer is a name of."""
        return self.roots.get(buffer, buffer)

    def scope(self, buffer: Any) -> str:
        """Return the memory that a buffer lies in."""
        if buffer not in self.scopes:
            self.scopes[buffer] = str(buffer.scope())
        return self.scopes[buffer]

    # -- statements

    def statement(self, stmt: Any) -> None:
        """Follow a statement, and those in it."""
        if isinstance(stmt, tirx.SeqStmt):
            for part in stmt.seq:
                self.statement(part)
        elif isinstance(stmt, ir.BufferStore):
            self._store(stmt)
        elif isinstance(stmt, tirx.Bind):
            self.names[stmt.var] = self.value(stmt.value, self.stored.get(stmt.var))
        elif isinstance(stmt, ir.Evaluate):
            self.value(stmt.value)
            self._call(stmt.value)
        elif isinstance(stmt, ir.IfThenElse):
            self.value(stmt.condition)
            before = self._copy()
            self.statement(stmt.then_case)
            after, self.registers = self.registers, before
            if stmt.else_case is not None:
                self.statement(stmt.else_case)
            self._join(after)
        elif isinstance(stmt, ir.For | tirx.While):
            if isinstance(stmt, tirx.While):
                self.value(stmt.condition)
            before = None
            while before != self.registers:  # what an iteration leaves the next one finds
                before = self._copy()
                self.statement(stmt.body)
                self._join(before)
        elif isinstance(stmt, tirx.AttrStmt):
            self.statement(stmt.body)

    def _copy(self) -> dict[Any, Places]:
        return {root: dict(places) for root, places in self.registers.items()}

    def _join(self, other: dict[Any, Places]) -> None:
        for root, places in other.items():
            elements = self.registers.setdefault(root, {})
            for place, origin in places.items():
                elements[place] = elements.get(place, 0) | origin

    def _store(self, store: ir.BufferStore) -> None:
        origin, root = self.value(store.value, store), self.root(store.buffer)
        if self.scope(store.buffer) != "local":
            self.memory[root] = self.memory.get(root, 0) | origin
            return
        places, stored = self.registers.setdefault(root, {}), self._places(store)
        if stored is None:
            places[_ANY] = places.get(_ANY, 0) | origin
        else:
            places.update(dict.fromkeys(stored, origin))

    def _call(self, call: Any) -> None:
        """Take what a call is given for loaded by it, or for computed: it may be a result."""
        if not isinstance(call, ir.Call):
            return
        is_load = is_op(call, GLOBAL_LOADS)  # to registers among its arguments
        args = list(call.args)
        given: list[Any] = [(x.source, self._places(x)) for x in ir.find_all(args, ir.TensorLoad)]
        given += [(ir.pointer_of(x), None) for x in ir.find_all(args, ir.Call)]
        for buffer, accessed in given:
            if buffer is None or self.scope(buffer) != "local":
                continue
            places = self.registers.setdefault(self.root(buffer), {})
            for place in [_ANY] if accessed is None else accessed:
                kept = 0 if is_load and accessed is not None else places.get(place, 0)
                places[place] = kept | (LOADED if is_load else COMPUTED)

    def _places(self, access: Any) -> range | None:
        """Return the bytes that an access of registers names, in steps of two; None: any."""
        buffer = access.buffer if isinstance(access, ir.BufferStore) else access.source
        (index, *more), lanes = access.indices, 1
        if isinstance(index, tirx.Ramp):
            if not ir.is_const(index.stride, 1):
                return None
            index, lanes = index.base, int(index.lanes)
        if more or (number := ir.static_int(index)) is None:
            return None
        if (size := self.sizes.get(buffer)) is None:
            known = DTYPES.get(ir.dtype_of(buffer))
            size = self.sizes[buffer] = 0 if known is None else known.num_bytes
        return None if not size else range(number * size // 2 * 2, (number + lanes) * size, 2)

    # -- expressions

    def value(self, node: Any, store: Any = None) -> int:
        """Return the origin of an expression, and visit the sums in it."""
        kind = type(node)
        if kind in _CONSTANTS:
            return 0
        if kind is ir.Var:
            return self.names.get(node, LOADED)
        if kind is ir.TensorLoad:
            return self._loaded(node)
        if kind is tirx.Cast:
            origin = self.value(node.value, store)
            return origin if _is_float(node) and _is_float(node.value) else origin & ~PRODUCT
        if kind is tirx.Add or kind is tirx.Sub:
            return self._sum(node, store)
        if kind is tirx.Mul:
            origin = self.value(node.a) | self.value(node.b)
            if _is_float(node) and not (_is_exact(node.a) or _is_exact(node.b)):
                return COMPUTED | PRODUCT
            return origin & ~PRODUCT
        if kind is tirx.Let:
            self.names[node.var] = self.value(node.value)
            return self.value(node.body, store)
        if kind is tirx.Select:
            self.value(node.condition)
            return self.value(node.true_value) | self.value(node.false_value)
        if kind is ir.Call:
            return self._called(node)
        parts = [getattr(node, x) for x in ("a", "b", "value", "base") if hasattr(node, x)]
        origin = 0
        for part in (*parts, *getattr(node, "vectors", ())):
            origin |= self.value(part)
        return origin if kind in (tirx.Broadcast, tirx.Shuffle) else _of(node, origin)

    def _sum(self, node: tirx.Add | tirx.Sub, store: Any) -> int:
        a, b = self.value(node.a), self.value(node.b)
        if not _is_float(node):
            return (a | b) & ~PRODUCT
        self.visit(node, a, b, store)
        is_negated = isinstance(node, tirx.Sub) and ir.is_zero(node.a)
        return COMPUTED | (b & PRODUCT if is_negated else 0)

    def _called(self, node: ir.Call) -> int:
        name = str(getattr(node.op, "name", ""))
        origins = [self.value(x) for x in node.args]
        if name.endswith("if_then_else"):
            return origins[1] | origins[2]
        origin = 0
        for x in origins:
            origin |= x
        return origin if name in _KEPT else _of(node, origin)

    def _loaded(self, load: ir.TensorLoad) -> int:
        for index in load.indices:
            if type(index) not in _PLAIN:
                self.value(index)
        root, scope = self.root(load.source), self.scope(load.source)
        if scope != "local":
            origin = self.memory.get(root, 0)
            self.loaded[root] = self.loaded.get(root, origin) & origin
            return origin | (LOADED if scope == "global" else COMPUTED)
        places, accessed = self.registers.get(root, {}), self._places(load)
        origin = places.get(_ANY, 0)
        for place in places if accessed is None else accessed:
            origin |= places.get(place, 0)
        return origin


def _is_float(node: Any) -> bool:
    return "float" in str(getattr(node, "ty", ""))


def _is_exact(factor: Any) -> bool:
    """Tell a power of two by which no product overflows: it has nothing to round."""
    while isinstance(factor, tirx.Broadcast):
        factor = factor.value
    number = abs(float(factor.value)) if type(factor) is FloatImm else 0
    return 0 < number <= 1 and log2(number).is_integer()


def _of(node: Any, origin: int) -> int:
    """Return the origin of what is computed of operands: integers are as good as loaded."""
    return COMPUTED if _is_float(node) else origin & ~PRODUCT
