"""How long a product takes whose sum thread blocks of a cluster share, and in how many parts.

    cycles = waves x (steps of a part x step + fill + exchange + store)
    waves  = output tiles / clusters that the chip holds at once

A cluster lies in one part of the chip (GPC), which has no multiple of every size of SMs: an H200's
132 SMs hold 66 clusters of two, but 15 of eight.
Fitted to the configurations in `benchmarks/results/split_k_2026-11-22_1929.md`: 12% off, rms.
The choice does not split sums by itself yet: it can go by this once unseen problems are timed.
"""

from __future__ import annotations

import math

from tvm_hopper.facts.arch import SM_90A
from tvm_hopper.facts.devices import DEFAULT_NUM_SMS
from tvm_hopper.schedule.products.model import num_tiles

MACS_PER_CYCLE = 2048  # an SM's dense 16-bit rate: m64n256k16 takes 128 cycles
TURN_CYCLES = 170  # of a consumer from one slot of the ring to the next: wait, fence, release
L2_BYTES_PER_CYCLE = 5800  # of the whole chip
MEMORY_BYTES_PER_CYCLE = 1900
STORE_BYTES_PER_CYCLE = 16  # of an SM
FILL_CYCLES = 1500  # launch, barriers and the latency of the first tiles
# Clusters of one block an SM that an H200 holds at once (cuOccupancyMaxActiveClusters).
CLUSTERS = {1: 132, 2: 66, 3: 39, 4: 30, 5: 22, 6: 17, 7: 15, 8: 15}
MEETING_CYCLES = 6000  # of a launch in clusters, their barriers, and one another's memory
EXCHANGE_BYTES_PER_CYCLE = 64  # of an SM, from the others'

Tile = tuple[int, int, int]


def num_clusters(parts: int, num_sms: int = DEFAULT_NUM_SMS) -> int:
    """Return how many clusters of so many blocks run at once, one block an SM."""
    return max(CLUSTERS[parts] * num_sms // DEFAULT_NUM_SMS, 1)


def estimate_split_cycles(
    m: int, n: int, k: int, tile: Tile, parts: int, num_sms: int = DEFAULT_NUM_SMS
) -> int:
    """Estimate the cycles of a product of 16-bit operands whose sum `parts` blocks share."""
    tile_m, tile_n, tile_k = tile
    tiles, clusters = num_tiles(m, n, tile), num_clusters(parts, num_sms)
    running = min(tiles, clusters) * parts
    multiply = tile_m * max(tile_n, 64) * tile_k // MACS_PER_CYCLE
    loads = 2 * (tile_m + tile_n) * tile_k * running // L2_BYTES_PER_CYCLE
    steps = math.ceil(math.ceil(k / tile_k) / parts)
    store = 2 * tile_m * tile_n // STORE_BYTES_PER_CYCLE // parts
    exchange = 0
    if parts > 1:
        exchange = MEETING_CYCLES + 4 * tile_m * tile_n // EXCHANGE_BYTES_PER_CYCLE
    block = steps * max(multiply + TURN_CYCLES, loads) + FILL_CYCLES + exchange + store
    return max(math.ceil(tiles / clusters) * block, 2 * (m + n) * k // MEMORY_BYTES_PER_CYCLE)


def choose_parts(m: int, n: int, k: int, tile: Tile, num_sms: int = DEFAULT_NUM_SMS) -> int:
    """Choose in how many parts a tile's sum takes the least time; of equals the fewest."""
    able = range(1, SM_90A.max_cluster_size + 1)
    return min(able, key=lambda parts: estimate_split_cycles(m, n, k, tile, parts, num_sms))
