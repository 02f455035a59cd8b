"""Sums that several thread blocks share: which modes there are, and the steps of each.

    "cluster"     for part in range(split_k): for k0: ...     parts on the blocks of a cluster,
                                                              added in a fixed order

A tile's depth is one step of one part: the sum is padded to `split_k` times as much.
"""

from __future__ import annotations

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.arch import SM_90A, Arch
from tvm_hopper.plan.smem import TILE_ALIGNMENT, SharedArray, SharedMemory

MODES = ("cluster",)
SUM_BYTES = 4  # of a float32, in which parts are exchanged


def check_request(
    where: str,
    parts: int | None,
    mode: str | None,
    persistent: int | None,
    store: str | None,
    arch: Arch = SM_90A,
) -> None:
    """Refuse parts that no mode can share out, and what cannot go with them."""
    if mode is not None and parts is None:
        raise cannot_schedule(where, "split_mode alone", "split_k too, the number of parts")
    if (parts or 1) == 1:
        return
    if (parts or 1) > arch.max_cluster_size:
        raise cannot_schedule(
            where,
            f"split_k={parts} in a cluster",
            f"at most {arch.max_cluster_size} parts, the blocks of a cluster",
        )
    if persistent:
        raise cannot_schedule(
            where,
            f"split_k={parts} with persistent={persistent}",
            "a cluster for each output tile, persistent=0",
        )
    if store is not None:
        raise cannot_schedule(
            where,
            f"split_k={parts} with store={store!r}",
            "threads that store their own part of the sum, store=None",
        )


def with_exchange(ring: SharedMemory, tile: tuple[int, int, int], parts: int) -> SharedMemory:
    """Return a ring's shared memory with that in which blocks of a cluster exchange sums.

    The ring is dead by then, so that they may lie in its bytes.
    """
    if parts == 1:
        return ring
    sums = SharedArray("sums", tile[0] * tile[1] * SUM_BYTES, TILE_ALIGNMENT)
    last = len(ring.arrays)
    overlays = frozenset(
        frozenset((i, last))
        for i, array in enumerate(ring.arrays)
        if array.alignment == TILE_ALIGNMENT
    )
    return SharedMemory((*ring.arrays, sums), overlays)
