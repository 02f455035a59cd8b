"""`raster`: order of output tiles, persistent kernels, stream-K."""

from __future__ import annotations

from typing import Any

from tvm import s_tir

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.requests import keys

from .arguments import as_choice, as_int, as_loop
from .asking import ask
from .products.config import MOST_BLOCKS
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
    """Say in which order output tiles are computed, by how many thread blocks and consumers, when.

    Parameters
    ----------
    sch : Schedule
        Changed in place.
    loop : LoopRV
        The loop over columns of tiles, bound to blockIdx.x; rows of tiles are on blockIdx.y.
    group : int, optional
        Rows of tiles that are visited together; None or 1 is the hardware's order.
    persistent : int, optional
        Thread blocks that share all tiles; None or 0 is one block a tile, BY_DEVICE (-1) as many as
        balance on the device at hand, counted at each launch.
    turns : int, optional
        Of a persistent product with one consumer: so many of it, 2 or 3, that compute output tiles
        in turn. None or 1 is one.
    early_launch : bool, optional
        True lets the kernel begin while the launch before it ends: it waits for that launch
        before it touches memory. None or False: launched as usual.
    curve : str, optional
        "hilbert": along a Hilbert curve through squares of tiles of each group, whose rows are the
        largest power of two not above `group`. None: down each column of a group.
    stream : bool, optional
        True gives persistent thread blocks, of a number that is known, equal shares of the steps of
        all tiles: parts of a tile are added in their order, from block to block, in memory of calls
        with an allocator (PyTorch's); other calls compute whole tiles. None or False: whole tiles.

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
    curve = as_choice(where, "curve", curve, keys.CURVES)
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
