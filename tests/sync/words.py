"""What the tests of placements share: buffers, steps, and the syncs placed by path."""

from __future__ import annotations

from collections import defaultdict

from tvm_hopper.sync import Access, Buffer, Fence, Loop, Step, Sync, place_syncs

A, B = Buffer("A", "shared"), Buffer("B", "shared")
RING = Buffer("ring", "shared", 4)
STAGING = Buffer("staging", "shared", 2)
ACC, ACC2 = Buffer("acc", "registers"), Buffer("acc2", "registers")
C, D = Buffer("C", "global"), Buffer("D", "global")

WGMMA, BULK, CP_ASYNC = "wgmma_group", "bulk_group", "cp_async_group"
PROXY_FENCE, MMA_FENCE = Fence("async_proxy"), Fence("wgmma")


def read(buffer: Buffer, ahead: int = 0) -> Access:
    return Access(buffer, False, ahead)


def write(buffer: Buffer, ahead: int = 0) -> Access:
    return Access(buffer, True, ahead)


def use(*buffers: Buffer) -> Step:
    """Store what all threads read to global memory that is not read again."""
    return Step("use", tuple(map(read, buffers)))


def fill(buffer: Buffer) -> Step:
    return Step("fill", (write(buffer),))


def mma(acc: Buffer, *operands: Buffer) -> Step:
    return Step("mma", (*map(read, operands), read(acc), write(acc)), "wgmma")


def load(buffer: Buffer, ahead: int = 0) -> Step:
    return Step("load", (write(buffer, ahead),), "tma_load", "thread")


def store(buffer: Buffer, *results: Buffer) -> Step:
    return Step("store", (read(buffer), *map(write, results)), "tma_store", "thread")


def copy(buffer: Buffer, ahead: int = 0) -> Step:
    return Step("copy", (write(buffer, ahead),), "cp_async")


def release(ahead: int) -> Step:
    return Step("release", (read(RING, ahead),), is_release=True)


def loop(*body, advances=(), min_trips: int = 0) -> Loop:
    return Loop("k", tuple(body), frozenset(advances), min_trips)


def placed(*body) -> dict[tuple[int, ...], list[Sync]]:
    found = defaultdict(list)
    for placement in place_syncs(body):
        found[placement.path].append(placement.sync)
    return dict(found)
