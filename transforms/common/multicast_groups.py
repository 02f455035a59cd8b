"""Decide which loads the thread blocks of a cluster share by multicast.

    for bx in thread_binding(8, "blockIdx.x", annotations={"tvm_hopper.share_loads": 1}):
      for rank in thread_binding(2, "blockIdx.z"):
        ... A[(2 * by + rank) * 128 + r, k + s] ...          each block its own
        ... B[bx * 64 + r, k + s] ...                        the same in both

What is alike is read off the coordinates: with each block's number in place of the loop's variable
they are equal or not. Blocks that load the same make a share of it each, for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx
from tvm_ffi import structural_equal

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.arch import Arch
from tvm_hopper.requests.keys import CHANNEL, CONSUMERS, MULTICAST, SHARE_LOADS, WITH_HINT

from .channel import find_split

AXIS = "blockIdx.z"
BITS = 8  # of a mask, for the blocks of a cluster that runs everywhere


@dataclass(frozen=True)
class Sharing:
    """Which blocks of a cluster load the same data: a number per block, equal for equal loads."""

    groups: tuple[int, ...]

    @property
    def count(self) -> int:
        """Blocks that load the same thing; 1 where groups differ in size, too."""
        sizes = {self.groups.count(group) for group in self.groups}
        return sizes.pop() if len(sizes) == 1 else 1

    @property
    def masks(self) -> tuple[int, ...]:
        """For each block a bit for each one that loads the same."""
        return tuple(
            sum(1 << i for i, other in enumerate(self.groups) if other == group)
            for group in self.groups
        )

    @property
    def places(self) -> tuple[int, ...]:
        """For each block how many that load the same are before it."""
        return tuple(self.groups[:i].count(group) for i, group in enumerate(self.groups))


@dataclass(frozen=True)
class SharedBoxes:
    """Boxes of one tile: a nest of loops around one call, and who makes which of them."""

    channel: int
    nest: ir.Stmt
    loops: tuple[ir.For, ...]
    call: ir.Call
    sharing: Sharing

    @property
    def tile(self) -> str:
        """Name of the tile that they fill."""
        tile, *_ = ir.find_all(self.call.args[1], ir.TensorLoad)
        return str(tile.source.name)

    @property
    def num_boxes(self) -> int:
        """Boxes of the tile."""
        return prod(int(loop.extent) for loop in self.loops)


@dataclass(frozen=True)
class SharedLoads:
    """A kernel's cluster: the loop over its blocks, what is shared, and what cannot be."""

    axis: ir.For
    boxes: tuple[SharedBoxes, ...]
    own: tuple[SharedBoxes, ...]  # the same in several blocks, and yet loaded by each

    @property
    def num_blocks(self) -> int:
        """Blocks of the cluster."""
        return int(self.axis.extent)

    def peers(self, channel: int) -> list[tuple[int, ...]]:
        """For each block those that fill slots of its channel, itself included; none shared: none.

        Nobody else is told of a free slot: a barrier may only be arrived at by who knows, from what
        landed since, that its last phase has been waited for.
        """
        own = [x.sharing for x in self.boxes if x.channel == channel]
        if not own:
            return []
        blocks = range(self.num_blocks)
        return [
            tuple(i for i in blocks if any(x.groups[i] == x.groups[block] for x in own))
            for block in blocks
        ]


def find_cluster_axis(loops: Iterable[ir.For]) -> ir.For | None:
    """Return the loop over thread blocks that share loads, if there is one."""
    bound = [loop for loop in loops if loop.thread_binding is not None]
    if not any(SHARE_LOADS in loop.annotations for loop in bound):
        return None
    found = (x for x in bound if str(x.thread_binding.thread_tag) == AXIS)
    return next((x for x in found if ir.static_int(x.extent) is not None), None)


def sharing_of(indices: Sequence[Any], axis: ir.For) -> Sharing:
    """Tell in which blocks of a cluster indices are alike."""
    known: list[list[Any]] = []
    groups = []
    for rank in range(int(axis.extent)):
        value = {axis.loop_var: ir.cast_like(rank, axis.loop_var)}
        found = [ir.simplify(ir.substitute(index, value)) for index in indices]
        same = next((n for n, x in enumerate(known) if structural_equal(x, found)), len(known))
        if same == len(known):
            known.append(found)
        groups.append(same)
    return Sharing(tuple(groups))


def plan_shared_loads(kernel: ir.For, arch: Arch) -> SharedLoads | None:
    """Plan who loads what for whom, where that is requested; reasons to refuse are raised here."""
    axes = ir.thread_axes(kernel)
    asking = [loop for loop in axes.values() if SHARE_LOADS in loop.annotations]
    if not asking:
        return None
    where = f"loop {asking[0].loop_var.name}, {SHARE_LOADS}"
    axis = find_cluster_axis(axes.values())
    size = None if axis is None else ir.static_int(axis.extent)
    if axis is None or size is None or not 2 <= size <= arch.max_cluster_size:
        raise cannot_lower(
            where,
            f"no loop of known extent on {AXIS}"
            if axis is None
            else f"{axis.extent} iterations on {AXIS}",
            f"2 to {arch.max_cluster_size}: the thread blocks of a cluster",
            "split the loop by that number, and bind the inner one",
        )
    if find_split(kernel) is None:
        raise cannot_lower(
            where,
            "a kernel whose threads load and compute",
            "a producer, which waits for the consumers of all the blocks that it loads for",
            f"request consumers ({CONSUMERS}) on the pipelined loop",
        )
    values = _values_of(kernel, axis.loop_var)
    boxes, own = [], []
    for block in ir.find_blocks(kernel, CHANNEL):
        if not ir.has_any(block, ir.Call, is_box):
            continue
        for part in ir.statements(block.body):
            found = _boxes(int(block.annotations[CHANNEL]), part, axis, values)
            if found is None or found.sharing.count == 1:
                continue
            if found.num_boxes % found.sharing.count:
                own.append(found)
            else:
                boxes.append(found)
    if not boxes:
        raise cannot_lower(
            where,
            "tiles of too few boxes" if own else "loads by TMA that differ from block to block",
            "a load that several blocks share, with as many boxes as blocks or a multiple",
            "take larger tiles" if own else "bind a loop that one of the tensors is not indexed by",
        )
    plan = SharedLoads(axis, tuple(boxes), tuple(own))
    for number in {x.channel for x in boxes}:
        counts = {len(peers) for peers in plan.peers(number)}
        if len(counts) > 1:
            raise cannot_lower(
                where,
                f"blocks that load for {' or '.join(map(str, sorted(counts)))} of the cluster",
                "the same number for each: barriers count the same arrivals in all blocks",
                "fuse the loop over the blocks of no more than two loops over tiles",
            )
    for loop in ir.find_all(kernel, ir.For, lambda x: x.thread_binding is None):
        around = any(ir.uses_node(loop, x.nest) for x in boxes)
        if around and ir.uses(_resolved([loop.min, loop.extent], values), axis.loop_var):
            raise cannot_lower(
                f"loop {loop.loop_var.name}",
                f"{loop.extent} iterations around loads that blocks of a cluster share",
                "the same number in each block: one would wait for loads that another never issues",
                f"remove {SHARE_LOADS}",
            )
    return plan


def is_box(call: ir.Call) -> bool:
    """Tell a load of one box that one block makes for itself."""
    if call.op.name != "tirx.call_extern":
        return False
    return str(call.args[0].value).partition(WITH_HINT)[0] in MULTICAST


def _boxes(
    channel: int, part: ir.Stmt, axis: ir.For, values: dict[ir.Var, Any]
) -> SharedBoxes | None:
    """Take a nest of loads apart, if its boxes can be distributed evenly."""
    loops, inside = [], part
    while isinstance(inside, ir.For):
        loops.append(inside)
        inside = inside.body
    if not isinstance(inside, ir.Evaluate) or not isinstance(inside.value, ir.Call):
        return None
    call = inside.value
    if not is_box(call) or any(ir.static_int(loop.extent) is None for loop in loops):
        return None
    sharing = sharing_of(_resolved(call.args[2:], values), axis)
    return SharedBoxes(channel, part, tuple(loops), call, sharing)


def _values_of(kernel: ir.For, rank: ir.Var) -> dict[ir.Var, Any]:
    """Return the variables of a kernel that follow from a block's number, and their values."""
    values: dict[ir.Var, Any] = {}
    for bind in ir.find_all(kernel, tirx.Bind):
        value = _resolved([bind.value], values)[0]
        if ir.uses(value, rank):
            values[bind.var] = value
    return values


def _resolved(parts: Sequence[Any], values: dict[ir.Var, Any]) -> list[Any]:
    return [ir.substitute(part, values) for part in parts] if values else list(parts)
