"""Who executes what: the agents of a kernel that is split into a producer and consumers."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower, found_and_need
from tvm_hopper.facts import registers
from tvm_hopper.facts.async_ops import ASYNC_OPS
from tvm_hopper.facts.hopper import MAX_THREADS, THREADS_PER_WARP, WARP_GROUP_THREADS
from tvm_hopper.keys import ASYNC_OP, AWAIT_FREE, CONSUMERS, NUM_SLOTS, REGISTERS, WGMMA_PENDING

from .channel import find_calls
from .pipeline_plan import pipelined_loops


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
    """A kernel of one producer, whose first thread issues loads, and of consumers.

    `pending` groups of operations may still read the slots of that many trips ago.
    """

    axis: ir.For  # the loop bound to threadIdx.x, over the consumers' threads
    loops: tuple[ir.For, ...]  # pipelined
    producer: Role
    consumer: Role
    pending: int

    def __post_init__(self) -> None:
        for loop in self.loops:
            where, num_slots = f"loop {loop.loop_var.name}", int(loop.annotations[NUM_SLOTS])
            if self.pending and not self.pending < num_slots:
                raise cannot_lower(
                    where,
                    f"{WGMMA_PENDING} = {self.pending} with {num_slots} stages",
                    f"at most {num_slots - 1}: a slot is released {self.pending} iterations late, "
                    "and the producer would wait for it for ever",
                    "take more stages or fewer pending groups",
                )
        few, many = self.producer.num_registers, self.consumer.num_registers
        if few is not None and many is not None:
            broken = registers.check(few, many, self.num_consumers)
            if broken:
                usual = registers.DEFAULT_SPLIT.get(self.num_consumers)
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
        """Warp groups of the consumer role."""
        return self.consumer.agent.num_threads // WARP_GROUP_THREADS

    @property
    def num_threads(self) -> int:
        """Threads of a block."""
        return self.producer.agent.num_threads + self.consumer.agent.num_threads


def plan_roles(kernel: ir.For, default_pending: int = 0) -> tuple[RolePlan, ...]:
    """Plan the roles of a kernel, if it is to have any; reasons to refuse are raised here.

    A loop asks by naming its consumers. One whose loads feed operations of warp groups is split
    without being asked: there a producer is always worth its threads.  `default_pending` is the
    option's value, which gives way where a ring has too few slots for it; an annotation does not.
    """
    loops = pipelined_loops(kernel)
    asking = [loop for loop in loops if CONSUMERS in loop.annotations or uses_warp_groups(loop)]
    if not asking or find_calls(kernel, AWAIT_FREE):
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
                "split the tile by the number of consumers and bind that loop",
            )
    producer, consumer = (
        _share_registers(asking, where, consumers)
        if by_groups
        else (_plain_producer(asking, where, threads), Role(Agent(THREADS_PER_WARP, threads)))
    )
    return (RolePlan(axis, tuple(asking), producer, consumer, _pending(asking, default_pending)),)


def uses_warp_groups(loop: ir.For) -> bool:
    """Tell whether operations that a warp group issues together read what a loop loads."""
    return any(ASYNC_OPS[op].agent == "warp_group" for op in _operations(loop))


def _operations(loop: ir.For) -> list[str]:
    return [str(block.annotations[ASYNC_OP]) for block in ir.find_blocks(loop, ASYNC_OP)]


def _share_registers(loops: list[ir.For], where: str, consumers: int) -> tuple[Role, Role]:
    """Give the producer a warp group of its own, so that registers can move to the consumers."""
    named = [loop for loop in loops if REGISTERS in loop.annotations]
    if named:
        few, many = (int(x) for x in named[0].annotations[REGISTERS])
    else:
        try:
            few, many = registers.default_split(consumers)
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
                "take the annotation away",
            )
    if threads + THREADS_PER_WARP > MAX_THREADS:
        raise cannot_lower(
            where,
            f"{threads} threads of consumers and a warp of the producer",
            f"at most {MAX_THREADS}",
            "bind fewer threads, or take the consumers away: every thread then loads and computes",
        )
    return Role(Agent(0, THREADS_PER_WARP))


def _pending(loops: list[ir.For], default: int) -> int:
    named = [int(x.annotations[WGMMA_PENDING]) for x in loops if WGMMA_PENDING in x.annotations]
    if named:
        return named[0]
    slots = min(int(loop.annotations[NUM_SLOTS]) for loop in loops)
    return min(default, slots - 1) if any(map(uses_warp_groups, loops)) else 0
