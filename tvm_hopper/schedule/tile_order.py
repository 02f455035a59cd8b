"""`raster`: order of output tiles, persistent kernels, stream-K."""

from __future__ import annotations

from typing import Any

from tvm import s_tir

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.requests import keys

from .arguments import as_choice, as_int, as_loop
from .asking import ask
from .products.field_values import MOST_BLOCKS
from .trial import all_or_nothing


@all_or_nothing("the loop over columns of tiles, bound to blockIdx.x")
def raster(
    sch: s_tir.Schedule,
    loop: Any,
    group: int | None = None,
    persistent: int | None = None,
    turns: int | None = None,
    early_launch: bool | None = None,
    curve: str | None = None,
    stream: bool | None = None,
) -> None:
    """Set the order of output tiles (rasterization), persistence, ping-pong and stream-K.

    Parameters
    ----------
    sch : Schedule
        Changed in place.
    loop : LoopRV
        The loop over columns of tiles, bound to blockIdx.x; rows of tiles are on blockIdx.y.
    group : int, optional
        Rows of output tiles in a group; None or 1 is the hardware's order.
    persistent : int, optional
        Thread blocks of a persistent kernel; None or 0: one block a tile. BY_DEVICE (-1): the host
        chooses the number for its device at each launch.
    turns : int, optional
        Ping-pong: 2 or 3 consumer groups of a persistent product, each with one consumer, that take
        turns on output tiles. None or 1: one group.
    early_launch : bool, optional
        True uses programmatic dependent launch: the kernel starts while the previous launch ends,
        and waits for it before it accesses memory.
    curve : str, optional
        "hilbert": a Hilbert curve through squares of tiles, whose side is the largest power of two
        up to `group`. "pairs": a thread block takes two tiles of neighbouring rows, the second one
        from the other end, for kernels whose tiles have more work along a row. None: down each
        column of a group.
    stream : bool, optional
        Stream-K: True gives a known number of persistent thread blocks equal shares of the k steps
        of all tiles. Parts of a tile are added in order, in a workspace from the caller's allocator
        (PyTorch's); calls without an allocator compute whole tiles.

    Raises
    ------
    ScheduleError
        The loop is not bound to blockIdx.x, or a value is out of range.
    """
    loop = as_loop(sch, loop)
    where = f"loop {sch.get(loop).loop_var.name}"
    group = as_int(where, "group", group, 1, MOST_BLOCKS)
    persistent = as_int(where, "persistent", persistent, keys.BY_DEVICE, MOST_BLOCKS)
    turns = as_int(where, "turns", turns, 1, keys.MOST_TURNS)
    for name, flag in (("early_launch", early_launch), ("stream", stream)):
        if not isinstance(flag, (bool, type(None))):
            raise cannot_schedule(where, f"{name}={flag!r}", "True, False or None")
    curve = as_choice(where, "curve", curve, keys.ORDERS)
    binding = sch.get(loop).thread_binding
    if binding is None or str(binding.thread_tag) != "blockIdx.x":
        found = "a loop that is not bound" if binding is None else f"{binding.thread_tag}"
        raise cannot_schedule(where, found, "the loop over columns of tiles, bound to blockIdx.x")
    for key, value, default in (
        (keys.RASTER_GROUP, group, 1),
        (keys.PERSISTENT, persistent, 0),
        (keys.TURNS, turns, 1),
        (keys.EARLY_LAUNCH, early_launch and 1, 0),
        (keys.STREAM, stream and keys.STREAM_BY_CALLER, 0),
    ):
        if value is not None:
            ask(sch, where, loop, key, value, default=default)
    if curve is not None:
        ask(sch, where, loop, keys.RASTER_CURVE, curve)
