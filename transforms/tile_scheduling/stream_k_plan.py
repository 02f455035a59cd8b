"""Plan stream-K: which k steps of which output tiles each thread block sums.

12 tiles of 5 steps by 8 thread blocks: 4 tiles are left over by whole waves, which would keep half
of the blocks idle. All 12 tiles form a line of 60 steps, and a block takes 7 or 8 consecutive ones:

    tile   0         1         2         3
    step   01234     01234     01234     01234   ...
    block  00000     00011     11111     22222

A block starts with the last tile of its share. The partial sum for the next block is then ready
before that block reaches its first tile, which it computes last. Of more tiles each block computes
whole ones, too, before its share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower
from tvm_hopper.requests.keys import BY_DEVICE, CHANNEL_CALLS, PERSISTENT, STREAM, TILE_WORK, TURNS
from tvm_hopper.transforms.common.channel import find_calls, find_split, find_trips
from tvm_hopper.transforms.common.multicast_groups import AXIS
from tvm_hopper.transforms.split_k.lower_split_k_plan import accumulator_of

MOST_STEPS = (1 << 31) - 1  # of all tiles: iterations have 32 bits


@dataclass(frozen=True)
class TileStream:
    """Shares of `tiles` output tiles of `steps` steps each for `blocks` thread blocks.

    - `accumulator`: registers of a tile's sum.
    - `split`: the branch between the producer, of threads below a number, and consumers.
    """

    tiles: int
    steps: int
    blocks: int
    accumulator: ir.Var
    split: ir.IfThenElse

    @property
    def whole(self) -> int:
        """Tiles that each block computes alone, all of their steps."""
        return max(0, self.tiles // self.blocks - 1)

    @property
    def streamed(self) -> int:
        """Tiles whose steps are distributed, fewer than two for each block if there are more."""
        return self.tiles - self.whole * self.blocks

    @property
    def line(self) -> int:
        """Steps of all tiles that are distributed."""
        return self.streamed * self.steps

    def begin_of(self, block: Any) -> Any:
        """Return the first step of a block, of all that are distributed."""
        return tirx.truncdiv(block * self.line, self.blocks)

    @property
    def first_consumer(self) -> int:
        """Number of the first thread that has sums."""
        return int(self.split.condition.b)


def plan_stream(
    kernel: ir.For, columns: ir.For, num_tiles: Any, blocks: int | None
) -> TileStream | None:
    """Plan equal shares of a kernel, if they are requested; reasons to refuse are raised here."""
    if STREAM not in columns.annotations:
        return None
    where = f"loop {columns.loop_var.name}, {STREAM}"
    if blocks is None or blocks == BY_DEVICE:
        raise cannot_lower(
            where,
            f"no {PERSISTENT}" if blocks is None else f"{PERSISTENT} counted by the device",
            "a number of thread blocks, which there is memory for",
            f"give {PERSISTENT} a number, as that of the chip's SMs",
        )
    tiles = ir.static_int(num_tiles)
    if tiles is None:
        raise cannot_lower(
            where,
            f"{num_tiles} output tiles",
            "a number that is known, which shares follow from",
            "leave the request out of products with symbolic rows or columns",
        )
    axes = ir.thread_axes(kernel)
    if AXIS in axes:
        raise cannot_lower(
            where,
            f"thread blocks on {AXIS}, too",
            "blocks on blockIdx.y and blockIdx.x alone: each works on its own",
            "remove one of the two requests",
        )
    if TURNS in columns.annotations:
        raise cannot_lower(
            where,
            f"{TURNS}={int(columns.annotations[TURNS])}",
            "consumers that share a tile, no ping-pong groups",
            "remove one of the two requests",
        )
    split = find_split(kernel)
    if split is None:
        raise cannot_lower(
            where,
            "a kernel without a producer",
            "a producer and consumers, as a product by WGMMA has them",
            "request consumers on the pipelined loop",
        )
    work = [x.block.body for x in ir.find_all(kernel, ir.SBlockRealize, _is_work)]
    loops = [steps_of(body, where) for body in work]
    steps = int(loops[0].extent)
    assert all(int(x.extent) == steps for x in loops), "roles hand over slot by slot"
    (own,) = (x for x in loops if ir.uses_node(split.else_case, x))
    blocks = max(1, min(blocks, tiles * steps))
    plan = TileStream(tiles, steps, blocks, accumulator_of(own, where), split)
    if (blocks + 1) * plan.line > MOST_STEPS:
        raise cannot_lower(
            where,
            f"{blocks} thread blocks for {plan.line} steps",
            f"at most {MOST_STEPS} as the product of both, which 32 bits hold",
            "take fewer thread blocks, or a deeper tile",
        )
    return plan


def _is_work(block: ir.SBlockRealize) -> bool:
    return TILE_WORK in block.block.annotations


def steps_of(work: ir.Stmt, where: str = "") -> ir.For:
    """Return the loop over the steps of an output tile, of which each counts one trip."""
    trips = find_trips(work)
    found = [x for x in ir.statements(work) if find_calls(x, *CHANNEL_CALLS)]
    loop = found[0] if len(found) == 1 else None
    counted = [x for x in ir.find_all(work, tirx.Bind) if x.var in trips]
    plain = (
        isinstance(loop, ir.For)
        and ir.static_int(loop.extent) is not None
        and int(loop.extent) > 0
        and ir.is_const(loop.min, 0)
        and all(_counts(x.value, loop) for x in counted)
    )
    if not plain:
        raise cannot_lower(
            where,
            "other asynchronous copies around the loop over steps, or loops in loops"
            if len(found) != 1 or isinstance(loop, ir.For)
            else "no loop over steps",
            "one loop of a known number of steps, from 0, each with its loads and products",
            "leave the request out, or let threads load and store what the epilogue needs",
        )
    assert isinstance(loop, ir.For)
    return loop


def _counts(value: Any, loop: ir.For) -> bool:
    """Tell whether an iteration's number is that of the step."""
    inside = value.value if isinstance(value, tirx.Cast) else value
    return isinstance(inside, ir.Var) and inside.same_as(loop.loop_var)
