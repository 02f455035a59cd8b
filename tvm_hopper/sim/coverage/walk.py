"""Walk a device function once: every access of global memory, with the way that leads to it.

Registers that hold integers are followed through plain stores, so that `tile = bx; while tile < n`
is a loop whose iterations are known.  An access that depends on data has an unknown node in its
path or index; later steps name it by this node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import ir, tirx

from tvm_hopper.errors import HopperError
from tvm_hopper.sim.coverage.accesses import (
    LOAD,
    STORE,
    GlobalAccess,
    GlobalAddress,
    PathStep,
    Undecided,
)
from tvm_hopper.sim.coverage.expressions import Expressions, integer_type
from tvm_hopper.sim.coverage.loops import iteration_limit
from tvm_hopper.sim.coverage.nodes import INNER, OUTER, Node, Nodes, Variable
from tvm_hopper.sim.coverage.pointers import Pointers
from tvm_hopper.sim.coverage.registers import counted, written_registers
from tvm_hopper.sim.launch.tma import TensorMapArg
from tvm_hopper.sim.machine.load_store import vector_alignment
from tvm_hopper.sim.protocol.exits import ways_to_leave
from tvm_hopper.sim.tir import (
    dtype_of,
    is_one_load,
    numpy_dtype,
    param_names,
    short_name,
    split_lanes,
)
from tvm_hopper.sim.walk import walk_nodes

MAX_ITERATIONS = 1 << 31  # bound of a loop with an unlimited extent


class Walker(Pointers):
    """Walks one function for one launch.

    - `func`: final device function.
    - `params` (dict): arguments of the parameters; numbers are known.
    - `grid`, `block`, `cluster`: extents in x, y, z.
    """

    def __init__(
        self,
        func: tirx.PrimFunc,
        params: dict[str, Any],
        grid: Sequence[int],
        block: Sequence[int],
        cluster: Sequence[int],
    ) -> None:
        self.nodes = Nodes()
        self.expressions = Expressions(self.nodes)
        self.path: tuple[PathStep, ...] = ()
        self.accesses: list[GlobalAccess] = []
        self.undecided: list[Undecided] = []
        self.addresses: dict[Any, GlobalAddress] = {}
        self.roots: dict[Any, Any] = {}  # a view of registers -> their allocation
        self.statement: Any = None
        self.communicates = False
        self.loops: list[Variable] = []
        self.axes = [
            Variable(f"blockIdx.{a}", 0, int(g) - 1, OUTER)
            for a, g in zip("xyz", grid, strict=True)
        ]
        self._threads(block, cluster)
        self.maps = frozenset(n for n, value in params.items() if isinstance(value, TensorMapArg))
        for param, name in zip(func.params, param_names(func), strict=True):
            value = params.get(name)
            self.addresses[param] = GlobalAddress(name, self.nodes.zero, name)
            if isinstance(value, (int, np.integer)):
                self.expressions.values[param] = self.nodes.const(int(value))
        self.stmt(func.body)

    def _threads(self, block: Sequence[int], cluster: Sequence[int]) -> None:
        nodes, tags = self.nodes, {}
        thread, step = nodes.zero, 1
        for axis, extent, part, variable in zip("xyz", block, cluster, self.axes, strict=True):
            index = nodes.var(Variable(f"threadIdx.{axis}", 0, int(extent) - 1, INNER))
            thread = nodes.make("add", thread, nodes.make("mul", index, nodes.const(step)))
            step *= int(extent)
            number, size = nodes.var(variable), nodes.const(int(part))
            tags[f"threadIdx.{axis}"], tags[f"blockIdx.{axis}"] = index, number
            tags[f"clusterCtaIdx.{axis}"] = nodes.make("fmod", number, size)
            tags[f"clusterIdx.{axis}"] = nodes.make("fdiv", number, size)
        self.tags = tags
        self.expressions.thread = thread
        self.expressions.lane = nodes.make("fmod", thread, nodes.const(32))

    # -- statements: each returns a condition that skips later statements, or None ---------

    def stmt(self, node: Any) -> Node | None:
        """Walk one statement."""
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            return None
        path = self.path
        try:
            return method(node)
        except HopperError:
            raise
        except Exception as error:  # the report names the unproven statements
            self.path = path
            why = f"{type(error).__name__}: {error}"
            self.undecided.append(Undecided(node, why, None, path=path))
            return None

    def under(self, *steps: PathStep) -> tuple[PathStep, ...]:
        """Lengthen the way; returns the one before, to be put back."""
        before, self.path = self.path, (*self.path, *steps)
        return before

    def _seqstmt(self, node: Any) -> Node | None:
        gone: Node | None = None
        before = self.path
        for inner in node.seq:
            left = self.stmt(inner)
            if left is None:
                continue
            if left.constant == 0:
                continue
            gone = left if gone is None else self.nodes.make("or", gone, left)
            self.under(PathStep("if", self.nodes.make("not", left)))
            if left.constant == 1:
                break
        self.path = before
        return gone

    def _attrstmt(self, node: Any) -> Node | None:
        if node.attr_key in ("thread_extent", "virtual_thread"):
            self.expressions.values[node.node.var] = self.tags.get(
                str(node.node.thread_tag), self.nodes.unknown(str(node.node.thread_tag))
            )
        return self.stmt(node.body)

    def _bind(self, node: Any) -> Node | None:
        self.statement = node
        self.visit(node.value)
        if dtype_of(node.value) == "handle" or self.points(node.value):
            self.addresses[node.var] = self.address(node.value)
        if integer_type(dtype_of(node.value)) is not None:
            self.expressions.values[node.var] = self.expressions.node(node.value)
        return self.stmt(node.body) if hasattr(node, "body") else None

    _letstmt = _bind

    def _declbuffer(self, node: Any) -> None:
        scope = node.buffer.scope()
        if scope.startswith("local") or scope == "":
            source = self.viewed(node.data)
            self.roots[node.buffer] = self.roots.get(source, source)
        elif not scope.startswith("shared"):
            self.addresses[node.buffer] = self.address(node.data)

    def _ifthenelse(self, node: Any) -> Node | None:
        self.statement = node
        self.visit(node.condition)
        cond, nodes = self.expressions.node(node.condition), self.nodes
        known = self.expressions.registers
        sides, ends = [], []
        for body, holds in ((node.then_case, cond), (node.else_case, nodes.make("not", cond))):
            self.expressions.registers = dict(known)
            before = self.under(PathStep("if", holds))
            left = self.stmt(body) if body is not None else None
            self.path = before
            if left is not None:
                sides.append(nodes.make("and", holds, left))
            ends.append(self.expressions.registers)
        self.expressions.registers = {
            key: yes if yes is no else nodes.make("select", cond, yes, no)
            for key, yes in ends[0].items()
            if (no := ends[1].get(key)) is not None
        }
        if not sides:
            return None
        return sides[0] if len(sides) == 1 else nodes.make("or", *sides)

    # -- loops ------------------------------------------------------------------------------------

    def _for(self, node: Any) -> Node | None:
        self.statement = node
        self.visit(node.min)
        self.visit(node.extent)
        low, extent = self.expressions.node(node.min), self.expressions.node(node.extent)
        starts = self._counted(node.body)
        variable = self._loop(str(node.loop_var.name), extent)
        number = self.nodes.var(variable)
        self.expressions.values[node.loop_var] = self.nodes.make("add", low, number)
        self._count(starts, number)
        return self._body(node.body, PathStep("for", extent, variable))

    def _loop(self, name: str, extent: Node) -> Variable:
        most = MAX_ITERATIONS if extent.unknown else max(min(extent.high, MAX_ITERATIONS), 1)
        variable = Variable(f"{name}#{len(self.loops)}", 0, most - 1, INNER)
        self.loops.append(variable)
        return variable

    def _counted(self, body: Any) -> dict[Any, tuple[Node, Node]]:
        """Forget registers that a loop writes; return the start values of its counters."""
        known = self.expressions.registers
        steps = {} if "continue" in ways_to_leave(body) else counted(body, self.expressions)
        starts = {key: (known[key], step) for key, step in steps.items() if key in known}
        self._forget(written_registers(body))
        return starts

    def _forget(self, lost: set[Any]) -> None:
        roots = {self.roots.get(buffer, buffer) for buffer in lost}
        self.expressions.registers = {
            key: value
            for key, value in self.expressions.registers.items()
            if self.roots.get(key[0], key[0]) not in roots
        }

    def _body(self, body: Any, step: PathStep) -> Node | None:
        exits = ways_to_leave(body)
        steps = [step]
        if exits & {"break", "return"}:
            steps.append(PathStep("if", self.nodes.unknown("a loop that is left early")))
        before = self.under(*steps)
        self.stmt(body)
        self.path = before
        self._forget(written_registers(body))
        if "return" in exits:
            return self.nodes.unknown("a return inside of a loop")
        return None

    def _count(self, starts: dict[Any, tuple[Node, Node]], number: Node) -> None:
        """Set the registers to their values in an iteration of a loop."""
        for key, (start, by) in starts.items():
            moved = self.nodes.make("mul", number, by)
            self.expressions.registers[key] = self.nodes.make("add", start, moved)

    def _while(self, node: Any) -> Node | None:
        self.statement = node
        starts = self._counted(node.body)
        variable, cond = self._iteration(starts, node.condition, MAX_ITERATIONS)
        most = iteration_limit(cond, variable)
        if most is not None:
            variable, cond = self._iteration(starts, node.condition, most)
        elif variable not in cond.uses and not cond.unknown:
            cond = self.nodes.unknown("a while loop whose iterations are not counted")
        self.visit(node.condition)
        return self._body(node.body, PathStep("while", cond, variable))

    def _iteration(
        self, starts: dict[Any, tuple[Node, Node]], condition: Any, most: int
    ) -> tuple[Variable, Node]:
        """Limit a loop's iterations; returns its variable, and the condition of an iteration."""
        variable = self._loop("while", self.nodes.const(most))
        self._count(starts, self.nodes.var(variable))
        return variable, self.expressions.node(condition)

    # -- statements that access -------------------------------------------------------------------

    def _bufferstore(self, node: Any) -> None:
        self.statement = node
        self.visit(node.value)
        for index in node.indices:
            self.visit(index)
        scope = node.buffer.scope()
        if scope.startswith("shared"):
            return
        if scope.startswith("local") or node.buffer not in self.addresses:
            self._register(node)
            return
        self.element(node.buffer, node.indices, STORE)

    def _register(self, node: Any) -> None:
        kind, value = integer_type(dtype_of(node.value)), None
        single = len(node.indices) == 1 and split_lanes(dtype_of(node.value))[1] == 1
        if kind is not None and single:
            value = self.nodes.convert(self.expressions.node(node.value), *kind)
        self._forget({node.buffer})
        if value is not None and not value.unknown:
            index = self.expressions.node(node.indices[0]).constant
            if index is not None:
                self.expressions.registers[node.buffer, index] = value

    def _evaluate(self, node: Any) -> Node | None:
        self.statement = node
        if not isinstance(node.value, ir.Call):
            self.visit(node.value)
            return None
        if short_name(node.value) in ("ret", "thread_return", "break_loop", "continue_loop"):
            return self.nodes.one
        self.call(node.value)
        self._forget(written_registers(node))
        return None

    def _return(self, _: Any) -> Node | None:
        return self.nodes.one

    _break = _continue = _return

    # -- expressions ------------------------------------------------------------------------------

    def visit(self, expr: Any) -> None:
        """Note the accesses inside an expression, each where it is evaluated."""
        if not self.touches(expr):
            return
        kind = type(expr).__name__
        if kind == "TensorLoad":
            for index in expr.indices:
                self.visit(index)
            if expr.source in self.addresses:
                self.element(expr.source, expr.indices, LOAD)
        elif kind in ("And", "Or"):
            self.visit(expr.a)
            first = self.expressions.node(expr.a)
            self._visit_under(expr.b, first if kind == "And" else self.nodes.make("not", first))
        elif kind == "Call":
            if short_name(expr) == "if_then_else":
                self.visit(expr.args[0])
                cond = self.expressions.node(expr.args[0])
                self._visit_under(expr.args[1], cond)
                self._visit_under(expr.args[2], self.nodes.make("not", cond))
            else:
                self.call(expr)
        elif kind == "Let":
            self.visit(expr.value)
            if integer_type(dtype_of(expr.value)) is not None:
                self.expressions.values[expr.var] = self.expressions.node(expr.value)
            self.visit(expr.body)
        else:
            for name in ("a", "b", "value", "condition", "true_value", "false_value", "base"):
                part = getattr(expr, name, None)
                if part is not None and not isinstance(part, (int, float, str)):
                    self.visit(part)

    def _visit_under(self, expr: Any, cond: Node) -> None:
        before = self.under(PathStep("if", cond))
        self.visit(expr)
        self.path = before

    def touches(self, expr: Any) -> bool:
        """Return whether global memory may be accessed inside an expression."""
        found: list[Any] = []

        def load(node: ir.TensorLoad) -> None:
            if node.source in self.addresses:
                found.append(node)

        walk_nodes(expr, [(ir.TensorLoad, load), (ir.Call, found.append)])
        return bool(found)

    def element(self, buffer: Any, indices: Sequence[Any], kind: str) -> None:
        """Note an access of a buffer's element, or of a vector of them."""
        place = self.addresses[buffer]
        scalar, vector = split_lanes(str(buffer.ty.dtype.dtype))
        size = numpy_dtype(scalar).itemsize * vector
        lanes, element, at_once = 1, None, True
        last = indices[-1]
        dense = isinstance(last, tirx.Ramp) and getattr(last.stride, "value", None) == 1
        if dense and len(indices) == 1:
            lanes, indices = int(last.lanes), [last.base]
            at_once = kind != LOAD or vector > 1 or is_one_load(last)
        elif (count := split_lanes(dtype_of(last))[1]) > 1:
            element = self.nodes.var(Variable("element", 0, count - 1, INNER))
        nodes, index = self.nodes, self.number(buffer, indices, element)
        offset = nodes.make("add", place.offset, nodes.times(index, size))
        bits = (integer_type(dtype_of(indices[0])) or (0, True))[0] if len(indices) == 1 else 0
        self.note(
            kind,
            GlobalAddress(place.param, offset, str(buffer.name)),
            nodes.const(size * lanes),
            vector_alignment(numpy_dtype(scalar).itemsize, (lanes if at_once else 1) * vector),
            size,
            index_bits=bits,
        )
