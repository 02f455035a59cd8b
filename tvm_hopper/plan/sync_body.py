"""A kernel's statements as the sync engine sees them, and back again with what it places.

The engine reasons about steps, loops and branches (`tvm_hopper.sync`). `BodyReader` makes them out
of TIR: an `async_op` block is one step of its row in the table; a nest of plain loops is one step
unless it stores to shared memory; attributes and opaque blocks are looked through. What a channel
fills is a ring, and the version that a statement touches is counted from the trip: the loop that
binds it advances the ring.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.facts.async_ops import ASYNC_OPS
from tvm_hopper.keys import AHEAD, ASYNC_OP, CHANNEL, FREE_SLOT, RELEASE
from tvm_hopper.sync import Access, Branch, Buffer, Loop, Step
from tvm_hopper.sync.program import Space

from .channel import TRIP, find_calls, find_loads, is_load


@dataclass
class Item:
    """One statement: a node of the engine's body, or something that is looked through.

    `rebuild` makes the statement anew out of its inner sequences.
    """

    stmt: ir.Stmt
    node: Step | Loop | Branch | None
    inner: list[list[Item]] = field(default_factory=list)
    rebuild: Callable[[list[ir.Stmt]], ir.Stmt] | None = None

    def rebuilt(self, parts: list[ir.Stmt]) -> ir.Stmt:
        """Return the statement with other inner sequences."""
        return self.stmt if self.rebuild is None else self.rebuild(parts)


class BodyReader:
    """Reads one agent's statements; `thread` is the variable of the kernel's thread axis."""

    def __init__(self, kernel: Any, thread: ir.Var, hands_over: bool) -> None:
        self.thread = thread
        self.hands_over = hands_over  # loads are another agent's, and slots are given back to it
        self.buffers: dict[ir.Var, Buffer] = {}
        self.channels: dict[int, list[ir.Var]] = {}
        self.shared_writes: list[ir.Var] = []
        self.channel_of = {  # by the variable that counts its trips
            var: call.channel
            for call in find_calls(kernel)
            for var in ir.find_all(call.trip, ir.Var)
            if var.name.startswith(TRIP)
        }
        for load in ir.find_blocks(kernel, CHANNEL):
            rings = [region.source for region in load.writes]
            self.channels.setdefault(int(load.annotations[CHANNEL]), []).extend(rings)
            # What a channel fills at once is one to the engine, and waited for once.
            name = f"{rings[0].name}#{load.annotations[CHANNEL]}"
            both = Buffer(name, "shared", int(rings[0].shape[0]))
            self.buffers.update({ring: self.buffers.get(ring, both) for ring in rings})

    def buffer(self, var: ir.Var) -> Buffer:
        """Return the engine's name for a buffer."""
        if var not in self.buffers:
            scope = str(var.scope())
            space: Space = "registers" if scope.startswith("local") else "global"
            if ir.is_shared(var):
                space = "shared"
            self.buffers[var] = Buffer(f"{var.name}#{len(self.buffers)}", space)
        return self.buffers[var]

    def _advanced(self, loop: ir.For) -> list[ir.Var]:
        """Return the rings of the channels whose trips a loop binds, and no loop inside of it."""
        inner = [*find_loads(loop.body), *ir.find_all(loop.body, ir.For)]
        return [
            ring
            for bind in ir.find_all(loop.body, tirx.Bind)
            if bind.var in self.channel_of and not any(ir.uses_node(x, bind) for x in inner)
            for ring in self.channels[self.channel_of[bind.var]]
        ]

    # -- statements

    def sequence(self, stmt: ir.Stmt) -> list[Item]:
        """Read statements one after another."""
        return [self.item(part) for part in ir.statements(stmt)]

    def item(self, stmt: ir.Stmt) -> Item:
        """Read one statement."""
        if isinstance(stmt, ir.SBlockRealize):
            if ASYNC_OP in stmt.block.annotations:
                return Item(stmt, self._operation(stmt.block))
            if RELEASE in stmt.block.annotations:
                return Item(stmt, self._release(stmt.block))
            if not self._is_plain(stmt):
                return self._look_through(stmt, stmt.block.body, _with_block_body)
        if isinstance(stmt, tirx.AttrStmt) and not self._is_plain(stmt):
            return self._look_through(stmt, stmt.body, _with_attr_body)
        if self._is_plain(stmt):
            return Item(stmt, self._plain(stmt))
        if self._is_redundant(stmt):
            step = replace(self._plain(stmt), issuer="thread")
            elected = ir.IfThenElse(self.thread.equal(0), stmt, None)
            return Item(stmt, step, rebuild=lambda _: elected)
        if isinstance(stmt, ir.For):
            inner = self.sequence(stmt.body)
            advances = frozenset(self.buffer(ring) for ring in self._advanced(stmt))
            trips = ir.static_int(stmt.extent)
            loop = Loop(stmt.loop_var.name, flatten(inner), advances, min(trips or 0, 1))
            return Item(stmt, loop, [inner], lambda parts: ir.with_body(stmt, parts[0]))
        if isinstance(stmt, ir.IfThenElse):
            if _is_ahead(stmt):
                # The engine is told that the copy is made only if it is read. What it needs stands
                # in front of the condition: later statements rely on it in every iteration.
                return Item(stmt, self._operation(stmt.then_case.block))
            arms = [self.sequence(stmt.then_case)]
            arms.append([] if stmt.else_case is None else self.sequence(stmt.else_case))
            uniform = not ir.depends_on(stmt.condition, [self.thread])
            node = Branch(tuple(flatten(arm) for arm in arms), uniform)
            return Item(stmt, node, arms, lambda parts: _with_arms(stmt, parts))
        return Item(stmt, self._plain(stmt))

    def _look_through(self, stmt: Any, body: ir.Stmt, rebuild: Any) -> Item:
        inner = self.sequence(body)
        return Item(stmt, None, [inner], lambda parts: rebuild(stmt, parts[0]))

    def _is_plain(self, stmt: ir.Stmt) -> bool:
        """Tell whether nothing can have to be placed inside of a statement."""
        if ir.find_blocks(stmt, ASYNC_OP) or ir.find_blocks(stmt, RELEASE):
            return False
        return not ir.find_all(stmt, ir.BufferStore, lambda x: ir.is_shared(x.buffer))

    def _is_redundant(self, stmt: ir.Stmt) -> bool:
        """Tell whether every thread would write the same to shared memory: then one does."""
        if ir.find_blocks(stmt, ASYNC_OP) or ir.depends_on(stmt, [self.thread]):
            return False
        stores = ir.find_all(stmt, ir.BufferStore)
        return all(not str(x.buffer.scope()).startswith("local") for x in stores)

    # -- steps

    def _operation(self, block: ir.SBlock) -> Step:
        op = str(block.annotations[ASYNC_OP])
        if is_load(ir.SBlockRealize([], True, block)):
            if self.hands_over:
                return Step(block.name_hint, ())
            notes = block.annotations
            ahead = [int(x) for x in notes.get(AHEAD, [0])]
            rings = [region.source for region in block.writes]
            writes = [Access(self.buffer(x), True, n) for n in ahead for x in once(rings)]
            accesses = tuple(dict.fromkeys(writes))
            return Step(block.name_hint, accesses, op, "thread", only_if_read=AHEAD in notes)
        # A block may name what else its statements mention, such as what a sum starts from.
        operands = {ASYNC_OPS[op].reads, ASYNC_OPS[op].writes}
        reads = [self._touch(region, is_write=False) for region in block.reads]
        writes = [self._touch(region, is_write=True) for region in block.writes]
        own = [access for access in (*reads, *writes) if access.buffer.space in operands]
        return Step(block.name_hint, tuple(dict.fromkeys(own)), op)

    def _touch(self, region: ir.TensorRegion, is_write: bool) -> Access:
        return Access(self.buffer(region.source), is_write)

    def _release(self, block: ir.SBlock) -> Step:
        late = int(block.annotations[RELEASE])
        rings = [
            ring for call in find_calls(block, FREE_SLOT) for ring in self.channels[call.channel]
        ]
        accesses = dict.fromkeys(Access(self.buffer(ring), True, -late) for ring in once(rings))
        return Step(block.name_hint, tuple(accesses), is_release=True)

    def _plain(self, stmt: ir.Stmt) -> Step:
        loads = ir.find_all(stmt, ir.TensorLoad)
        stores = ir.find_all(stmt, ir.BufferStore)
        accesses = [Access(self.buffer(x.source), False) for x in loads]
        accesses += [Access(self.buffer(x.buffer), True) for x in stores]
        return Step(_name(stmt), tuple(dict.fromkeys(accesses)))


def _name(stmt: ir.Stmt) -> str:
    blocks = ir.find_all(stmt, ir.SBlock)
    return str(blocks[0].name_hint) if blocks else type(stmt).__name__


def once(variables: list[ir.Var]) -> list[ir.Var]:
    """Return variables without repetitions, in order."""
    found: list[ir.Var] = []
    for var in variables:
        if not any(var.same_as(x) for x in found):
            found.append(var)
    return found


def _with_block_body(realize: ir.SBlockRealize, body: ir.Stmt) -> ir.Stmt:
    return ir.SBlockRealize([], True, ir.with_block(realize.block, body=body))


def _with_attr_body(attr: tirx.AttrStmt, body: ir.Stmt) -> ir.Stmt:
    return tirx.AttrStmt(attr.node, attr.attr_key, attr.value, body)


def _is_ahead(stmt: ir.IfThenElse) -> bool:
    """Tell whether a condition holds where there is a trip that reads what is loaded ahead."""
    then = stmt.then_case
    return stmt.else_case is None and is_load(then) and AHEAD in then.block.annotations


def _with_arms(stmt: ir.IfThenElse, parts: list[ir.Stmt]) -> ir.Stmt:
    other = None if stmt.else_case is None else parts[1]
    return ir.IfThenElse(stmt.condition, parts[0], other)


# -- there and back


def flatten(items: list[Item]) -> tuple[Any, ...]:
    """Return the engine's nodes of a sequence; what is looked through stands in it."""
    found: list[Any] = []
    for item in items:
        found += flatten(item.inner[0]) if item.node is None else [item.node]
    return tuple(found)


Emit = Callable[[Any, Mapping[int, ir.Var], "Item | None"], list[Any]]


@dataclass(frozen=True)
class BodyWriter:
    """Builds statements again, with what `emit(sync, trips, item)` makes of the syncs between them.

    `placed` says at which path of the engine's body syncs stand. `trips` are the variables in scope
    that count the trips of channels, by the channel's number; `item` is what stands behind.
    """

    placed: Mapping[tuple[int, ...], list[Any]]
    emit: Emit
    channel_of: Mapping[ir.Var, int]

    def write(self, items: list[Item]) -> ir.Stmt:
        """Build a whole body."""
        return self._sequence(items, (), {})

    def _sequence(self, items: list[Item], path: tuple[int, ...], trips: dict[int, ir.Var]) -> Any:
        numbers = itertools.count()
        out = self._part(items, path, numbers, trips)
        return ir.seq(out, self._syncs((*path, next(numbers)), trips, None))

    def _part(
        self,
        items: list[Item],
        path: tuple[int, ...],
        numbers: Iterator[int],
        trips: dict[int, ir.Var],
    ) -> list[Any]:
        out: list[Any] = []
        for item in items:
            if item.node is None:
                inner = self._part(item.inner[0], path, numbers, trips)
                out.append(item.rebuilt([ir.seq(inner)]))
                continue
            at = (*path, next(numbers))
            out += self._syncs(at, trips, item)
            if isinstance(item.stmt, tirx.Bind) and item.stmt.var in self.channel_of:
                trips[self.channel_of[item.stmt.var]] = item.stmt.var
            below = [(*at, n) for n in range(len(item.inner))]
            if isinstance(item.node, Loop):
                below = [at]
            parts = zip(item.inner, below, strict=True)
            out.append(item.rebuilt([self._sequence(x, where, dict(trips)) for x, where in parts]))
        return out

    def _syncs(
        self, at: tuple[int, ...], trips: Mapping[int, ir.Var], item: Item | None
    ) -> list[Any]:
        return [part for sync in self.placed.get(at, ()) for part in self.emit(sync, trips, item)]
