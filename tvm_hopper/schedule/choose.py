"""The configuration that a matmul gets when the user names none.

A model of the time, in SM cycles, of waves of output tiles; good enough to tell large shapes from
small ones, no replacement for tuning (`examples/tune_without_gpu.py`):

    cycles = waves x (k steps x max(tensor core, loads) + fill + store)
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

from .config import CONSUMERS, MatmulConfig, find_violations, most_stages

NUM_SMS = 132  # H100 SXM and H200
MACS_PER_CYCLE = 2048  # an SM's dense fp16 rate: m64n256k16 takes 128 cycles
LOAD_BYTES_PER_CYCLE = 48  # of an SM from the L2 cache, what a 128x256x64 tile needs at full rate
STORE_BYTES_PER_CYCLE = 24
FILL_CYCLES = 1500  # launch, barriers and the latency of the first tiles
TILE_K = 64  # 128 bytes of a 16-bit type: one full row of the widest swizzle
MAX_STAGES = 6  # enough to cover the latency of memory with the smallest tile
SYMBOLIC_EXTENT = 4096  # what an extent that is known at run time only is taken for

# rows, columns, consumers: ascending in size; each fits registers and shared memory with 3 stages
CANDIDATES = (
    (64, 32, 1),
    (64, 64, 1),
    (64, 128, 1),
    (128, 64, 2),
    (64, 256, 1),
    (128, 128, 2),
    (192, 128, 3),
    (256, 128, 2),
    (128, 256, 2),
)


def choose_config(
    m: Any,
    n: Any,
    k: Any,
    dtype: str = "float16",
    given: MatmulConfig | None = None,
    sizes: tuple[tuple[int, ...], ...] | None = None,
) -> MatmulConfig:
    """Choose what a configuration leaves open, from the shape.

    Parameters
    ----------
    m, n, k : int or expression
        Extents of the product; symbolic ones are taken to be large.
    dtype : str
        Type of the operands.
    given : MatmulConfig, optional
        What is decided already.
    sizes : tuple, optional
        The values that each size of the given tile can take, when it is sampled.

    Returns
    -------
    config : MatmulConfig
        With tile, consumers, and stages or last_stage.
    """
    rows, columns, depth = (e if isinstance(e, int) else SYMBOLIC_EXTENT for e in (m, n, k))
    config = given or MatmulConfig()
    if config.tile is None:
        tile, consumers = choose_tile(rows, columns, depth, config.consumers)
        config = replace(config, tile=tile, consumers=consumers)
    if sizes is None or given is None or given.tile is None:
        sizes = tuple((size,) for size in config.tile or ())
    if config.consumers is None:
        config = replace(config, consumers=choose_consumers(sizes, dtype))
    if config.stages is None and config.last_stage is None:
        largest = max(sizes[0]), max(sizes[1]), max(sizes[2])
        stages = min(
            most_stages(largest, dtype), MAX_STAGES, max(2, -(-depth // max(1, min(sizes[2]))))
        )
        config = replace(config, stages=max(1, stages))
    return config


def choose_tile(
    m: int, n: int, k: int, consumers: int | None = None
) -> tuple[tuple[int, int, int], int]:
    """Choose the tile with the least estimated time, and the consumers that go with it."""
    able = [
        (tile_m, tile_n, consumers or usual)
        for tile_m, tile_n, usual in reversed(CANDIDATES)  # of equals the larger, it reads less
        if not _violations((tile_m, tile_n, TILE_K), consumers or usual)
    ]
    tile_m, tile_n, chosen = min(able, key=lambda c: estimate_cycles(m, n, k, c[0], c[1]))
    return (tile_m, tile_n, TILE_K), chosen


def choose_consumers(sizes: tuple[tuple[int, ...], ...], dtype: str) -> int:
    """Choose the consumers that can share every tile: one for each 64 rows where that is legal."""
    rows = min(sizes[0]) // 64
    for consumers in sorted(CONSUMERS, key=lambda c: (abs(c - rows), -c)):
        if not any(_violations(tile, consumers, dtype) for tile in product(*sizes)):
            return consumers
    return 2


def _violations(tile: tuple[Any, ...], consumers: int, dtype: str = "float16") -> list[str]:
    tile_m, tile_n, tile_k = tile
    return find_violations((tile_m, tile_n, tile_k), 1, MatmulConfig(consumers=consumers), dtype)


def estimate_cycles(m: int, n: int, k: int, tile_m: int, tile_n: int) -> int:
    """Estimate the cycles that a matmul of 16-bit operands takes with one tile size."""
    tiles = math.ceil(m / tile_m) * math.ceil(n / tile_n)
    multiply = tile_m * max(tile_n, 64) * TILE_K // MACS_PER_CYCLE
    load = 2 * (tile_m + tile_n) * TILE_K // LOAD_BYTES_PER_CYCLE
    store = 2 * tile_m * tile_n // STORE_BYTES_PER_CYCLE
    steps = math.ceil(k / TILE_K)
    return math.ceil(tiles / NUM_SMS) * (steps * max(multiply, load) + FILL_CYCLES + store)
