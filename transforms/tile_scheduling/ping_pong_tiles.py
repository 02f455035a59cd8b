"""Ping-pong: consumer groups compute a block's output tiles in turn. Part of ScheduleTiles.

    own = (t - 128) // 128
    if own == 0:
        with sblock("tile", tile_work=2):
            for k in serial(8): trip = k; await_filled(0, trip); ...; release of trip - 1
            store
  ->
    for tile in range(tiles):
        if tile % 2 == own:
            if tile > 0: bar.sync 8 + tile % 2           the set before has been given its slots
            for k in serial(8): trip = tile * 8 + k; ...
            if tile + 1 < tiles: bar.arrive 8 + (tile + 1) % 2
            with sblock(release=1): free_slot(0, tile * 8 + 7)
            store

A set waits for its first slot when the one before has waited for its last: a barrier's parity
tells a phase from the next one only.  What a set leaves in flight it gives back itself, before
its epilogue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import fences
from tvm_hopper.requests.keys import AWAIT_FILLED, FREE_SLOT, RELEASE, TILE_WORK, TURNS
from tvm_hopper.transforms.common.channel import find_calls, make_call
from tvm_hopper.transforms.pipeline.plan_ring_buffers import ROLLED

FIRST_PING_PONG_BARRIER = 8  # the first of as many as there are sets; those below are of roles


def find_turns(root: Any) -> list[ir.IfThenElse]:
    """Return the branches in which the first set of consumers does all of the work."""
    return ir.find_all(root, ir.IfThenElse, lambda x: _work(x) is not None)


def _work(branch: ir.IfThenElse) -> ir.SBlock | None:
    stmt = branch.then_case
    if isinstance(stmt, ir.SBlockRealize) and int(stmt.block.annotations.get(TILE_WORK, 1)) > 1:
        return stmt.block
    return None


def take_turns(
    branch: ir.IfThenElse, num_tiles: Any, count_on: Callable[..., Any], place: Callable[..., Any]
) -> ir.Stmt:
    """Build the loop of a set over its tiles.

    - `branch`: one of `find_turns`.
    - `num_tiles`: of the thread block.
    - `count_on`: counts iterations on from tile to tile, given statements and the tile.
    - `place`: names rows and columns of a tile, given statements and the tile.
    """
    block = _work(branch)
    assert block is not None, "a branch of find_turns has work"
    turns, own = int(block.annotations[TILE_WORK]), branch.condition.a
    tile, number, tiles = (ir.Var(x, "int32") for x in ("tile", "own", "tiles"))
    work = count_on(block.body, tile)
    parts = ir.statements(work)
    (at,) = (n for n, part in enumerate(parts) if find_calls(part, AWAIT_FILLED))
    threads = 2 * int(own.b)  # one set arrives, the next one waits
    # Nothing is negative, which floor division would have to check.
    enter = fences.sync_named(FIRST_PING_PONG_BARRIER + tirx.truncmod(tile, turns), threads)
    leave = fences.arrive_named(FIRST_PING_PONG_BARRIER + tirx.truncmod(tile + 1, turns), threads)
    work = ir.seq(
        parts[:at],
        ir.IfThenElse(tile > 0, tirx.Evaluate(enter), None),
        parts[at],
        ir.IfThenElse(tile + 1 < tiles, tirx.Evaluate(leave), None),
        _give_back(parts[at], tile),
        parts[at + 1 :],
    )
    is_own = tirx.truncmod(tile, turns).equal(number)
    # All sets run through all tiles, so that iterations and phases are the same number for all
    # threads.
    body = ir.IfThenElse(is_own, place(work, tile), None)
    loop = ir.For(tile, 0, tiles, ir.ForKind.SERIAL, body, annotations={**ROLLED, TURNS: turns})
    return ir.seq(tirx.Bind(number, ir.as_int32(own)), tirx.Bind(tiles, num_tiles), loop)


def _give_back(loop: ir.For, tile: ir.Var) -> list[ir.Stmt]:
    """Free the slots of a tile's last iterations, which are given back late inside of the loop."""
    found: list[ir.Stmt] = []
    for block in ir.find_blocks(loop, RELEASE):
        pending = int(block.annotations[RELEASE][0])
        if not pending:
            continue
        (call,) = find_calls(block, FREE_SLOT)
        (branch,) = ir.find_all(block, ir.IfThenElse)
        around = [x for x in ir.find_all(loop, ir.For) if ir.uses_node(x, block)]
        end: Any = tile + 1
        for each in around:
            end = ir.as_int32(each.extent) * end
        for late in range(pending, 0, -1):
            free = make_call(FREE_SLOT, call.channel, end - late)
            elected = ir.IfThenElse(branch.condition.a, tirx.Evaluate(free), None)
            found.append(ir.opaque_block("give_back", elected, annotations={RELEASE: [late, 0]}))
    return found
