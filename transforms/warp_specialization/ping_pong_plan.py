"""Plan ping-pong: consumer groups that take turns on a block's output tiles.

    for bx in thread_binding(8, "blockIdx.x", annotations={"tvm_hopper.persistent": -1,
                                                           "tvm_hopper.turns": 2}):

One set multiplies while the other one stores ("ping-pong"). Consumer groups use the ring slots in
tile order, so the loads of only one pipelined loop may be shared. A group that waited for a slot
too early could not tell its phase from the one two rounds ago.
"""

from __future__ import annotations

from typing import Any

from tvm_hopper import ir
from tvm_hopper.analysis.effects import find_effects
from tvm_hopper.errors import cannot_lower
from tvm_hopper.requests.keys import MOST_TURNS, PERSISTENT, SHARE_LOADS, TILE_WORK, TURNS


def turns_of(kernel: ir.For) -> int:
    """Return the requested number of consumer groups; 1: all consumers share a tile."""
    columns = ir.thread_axes(kernel).get("blockIdx.x")
    return int(columns.annotations.get(TURNS, 1)) if columns is not None else 1


def is_in_turns(body: Any) -> bool:
    """Tell whether warp groups that run a role's statements do so for output separate tiles."""
    return bool(
        ir.find_all(body, ir.For, lambda x: TURNS in x.annotations)
        or ir.find_all(body, ir.SBlock, lambda x: int(x.annotations.get(TILE_WORK, 1)) > 1)
    )


def check_turns(
    kernel: ir.For, loops: list[ir.For], consumers: int, by_groups: bool, body: Any
) -> None:
    """Refuse ping-pong if consumer groups share more than the slots of one loop.

    - `kernel`: with the request.
    - `loops`: its pipelined ones.
    - `consumers`: warp groups of one set.
    - `by_groups`: whether warp groups multiply.
    - `body`: what the threads run.
    """
    columns = ir.thread_axes(kernel)["blockIdx.x"]
    turns = int(columns.annotations[TURNS])
    where = f"loop {columns.loop_var.name}, {TURNS} = {turns}"
    if PERSISTENT not in columns.annotations:
        raise cannot_lower(
            where,
            "thread blocks of one output tile each",
            f"blocks that share the tiles ({PERSISTENT}), so that there is a next one",
            "hs.raster(..., persistent=-1)",
        )
    if not by_groups or consumers * turns > MOST_TURNS:
        raise cannot_lower(
            where,
            f"{consumers} warp groups in each consumer group"
            if by_groups
            else "threads that do not multiply",
            f"a product by WGMMA, and at most {MOST_TURNS} warp groups in all",
            "let one consumer compute a tile",
        )
    if len(loops) != 1:
        raise cannot_lower(
            where,
            f"{len(loops)} loops whose loads are handed over",
            "one: its iterations order the consumer groups",
            "write the second product as a separate kernel",
        )
    asking = [x for x in ir.thread_axes(kernel).values() if SHARE_LOADS in x.annotations]
    if asking:
        raise cannot_lower(
            where,
            f"thread blocks that load for one another ({SHARE_LOADS} of {asking[0].loop_var.name})",
            "blocks that load for themselves: consumer groups release their slots separately",
            "remove one of the two requests",
        )
    (loop,) = loops
    outside = ir.replace_nodes(body, ir.Stmt, {loop: ir.seq()})
    shared = [x.buffer for x in find_effects(outside) if ir.is_shared(x.buffer)]
    if shared:
        raise cannot_lower(
            where,
            f"{shared[0].name}, shared memory that consumer groups would use at the same time",
            "epilogues without any",
            'leave store="tma" out',
        )
