"""Choose configurations of rows staged in shared memory."""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import log2

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.programming_model import BULK_ALIGNMENT, THREADS_PER_WARP
from tvm_hopper.requests.targets import arch_in_scope
from tvm_hopper.schedule.memory_bound.estimate import MemoryModel
from tvm_hopper.schedule.memory_bound.tiles import RegisterTile
from tvm_hopper.schedule.memory_bound.work import RowWork

from .choice import CLUSTERS, RowChoice
from .config import RowReductionConfig, fits_block
from .occupancy import SUMS_BYTES, blocks_of_staged, compute_rate, part_of

STAGED_SIZES = (128, 256, 512, 1024)
STAGED_CHUNKS = (1, 2, 4)
STAGED_THREADS = (256, 512)  # of a thread block; the latter if rows share tensors, or have labels
STAGED_BYTES_PER_THREAD = 128  # that it loads together, with what rows share
STAGED_PARTS = (32 << 10, 64 << 10)  # of a row in a thread block; likewise
FEW_STAGED_THREADS, FEW_STAGED_CHUNKS = 1024, 2  # of an SM, and of a thread, where rows are few
SHARED_ROWS = (1, 2, 4)  # of a thread block, where what they share waits next to them
SHARED_SIZES = (32, 64, 128, 256, 512)  # threads of each
SHARED_VECTORS, SHARED_BLOCKS = 8, 4  # of a thread, and thread blocks of an SM: no more are wanted


def staged_choices(work: RowWork, given: RowReductionConfig, model: MemoryModel) -> list[RowChoice]:
    """List the choices by which rows wait in shared memory."""
    if work.unstaged:
        return []
    hint = model.wants_hint(work) if given.hint is None else given.hint
    found = []
    for preload, tile in _staged_tiles(work, given):
        blocks = given.blocks or blocks_of_staged(work, tile, preload)
        if blocks and (tile.cluster == 1 or tile.threads % THREADS_PER_WARP == 0):
            part = part_of(work, tile) if preload else 0
            speed = model.staged_rate(work, tile, blocks, part)
            speed = min(speed, compute_rate(work, recompute=True))
            choice = RowChoice(tile, preload, True, False, blocks, hint, speed)
            found.append(replace(choice, is_streamed=True, stage=True))
    return found


def _staged_tiles(work: RowWork, given: RowReductionConfig) -> list[tuple[bool, RegisterTile]]:
    """List the tiles of rows in shared memory, and whether what they share waits there, too."""
    preloads = (False, True) if given.preload is None else (given.preload,)
    tiles = []
    for preload in preloads if work.shared and not work.unshared else (False,):
        sizes = itertools.product(
            STAGED_SIZES if not preload else SHARED_SIZES,
            STAGED_CHUNKS,
            SHARED_ROWS if preload else (1,),
            CLUSTERS,
        )
        for threads, chunks, rows, cluster in sorted({_or_given(x, given) for x in sizes}):
            most = -(-work.columns // (threads * work.vector * cluster))  # that a row has for each
            tile = RegisterTile(threads, work.vector, min(chunks, most), rows, cluster)
            fits = given.chunks is not None or chunks == 1 or tile.columns <= work.columns
            if fits and fits_block(threads, rows) and _has_parts(work, tile):
                tiles.append((preload, tile))
    return tiles


def _or_given(sizes: tuple[int, ...], given: RowReductionConfig) -> tuple[int, ...]:
    """Return threads, chunks, rows and a cluster, or what is given of them."""
    asked = (given.threads, given.chunks, given.rows, given.cluster)
    return tuple(x if y is None else y for x, y in zip(sizes, asked, strict=True))


def _has_parts(work: RowWork, tile: RegisterTile) -> bool:
    """Tell whether each thread block of a cluster has columns, and one row is alone in one."""
    return (work.rows != 1 or tile.rows == 1) and part_of(work, tile) * (
        tile.cluster - 1
    ) < work.columns


def shares_rows(work: RowWork, tile: RegisterTile) -> bool:
    """Tell whether two thread blocks of a cluster have columns, or more; the others may be idle."""
    return tile.cluster == 1 or part_of(work, tile) < work.columns


def check_shared(where: str, work: RowWork, tile: RegisterTile) -> None:
    """Refuse clusters of which one thread block has whole rows: no loop over parts is left."""
    if not shares_rows(work, tile):
        raise cannot_schedule(
            where,
            f"cluster={tile.cluster} for rows of {work.columns} elements, which {tile.threads} "
            "threads of one thread block have alone",
            "columns for two of its thread blocks or more",
            "leave cluster= out, or give fewer threads or chunks",
        )


def largest_power(most: int) -> int:
    """Return the greatest power of two up to a number."""
    return 1 << (most.bit_length() - 1)


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
    if work.rows == 1 and (given.rows or 1) > 1:
        found_text = f"stage=True, rows={given.rows} for one row"
        raise cannot_schedule(where, found_text, "two rows or more", "leave rows= out")
    if not found:
        most = arch_in_scope().smem_per_block - SUMS_BYTES
        raise cannot_schedule(
            where,
            f"stage=True for rows of {work.columns * work.loaded} bytes",
            f"at most {most} bytes in each thread block, and whole "
            "warps in a cluster, of which each thread block has a part of a row",
            "give another cluster=, or fewer rows",
        )


def order_few_staged(choice: RowChoice, work: RowWork, model: MemoryModel) -> tuple[float, ...]:
    """Sort them where SMs have a row or none: threads do all there is to do for a part of it.

    Of 1024 threads on an SM in two thread blocks, softmax of 64 rows of 300000 took 32 us, in one
    41, of 256 in two 46 and of 128 in one 71 (H200).
    """
    tile = choice.tile
    count = model.blocks_on_sm(work, tile, choice.blocks)
    far = abs(log2(tile.threads * tile.rows * count / FEW_STAGED_THREADS))
    off = abs(log2(tile.chunks / FEW_STAGED_CHUNKS))
    return (far, choice.preload, -count, -tile.cluster, off, tile.threads)


def order_staged(choice: RowChoice, work: RowWork) -> tuple[float, ...]:
    """Sort staged rows by how far their parts, threads and vectors are from what was fastest."""
    tile = choice.tile
    if choice.preload:
        vectors = part_of(work, tile) / (tile.threads * tile.vector)
        few = -min(choice.blocks, SHARED_BLOCKS)
        return (abs(log2(vectors / SHARED_VECTORS)), tile.chunks, few, tile.cluster)
    part = tile.rows * work.columns * work.loaded / tile.cluster
    wanted = STAGED_PARTS[work.waits_late]
    at_once = tile.chunks * tile.vector * (work.loaded + work.shared)
    threads = tile.threads * tile.rows / STAGED_THREADS[work.waits_late]
    far = abs(log2(part / wanted)) + abs(log2(threads))
    return (at_once > STAGED_BYTES_PER_THREAD, far, tile.cluster, -tile.chunks)
