"""Choose the tile of an attention kernel from its head dimensions and lengths.

Registers of a consumer hold the sum (columns / 2 of a thread), the scores (keys / 2) and the
weights in 16 bits (keys / 4); shared memory holds the queries and the rings of keys and values.
The widest step that both take wins: a step has a fixed part, of barriers and of maxima of rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts import registers, wgmma
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.requests.targets import chip_of_target
from tvm_hopper.schedule.products.config import ARCH, CONSUMERS
from tvm_hopper.transforms.common.shared_memory_size import TILE_ALIGNMENT

from .config import KEY_STEP, AttentionConfig

MOST_KEYS = 176  # of a step; 128 where a mask hides a part of the last steps
MOST_MASKED_KEYS = 128
STAGES = 2
STEPS_OF_A_PART = 2  # at least
MOST_SPLITS = 16  # a thread of the second kernel reads as many numbers, one after another
# Of two consumers the producer leaves more registers where more than these are held: with 34 of 232
# left, and results of parts to store, ptxas 13.0 spills 32 bytes.
HELD_BY_DEFAULT, WIDE_SPLIT = 188, (24, 240)
MOST_COLUMNS_IN_ORDER = 128  # wider heads multiply longer than they compute
BARRIERS = 1024  # bytes of shared memory that are left for them
ROWS = wgmma.INSTRUCTION_M  # of a warp group


@dataclass(frozen=True)
class AttentionShape:
    """What a choice depends on.

    - `rows`, `keys`: lengths; None if symbolic.
    - `depth`, `columns`: head dimensions of queries and keys, and of values.
    - `dtype`: type of the operands.
    - `is_masked`: whether rows differ in the number of steps that they take.
    - `heads`: of queries, times the batch; None if symbolic.
    - `group`: heads that share keys and values.
    - `may_split`: whether parts of the keys may be merged: there is one output.
    """

    rows: int | None
    keys: int | None
    depth: int
    columns: int
    dtype: str
    is_masked: bool = False
    heads: int | None = None
    group: int = 1
    may_split: bool = False

    def shared_bytes(self, tile: tuple[int, int], stages: int) -> int:
        """Return what the tiles of a thread block take of shared memory."""
        rows, keys = tile
        each = dtype_bytes(self.dtype)
        tiles = [rows * self.depth, *[keys * self.depth, keys * self.columns] * stages]
        return sum(-(-x * each // TILE_ALIGNMENT) * TILE_ALIGNMENT for x in tiles) + BARRIERS

    @property
    def has_room_for_group(self) -> bool:
        """Whether the rows of all heads that share keys are one warp group's."""
        return self.group > 1 and self.rows is not None and self.rows * self.group <= ROWS

    @property
    def packed(self) -> AttentionShape:
        """The shape with these heads as rows."""
        heads = None if self.heads is None else self.heads // self.group
        rows = None if self.rows is None else self.rows * self.group
        return replace(self, rows=rows, heads=heads, group=1)

    def held(self, keys: int) -> list[int]:
        """Return the registers of a thread that hold scores, sum, weights and rows."""
        states = 5 * wgmma.ROWS_OF_THREAD
        return [keys // 2, self.columns // 2, keys // 4, states]


def choose_attention(shape: AttentionShape, given: AttentionConfig) -> AttentionConfig:
    """Fill in what a configuration leaves open.

    - raises ScheduleError: no tile fits the chip, or the given one does not.
    """
    stages = given.stages or STAGES
    packs = shape.has_room_for_group if given.packs is None else given.packs
    shape = shape.packed if packs else shape
    consumers = given.consumers or _consumers(shape, given.tile)
    tile = given.tile or (consumers * ROWS, _widest_step(shape, given, consumers, stages))
    if tile[0] % (consumers * ROWS):
        need = f"a multiple of {consumers * ROWS} rows for {consumers} consumers"
        raise cannot_schedule("attention", f"tile={tile}", need)
    overlap = stages > 1 if given.overlap is None else given.overlap
    in_order = given.in_order
    if in_order is None:
        in_order = overlap and consumers > 1 and shape.depth <= MOST_COLUMNS_IN_ORDER
    tight = consumers == 2 and sum(shape.held(tile[1])) > HELD_BY_DEFAULT
    config = replace(
        given,
        registers=given.registers or (WIDE_SPLIT if tight else None),
        tile=tile,
        stages=stages,
        consumers=consumers,
        overlap=overlap,
        in_order=in_order,
        splits=given.splits or _fill_chip(shape, tile),
        packs=packs,
    )
    taken, most = shape.shared_bytes(tile, stages), ARCH.tile_bytes
    if taken > most:
        raise cannot_schedule(
            "attention",
            f"tile={tile} and {stages} stages of head dimensions {shape.depth} and "
            f"{shape.columns}: {taken} bytes of shared memory",
            f"at most {most}",
            "choose fewer keys, rows or stages",
        )
    return config


def _consumers(shape: AttentionShape, tile: tuple[int, int] | None) -> int:
    """Return how many warp groups share a tile's rows: two, but of few rows, or those of a tile."""
    if tile is not None:
        return max(x for x in CONSUMERS if tile[0] // ROWS % x == 0)
    return 1 if shape.rows is not None and shape.rows <= ROWS else 2


def _fill_chip(shape: AttentionShape, tile: tuple[int, int]) -> int:
    """Return how many parts of the keys keep all SMs busy, where one wave of tiles does not.

    A part has a few steps: what it stores, and the second kernel, take the time of about one.
    """
    if not shape.may_split or shape.heads is None or shape.rows is None:
        return 1
    blocks = shape.heads * -(-shape.rows // tile[0])
    most = MOST_SPLITS
    if shape.keys is not None:
        most = -(-shape.keys // tile[1]) // STEPS_OF_A_PART
    return max(1, min(chip_of_target().num_sms // blocks, most, MOST_SPLITS))


def _widest_step(shape: AttentionShape, given: AttentionConfig, consumers: int, stages: int) -> int:
    """Return the most keys of a step that registers and shared memory hold."""
    most = MOST_MASKED_KEYS if shape.is_masked else MOST_KEYS
    if shape.keys is not None:
        most = min(most, -(-shape.keys // KEY_STEP) * KEY_STEP)
    consumer = None if given.registers is None else given.registers[1]
    for keys in range(most, 0, -KEY_STEP):
        budget = registers.accumulator_budget(shape.held(keys), consumers, ARCH, consumer, True)
        fits = shape.shared_bytes((consumers * ROWS, keys), stages)
        if budget.fits and fits <= ARCH.tile_bytes:
            return keys
    raise cannot_schedule(
        "attention",
        f"head dimensions {shape.depth} and {shape.columns}",
        "a sum, scores and weights that registers hold: at most 256 columns",
        "give more registers to consumers, or split the head dimension of the values",
    )
