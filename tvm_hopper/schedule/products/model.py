"""The configuration that a matmul gets when the user names none.

A model of the time in SM cycles, good enough to rank tiles, no replacement for tuning
(`examples/tune_without_gpu.py`):

    cycles = max(waves x (steps x step + fill + store), bytes of A and B / memory)
    step   = max(multiply + turn, loads of all CTAs / L2)

The constants are fitted to nine tiles at six shapes on an H200 (`benchmarks/results`).  The number
of SMs is that of the target in scope; rates of the whole chip are not scaled by it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.devices import DEFAULT_NUM_SMS
from tvm_hopper.facts.dtypes import OPERAND_DTYPES
from tvm_hopper.requests.keys import BY_DEVICE
from tvm_hopper.requests.targets import num_sms as target_num_sms
from tvm_hopper.schedule.arguments import as_choice, as_int, as_size, as_sizes, check_type

from .config import ARCH, CONSUMERS, MatmulConfig, find_violations, most_stages

MACS_PER_CYCLE = 2048  # an SM's dense 16-bit rate: m64n256k16 takes 128 cycles
TURN_CYCLES = 170  # of a consumer from one slot of the ring to the next: wait, fence, release
L2_BYTES_PER_CYCLE = 5800  # of the whole chip
MEMORY_BYTES_PER_CYCLE = 1900
STORE_BYTES_PER_CYCLE = 16  # of an SM
FILL_CYCLES = 1500  # launch, barriers and the latency of the first tiles
MAX_STAGES = 6  # enough to cover the latency of memory with the smallest tile
RASTER_GROUP = 16  # rows of tiles visited together: what they read of A and B fits the L2 cache
SYMBOLIC_EXTENT = 4096  # what an extent that is known at run time only is taken for

# rows, columns, depth, consumers: ascending in size; each fits with three stages. A small tile is
# deep, since its consumers spend more of a step on waiting than on multiplying.
CANDIDATES = (
    (64, 32, 128, 1),
    (64, 64, 128, 1),
    (64, 128, 64, 1),
    (128, 64, 128, 2),
    (64, 256, 64, 1),
    (128, 128, 64, 2),
    (192, 128, 64, 3),
    (256, 128, 64, 2),
    (128, 256, 64, 2),
)
SHALLOW = 64  # depth of every tile when K is no larger: one row of the widest swizzle


def choose_config(
    m: Any,
    n: Any,
    k: Any,
    dtype: str = "float16",
    given: MatmulConfig | None = None,
    sizes: tuple[tuple[int, ...], ...] | None = None,
    num_sms: int | None = None,
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
    num_sms : int, optional
        SMs of the device to choose for; None: what the target in scope says, else 132. The kernel
        is right on any other device, and balances its thread blocks there too.

    Returns
    -------
    config : MatmulConfig
        With tile, consumers, and stages or last_stage.

    Raises
    ------
    ScheduleError
        An argument is illegal; what does not fit the chip is for `hs.matmul` to refuse.
    """
    m, n, k = (
        as_size("choose_config", name, size, symbolic="an expression of a symbolic extent")
        for name, size in (("m", m), ("n", n), ("k", k))
    )
    check_type("choose_config", "dtype", dtype, str, "the name of a type")
    dtype = as_choice("choose_config", "dtype", dtype, OPERAND_DTYPES) or OPERAND_DTYPES[0]
    check_type("choose_config", "given", given, MatmulConfig, "an hs.MatmulConfig")
    if sizes is not None:
        sizes = as_sizes("choose_config", sizes)
    elif given is not None and given.tile is not None:
        sampled = [size for size in given.tile if not isinstance(size, int)]
        if sampled:
            need = "sizes too, the values that each size of the tile can take"
            raise cannot_schedule("choose_config", f"a sampled tile={given.tile}", need)
    rows, columns, depth = (e if isinstance(e, int) else SYMBOLIC_EXTENT for e in (m, n, k))
    config = given or MatmulConfig()
    num_sms = as_int("choose_config", "num_sms", num_sms, 1) or target_num_sms()
    if config.tile is None:
        tile, consumers = choose_tile(rows, columns, depth, config.consumers, num_sms)
        config = replace(config, tile=tile, consumers=consumers)
    if sizes is None or given is None or given.tile is None:
        sizes = tuple((size,) for size in config.tile or ())
    if config.consumers is None:
        config = replace(config, consumers=choose_consumers(sizes, dtype))
    if config.stages is None and config.last_stage is None:
        largest = max(sizes[0]), max(sizes[1]), max(sizes[2])
        stages = min(
            most_stages(largest, dtype, ARCH),
            MAX_STAGES,
            max(2, -(-depth // max(1, min(sizes[2])))),
        )
        config = replace(config, stages=max(1, stages))
    smallest = min(sizes[0]), min(sizes[1])
    if config.raster_group is None:
        config = replace(config, raster_group=min(RASTER_GROUP, -(-rows // smallest[0])))
    if config.persistent is None:
        static = isinstance(m, int) and isinstance(n, int) and all(len(x) == 1 for x in sizes[:2])
        alone = static and num_tiles(rows, columns, smallest) <= num_sms  # each SM gets one at most
        config = replace(config, persistent=0 if alone else BY_DEVICE)
    return config


def num_tiles(m: int, n: int, tile: tuple[int, ...]) -> int:
    """Return how many output tiles there are."""
    return math.ceil(m / tile[0]) * math.ceil(n / tile[1])


def choose_tile(
    m: int, n: int, k: int, consumers: int | None = None, num_sms: int = DEFAULT_NUM_SMS
) -> tuple[tuple[int, int, int], int]:
    """Choose the tile with the least estimated time, and the consumers that go with it."""
    able = [
        ((tile_m, tile_n, tile_k if k > SHALLOW else SHALLOW), consumers or usual)
        for tile_m, tile_n, tile_k, usual in reversed(CANDIDATES)  # of equals the larger one
    ]
    able = [choice for choice in able if not _violations(*choice)]
    return min(able, key=lambda choice: estimate_cycles(m, n, k, choice[0], num_sms))


def choose_consumers(sizes: tuple[tuple[int, ...], ...], dtype: str) -> int:
    """Choose the consumers that can share every tile: one for each 64 rows where that is legal."""
    rows = min(sizes[0]) // 64
    for consumers in sorted(CONSUMERS, key=lambda c: (abs(c - rows), -c)):
        if not any(_violations(tile, consumers, dtype) for tile in product(*sizes)):
            return consumers
    return 2


def _violations(tile: tuple[Any, ...], consumers: int, dtype: str = "float16") -> list[str]:
    tile_m, tile_n, tile_k = tile
    config = MatmulConfig(consumers=consumers)
    return find_violations((tile_m, tile_n, tile_k), 1, config, dtype, ARCH)


def estimate_cycles(
    m: int, n: int, k: int, tile: tuple[int, int, int], num_sms: int = DEFAULT_NUM_SMS
) -> int:
    """Estimate the cycles that a matmul of 16-bit operands takes with one tile."""
    tile_m, tile_n, tile_k = tile
    tiles = num_tiles(m, n, tile)
    multiply = tile_m * max(tile_n, 64) * tile_k // MACS_PER_CYCLE
    loads = 2 * (tile_m + tile_n) * tile_k * min(tiles, num_sms) // L2_BYTES_PER_CYCLE
    store = 2 * tile_m * tile_n // STORE_BYTES_PER_CYCLE
    steps = math.ceil(k / tile_k)
    cta = steps * max(multiply + TURN_CYCLES, loads) + FILL_CYCLES + store
    return max(math.ceil(tiles / num_sms) * cta, 2 * (m + n) * k // MEMORY_BYTES_PER_CYCLE)
