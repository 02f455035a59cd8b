"""Outputs that go through shared memory: in how many parts, and the schedule of it.

    for part in threadIdx.y:
        accumulator = ...                                          in registers
        for piece in range(store_parts):
            staging[rows, columns of a piece] = f(accumulator)
            output[rows, columns of a piece] = staging             by TMA, fire and forget

Fewer parts wait less often; more parts leave more of shared memory to the ring.  Where a thread
block computes one output tile the ring is dead by then, and the staging may lie in its bytes.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from tvm import s_tir

from tvm_hopper.facts.arch import Arch
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.swizzle import CHUNK_BYTES, span_bytes
from tvm_hopper.plan.smem import TILE_ALIGNMENT, SharedArray, SharedMemory, ring_memory
from tvm_hopper.schedule import steps

from .config import STORES, MatmulConfig, ring_slots, split_axis

Tile = tuple[int, int, int]
WIDEST = span_bytes(128)  # bytes of a row that the widest swizzle takes


def staging_memory(
    tile: Tile, stages: int, config: MatmulConfig, dtype: str, outputs: tuple[str, ...]
) -> SharedMemory:
    """Return the shared memory of a ring and of one piece of each output.

    Parameters
    ----------
    tile, stages
        Of the ring; elements, slots.
    config
        With `store_parts`, and `persistent` where it is known.
    dtype, outputs
        Types of the operands, and of each output.
    """
    ring = ring_memory(ring_slots(tile, dtype), stages)
    tile_m, tile_n, _ = tile
    parts = config.store_parts or 1
    pieces = [
        SharedArray(f"staging {n}", tile_m * tile_n * dtype_bytes(out) // parts, TILE_ALIGNMENT)
        for n, out in enumerate(outputs)
    ]
    first = len(ring.arrays)
    overlays = frozenset(
        frozenset((i, first + n))
        for i, array in enumerate(ring.arrays)
        for n in range(len(pieces))
        if config.persistent == 0 and array.alignment == TILE_ALIGNMENT
    )
    return SharedMemory((*ring.arrays, *pieces), overlays)


def legal_parts(tile_n: int, groups: int, outputs: tuple[str, ...]) -> list[int]:
    """List in how many parts columns can be stored, those of whole widest swizzles in front.

    Parameters
    ----------
    tile_n
        Columns of the tile.
    groups
        Warp groups that share them.
    outputs
        Types of the outputs: a row of a piece is a multiple of 16 bytes of each.
    """
    columns = tile_n // groups
    found = [
        parts
        for parts in range(1, columns // 8 + 1)
        if columns % (8 * parts) == 0
        and all(columns // parts * dtype_bytes(x) % CHUNK_BYTES == 0 for x in outputs)
    ]
    whole = [
        parts
        for parts in found
        if all(columns // parts * dtype_bytes(x) % WIDEST == 0 for x in outputs)
    ]
    return [*whole, *(x for x in found if x not in whole)]


def choose_staging(
    config: MatmulConfig,
    sizes: tuple[tuple[int, ...], ...],
    may_take_stages: bool,
    dtype: str,
    outputs: tuple[str, ...],
    arch: Arch,
) -> MatmulConfig:
    """Choose the fewest parts that fit beside the ring, and fewer stages only if none do.

    Parameters
    ----------
    config
        Complete but for `store_parts`.
    sizes
        The values that each size of the tile can take.
    may_take_stages
        Nobody asked for the number of stages.
    """
    if config.store is None or config.store_parts is not None:
        return config
    legal = [
        legal_parts(n, _column_groups((m, n, k), config), outputs) for m, n, k in product(*sizes)
    ]
    shared = [x for x in legal[0] if all(x in others for others in legal)]
    largest = max(sizes[0]), max(sizes[1]), max(sizes[2])
    stages = config.stages or 1
    least = min(stages, 2) if may_take_stages else stages
    for slots, parts in product(range(stages, least - 1, -1), shared):
        trial = replace(config, store_parts=parts)
        if staging_memory(largest, slots, trial, dtype, outputs).fits_on(arch):
            return replace(trial, stages=slots) if may_take_stages else trial
    return replace(config, store_parts=shared[-1] if shared else 1)


def find_staging_violations(
    tile: Tile,
    stages: int,
    config: MatmulConfig,
    dtype: str,
    outputs: tuple[str, ...],
    arch: Arch,
) -> list[str]:
    """Return what the staging of a tile of known size breaks, as "found ...; need ..."."""
    if config.store is None:
        return []
    parts, groups = config.store_parts or 1, _column_groups(tile, config)
    broken = []
    legal = sorted(legal_parts(tile[1], groups, outputs))
    if parts not in legal:
        broken.append(
            f"found store_parts={parts} of {tile[1] // groups} columns of {' and '.join(outputs)}; "
            f"need one of {', '.join(map(str, legal)) or 'none'}, of which a row is a multiple of "
            f"{CHUNK_BYTES} bytes and of 8 elements"
        )
    memory = staging_memory(tile, stages, config, dtype, outputs)
    if not broken and not memory.fits_on(arch):
        staging = sum(x.num_bytes for x in memory.arrays if x.name.startswith("staging"))
        broken.append(
            f"found a ring of {stages} stages and {staging} B of staging (store_parts={parts}), "
            f"{memory.num_bytes} B of shared memory; need at most {arch.smem_per_block} B, by more "
            "parts, fewer stages or a smaller tile"
        )
    return broken


def _column_groups(tile: Tile, config: MatmulConfig) -> int:
    consumers = config.consumers or 1
    return consumers if split_axis(tile[0], tile[1], consumers) == "n" else 1


def stage_output(sch: s_tir.Schedule, store: Any, config: MatmulConfig) -> None:
    """Let a store of the accumulator go through shared memory, in parts of its columns.

    Parameters
    ----------
    sch : Schedule
        Changed in place.
    store : SBlockRV
        The store, with all that follows it fused.
    config : MatmulConfig
        Complete.
    """
    *_, columns = sch.get_loops(store)
    rows = sch.get_loops(store)[-2]
    piece, inner = sch.split(columns, [config.store_parts, None])
    sch.reorder(piece, rows, inner)
    copy = sch.cache_write(store, 0, "shared.dyn")
    sch.reverse_compute_at(copy, piece)
    steps.async_store(sch, copy, config.store or STORES[0])
