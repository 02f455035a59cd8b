"""Choose the shared-memory slots of partial sums for each iteration of the row loop.

    slots of an iteration: of_warps[2 + r % 128, row, 0:8], arrived[r % 128]

Whenever all slots were used the cluster tells that they were read (cluster_exchange_loop.py), which
takes one or two microseconds. So there are as many as rows that wait in shared memory leave space
for, and no more than turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from tvm_hopper import ir
from tvm_hopper.facts.arch import Arch
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.programming_model import MBARRIER_BYTES
from tvm_hopper.requests.keys import BLOCKS_PER_SM, SKEW_TURNS
from tvm_hopper.transforms.common.shared_memory_size import shared_array

from .warp_shuffles import PARTIAL_SLOTS, ThreadReduction

SLOTS = 32
MAX_SLOTS = 256  # next to rows in shared memory: else the first level of cache takes the rest
RESERVED_BYTES = 512  # for alignment, and for the partial sums of warps


def in_turns(one: ThreadReduction, loops: list[ir.For], is_alone: bool) -> ThreadReduction:
    """Return the slot of a reduction in an iteration of the loops around it.

    - `one`: the reduction.
    - `loops`: outermost first.
    - `is_alone`: whether no other one has the same loop: then two slots keep two iterations apart.
    """
    if not loops:
        return one
    trip: Any = 0
    for loop in loops:
        trip = trip * loop.extent + (loop.loop_var - loop.min)
    trip = ir.simplify(trip)
    rooms = 2 if is_alone else 1
    extents = [ir.static_int(x.extent) for x in loops]
    turns = None if None in extents else prod(x or 0 for x in extents)
    last = loops[-1]
    one = replace(one, is_pipelined=SKEW_TURNS in last.annotations)
    return replace(one, turn=trip % rooms, num_rooms=rooms, trip=trip, loop=last, turns=turns)


def give_rooms(
    kernel: ir.For, plan: Sequence[ThreadReduction], arch: Arch
) -> tuple[ThreadReduction, ...]:
    """Give each cluster reduction in a row loop as many slots as there is space for.

    - `plan`: all of its reductions.
    """
    far = [x for x in plan if x.cluster is not None and x.trip is not None]
    rooms = count_rooms(kernel, far, arch) if far else SLOTS
    given = {x.scope: replace(x, turn=x.trip % rooms, num_rooms=rooms) for x in far}
    return tuple(given.get(x.scope, x) for x in plan)


def count_rooms(kernel: ir.For, far: Sequence[ThreadReduction], arch: Arch) -> int:
    """Return how many slots such reductions have: a power of two.

    - `far`: the cluster reductions in row loops.
    """
    arrays = [x for y in ir.find_all(kernel, ir.SBlock) for x in y.alloc_buffers if ir.is_shared(x)]
    if not arrays:
        return SLOTS
    held = RESERVED_BYTES + sum(shared_array(x).num_bytes for x in arrays)
    blocks = ir.thread_axes(kernel)["blockIdx.x"].annotations.get(BLOCKS_PER_SM)
    limit = arch.smem_per_sm // int(blocks or 1) - arch.smem_reserved_per_block
    width = max(max(x.num_partials, x.num_warps) for x in far)
    values = sum(x.rows * dtype_bytes(ir.dtype_of(y)) for x in far for y in x.results) * width
    turns = max(MAX_SLOTS if x.turns is None else x.turns for x in far)
    rooms = SLOTS
    while rooms < min(MAX_SLOTS, turns):
        twice = 2 * rooms
        if held + (twice + PARTIAL_SLOTS) * values + twice * MBARRIER_BYTES * len(far) > limit:
            break
        rooms = twice
    return rooms
