"""Translate a kernel into the sync engine's program (sync_writer.py translates back).

The engine reasons about steps, loops and branches (`tvm_hopper.sync`). `BodyReader` makes them out
of TIR: an `async_op` block is one step of its row in the table; a nest of plain loops is one step
unless it stores to shared memory; attributes and opaque blocks are looked through. What a channel
fills is a ring, and the version that a statement touches is counted from the iteration: the loop
that binds it advances the ring. A loop's copies for later iterations are made if there is such an
iteration, so each iteration reads what was copied for it: where only some paths through it do, a
step is added that stands for that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

import tvm_ffi
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.effects import find_effects
from tvm_hopper.analysis.injective import is_injective
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.arch import ARCHS, Processor
from tvm_hopper.facts.async_ops import ASYNC_OPS, BY_ONE_THREAD
from tvm_hopper.facts.hexagon import HEXAGONS
from tvm_hopper.facts.programming_model import WARP_GROUP_THREADS
from tvm_hopper.requests.keys import (
    AHEAD,
    ASYNC_COPY,
    ASYNC_OP,
    AWAIT_FILLED,
    DISJOINT_WRITES,
    FREE_SLOT,
    HANDED_ON,
    LATE,
    READ_SLOT,
    RELEASE,
)
from tvm_hopper.sync import Access, Branch, Buffer, Loop, Step
from tvm_hopper.transforms.common.channel import (
    completes_by_group,
    find_calls,
    find_loads,
    find_trips,
    is_load,
)
from tvm_hopper.transforms.common.overlay_pairs import parse_overlay
from tvm_hopper.transforms.common.warp_group_view import GroupView

from .nested_statements import with_arms, with_attr_body, with_block_body
from .sync_items import Item, flatten, read_in_every_trip, stand_in
from .sync_rings import REGISTERS, find_rings, of_elected_thread, space_of
from .warp_group_agents import BY_ROLE, Electing, is_copy_out


def check_operations(kernel: Any, processor: Processor) -> None:
    """Refuse operations that a processor does not execute."""
    for block in ir.find_blocks(kernel, ASYNC_OP):
        op = str(block.annotations[ASYNC_OP])
        if op not in processor.async_ops:
            every = (*ARCHS.values(), *HEXAGONS.values())
            able = [x.name for x in every if op in x.async_ops]
            raise cannot_lower(
                f"block {block.name_hint}",
                f"operation {op} on {processor.name}",
                f"one that it executes: {', '.join(processor.async_ops)}",
                f"build for {' or '.join(able)}" if able else "",
            )


class BodyReader:
    """Reads one agent's statements.

    `thread` is the variable of the kernel's thread axis, and `first_thread` the agent's first one.
    `electing` says which threads issue what one thread issues.
    Without an axis there is one thread in all: nothing else knows less than it, or has to be met.
    """

    def __init__(
        self,
        kernel: Any,
        thread: ir.Var | None,
        hands_over: bool,
        first_thread: int = 0,
        electing: Electing = BY_ROLE,
    ) -> None:
        self.thread: Any = thread
        self.num_threads = ir.threads_of(kernel).count
        self.first_thread = first_thread
        self.electing = electing
        self.view: Any = None if thread is None else GroupView.of(thread, first_thread)
        self.hands_over = hands_over  # loads are another agent's, and slots are given back to it
        self.varying = [] if thread is None else [thread]  # variables that differ between threads
        self.is_uniform = True  # all threads run the statements at hand
        self.block = ""  # the block around them
        self.skewed: list[Buffer] = []  # rings of the loop around whose statements run late
        self.late: dict[Buffer, int] = {}  # of how many iterations ago what is touched of them is
        self.channel_of = find_trips(kernel)
        rings = find_rings(kernel)
        one_waits = not (hands_over or electing.by_group)
        self.buffers = of_elected_thread(kernel, rings) if one_waits else rings.buffers
        self.channels: dict[int, list[ir.Var]] = rings.channels
        self.handed_on: dict[int, list[ir.Var]] = rings.handed_on

    def buffer(self, var: ir.Var) -> Buffer:
        """Return the engine's name for a buffer."""
        if var not in self.buffers:
            self.buffers[var] = Buffer(f"{var.name}#{len(self.buffers)}", space_of(var))
        return self.buffers[var]

    def _advanced(self, loop: ir.For) -> list[ir.Var]:
        """Return the rings of the channels whose iteration count this loop itself binds."""
        inner = [*find_loads(loop.body), *ir.find_all(loop.body, ir.For)]
        numbers = [
            self.channel_of[bind.var]
            for bind in ir.find_all(loop.body, tirx.Bind)
            if bind.var in self.channel_of and not any(ir.uses_node(x, bind) for x in inner)
        ]
        every = [(*self.channels[x], *self.handed_on.get(x, ())) for x in numbers]
        return [ring for rings in every for ring in rings]

    # -- statements

    def sequence(self, stmt: ir.Stmt) -> list[Item]:
        """Read statements one after another."""
        return [self.item(part) for part in ir.statements(stmt)]

    def item(self, stmt: ir.Stmt) -> Item:
        """Read one statement."""
        if _is_late(stmt) and self._is_plain(stmt):
            # Nothing is known because of it, so that it may be told of in the first iterations,
            # too.
            return self.item(stmt.then_case).around(stmt)
        if isinstance(stmt, ir.SBlockRealize):
            outer = self.skewed, self.late
            if HANDED_ON in stmt.block.annotations:
                loops = [x for x in ir.statements(stmt.block.body) if isinstance(x, ir.For)]
                self.skewed = [self.buffer(x) for loop in loops for x in self._advanced(loop)]
            if LATE in stmt.block.annotations:
                ago = int(stmt.block.annotations[LATE])
                self.late = {**self.late, **dict.fromkeys(self.skewed, ago)}
            found = self._block(stmt)
            self.skewed, self.late = outer
            return found
        return self._statement(stmt)

    def _block(self, stmt: ir.SBlockRealize) -> Item:
        if not ir.is_const(stmt.predicate, 1) and not self._is_plain(stmt):
            inside = ir.SBlockRealize([], True, stmt.block)
            return self.item(ir.IfThenElse(stmt.predicate, inside, None))
        if ASYNC_OP in stmt.block.annotations:
            return self._issued(stmt)
        if RELEASE in stmt.block.annotations:
            return Item(stmt, self._release(stmt.block))
        if not self._is_plain(stmt):
            return self._look_through(stmt, stmt.block.body, with_block_body)
        return self._statement(stmt)

    def _statement(self, stmt: ir.Stmt) -> Item:
        if isinstance(stmt, ir.Evaluate) and find_calls(stmt, AWAIT_FILLED):
            return Item(stmt, self._acquire(stmt))
        if parse_overlay(stmt) is not None:
            return Item(stmt, Step("overlay", ()))
        if isinstance(stmt, tirx.AttrStmt) and not self._is_plain(stmt):
            return self._look_through(stmt, stmt.body, with_attr_body)
        if isinstance(stmt, tirx.Bind) and self._varies(stmt.value):
            self.varying.append(stmt.var)
        if self._is_plain(stmt):
            if not self._is_copy_out(stmt):
                return Item(stmt, self._plain(stmt))
            step = replace(self._plain(stmt), issuer="thread")
            return Item(stmt, step, rebuild=lambda _: self.elect(stmt))
        if self._is_redundant(stmt):
            if not self.is_uniform:  # the elected thread may not be among these
                return Item(stmt, self._plain(stmt))
            step = replace(self._plain(stmt), issuer="thread")
            return Item(stmt, step, rebuild=lambda _: self._elect_alike(stmt))
        if isinstance(stmt, ir.For):
            return self._loop(stmt)
        if isinstance(stmt, ir.IfThenElse):
            if _is_ahead(stmt):
                # The engine takes the copy to run only if it is read. Syncs that it places
                # before the copy count in every iteration: they are before the condition.
                return Item(stmt, self._operation(stmt.then_case.block))
            uniform = not self._varies(stmt.condition)
            bodies = [stmt.then_case, *([] if stmt.else_case is None else [stmt.else_case])]
            arms = [self._inside(body, uniform) for body in bodies]
            arms += [[] for _ in range(2 - len(arms))]
            node = Branch(tuple(flatten(arm) for arm in arms), uniform)
            return Item(stmt, node, arms, lambda parts: with_arms(stmt, parts))
        if inside := ir.find_blocks(stmt, ASYNC_OP):
            raise cannot_lower(
                f"block {inside[0].name_hint}",
                f"{inside[0].annotations[ASYNC_OP]} inside of a {type(stmt).__name__}",
                "serial loops and conditions around it: what it waits for is placed in these",
                "make it a serial loop with a condition inside",
            )
        return Item(stmt, self._plain(stmt))

    def _loop(self, stmt: ir.For) -> Item:
        uniform = not self._varies(stmt.extent)
        if not uniform:
            self.varying.append(stmt.loop_var)
        inner = self._inside(stmt.body, uniform)
        advances = frozenset(self.buffer(ring) for ring in self._advanced(stmt))
        ahead = [x.source for load in self._ahead(stmt.body) for x in load.writes]
        for ring in dict.fromkeys(self.buffer(x) for x in ahead):
            if ring in advances:
                read_in_every_trip(inner, ring)
        by_group = [x for x in self._ahead(stmt.body) if completes_by_group(x)]
        rings = [self.buffer(x.source) for load in by_group for x in load.writes]
        # One barrier is enough for what this iteration reads and for the slot that it fills again,
        # if the iteration waits before it fills.
        inner[:0] = [stand_in(ring) for ring in dict.fromkeys(rings) if ring in advances]
        trips = ir.static_int(stmt.extent)
        # An iteration that is peeled off a loop, and fills nothing.
        once = trips == 1 and bool(find_calls(stmt.body, READ_SLOT))
        node = Loop(stmt.loop_var.name, flatten(inner), advances, min(trips or 0, 1), once)
        loop = Item(stmt, node, [inner], lambda parts: ir.with_body(stmt, parts[0]))
        if uniform:
            return loop
        # threads leave it at different times: as if some took another way
        return Item(stmt, Branch(((node,), ()), False), [[loop], []], lambda parts: parts[0])

    def _ahead(self, body: ir.Stmt) -> list[ir.SBlock]:
        """Return the loads for later iterations; none for one thread, which needs no barrier."""
        return [] if self.thread is None else ir.find_blocks(body, AHEAD)

    def _inside(self, stmt: ir.Stmt, uniform: bool) -> list[Item]:
        outer = self.is_uniform
        self.is_uniform = outer and uniform
        items = self.sequence(stmt)
        self.is_uniform = outer
        return items

    def _varies(self, expr: Any) -> bool:
        """Tell whether threads may disagree about an expression."""
        loads = ir.find_all(expr, ir.TensorLoad)
        if any(str(load.source.scope()).startswith(REGISTERS) for load in loads):
            return True
        if self.electing.meets_alone:  # the threads at hand are a warp group's
            others = [x for x in self.varying if not x.same_as(self.thread)]
            return ir.depends_on(expr, others) or self.view.varies_in_group(expr)
        return ir.depends_on(expr, self.varying)

    def _look_through(self, stmt: Any, body: ir.Stmt, rebuild: Any) -> Item:
        outer = self.block
        self.block = _name(stmt, outer)
        inner = self.sequence(body)
        self.block = outer
        return Item(stmt, None, [inner], lambda parts: rebuild(stmt, parts[0]))

    def _is_plain(self, stmt: ir.Stmt) -> bool:
        """Tell whether nothing can have to be placed inside of a statement.

        Loops may store to shared memory where each iteration of each thread stores elsewhere, and
        none reads it; or each thread reads and stores elements of its own, as sums.
        """
        if any(ir.find_blocks(stmt, key) for key in (ASYNC_OP, RELEASE)):
            return False
        if find_calls(stmt, READ_SLOT):  # iterations that are counted
            return False
        shared = [x for x in find_effects(stmt) if ir.is_shared(x.buffer)]
        written = ir.once([x.buffer for x in shared if x.writes])
        if not written or self.thread is None:
            return True
        if isinstance(stmt, ir.SBlockRealize) and DISJOINT_WRITES in stmt.block.annotations:
            return not any(_is_one_of(x.buffer, written) for x in shared if x.reads)
        if not isinstance(stmt, ir.For):
            return False
        pointed = [x.buffer for x in shared if x.by_pointer]
        read = [x.buffer for x in shared if x.reads]
        return all(
            not _is_one_of(x, pointed) and self._is_apart(stmt, x, owned=_is_one_of(x, read))
            for x in written
        )

    def _is_apart(self, stmt: ir.Stmt, buffer: ir.Var, owned: bool) -> bool:
        """Tell whether no two iterations or threads store to one element of a buffer.

        `owned`: no two threads touch one element, but iterations of a thread may.
        """
        stores = ir.find_all(stmt, ir.BufferStore, lambda x: x.buffer.same_as(buffer))
        if ir.find_all(stmt, tirx.Bind):
            return False
        if ir.find_all(list(stores[0].indices), ir.TensorLoad):  # each thread may load another
            return False
        around = ir.find_all(stmt, ir.For, lambda x: ir.uses_node(x.body, stores[0]))
        if owned:
            places = [list(x.indices) for x in ir.accesses(stmt, buffer)]
            if not all(tvm_ffi.structural_equal(x, places[0]) for x in places):
                return False
            around = [x for x in around if ir.uses(places[0], x.loop_var)]
        elif len(stores) != 1:
            return False
        extents = {x.loop_var: x.extent for x in around if ir.is_const(x.min, 0)}
        assert self.thread is not None, "one thread has nobody to be apart from"
        # Threads before the agent's first one run another program: their numbers do not count.
        extents[self.thread] = self.num_threads - self.first_thread
        varying = [x for x in self.varying if not x.same_as(self.thread)]
        if len(extents) != len(around) + 1 or ir.depends_on(stores[0].indices, varying):
            return False
        number = self.thread + ir.cast_like(self.first_thread, self.thread)
        places = [ir.simplify(ir.substitute(x, {self.thread: number})) for x in stores[0].indices]
        return is_injective(places, extents)

    def _is_copy_out(self, stmt: ir.Stmt) -> bool:
        """Tell a copy to global memory that no pass has lowered: one thread makes it for others."""
        if self.view is None or not self.is_uniform:
            return False
        if not any(map(is_copy_out, ir.find_blocks(stmt, ASYNC_COPY))):
            return False
        by_group = self.electing.by_group
        return not (self.view.varies_in_group(stmt) if by_group else self._varies(stmt))

    def _is_redundant(self, stmt: ir.Stmt) -> bool:
        """Tell whether every thread would write the same to shared memory, so that one may."""
        if self.thread is None or ir.find_blocks(stmt, ASYNC_OP) or self._varies(stmt):
            return False
        # A call that is handed a pointer may be one that all lanes of a warp make together.
        return not any(
            x.by_pointer or (x.writes and str(x.buffer.scope()).startswith(REGISTERS))
            for x in find_effects(stmt)
        )

    # -- steps

    def _issued(self, stmt: ir.SBlockRealize) -> Item:
        """Read an operation; one that one thread issues by groups of its own is issued by it."""
        step = self._operation(stmt.block)
        if step.op is None or ASYNC_OPS[step.op].completion not in BY_ONE_THREAD:
            return Item(stmt, step)
        if not self.is_uniform:
            raise cannot_lower(
                f"block {stmt.block.name_hint}",
                f"{step.op} under a condition that differs between threads",
                "one that is the same in all threads: one of them stores the whole tile",
                "bound the block itself (T.where), or put the condition around what fills the tile",
            )
        return Item(stmt, step, rebuild=lambda _: self.elect(stmt))

    def elect(self, stmt: Any) -> ir.Stmt:
        """Let the first thread alone execute a statement: the agent's, or each warp group's."""
        if self.thread is None:
            return ir.seq(stmt)
        number, first = self._elected
        return ir.IfThenElse(number.equal(first), ir.seq(stmt), None)

    def _elect_alike(self, stmt: Any) -> ir.Stmt:
        """Let one thread execute statements that are the same in all threads."""
        if self.electing.by_group and not self.electing.meets_alone:
            return ir.IfThenElse(self.thread.equal(self.first_thread), ir.seq(stmt), None)
        return self.elect(stmt)

    @property
    def _elected(self) -> tuple[Any, int]:
        if self.electing.by_group:
            first = self.first_thread % WARP_GROUP_THREADS
            return self.thread % WARP_GROUP_THREADS, first
        return self.thread, self.first_thread

    def is_elected(self, stmt: ir.Stmt) -> bool:
        """Tell a statement that `elect` has built."""
        if not isinstance(stmt, ir.IfThenElse) or stmt.else_case is not None:
            return False
        if self.thread is None:
            return False
        condition = stmt.condition
        if not isinstance(condition, tirx.EQ):
            return False
        number, first = self._elected
        return bool(tvm_ffi.structural_equal(condition.a, number)) and ir.is_const(
            condition.b, first
        )

    def _operation(self, block: ir.SBlock) -> Step:
        op = str(block.annotations[ASYNC_OP])
        if is_load(ir.SBlockRealize([], True, block)):
            if self.hands_over:
                return Step(block.name_hint, ())
            notes = block.annotations
            ahead = [int(x) for x in notes.get(AHEAD, [0])]
            rings = [region.source for region in block.writes]
            writes = [Access(self.buffer(x), True, n) for n in ahead for x in ir.once(rings)]
            accesses = tuple(dict.fromkeys(writes))
            if_read = AHEAD in notes and not completes_by_group(block)
            return Step(block.name_hint, accesses, op, self._issuer(op), only_if_read=if_read)
        # A block may name what else its statements mention, such as what a sum starts from.
        operands = {ASYNC_OPS[op].reads, ASYNC_OPS[op].writes}
        reads = [self._touch(region, is_write=False) for region in block.reads]
        writes = [self._touch(region, is_write=True) for region in block.writes]
        # No other statement touches the tensor that a store writes (common/copy_rules.py).
        on_chip = operands - {"global"}
        own = [access for access in (*reads, *writes) if access.buffer.space in on_chip]
        accesses = tuple(dict.fromkeys(own))
        return Step(block.name_hint, accesses, op, self._issuer(op))

    def _issuer(self, op: str | None) -> Literal["all", "thread"]:
        """Tell who executes an operation, or a plain statement."""
        by_one = self.thread is None if op is None else ASYNC_OPS[op].by_one_thread
        return "thread" if by_one else "all"

    def _touch(self, region: ir.TensorRegion, is_write: bool) -> Access:
        return self._access(region.source, is_write)

    def _access(self, var: ir.Var, is_write: bool) -> Access:
        buffer = self.buffer(var)
        return Access(buffer, is_write, -self.late.get(buffer, 0))

    def _release(self, block: ir.SBlock) -> Step:
        late = int(block.annotations[RELEASE][0])
        rings = [
            ring for call in find_calls(block, FREE_SLOT) for ring in self.channels[call.channel]
        ]
        accesses = dict.fromkeys(Access(self.buffer(ring), True, -late) for ring in ir.once(rings))
        return Step(block.name_hint, tuple(accesses), is_release=True)

    def _acquire(self, stmt: ir.Stmt) -> Step:
        """Read a wait for what another agent has filled."""
        rings = [x for call in find_calls(stmt, AWAIT_FILLED) for x in self.channels[call.channel]]
        accesses = dict.fromkeys(Access(self.buffer(ring), True) for ring in rings)
        return Step("wait for the other role", tuple(accesses), is_acquire=True)

    def _plain(self, stmt: ir.Stmt) -> Step:
        effects = find_effects(stmt)
        accesses = [self._access(x.buffer, False) for x in effects if x.reads]
        accesses += [self._access(x.buffer, True) for x in effects if x.writes]
        return Step(
            _name(stmt, self.block), tuple(dict.fromkeys(accesses)), issuer=self._issuer(None)
        )


def _name(stmt: ir.Stmt, around: str) -> str:
    blocks = ir.find_all(stmt, ir.SBlock)
    return str(blocks[0].name_hint) if blocks else around or type(stmt).__name__


def _is_ahead(stmt: ir.IfThenElse) -> bool:
    """Tell whether a condition implies that a later iteration reads what is loaded ahead."""
    then = stmt.then_case
    if stmt.else_case is not None or not is_load(then):
        return False
    op = ASYNC_OPS[str(then.block.annotations[ASYNC_OP])]
    return AHEAD in then.block.annotations and not op.opens_group  # no group may be empty


def _is_late(stmt: ir.Stmt) -> bool:
    """Tell a condition that asks if there was the iteration that a statement is about."""
    if not isinstance(stmt, ir.IfThenElse) or stmt.else_case is not None:
        return False
    then = stmt.then_case
    return isinstance(then, ir.SBlockRealize) and LATE in then.block.annotations


def _is_one_of(buffer: ir.Var, others: Iterable[ir.Var]) -> bool:
    return any(buffer.same_as(x) for x in others)
