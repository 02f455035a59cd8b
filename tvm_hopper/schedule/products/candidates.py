"""Enumerate all legal configurations of a product, as arrays.

    candidates("float16", MatmulConfig())            every legal tile with every number of consumers
    candidates("float16", MatmulConfig(consumers=2)) what is given restricts them

`config.find_violations` checks legality; here is only what is tried: rows in whole instructions,
columns in eights, depths of one and two rows of the widest swizzle.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import Any

import numpy as np

from tvm_hopper.facts import registers, wgmma
from tvm_hopper.facts.swizzle import span_elements

from .config import (
    ARCH,
    CONSUMERS,
    MatmulConfig,
    find_violations,
    most_stages,
    split_axis,
)
from .promote import PROMOTED

ROWS = tuple(wgmma.INSTRUCTION_M * count for count in (1, 2, 3, 4))
MOST_COLUMNS = wgmma.MAX_N  # of a tile; a wider one is one with more rows, the other way round
SPANS = (1, 2)  # of the widest swizzle, that a tile is deep
# Each step of a converted operand costs its threads some cycles: steps of one span in memory.
SPANS_OF_CONVERTED, MOST_STORED = (1, 2, 4), 160  # bytes of a row, with values of groups
MOST_PARTS = ARCH.largest_cluster_size  # of a sum
MAX_STAGES = 8  # enough to cover the latency of memory with the smallest tile
FEWEST_DEEP = 3  # of a tile of two spans: two slots were slower than four of half the depth

Tile = tuple[int, int, int]
Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Candidates:
    """Legal tiles, one an element of each array."""

    rows: Ints  # of the tile, in elements
    columns: Ints  # of the tile, in elements
    depth: Ints  # of the tile, in elements
    consumers: Ints  # warp groups that share it
    by_rows: Ints  # 1 where they share its rows, 0 where its columns
    # columns of one instruction: the widest that registers at the start have room for
    instruction: Ints
    stages: Ints  # slots that fit into shared memory, up to `MAX_STAGES`
    # groups of instructions that a consumer leaves in flight from one slot to the next
    pending: Ints
    parts: Ints  # thread blocks that share the sum of a tile
    rows_of_blocks: Ints  # tiles whose thread blocks load for one another
    columns_of_blocks: Ints  # tiles whose thread blocks load for one another

    def tile(self, i: int) -> Tile:
        """Return one tile."""
        return int(self.rows[i]), int(self.columns[i]), int(self.depth[i])

    def where(self, places: Any) -> Candidates:
        """Return some of the tiles, by their places or by a truth value for each."""
        return Candidates(**{x.name: getattr(self, x.name)[places] for x in fields(Candidates)})

    def __len__(self) -> int:
        return len(self.rows)


def candidates(dtype: str, given: MatmulConfig, stored_bytes: float = 0) -> Candidates:
    """List the tiles that fit with what a configuration says of consumers, registers and stages.

    - `dtype`: type of the operands.
    - `given`: a tile and parts of the sum in it are not looked at: these are for `parts.in_parts`.
    - `stored_bytes`: of an element on the tile's rows, where it is converted on its way.
    """
    asked = given.num_stages, given.wgmma_pending, given.promotes, stored_bytes
    if given.takes_turns:
        return _in_turns(dtype, given.turns, *asked)
    return _candidates(dtype, given.consumers, given.registers, *asked)


def as_candidates(configs: Sequence[MatmulConfig], dtype: str, depth: int) -> Candidates:
    """Return the tiles of complete and legal configurations, for the estimate of one product.

    - `configs`: what to check.
    - `dtype`: type of the operands.
    - `depth`: of the product: a ring with a slot for each step of it is as good as a deeper one.
    """
    found = []
    for config in configs:
        assert config.tile is not None
        count = config.sharers
        slots = config.stages
        if slots >= -(-depth // (config.tile[2] * config.parts)):
            slots = max(slots, min(most_stages(config.tile, dtype, ARCH), MAX_STAGES))
        more = (config.parts, *(config.cluster or (1, 1)))
        found.append(_row(config.tile, count, slots, config.wgmma_pending, dtype, more))
    return _as_arrays(found)


@functools.cache
def _candidates(
    dtype: str,
    consumers: int | None,
    split: tuple[int, int] | None,
    stages: int | None,
    pending: int | None,
    promotes: bool,
    stored_bytes: float,
) -> Candidates:
    found = []
    counts = (consumers,) if consumers else CONSUMERS
    sums = PROMOTED if promotes else None
    configs = {x: MatmulConfig(consumers=x, registers=split, accumulate=sums) for x in counts}
    deep = SPANS_OF_CONVERTED if stored_bytes else SPANS
    span = span_elements(128, dtype)
    spans = tuple(x for x in deep if x < 4 or x * span * stored_bytes <= MOST_STORED)
    fitting = {tile: most_stages(tile, dtype, ARCH, stored_bytes) for tile in _tiles(dtype, spans)}
    shallow = min(tile[2] for tile in fitting)
    for (tile, most), count in product(fitting.items(), counts):
        slots = stages or min(most, MAX_STAGES)
        fewest = 2 if tile[2] == shallow else FEWEST_DEEP
        if (
            most < max(slots, 1)
            or (stages is None and slots < fewest)
            or find_violations(tile, slots, configs[count], dtype, ARCH, stored_bytes=stored_bytes)
        ):
            continue
        found.append(_row(tile, count, slots, pending, dtype))
    return _as_arrays(found)


def _in_turns(
    dtype: str,
    turns: int,
    stages: int | None,
    pending: int | None,
    promotes: bool,
    stored_bytes: float,
) -> Candidates:
    """List the tiles of one consumer that fit where several consumers take turns."""
    alone = _candidates(dtype, 1, None, stages, pending, promotes, stored_bytes)
    sums = PROMOTED if promotes else None
    config = MatmulConfig(consumers=turns, schedule="pingpong", accumulate=sums)
    legal = [
        not find_violations(
            alone.tile(i), int(alone.stages[i]), config, dtype, ARCH, stored_bytes=stored_bytes
        )
        for i in range(len(alone))
    ]
    return alone.where(legal)


def _row(
    tile: Tile,
    count: int,
    slots: int,
    pending: int | None,
    dtype: str,
    blocks: tuple[int, int, int] = (1, 1, 1),  # of a sum, and rows and columns of tiles
) -> tuple[int, ...]:
    """Return one tile as the fields of `Candidates`."""
    by_rows = split_axis(tile[0], tile[1], count) == "m"
    width = instruction_columns(tile[1] if by_rows else tile[1] // count, count, dtype)
    flying = int(count == 1 and slots > 1) if pending is None else pending
    return (*tile, count, by_rows, width, slots, flying, *blocks)


def _as_arrays(rows: list[tuple[int, ...]]) -> Candidates:
    return Candidates(*np.array(rows, dtype=np.int64).reshape(-1, 11).T)


@functools.cache
def instruction_columns(columns: int, consumers: int, dtype: str, panel: int = 1) -> int:
    """Return the columns of one instruction for those of a consumer, as the lowering takes them.

    Where it does not take all of them it begins at a panel, of so many columns.
    """
    most = registers.widest_instruction(consumers, ARCH)
    return max(
        n
        for n in wgmma.emitted_n(dtype)
        if n <= most and columns % n == 0 and (n == columns or n % panel == 0)
    )


@functools.cache
def columns_in_panels(dtype: str) -> Ints:
    """Return the same by consumers and columns for rows along n, which lie in panels.

    A panel is as wide as the widest swizzle that divides the columns; no other number has one.
    """
    spans = [span_elements(span, dtype) for span in (128, 64, 32, 0)]
    found = np.ones((max(CONSUMERS) + 1, MOST_COLUMNS + 1), dtype=np.int64)
    for count, columns in product(CONSUMERS, range(spans[-1], MOST_COLUMNS + 1, spans[-1])):
        panel = next(span for span in spans if columns % span == 0)
        found[count, columns] = instruction_columns(columns, count, dtype, panel)
    return found


def _tiles(dtype: str, depths: tuple[int, ...]) -> Iterator[Tile]:
    """Yield what is tried, the wider tiles in front: of equals the first one is taken."""
    span = span_elements(128, dtype)
    for rows in ROWS:
        for columns in range(MOST_COLUMNS, 0, -8):
            for spans in depths:
                yield rows, columns, spans * span
