"""Dependence of a device function on the block index, and where it matters.

Only what steers synchronisation matters: conditions and iteration counts around synchronising
instructions and shared memory, addresses in shared memory, operands of instructions.  Coordinates
and addresses in global memory do not: CTAs differ in these.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvm_hopper.sim.kinds.operands import (
    global_address,
    is_place,
    operands,
    registers,
    scope_of,
    shared_places,
    steering_arguments,
    steering_operands,
    touches_shared,
    written,
)
from tvm_hopper.sim.tir import PtxCall, decode_ptx, dtype_of, numpy_dtype, short_name
from tvm_hopper.sim.translate.questions import viewed
from tvm_hopper.sim.walk import walk_nodes

BLOCK, DATA, EXCHANGE = "block", "data", "exchange"
_NOTHING: frozenset[str] = frozenset()
_WORDS = ("atom", "red", "cp_reduce", "ld", "st")  # PTX on global memory that may exchange
_OF_THE_GRID = ("cuda.grid_sync",)
_ORDERED = ("acquire", "release", "acq_rel", "relaxed")


@dataclass(frozen=True, eq=False)  # TIR expressions do not compare
class CtaExchange:
    """An access by which CTAs may communicate.

    - `tensor` (Var): the parameter that holds the words; None if it is unknown.
    - `index` (tuple): index of the first word, as the buffer has it; empty if it is unknown.
    - `itemsize`: bytes of an element of that buffer.
    - `reads`: whether the value that it reads may steer the CTA.
    """

    name: str
    tensor: Any
    index: tuple[Any, ...]
    itemsize: int
    reads: bool


@dataclass
class Flow:
    """Results of a walk over a device function.

    - `block_vars` (dict): variable -> "blockIdx.x" and so on.
    - `binds` (dict): variable -> expression.
    - `loops` (dict): loop variable -> its `For`.
    - `extents` (dict): thread variable -> extent.
    - `taints` (dict): variable, or root of a buffer -> dependences of its value: BLOCK, DATA
      (memory at a place that depends on the block), EXCHANGE (memory that other CTAs write
      meanwhile).
    - `stores` (dict): root of a register or shared buffer -> expressions that its contents depend
      on.
    - `steering` (list): expressions that must agree in two CTAs for both to synchronise alike.
    """

    block_vars: dict[Any, str] = field(default_factory=dict)
    binds: dict[Any, Any] = field(default_factory=dict)
    loops: dict[Any, Any] = field(default_factory=dict)
    extents: dict[Any, Any] = field(default_factory=dict)
    views: dict[Any, Any] = field(default_factory=dict)
    taints: dict[Any, frozenset[str]] = field(default_factory=dict)
    stores: dict[Any, list[Any]] = field(default_factory=dict)
    steering: list[Any] = field(default_factory=list)
    exchanges: list[CtaExchange] = field(default_factory=list)
    meeting: str = ""  # the call at which all CTAs of the grid meet, if there is one

    def root(self, buffer: Any) -> Any:
        """Return the allocation or parameter that a buffer is a view of."""
        while buffer in self.views:
            buffer = self.views[buffer]
        return buffer

    def taint(self, expr: Any) -> frozenset[str]:
        """Return the dependences of an expression, or of a buffer's contents."""
        if isinstance(expr, ir.Var):
            return self.taints.get(self.root(expr), _NOTHING)
        found: set[str] = set()
        loads: list[Any] = []
        places: list[Any] = []  # their addresses are taken: the contents do not matter
        walk_nodes(
            expr,
            [
                (ir.TensorLoad, lambda x: loads.append(x.source)),
                (ir.Call, lambda x: places.append(x.args[0].source) if is_place(x) else None),
            ],
        )

        def variable(var: ir.Var) -> None:
            if tirx.is_buffer_var(var):
                of_contents = sum(var.same_as(x) for x in loads)
                if of_contents <= sum(var.same_as(x) for x in places):
                    return
            found.update(self.taints.get(self.root(var), _NOTHING))

        def load(access: ir.TensorLoad) -> None:
            if scope_of(access.source) == "global":
                held = any(self.taint(i) for i in access.indices)
                if held or self.root(access.source) in self.stores:
                    found.add(DATA)

        def call(node: ir.Call) -> None:
            if short_name(node).startswith("cuda.atomic"):
                found.add(EXCHANGE)

        walk_nodes(expr, [(ir.Var, variable), (ir.TensorLoad, load), (ir.Call, call)])
        return frozenset(found)


@functools.lru_cache(maxsize=32)
def flow_of(func: tirx.PrimFunc) -> Flow:
    """Walk a device function as codegen prints it."""
    walk = _FlowWalk()
    while True:  # dependences, until none is added
        before = dict(walk.flow.taints)
        walk.collect = False
        walk.stmt(func.body)
        if walk.flow.taints == before:
            break
    walk.collect = True
    walk.stmt(func.body)
    return walk.flow


class _FlowWalk:
    """One pass over the statements: dependences, and with `collect` the steering expressions."""

    def __init__(self) -> None:
        self.flow = Flow()
        self.collect = False
        self.around: list[Any] = []  # conditions and extents around that depend on the block
        self.loaded: set[Any] = set()  # tensors that some statement loads from

    def stmt(self, node: Any) -> None:
        kind = type(node).__name__
        if kind == "SeqStmt":
            for inner in node.seq:
                self.stmt(inner)
        elif kind == "AttrStmt":
            self._attribute(node)
        elif kind in ("Bind", "LetStmt"):
            self.flow.binds[node.var] = node.value
            self._add(node.var, self.flow.taint(node.value))
            self.expression(node.value)
            if hasattr(node, "body"):
                self.stmt(node.body)
        elif kind == "DeclBuffer":
            source = viewed(node.data)
            if source is not None:
                self.flow.views[node.buffer] = source
            else:
                self._add(node.buffer, self.flow.taint(node.data))
                self.expression(node.data)
        elif kind == "IfThenElse":
            self.expression(node.condition)
            self._under(node.condition, node.then_case, node.else_case)
        elif kind == "For":
            self.flow.loops[node.loop_var] = node
            self._add(node.loop_var, self.flow.taint(node.min))
            self.expression(node.min)
            self.expression(node.extent)
            self._under(node.extent, node.body)
        elif kind == "While":
            self.expression(node.condition)
            self._steer(node.condition)
            self._under(node.condition, node.body)
        elif kind == "BufferStore":
            self._store(node)
        elif kind == "Evaluate" and isinstance(node.value, ir.Call):
            for argument in node.value.args:
                self.expression(argument)
            self._call_statement(node.value)

    def _under(self, control: Any, *bodies: Any) -> None:
        """Walk statements under a condition or iteration count, which may depend on the block."""
        is_steered = bool(self.flow.taint(control))
        if is_steered:
            self.around.append(control)
        for body in bodies:
            if body is not None:
                self.stmt(body)
        if is_steered:
            self.around.pop()

    def _attribute(self, node: Any) -> None:
        if node.attr_key in ("thread_extent", "virtual_thread"):
            var, tag = node.node.var, str(node.node.thread_tag)
            if tag.startswith("blockIdx"):
                self.flow.block_vars[var] = tag
                self._add(var, frozenset({BLOCK}))
            elif tag.startswith("clusterIdx"):  # never printed with blockIdx next to it
                self._add(var, frozenset({BLOCK, DATA}))
            else:
                self.flow.extents[var] = node.value
        self.stmt(node.body)

    def _add(self, var: Any, taint: frozenset[str]) -> None:
        if taint:
            var = self.flow.root(var)
            self.flow.taints[var] = self.flow.taints.get(var, _NOTHING) | taint

    def _contents(self, buffer: Any, *values: Any) -> None:
        """Note the dependences of a buffer's contents."""
        root = self.flow.root(buffer)
        held = self.flow.stores.setdefault(root, [])
        for value in (*values, *self.around):
            if not any(value.same_as(other) for other in held):
                held.append(value)
            self._add(root, self.flow.taint(value))

    # -- steering --------------------------------------------------------------------------------

    def _steer(self, *values: Any) -> None:
        """Note that synchronisation is reached here, with operands that it depends on."""
        if self.collect:
            for value in (*values, *self.around):
                if self.flow.taint(value) and not any(value.same_as(v) for v in self.flow.steering):
                    self.flow.steering.append(value)

    def _store(self, node: Any) -> None:
        self.expression(node.value)
        for index in node.indices:
            self.expression(index)
        scope = scope_of(node.buffer)
        if scope == "shared":
            self._steer(*node.indices)
        self._contents(node.buffer, node.value, *node.indices)

    def expression(self, expr: Any) -> None:
        """Look for shared memory, and for calls that meet other threads, inside an expression."""
        if not isinstance(expr, tvm_ffi.Object):
            return

        def load(access: ir.TensorLoad) -> None:
            scope = scope_of(access.source)
            if scope == "shared":
                self._steer(*access.indices)
            elif scope == "global" and not any(access.same_as(other) for other in addressed):
                self.loaded.add(self.flow.root(access.source))

        def call(node: ir.Call) -> None:
            name = short_name(node)
            if name == "address_of":
                addressed.append(node.args[0])
            exchange = self._exchange(node)
            if exchange is not None:
                self._meet(replace(exchange, reads=True))
            if name == "if_then_else" and touches_shared(node):
                self._steer(node.args[0])
            steering = steering_arguments(node)
            if steering is not None:
                self._steer(*steering)

        addressed: list[Any] = []
        loads: list[Any] = []
        walk_nodes(expr, [(ir.TensorLoad, loads.append), (ir.Call, call)])
        for access in loads:
            load(access)

    def _meet(self, exchange: CtaExchange) -> None:
        if exchange.reads:
            self.loaded.add(exchange.tensor)
        if self.collect and exchange.tensor in self.loaded:
            self.flow.exchanges.append(exchange)

    def _call_statement(self, call: ir.Call) -> None:
        if short_name(call) in _OF_THE_GRID:
            self.flow.meeting = short_name(call)
        exchange = self._exchange(call)
        if exchange is not None:
            self._meet(exchange)
        ptx = decode_ptx(call)
        if ptx is None:
            self._steer(*(steering_arguments(call) or ()))
            pointed = [a for a in call.args if not global_address(a)]
            for buffer in registers(call):
                self._contents(buffer, *pointed)
        else:
            self._instruction(ptx, exchange)

    def _instruction(self, ptx: PtxCall, exchange: CtaExchange | None) -> None:
        named = list(operands(ptx))
        self._copied(named)
        for buffer in written(ptx):
            values = [v for n, v in named if n not in ptx.writes]
            self._contents(buffer, *(v for v in values if not global_address(v)))
            if exchange is not None:
                self._add(buffer, frozenset({EXCHANGE}))
            elif any(global_address(v) and self.flow.taint(v) for v in values):
                self._add(buffer, frozenset({DATA}))
        plain = ptx.name.startswith(_WORDS) and any(global_address(v) for _, v in named)
        if plain and exchange is None:
            return  # an ordinary access of global memory
        self._steer(*steering_operands(ptx))
        if exchange is not None and exchange.tensor in self.loaded:
            self._steer(*(v for n, v in named if n == "value"))

    def _copied(self, named: list[tuple[str, Any]]) -> None:
        """Note that shared memory receives data from places that differ between CTAs."""
        held = any(
            self.flow.taint(value)
            for name, value in named
            if name in ("coords", "tmap") or global_address(value)
        )
        if held:
            for _, value in named:
                for buffer in shared_places(value):
                    self._add(buffer, frozenset({DATA}))

    def _exchange(self, call: ir.Call) -> CtaExchange | None:
        """Return the access of a call by which CTAs may communicate."""
        short = short_name(call)
        if short.startswith("cuda.atomic"):
            return self._exchange_at(short, call.args[0], False)
        if short == "cuda.wait_until":
            return self._exchange_at(short, call.args[1], True)
        ptx = decode_ptx(call)
        if ptx is None or not ptx.name.startswith(_WORDS):
            return None
        addresses = [v for _, v in operands(ptx) if global_address(v)]
        kind = ptx.name[:2]
        volatile = any(token == "volatile" for token in ptx.mods.values())
        ordered = ptx.mods.get("sem") in _ORDERED or volatile
        if not addresses or (kind in ("ld", "st") and not ordered):
            return None
        return self._exchange_at(ptx.name, addresses[0], "d" in ptx.writes or kind == "ld")

    def _exchange_at(self, name: str, address: Any, reads: bool) -> CtaExchange:
        while True:
            if isinstance(address, ir.Call) and short_name(address) == "reinterpret":
                address = address.args[0]
            elif isinstance(address, ir.Var) and address in self.flow.binds:
                address = self.flow.binds[address]
            else:
                break
        if isinstance(address, ir.Call) and short_name(address) == "address_of":
            access = address.args[0]
            if isinstance(access, ir.TensorLoad):
                root, size = self.flow.root(access.source), numpy_dtype(dtype_of(access)).itemsize
                return CtaExchange(name, root, tuple(access.indices), size, reads)
        return CtaExchange(name, None, (), 0, reads)
