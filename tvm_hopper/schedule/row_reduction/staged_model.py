"""Configurations of rows that wait in shared memory, which bulk copies bring there."""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import log2

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.arch import SM_90A
from tvm_hopper.facts.programming_model import BULK_ALIGNMENT, THREADS_PER_WARP
from tvm_hopper.requests.keys import MOST_BLOCKS_PER_SM
from tvm_hopper.schedule.memory_bound.tiles import RegisterTile

from .config import RowReductionConfig
from .work import (
    BYTES_PER_CYCLE,
    CLUSTERS,
    REGISTERS_PER_SM,
    THREADS_PER_SM,
    RowChoice,
    RowWork,
    of_flight,
    of_grid,
    outgrows_cache,
)

STAGED_SIZES = (128, 256, 512, 1024)
STAGED_CHUNKS = (1, 2, 4)
ROOM_OF_SUMS = 2048  # bytes of shared memory beside rows: sums of warps, barriers, alignment
STAGED_REGISTERS = 40  # of a thread
STAGED_THREADS = (256, 512)  # of a thread block; the latter if rows share tensors, or have labels
STAGED_AT_ONCE = 128  # bytes that it loads together, with what rows share
STAGED_PARTS = (32 << 10, 64 << 10)  # of a row in a thread block; likewise
STAGED_SHARE = 0.97  # of memory's share


def staged_choices(work: RowWork, given: RowReductionConfig) -> list[RowChoice]:
    """List the choices by which rows wait in shared memory."""
    if work.unstaged:
        return []
    hint = outgrows_cache(work) if given.hint is None else given.hint
    found = []
    for preload, tile in _staged_tiles(work, given):
        blocks = given.blocks or blocks_of_staged(work, tile, preload)
        if blocks and (tile.cluster == 1 or tile.threads % THREADS_PER_WARP == 0):
            speed = _rate(work, tile, blocks)
            choice = RowChoice(tile, preload, True, False, blocks, hint, speed)
            found.append(replace(choice, is_streamed=True, stage=True))
    return found


def _staged_tiles(work: RowWork, given: RowReductionConfig) -> list[tuple[bool, RegisterTile]]:
    """List the tiles of rows in shared memory, and whether what they share waits there, too."""
    preloads = (bool(given.preload) and work.shared > 0,)
    sizes = itertools.product(
        preloads,
        (given.rows or 1,),
        CLUSTERS if given.cluster is None else (given.cluster,),
        STAGED_SIZES if given.threads is None else (given.threads,),
        STAGED_CHUNKS if given.chunks is None else (given.chunks,),
    )
    tiles = [
        (preload, RegisterTile(threads, work.vector, chunks, rows, cluster))
        for preload, rows, cluster, threads, chunks in sizes
    ]
    return [
        x
        for x in tiles
        if given.chunks is not None or x[1].chunks == 1 or x[1].columns <= work.columns
        if part_of(work, x[1]) * (x[1].cluster - 1) < work.columns  # none is left without
    ]


def part_of(work: RowWork, tile: RegisterTile) -> int:
    """Return the columns that a thread block of a cluster has."""
    return -(-work.columns // tile.columns) * tile.columns // tile.cluster


def blocks_of_staged(work: RowWork, tile: RegisterTile, preload: bool = False) -> int:
    """Return how many thread blocks with rows in shared memory an SM has room for; 0 for none."""
    need = part_of(work, tile) * (tile.rows * work.loaded + preload * work.shared) + ROOM_OF_SUMS
    threads = tile.threads * tile.rows
    if need > SM_90A.smem_per_block:
        return 0
    held = SM_90A.smem_per_sm // (need + SM_90A.smem_reserved_per_block)
    of_registers = REGISTERS_PER_SM // (STAGED_REGISTERS * threads)
    room = min(of_registers, THREADS_PER_SM // threads, MOST_BLOCKS_PER_SM)
    return max(1, min(held, room))


def check_staged(
    where: str, work: RowWork, given: RowReductionConfig, found: list[RowChoice]
) -> None:
    """Refuse to stage rows that cannot be, or that have no room."""
    if work.unstaged:
        need = f"rows of a multiple of {BULK_ALIGNMENT} bytes, of which each pass computes its own"
        found_text = f"stage=True for {work.unstaged}"
        raise cannot_schedule(where, found_text, need, "leave stage= out")
    if given.preload and work.unshared:
        need = f"a multiple of {BULK_ALIGNMENT} bytes of each tensor that rows share"
        found_text = f"stage=True, preload=True for {work.unshared}"
        raise cannot_schedule(where, found_text, need, "leave preload= out")
    if work.rows is not None and (given.rows or 1) > work.rows:
        found_text = f"stage=True, rows={given.rows} for {work.rows} rows"
        raise cannot_schedule(where, found_text, "a row for each", "leave rows= out")
    if not found:
        raise cannot_schedule(
            where,
            f"stage=True for rows of {work.columns * work.loaded} bytes",
            f"at most {SM_90A.smem_per_block - ROOM_OF_SUMS} bytes in each thread block, and whole "
            "warps in a cluster, of which each thread block has a part of a row",
            "give another cluster=, or fewer rows",
        )


def order_staged(tile: RegisterTile, work: RowWork) -> tuple[float, ...]:
    """Sort staged rows by how far their parts, threads and vectors are from what was fastest."""
    part = tile.rows * work.columns * work.loaded / tile.cluster
    wanted = STAGED_PARTS[work.waits_late]
    at_once = tile.chunks * tile.vector * (work.loaded + work.shared)
    threads = tile.threads * tile.rows / STAGED_THREADS[work.waits_late]
    far = abs(log2(part / wanted)) + abs(log2(threads))
    return (at_once > STAGED_AT_ONCE, far, tile.cluster, -tile.chunks)


def _rate(work: RowWork, tile: RegisterTile, blocks: int) -> float:
    """Estimate the bytes that an SM, with so many thread blocks, loads in a cycle."""
    flight = of_flight(work, tile, of_grid(work, tile, blocks))
    return min(STAGED_SHARE * BYTES_PER_CYCLE, flight)
