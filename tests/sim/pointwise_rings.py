"""C = A + B through a TMA ring whose consumers are plain warps, with and without a producer warp.

`without` leaves out one synchronising instruction by name.
"""

import functools

import numpy as np
from tvm.script import tirx as T

from tvm_hopper.simulation import Program

from . import ptx
from .hand_threaded import F32, U64, Map, Shared, hand_threaded
from .kernels import lower

TILE = 256  # elements of a tile: one a consumer thread
LOAD = "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes"


def inputs(trips: int = 6) -> dict[str, np.ndarray]:
    """Return integers, so that sums are exact."""
    rng = np.random.default_rng(trips)
    return {name: rng.integers(-99, 99, trips * TILE).astype("float32") for name in "AB"}


@T.inline
def init(full, empty, at, slots, warps, extra):
    for s in T.serial(slots):
        ptx.init_mbarrier(full[at + s], 1)
        ptx.init_mbarrier(empty[at + slots + s], warps + extra)
    T.ptx.fence.mbarrier_init.release.cluster()


@T.inline
def load(tile, full, a_map, b_map, at, slots, it):
    ptx.expect_bytes(full[at + it % slots], TILE * 8)
    T.ptx[LOAD](
        T.address_of(tile[it % slots * 2 * TILE]),
        T.address_of(a_map),
        it * TILE,
        T.address_of(full[at + it % slots]),
    )
    T.ptx[LOAD](
        T.address_of(tile[it % slots * 2 * TILE + TILE]),
        T.address_of(b_map),
        it * TILE,
        T.address_of(full[at + it % slots]),
    )


@functools.cache
def with_producer(without: str = "", slots: int = 4, trips: int = 6, warps: int = 8) -> Program:
    """One producer warp, `warps` consumer warps.

    `without`: init_barrier, empty_wait, full_wait, one_full_wait, fence, one_fence, syncwarp,
    arrive, one_arrive. `one_...`: of one warp alone. Wrong otherwise: two_arrives (of one warp),
    count, empty_parity, full_parity, lane_fence (by one lane of each warp).
    """
    w, at, total = without, slots * TILE, trips * TILE
    each = -(-TILE // (32 * warps))
    extra = {"count": -1}.get(w, 0)

    @hand_threaded(32 + 32 * warps, smem=at * 8 + 128)
    def main(
        A: F32[total], B: F32[total], C: F32[total],
        a_map: Map("A", (total,), (TILE,)), b_map: Map("B", (total,), (TILE,)),
        tx, tile: Shared[F32, at * 2 + 32], full: Shared[U64, at + 16], empty: Shared[U64, at + 16],
    ):  # fmt: skip
        if tx == 0:
            init(full, empty, at, slots, warps, extra)
        if w != "init_barrier":
            T.tvm_storage_sync("shared")
        if tx < 32:
            if tx == 0:
                for it in T.serial(trips):
                    if w != "empty_wait":
                        ptx.wait(
                            empty[at + slots + it % slots],
                            it // slots % 2 if w == "empty_parity" else it // slots % 2 ^ 1,
                        )
                    load(tile, full, a_map, b_map, at, slots, it)
        else:
            me = T.meta_var(tx - 32)
            for it in T.serial(trips):
                if w == "one_full_wait":
                    if tx // 32 != 3:
                        ptx.wait(full[at + it % slots], it // slots % 2)
                elif w != "full_wait":
                    ptx.wait(full[at + it % slots], 0 if w == "full_parity" else it // slots % 2)
                for i in T.serial(each):
                    if i * 32 * warps + me < TILE:
                        C[it * TILE + i * 32 * warps + me] = (
                            tile[it % slots * 2 * TILE + i * 32 * warps + me]
                            + tile[it % slots * 2 * TILE + TILE + i * 32 * warps + me]
                        )
                if w == "one_fence":
                    if tx // 32 != 3:
                        T.ptx.fence.proxy.async_.shared__cta()
                elif w == "lane_fence":
                    if tx % 32 == 0:
                        T.ptx.fence.proxy.async_.shared__cta()
                elif w != "fence":
                    T.ptx.fence.proxy.async_.shared__cta()
                if w != "syncwarp":
                    T.cuda.warp_sync()
                if tx % 32 == 0:
                    if w == "one_arrive":
                        if tx // 32 != 3:
                            ptx.arrive(empty[at + slots + it % slots])
                    elif w != "arrive":
                        ptx.arrive(empty[at + slots + it % slots])
                    if w == "two_arrives":
                        if tx // 32 == 3:
                            ptx.arrive(empty[at + slots + it % slots])

    return lower(main)


@functools.cache
def without_producer(without: str = "", slots: int = 4, trips: int = 6) -> Program:
    """256 threads; thread 0 loads `slots - 1` ahead, all wait, compute, and meet each iteration.

    `without`: init_barrier, wait, one_wait, fence, one_fence, barrier.
    """
    w, at, total = without, slots * TILE, trips * TILE

    @hand_threaded(TILE, smem=at * 8 + 128)
    def main(
        A: F32[total], B: F32[total], C: F32[total],
        a_map: Map("A", (total,), (TILE,)), b_map: Map("B", (total,), (TILE,)),
        tx, tile: Shared[F32, at * 2 + 32], full: Shared[U64, at + 16],
    ):  # fmt: skip
        if tx == 0:
            for s in T.serial(slots):
                ptx.init_mbarrier(full[at + s], 1)
            T.ptx.fence.mbarrier_init.release.cluster()
        if w != "init_barrier":
            T.tvm_storage_sync("shared")
        if tx == 0:
            for s in T.serial(slots - 1):
                load(tile, full, a_map, b_map, at, slots, s)
        for it in T.serial(trips):
            if tx == 0:
                if it + slots - 1 < trips:
                    load(tile, full, a_map, b_map, at, slots, it + slots - 1)
            if w == "one_wait":
                if tx // 32 != 3:
                    ptx.wait(full[at + it % slots], it // slots % 2)
            elif w != "wait":
                ptx.wait(full[at + it % slots], it // slots % 2)
            C[it * TILE + tx] = (
                tile[it % slots * 2 * TILE + tx] + tile[it % slots * 2 * TILE + TILE + tx]
            )
            if w == "one_fence":
                if tx // 32 != 3:
                    T.ptx.fence.proxy.async_.shared__cta()
            elif w != "fence":
                T.ptx.fence.proxy.async_.shared__cta()
            if w != "barrier":
                T.tvm_storage_sync("shared")

    return lower(main)
