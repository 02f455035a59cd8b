"""Channels: ring-buffer slots passed from producer to consumers, as calls until mbarriers exist.

    fill_slot(channel, trip)       the loads of this block go to slot `trip % num_slots`; a third
                                   argument is their bytes, where they may not fill it
    await_filled(channel, trip)    those loads have landed
    free_slot(channel, trip)       one arrival of a reader: it reads that slot no more; a third
                                   argument is the block of the cluster that gets the arrival
    await_free(channel, trip)      all readers of the slot's last use have arrived
    store_slot(ring, trip)         the stores of this block leave from slot `trip % num_slots` of a
                                   ring of theirs (`store_ring`), which has no consumers
    read_slot(channel, trip)       nothing: a loop that reads slots and fills none says so by it

An iteration counts the uses of a channel from the kernel's start, over all loops and output tiles
around it. In the loop it has a separate variable, bound once, so that a pass that adds a loop
changes one place. Counts of arrivals and bytes are not passed: they follow from the roles.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.effects import function_of
from tvm_hopper.facts import arrivals
from tvm_hopper.facts.async_ops import ASYNC_OPS
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.programming_model import THREADS_PER_WARP, WARP_GROUP_THREADS
from tvm_hopper.requests.keys import (
    ASYNC_OP,
    AWAIT_FREE,
    CHANNEL,
    CHANNEL_CALLS,
    CP_ASYNC,
    DMA_COPY,
    FILL_SLOT,
    FREE_SLOT,
    IN_PARTS,
    RELEASE,
)

TRIP = "trip"  # name of the variable that counts a channel's uses


@dataclass(frozen=True)
class ChannelCall:
    """One of the calls above, taken apart."""

    name: str
    channel: int
    trip: Any
    num_bytes: Any = None  # of a `fill_slot` whose loads may not fill the slot
    peer: Any = None  # of a `free_slot`: the block of the cluster whose barrier it arrives at


def make_call(name: str, channel: int, trip: Any, *more: Any) -> Any:
    """Build a call about the slot of a channel that an iteration uses."""
    return tirx.call_extern("int32", name, channel, trip, *more)


def parse_call(node: Any) -> ChannelCall | None:
    """Take a call apart if it is one of a channel."""
    if not isinstance(node, ir.Call) or getattr(node.op, "name", "") != "tirx.call_extern":
        return None
    name = str(getattr(node.args[0], "value", ""))
    if name not in CHANNEL_CALLS:
        return None
    trip, *more = node.args[2:]
    last = more[0] if more else None
    told, size = (last, None) if name == FREE_SLOT else (None, last)
    return ChannelCall(name, int(node.args[1]), trip, size, told)


def find_calls(root: Any, *names: str) -> list[ChannelCall]:
    """Return the calls of channels below `root`, outermost first."""
    calls = [parse_call(node) for node in ir.find_all(root, ir.Call)]
    return [call for call in calls if call is not None and (not names or call.name in names)]


@dataclass(frozen=True)
class Channel:
    """The slots of one ring, as the statements of a kernel use them.

    `num_slots` slots take `num_bytes` bytes of copies each. Readers arrive `num_arrivals` times
    before a slot is free again; 0 means that one agent fills and reads, in its program's order.
    Copies that complete in groups of the threads that make them have no barrier (`by_group`).
    Others are issued by one thread, which expects their `num_bytes`, or made in parts by each of
    `num_copying` threads, or there are some of both.
    """

    number: int
    num_slots: int
    num_bytes: int
    num_arrivals: int
    by_group: bool = False
    num_copying: int = 0

    @property
    def full_count(self) -> int:
        """Arrivals of a slot's `full` barrier, next to the bytes."""
        return arrivals.full_arrive_count(1 if self.num_bytes else 0, self.num_copying)

    @property
    def empty_count(self) -> int:
        """Arrivals of a slot's `empty` barrier."""
        return arrivals.empty_arrive_count(self.num_arrivals)


def find_channels(kernel: Any) -> list[Channel]:
    """Read the channels of a kernel off its statements, by number."""
    loads = ir.find_blocks(kernel, CHANNEL)
    found = []
    for number in sorted({int(block.annotations[CHANNEL]) for block in loads}):
        own = [block for block in loads if int(block.annotations[CHANNEL]) == number]
        issued = [block for block in own if not is_made_in_parts(block)]
        releases = [
            block
            for block in ir.find_blocks(kernel, RELEASE)
            if any(call.channel == number for call in find_calls(block, FREE_SLOT))
        ]
        found.append(
            Channel(
                number,
                int(own[0].writes[0].source.shape[0]),
                slot_bytes(issued[0]) if issued else 0,
                sum(int(block.annotations[RELEASE][1]) for block in releases),
                completes_by_group(own[0]),
                count_loading_threads(kernel) if len(issued) < len(own) else 0,
            )
        )
    return found


def slot_bytes(load: ir.SBlock) -> int:
    """Return the bytes of what a block of loads writes of a slot, whole boxes also out of bounds.

    Where that is known at run time alone: the most that it can be.
    """
    return sum(prod(extents) * size for extents, size in _written(load))


def filled_bytes(load: ir.SBlock) -> Any:
    """Return the bytes that a block of loads writes, an int or an expression of its variables."""
    known = slot_bytes(load)
    regions = [list(region.region)[_first_dim(load) :] for region in load.writes]
    if all(ir.static_int(dim.extent) is not None for dims in regions for dim in dims):
        return known
    total: Any = 0
    for region, dims in zip(load.writes, regions, strict=True):
        size: Any = tirx.IntImm("int32", dtype_bytes(ir.dtype_of(region.source)))
        for dim in dims:
            size = size * ir.as_int32(dim.extent)
        total = size + total
    return ir.simplify(total)


def _first_dim(load: ir.SBlock) -> int:
    """Return where a tile's own dimensions begin: after that of the slots, in a channel."""
    return 1 if CHANNEL in load.annotations else 0


def _written(load: ir.SBlock) -> list[tuple[list[int], int]]:
    """Return extents and the bytes of an element of each part that a block of loads writes."""
    first = _first_dim(load)
    found = []
    for region in load.writes:
        dims = zip(region.region, region.source.shape, strict=True)
        extents = [ir.static_int(dim.extent) or int(most) for dim, most in dims]
        found.append((extents[first:], dtype_bytes(ir.dtype_of(region.source))))
    return found


def is_load(part: Any) -> bool:
    """Tell whether a statement fills a tile asynchronously."""
    if not isinstance(part, ir.SBlockRealize) or ASYNC_OP not in part.block.annotations:
        return False
    op = ASYNC_OPS.get(str(part.block.annotations[ASYNC_OP]))
    return op is not None and op.is_load


def is_store(part: Any) -> bool:
    """Tell whether a statement stores shared memory to global memory asynchronously."""
    if not isinstance(part, ir.SBlockRealize) or ASYNC_OP not in part.block.annotations:
        return False
    op = ASYNC_OPS.get(str(part.block.annotations[ASYNC_OP]))
    return op is not None and (op.reads, op.writes) == ("shared", "global")


def completes_by_group(load: ir.SBlock) -> bool:
    """Tell a load whose thread waits for a separate group from one by mbarrier."""
    by_group = (CP_ASYNC, DMA_COPY)
    calls = ir.find_all(load.body, ir.Call)
    return not is_made_in_parts(load) and any(function_of(call) in by_group for call in calls)


def is_made_in_parts(load: ir.SBlock) -> bool:
    """Tell a load by mbarrier for which each thread that makes a part of it arrives."""
    return IN_PARTS in load.annotations


def count_loading_threads(kernel: ir.For) -> Any:
    """Return how many threads of a kernel, from its first one on, make its loads."""
    split = find_split(kernel)
    count = ir.threads_of(kernel).count if split is None else split.condition.b
    known = ir.static_int(count)
    return count if known is None else known


def find_loads(root: Any) -> list[ir.SBlockRealize]:
    """Return the loads below `root`, outermost first."""
    return ir.find_all(root, ir.SBlockRealize, is_load)


def find_split(kernel: ir.For) -> ir.IfThenElse | None:
    """Return the branch of a kernel that divides it between a producer and consumers."""
    for split in ir.find_all(kernel, ir.IfThenElse, lambda x: x.else_case is not None):
        if find_calls(split.then_case, AWAIT_FREE) and not find_calls(split.else_case, AWAIT_FREE):
            return split
    return None


def threads_per_arrival(slots: list[ir.Var], readers: list[ir.Stmt]) -> int:
    """Return how many threads one arrival speaks for, of those that read some slots.

    A warp group's operations are waited for by all of it, unless a loop around them runs no
    iteration. Plain loads are each warp's own, and its lanes synchronise before one of them
    arrives.
    """
    for reader in readers:
        operations = {
            block: ir.seq()
            for block in ir.find_all(reader, ir.SBlockRealize, lambda x: _of_warp_group(x.block))
        }
        if any(_may_be_left_out(reader, x) for x in operations):
            return THREADS_PER_WARP
        rest = _without_regions(ir.replace_nodes(reader, ir.SBlockRealize, operations))
        if any(ir.uses(rest, buffer) for buffer in slots):
            return THREADS_PER_WARP
    return WARP_GROUP_THREADS


def _may_be_left_out(reader: ir.Stmt, operation: ir.Stmt) -> bool:
    """Tell whether a loop around an operation may run no iteration."""
    loops = ir.find_all(reader, ir.For, lambda x: ir.uses_node(x, operation))
    return any((ir.static_int(x.extent) or 0) < 1 for x in loops)


def _without_regions(stmt: ir.Stmt) -> ir.Stmt:
    """Leave out what blocks say that they access: statements inside of them do it."""

    def bare(block: ir.SBlock, mutator: Any) -> ir.SBlock:
        return ir.with_block(mutator.default_mutate(block), reads=[], writes=[])

    return ir.mutate(stmt, [(ir.SBlock, bare)])


def is_freed_by_warps(kernel: ir.For, channel: Channel) -> bool:
    """Tell whether each warp that reads a slot speaks for itself, for all blocks of a cluster."""
    split, threads = find_split(kernel), ir.threads_of(kernel)
    blocks = [x for tag, x in ir.thread_axes(kernel).items() if tag.startswith("clusterCtaIdx")]
    assert split is not None, "slots are handed over between roles"
    readers = int(threads.count) - int(split.condition.b)
    return (
        channel.num_arrivals // prod(int(x.extent) for x in blocks) > readers // WARP_GROUP_THREADS
    )


def _of_warp_group(block: ir.SBlock) -> bool:
    op = ASYNC_OPS.get(str(block.annotations.get(ASYNC_OP, "")))
    return op is not None and op.agent == "warp_group"


def trip_variable(call: ChannelCall) -> ir.Var | None:
    """Return the variable that a call's iteration count is computed from, or None for a number."""
    trip = call.trip
    if isinstance(trip, (tirx.Add, tirx.Sub)) and ir.static_int(trip.b) is not None:
        trip = trip.a
    return trip if isinstance(trip, ir.Var) else None


def find_trips(root: Any) -> dict[ir.Var, int]:
    """Return the variables that count iterations, and the channels whose iterations they count."""
    calls = ((trip_variable(call), call.channel) for call in find_calls(root))
    return {var: channel for var, channel in calls if var is not None}


def count_trips(loops: list[ir.For]) -> Any:
    """Return the number, from 0, of an iteration of nested loops, the outermost first."""
    count: Any = tirx.IntImm("int32", 0)
    for n, loop in enumerate(loops):
        own = loop.loop_var if ir.is_const(loop.min, 0) else loop.loop_var - loop.min
        count = own if n == 0 else count * loop.extent + own
    return count


def fill(channel: int, trip: Any, num_bytes: Any) -> Any:
    """Build the statement that begins a block of loads of some bytes, an int where they fill it."""
    if isinstance(num_bytes, int):
        return make_call(FILL_SLOT, channel, trip)
    return tirx.call_extern("int32", FILL_SLOT, channel, trip, num_bytes)
