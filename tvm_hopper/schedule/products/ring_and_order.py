"""Choose the consumers and stages of a tile's ring, and the order and distribution of tiles.

Part of `choose_config` (model.py), after the tile is known.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.requests.keys import BY_DEVICE

from .candidates import MAX_STAGES
from .config import ARCH, CONSUMERS, MatmulConfig, find_violations, most_stages
from .field_values import Raster

RASTER_GROUP = 16  # rows of tiles visited together: what they read of A and B fits the L2 cache
BLOCKS_SHARING_LINES = 16  # thread blocks that load the same lines
RESIDENT_BYTES = 8 << 20  # of a B that stays in the L2 cache in whatever order tiles are visited
SYMBOLIC_EXTENT = 4096  # what an extent that is known at run time only is taken for
SYMBOLIC_BATCH = 32  # what a batch that is known at run time only is taken for


def choose_ring(
    config: MatmulConfig,
    sizes: tuple[tuple[int, ...], ...],
    dtype: str,
    extents: tuple[Any, Any, Any, Any],
    num_sms: int,
) -> MatmulConfig:
    """Choose the consumers of a tile, and the slots of the ring that they read.

    The ring of a block that computes several tiles is filled for the next ones while it stores one.
    """
    if config.consumers is None:
        count = 2 if config.takes_turns else choose_consumers(sizes, dtype, config.accumulate)
        config = replace(config, consumers=count)
    if config.takes_turns and config.wgmma_pending is None and config.num_stages != 1:
        config = replace(config, wgmma_pending=1)  # the others store while one multiplies
    if config.stages is None:
        largest = max(sizes[0]), max(sizes[1]), max(sizes[2])
        most = most_stages(largest, dtype, ARCH)
        step = max(1, min(sizes[2])) * config.parts
        turns = 1
        if config.persistent != 0 and not _is_alone(config, sizes, extents, num_sms):
            turns = _tiles_each(extents, _cluster_tile(config, sizes), _clusters(config, num_sms))
        steps = turns * -(-known(extents[2]) // step)
        config = replace(config, stages=max(1, ring_stages(most, steps)))
    return config


def _cluster_tile(config: MatmulConfig, sizes: tuple[tuple[int, ...], ...]) -> tuple[int, int]:
    """Return the rows and columns of the smallest tile, of all thread blocks of a cluster."""
    row_blocks, column_blocks = config.cluster or (1, 1)
    return min(sizes[0]) * row_blocks, min(sizes[1]) * column_blocks


def _clusters(config: MatmulConfig, num_sms: int) -> int:
    row_blocks, column_blocks = config.cluster or (1, 1)
    return num_sms // (row_blocks * column_blocks)


def _tiles_each(extents: tuple[Any, ...], tile: tuple[int, int], clusters: int) -> int:
    """Return how many tiles a cluster computes, where tiles are distributed evenly."""
    rows, columns, _, batch = extents
    count = known(batch, SYMBOLIC_BATCH) * num_tiles(known(rows), known(columns), tile)
    return -(-count // clusters)


def _is_alone(
    config: MatmulConfig,
    sizes: tuple[tuple[int, ...], ...],
    extents: tuple[Any, ...],
    num_sms: int,
) -> bool:
    """Tell whether each thread block computes one tile by default."""
    if config.takes_turns or config.parts > 1:  # blocks that share a sum compute one tile each
        return not config.takes_turns
    static = all(isinstance(extents[i], int) for i in (0, 1, 3))
    static = static and all(len(x) == 1 for x in sizes[:2])
    return (
        static
        and _tiles_each(extents, _cluster_tile(config, sizes), _clusters(config, num_sms)) <= 1
    )


def choose_order(
    config: MatmulConfig,
    sizes: tuple[tuple[int, ...], ...],
    extents: tuple[Any, Any, Any, Any],
    dtype: str,
    num_sms: int,
    is_open: bool,
) -> MatmulConfig:
    """Choose in which order tiles are visited, and by how many thread blocks."""
    rows, columns, depth = map(known, extents[:3])
    batch = known(extents[3], SYMBOLIC_BATCH)
    # Thread blocks of a cluster are one in all orders.
    row_blocks, column_blocks = config.cluster or (1, 1)
    smallest = _cluster_tile(config, sizes)
    if config.raster_group is None:
        group = min(max(RASTER_GROUP // row_blocks, 1), -(-rows // smallest[0]))
        if is_open or config.transposed:
            blocks = row_blocks * column_blocks
            group = choose_raster_group(
                rows, columns, depth, smallest, dtype, num_sms, blocks * batch, config.transposed
            )
        if batch > 1:  # tiles of one product together
            down = -(-rows // smallest[0])
            group = max(x for x in range(1, group + 1) if down % x == 0)
        config = replace(config, raster=Raster(group, config.raster_curve))
    if config.persistent is None:
        alone = _is_alone(config, sizes, extents, num_sms)
        config = replace(config, persistent=0 if alone else BY_DEVICE)
    return config


def known(extent: Any, large: int = SYMBOLIC_EXTENT) -> int:
    """Return an extent; one that is known at run time only is taken to be large."""
    return extent if isinstance(extent, int) else large


def num_tiles(m: int, n: int, tile: tuple[int, ...]) -> int:
    """Return how many output tiles there are."""
    return math.ceil(m / tile[0]) * math.ceil(n / tile[1])


def ring_stages(most: int, steps: int) -> int:
    """Return the slots of a ring: no more than a block has steps in all its tiles, but two."""
    return min(most, MAX_STAGES, max(2, steps))


def choose_raster_group(
    m: int,
    n: int,
    k: int,
    tile: tuple[int, int],
    dtype: str,
    sms: int,
    blocks: int = 1,
    is_transposed: bool | None = None,
) -> int:
    """Choose how many rows of tiles are visited together, of such of a cluster of `blocks`.

    Of a high output few tiles lie across: side by side they load the larger operand once,
    transposed ones in any number of waves, others in one, where neighbours load less that way.
    Where all of B stays in the cache and there are several waves, tiles are visited along rows: a
    row of the output is then written in one go.
    """
    if n <= tile[1]:
        return 1
    down, across = -(-m // tile[0]), -(-n // tile[1])
    group = min(RASTER_GROUP, down)
    if is_transposed:
        return 1 if m >= n else group
    if down * across * blocks <= sms:
        count = max(BLOCKS_SHARING_LINES // blocks, 1)

        def loaded(rows: int) -> int:
            """Return the rows and columns of tiles that neighbours load."""
            height = min(rows * -(-count // (rows * across)), down)
            return height * tile[0] + min(-(-count // rows), across) * tile[1]

        return 1 if loaded(1) < loaded(group) else group
    return 1 if n * k * dtype_bytes(dtype) <= RESIDENT_BYTES else group


def choose_consumers(
    sizes: tuple[tuple[int, ...], ...], dtype: str, accumulate: str | None = None
) -> int:
    """Choose the consumers that can share every tile: one for each 64 rows where that is legal."""
    rows = min(sizes[0]) // 64
    for consumers in sorted(CONSUMERS, key=lambda c: (abs(c - rows), -c)):
        config = MatmulConfig(consumers=consumers, accumulate=accumulate)
        tiles = itertools.product(*sizes)
        if not any(find_violations((m, n, k), 1, config, dtype, ARCH) for m, n, k in tiles):
            return consumers
    return 2
