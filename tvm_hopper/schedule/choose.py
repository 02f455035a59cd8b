"""The configuration that a matmul gets when the user names none.

A model of the time, in SM cycles, of waves of output tiles; good enough to tell large shapes from
small ones, no replacement for tuning (`examples/tune_without_gpu.py`):

    cycles = waves x (k steps x max(tensor core, loads) + fill + store)
"""

from __future__ import annotations

import math
from typing import Any

from .config import MatmulConfig, most_stages

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
    (256, 128, 2),
    (128, 256, 2),
)


def choose_config(
    m: Any, n: Any, k: Any, dtype: str = "float16", accumulate: str | None = None
) -> MatmulConfig:
    """Choose tile, stages and consumers from the shape.

    Parameters
    ----------
    m, n, k : int or expression
        Extents of the product; symbolic ones are taken to be large.
    dtype : str
        Type of the operands.
    accumulate : str, optional
        Passed on to the configuration.
    """
    rows, columns, depth = (e if isinstance(e, int) else SYMBOLIC_EXTENT for e in (m, n, k))
    # at the same cost the larger tile reads less
    tile_m, tile_n, consumers = min(
        reversed(CANDIDATES), key=lambda c: estimate_cycles(rows, columns, depth, c[0], c[1])
    )
    tile = (tile_m, tile_n, TILE_K)
    stages = min(most_stages(tile, dtype), MAX_STAGES, max(2, -(-depth // TILE_K)))
    return MatmulConfig(tile, stages=stages, consumers=consumers, accumulate=accumulate)


def estimate_cycles(m: int, n: int, k: int, tile_m: int, tile_n: int) -> int:
    """Estimate the cycles that a matmul of 16-bit operands takes with one tile size."""
    tiles = math.ceil(m / tile_m) * math.ceil(n / tile_n)
    multiply = tile_m * max(tile_n, 64) * TILE_K // MACS_PER_CYCLE
    load = 2 * (tile_m + tile_n) * TILE_K // LOAD_BYTES_PER_CYCLE
    store = 2 * tile_m * tile_n // STORE_BYTES_PER_CYCLE
    steps = math.ceil(k / TILE_K)
    return math.ceil(tiles / NUM_SMS) * (steps * max(multiply, load) + FILL_CYCLES + store)
