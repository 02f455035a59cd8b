"""Plan the roles of a kernel: a producer and consumers, their threads and registers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower, found_and_need
from tvm_hopper.facts import registers
from tvm_hopper.facts.arch import Arch
from tvm_hopper.facts.programming_model import MAX_THREADS, THREADS_PER_WARP, WARP_GROUP_THREADS
from tvm_hopper.requests import options
from tvm_hopper.requests.fallbacks import Fallback
from tvm_hopper.requests.keys import (
    ASYNC_OP,
    AWAIT_FREE,
    BLOCKS_PER_SM,
    CONSUMERS,
    NUM_SLOTS,
    REGISTERS,
    WGMMA_PENDING,
)
from tvm_hopper.transforms.common.channel import (
    completes_by_group,
    find_calls,
    find_loads,
    is_made_in_parts,
)
from tvm_hopper.transforms.common.load_sites import uses_warp_groups, wants_roles
from tvm_hopper.transforms.pipeline.plan_ring_buffers_plan import pipelined_loops

from .ping_pong_plan import check_turns, turns_of

ROLE_KEYS = (CONSUMERS, REGISTERS, WGMMA_PENDING)


@dataclass(frozen=True)
class Agent:
    """Threads that run one program: `num_threads` from `first_thread` on."""

    first_thread: int
    num_threads: int


@dataclass(frozen=True)
class Role:
    """An agent's share of a kernel; `num_registers` a thread after `setmaxnreg`, None without."""

    agent: Agent
    num_registers: int | None = None


@dataclass(frozen=True)
class RolePlan:
    """A kernel of one producer, which makes all loads, and of consumers.

    Its first thread issues those that one thread issues; of others each of its threads makes a
    part (`loads_in_parts`).

    `pending` groups of operations may still read the slots of that many iterations ago, in rings of
    more slots than that.
    """

    axis: ir.For  # the loop bound to threadIdx.x, over the consumers' threads
    loops: tuple[ir.For, ...]  # pipelined
    producer: Role
    consumer: Role
    pending: int
    arch: Arch
    loads_in_parts: bool = False
    turns: int = 1  # consumer groups (ping-pong), each a whole consumer role
    blocks: int = 1  # that share an SM

    def __post_init__(self) -> None:
        for loop in self.loops:
            where, num_slots = f"loop {loop.loop_var.name}", int(loop.annotations[NUM_SLOTS])
            if WGMMA_PENDING in loop.annotations and self.pending and self.pending >= num_slots:
                raise cannot_lower(
                    where,
                    f"{WGMMA_PENDING} = {self.pending} with {num_slots} stages",
                    f"at most {num_slots - 1}: a slot is released {self.pending} iterations late, "
                    "and the producer would wait for it forever",
                    "take more stages or fewer pending groups",
                )
        few, many = self.producer.num_registers, self.consumer.num_registers
        if few is not None and many is not None:
            groups = self.num_consumers * self.turns
            broken = registers.check(few, many, groups, self.arch, self.blocks)
            if broken:
                usual = self.arch.has_setmaxnreg and registers.DEFAULT_SPLIT.get(groups)
                fix = f"take {list(usual)}, or leave the annotation out" if usual else ""
                raise cannot_lower(
                    f"loop {self.loops[0].loop_var.name}, {REGISTERS}", *found_and_need(broken), fix
                )

    @property
    def moves_registers(self) -> bool:
        """Whether registers move from the producer to the consumers (`setmaxnreg`)."""
        return self.consumer.num_registers is not None

    @property
    def num_consumers(self) -> int:
        """Warp groups of the consumer role, of one set."""
        return self.consumer.agent.num_threads // WARP_GROUP_THREADS

    @property
    def num_threads(self) -> int:
        """Threads of a block."""
        return self.producer.agent.num_threads + self.turns * self.consumer.agent.num_threads


def plan_roles(kernel: ir.For, arch: Arch, default_pending: int = 0) -> tuple[RolePlan, ...]:
    """Plan the roles of a kernel, if it is to have any; reasons to refuse are raised here.

    A loop asks by naming its consumers. One whose loads feed operations of warp groups is split
    without being asked: there a producer is always worth its threads.  `default_pending` is the
    option's value, which gives way where a ring has too few slots for it; an annotation does not.
    """
    loops = pipelined_loops(kernel)
    asking = [loop for loop in loops if wants_roles(loop)]
    if find_calls(kernel, AWAIT_FREE):
        return ()
    _check_requests(loops, asking)
    if not asking:
        return ()
    axis = ir.thread_axes(kernel)["threadIdx.x"]
    where = f"loop {asking[0].loop_var.name}"
    threads = ir.static_int(axis.extent)
    if threads is None or threads % THREADS_PER_WARP:
        raise cannot_lower(where, f"{axis.extent} threads", "whole warps, their number static")
    by_groups = any(uses_warp_groups(loop) for loop in loops)
    consumers = threads // WARP_GROUP_THREADS
    for loop in asking:
        asked = loop.annotations.get(CONSUMERS)
        if asked is not None and int(asked) * WARP_GROUP_THREADS != threads:
            raise cannot_lower(
                f"loop {loop.loop_var.name}, {CONSUMERS}",
                f"{int(asked)} with {consumers} warp groups on threadIdx.y"
                if by_groups
                else f"{int(asked)} with {threads} threads",
                "the same number" if by_groups else f"{WARP_GROUP_THREADS} threads a warp group",
                "split the tile by the number of consumers and bind that loop"
                if by_groups
                else "bind as many threads, or name as many consumers as there are",
            )
    turns = turns_of(kernel)
    if turns > 1:
        check_turns(kernel, asking, consumers, by_groups, axis.body)
    producer, consumer = (
        _share_registers(asking, where, consumers, arch, turns)
        if by_groups
        else (_plain_producer(asking, where, threads), Role(Agent(THREADS_PER_WARP, threads)))
    )
    _check_places(axis, arch)
    _check_readers(axis)
    pending = _pending(asking, default_pending)
    in_parts = any(is_made_in_parts(load.block) for load in find_loads(axis))
    grid = ir.thread_axes(kernel).get("blockIdx.x")
    blocks = 1 if grid is None else int(grid.annotations.get(BLOCKS_PER_SM, 1))
    roles = producer, consumer, pending, arch, in_parts, turns, blocks
    return (RolePlan(axis, tuple(asking), *roles),)


def _check_requests(loops: list[ir.For], asking: list[ir.For]) -> None:
    """Refuse what would be dropped: requests of a loop without roles, or that contradict."""
    for loop in loops:
        where = f"loop {loop.loop_var.name}"
        for key in (REGISTERS, WGMMA_PENDING):
            if key in loop.annotations and not any(loop.same_as(x) for x in asking):
                raise cannot_lower(
                    f"{where}, {key}",
                    "a loop without roles: its threads load and compute",
                    f"consumers next to a producer ({CONSUMERS})",
                    "request them, or remove the annotation",
                )
        if WGMMA_PENDING in loop.annotations and not uses_warp_groups(loop):
            raise cannot_lower(
                f"{where}, {WGMMA_PENDING}",
                "groups left in flight by consumers of plain loops",
                "consumers that multiply: plain loads are complete when they return",
                "remove the annotation",
            )
    for key in (REGISTERS, WGMMA_PENDING):
        named = [loop for loop in asking if key in loop.annotations]
        for loop in named[1:]:
            first, other = (_value(x.annotations[key]) for x in (named[0], loop))
            if first != other:
                raise cannot_lower(
                    f"loop {loop.loop_var.name}, {key}",
                    f"{other} next to {first} of loop {named[0].loop_var.name}",
                    "one value: the roles are those of the whole kernel",
                    "write it on one of the loops alone",
                )


def _value(note: Any) -> int | list[int]:
    number = ir.static_int(note)
    return [int(x) for x in note] if number is None else number


def _check_places(axis: ir.For, arch: Arch) -> None:
    """Refuse copies that are in anything but loops and blocks: each role makes these again."""
    plain = (ir.For, ir.SBlockRealize, ir.SBlock, tirx.SeqStmt)
    for load in find_loads(axis):
        if completes_by_group(load.block):
            raise cannot_lower(
                f"copy {load.block.name_hint}",
                f"copies by {load.block.annotations[ASYNC_OP]} next to a producer on {arch.name}",
                "a chip where a producer's threads hand them over by mbarriers: sm_90a",
                f"build for that one, or remove {CONSUMERS}",
            )
    for part in ir.find_all(axis, ir.Stmt, lambda x: not isinstance(x, plain)):
        if inside := find_loads(part):
            raise cannot_lower(
                f"copy {inside[0].block.name_hint}",
                f"a copy inside of a {type(part).__name__}",
                "copies that every iteration makes",
                "remove the condition around it",
            )


def _check_readers(axis: ir.For) -> None:
    """Refuse uses of a slot that its readers have given back, or that is not filled yet."""
    bodies = [list(x.seq) for x in ir.find_all(axis, tirx.SeqStmt)]
    for load in find_loads(axis):
        behind = next(
            (body[n + 1 :] for body in bodies for n, part in enumerate(body) if part.same_as(load)),
            [],
        )
        for region in load.block.writes:
            found = ir.accesses([load, *behind], region.source)
            if len(found) != len(ir.accesses(axis, region.source)):
                raise cannot_lower(
                    f"copy {load.block.name_hint}",
                    f"uses of {region.source.name} before the copy, or outside of its loop",
                    "uses after the copy, in its loop: then the slot returns to the producer",
                    f"move the copy, or remove {CONSUMERS}: without roles order is the program's",
                )


def _share_registers(
    loops: list[ir.For], where: str, consumers: int, arch: Arch, turns: int = 1
) -> tuple[Role, Role]:
    """Give the producer a warp group of its own, so that registers can move to the consumers."""
    few: int | None = None
    many: int | None = None
    named = [loop for loop in loops if REGISTERS in loop.annotations]
    if named:
        few, many = (int(x) for x in named[0].annotations[REGISTERS])
    elif arch.has_setmaxnreg:
        try:
            few, many = registers.default_split(consumers * turns)
        except ValueError as error:
            raise cannot_lower(where, f"{consumers} consumer warp groups", "1, 2 or 3") from error
    first = WARP_GROUP_THREADS
    return (
        Role(Agent(0, first), few),
        Role(Agent(first, consumers * WARP_GROUP_THREADS), many),
    )


def _plain_producer(loops: list[ir.For], where: str, threads: int) -> Role:
    """Give the producer one warp: plain consumers have no use for its registers."""
    for loop in loops:
        if REGISTERS in loop.annotations:
            raise cannot_lower(
                f"loop {loop.loop_var.name}, {REGISTERS}",
                "registers for consumers of plain loops",
                "consumers that multiply: only their accumulators need more than their share",
                "remove the annotation",
            )
    if threads + THREADS_PER_WARP > MAX_THREADS:
        raise cannot_lower(
            where,
            f"{threads} threads of consumers and a warp of the producer",
            f"at most {MAX_THREADS}",
            "bind fewer threads, or remove the consumers: every thread then loads and computes",
        )
    return Role(Agent(0, THREADS_PER_WARP))


def _pending(loops: list[ir.For], default: int) -> int:
    named = [int(x.annotations[WGMMA_PENDING]) for x in loops if WGMMA_PENDING in x.annotations]
    if named:
        return named[0]
    slots = [int(x.annotations[NUM_SLOTS]) for x in loops if _multiplies(x, loops)]
    return min(default, min(slots) - 1) if slots else 0


def _multiplies(loop: ir.For, loops: list[ir.For]) -> bool:
    """Tell whether warp groups multiply in a loop, and not only in those inside of it."""
    inner = {x: ir.seq() for x in loops if ir.uses_node(loop.body, x)}
    return uses_warp_groups(ir.replace_nodes(loop, ir.For, inner))


def pending_option(func: tirx.PrimFunc) -> int:
    """Return how many groups a function's option leaves in flight over an iteration."""
    return int(cast(int, options.read(WGMMA_PENDING, func, default=0)))


def find_fallbacks(plan: RolePlan, pending: int) -> list[Fallback]:
    """Tell where the option's groups in flight gave way to a ring of too few slots."""
    asked = any(WGMMA_PENDING in loop.annotations for loop in plan.loops)
    if asked or plan.pending == pending or not plan.moves_registers:
        return []
    found = f"{plan.pending} WGMMA groups in flight instead of {pending}"
    where = f"loop {plan.loops[0].loop_var.name}"
    return [Fallback(where, found, f"at least {pending + 1} stages")]
