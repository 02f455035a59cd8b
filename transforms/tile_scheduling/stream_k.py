"""Stream-K: give persistent blocks equal shares of all tiles' steps. Part of ScheduleTiles.

    for bx in thread_binding(8, "blockIdx.x", annotations={"tvm_hopper.stream": 2}):
        ... in each role, with 12 tiles of 5 steps ...
            with sblock("tile", tile_work=1):
                acc[0:48] = 0                               consumers alone
                for k in serial(5): trip = k; ...
                store acc
  ->
    begin, end = bx * 60 // 8, (bx + 1) * 60 // 8
    for tile in range((end - 1) // 5 - begin // 5 + 1):     from the last one on
        place = (end - 1) // 5 - tile                       then row and column of the tile
        from = max(begin - place * 5, 0)
        to = min(end - place * 5, 5)
        acc[0:48] = 0
        for k in serial(to - from): trip = max(end - (place + 1) * 5, 0) + k; ... from + k ...
        if from > 0:
            wait until sums[bx - 1, 48, 32 * warp] is 1
            acc[0:48] = sums[bx - 1, 0:48, thread] + acc[0:48]
        if to < 5:
            sums[bx, 0:48, thread] = acc[0:48]
            sums[bx, 48, 32 * warp] = 1
        else: store acc

A block hands on the sum of one tile at most, its first work, and takes the sum of another one, its
last.  So the sums of a tile are added in the order of its steps, whatever the blocks' speed, and
each run gives the same bits.  A block waits for blocks of lower numbers, which run before it.
Where there are two tiles and more for each block, the first ones are whole tiles, round robin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.transforms.common.channel import find_trips
from tvm_hopper.transforms.pipeline.plan_ring_buffers import ROLLED
from tvm_hopper.transforms.split_k.epilogue_shares import of_first
from tvm_hopper.transforms.split_k.serial_split_k import hand_on, take
from tvm_hopper.transforms.split_k.zero_kernels import zero_kernel

from .stream_k_plan import TileStream, steps_of

SUM_READY = tirx.IntImm("uint32", 1)  # what a word is when the sums of its warp are there


def new_sums(kernel: ir.For, plan: TileStream) -> ir.Var:
    """Declare memory for what each block hands on, and for the words that tell of it."""
    threads = int(ir.threads_of(kernel).count) - plan.first_consumer
    registers = int(plan.accumulator.shape[0])
    shape = (plan.blocks, registers + 1, threads)
    dtype = ir.dtype_of(plan.accumulator)
    return ir.new_buffer(f"{plan.accumulator.name}_sums", shape, dtype, "global")


def with_zeros(kernel: ir.For, plan: TileStream, sums: ir.Var) -> ir.Stmt:
    """Put a kernel that sets the words to zero in front, and allocate the memory of both."""
    zero = zero_kernel(sums, {1: int(plan.accumulator.shape[0])})
    return ir.opaque_block("parts", ir.seq(zero, kernel), alloc_buffers=[sums])


def stream_loop(
    work: ir.Stmt,
    plan: TileStream,
    block: Any,
    thread: Any,
    sums: ir.Var,
    place: Callable[..., Any],
) -> ir.Stmt:
    """Build a role's loop over the output tiles of which a thread block computes steps.

    - `work`: what the role does for one tile.
    - `plan`: the shares.
    - `block`, `thread`: numbers of the thread block and of the thread.
    - `sums`: what blocks hand on.
    - `place`: names rows and columns of a tile, given statements and the place in the order of all
      tiles.
    """
    binds: list[tirx.Bind] = []
    steps, whole = tirx.IntImm("int32", plan.steps), plan.whole

    def bind(name: str, value: Any) -> ir.Var:
        var = ir.Var(name, "int32")
        binds.append(tirx.Bind(var, ir.simplify(value)))
        return var

    # TVM writes out what a name stands for wherever it is used: few names use others twice.
    number = bind("block", ir.as_int32(block))  # within, the axis stands for a tile's column
    begin = bind("begin", plan.begin_of(number))
    end = bind("end", plan.begin_of(number + 1))
    last = bind("last", tirx.truncdiv(end - 1, steps))
    count = ir.simplify(last - tirx.truncdiv(begin, steps) + 1 + whole)
    around, binds = binds, []

    tile = ir.Var("tile", "int32")
    streamed = bind("streamed", last + whole - tile)  # of those that are distributed
    linear, to = streamed, tirx.min(end - streamed * steps, steps)
    before: Any = tirx.max(end - (streamed + 1) * steps, 0)
    if whole:
        alone = tile < whole
        linear = tirx.Select(alone, number + tile * plan.blocks, streamed + whole * plan.blocks)
        to = tirx.Select(alone, steps, to)
        before = tirx.Select(alone, tile * steps, before + whole * plan.steps)
    first = bind("from_step", tirx.max(begin - streamed * steps, 0))  # 0 of whole ones
    behind, done = bind("to_step", to), bind("done", before)
    part = _part(work, plan, number, thread, sums, first, behind, done)
    body = ir.seq(binds, place(part, linear))
    return ir.seq(around, ir.For(tile, 0, count, ir.ForKind.SERIAL, body, annotations=ROLLED))


def _part(
    work: ir.Stmt,
    plan: TileStream,
    block: Any,
    thread: Any,
    sums: ir.Var,
    first: ir.Var,
    behind: ir.Var,
    done: ir.Var,
) -> ir.Stmt:
    """Do the steps of one tile from `first` on, and with their sum what is to be done."""
    loop = steps_of(work)
    parts = ir.statements(work)
    (at,) = (n for n, part in enumerate(parts) if part.same_as(loop))
    steps = _some_steps(loop, first, behind, done)
    if not ir.uses(loop, plan.accumulator):
        return ir.seq(parts[:at], steps, parts[at + 1 :])
    one = plan.accumulator, sums
    taken = take(*one, [block - 1], thread, SUM_READY)
    left = hand_on(*one, [block], thread, SUM_READY)
    return ir.seq(
        [ir.replace(x, ir.BufferStore, of_first(first, plan.accumulator)) for x in parts[:at]],
        steps,
        ir.IfThenElse(first > 0, taken, None),
        ir.IfThenElse(behind < plan.steps, left, ir.seq(parts[at + 1 :])),
    )


def _some_steps(loop: ir.For, first: ir.Var, behind: ir.Var, done: ir.Var) -> ir.For:
    """Run some iterations, whose iterations follow those of the tiles before."""
    step = ir.Var(loop.loop_var.name, ir.dtype_of(loop.loop_var))
    trips = find_trips(loop)
    counted = ir.find_all(loop.body, tirx.Bind, lambda x: x.var in trips)
    again = {x: tirx.Bind(x.var, done + ir.as_int32(step)) for x in counted}
    body = ir.replace_nodes(loop.body, tirx.Bind, again)
    whole = ir.cast_like(first, loop.loop_var) + step
    body = ir.substitute(body, {loop.loop_var: whole})
    extent = ir.cast_like(ir.simplify(behind - first), loop.loop_var)
    return ir.with_body(loop, body, loop_var=step, extent=extent)
