"""Choose the tile of an attention kernel from its head dimensions and lengths.

Registers of a consumer hold the sum (columns / 2 of a thread), the scores (keys / 2) and the
weights in 16 bits (keys / 4); shared memory holds the queries and the rings of keys and values.
Of the tiles that both take the one of least time wins: a step has a fixed part, of barriers and of
maxima of rows, and so has a tile. Times are in keys, of a tile of 128 rows, and then microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts import registers, wgmma
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.requests.keys import BY_DEVICE
from tvm_hopper.requests.targets import chip_of_target
from tvm_hopper.schedule.products.config import ARCH, CONSUMERS
from tvm_hopper.transforms.common.shared_memory_size import TILE_ALIGNMENT

from .config import KEY_STEP, AttentionConfig

# Fitted to times on an H200 of head dimensions 64 to 256 and lengths 512 to 8192, see
# benchmarks/calibration/attention_times.py: mostly within 3%.
TIME_OF_STEP = 40  # beside that of its keys
TIME_OF_COLUMN = 0.35  # of a step, of columns beyond 128: nothing hides that the sum is rescaled
# Of a next tile, and more for each column of queries and of values; of a block that begins.
TIME_OF_TILE, TIME_OF_TILE_COLUMN, TIME_OF_BLOCK = 60, 0.56, 335
TIME_OF_MERGE, TIME_OF_PART = 340, 20  # of a second kernel, and what it reads of each part
TIME_OF_MASK = 55  # of a tile whose last steps compare indices
TIME_OF_RAGGED = 28  # of a last step that is not full
# Three consumers take 1.29 times as long for 1.5 times the rows where products are small; of more
# columns their registers leave narrow steps alone.
TIME_OF_THREE, MOST_COLUMNS_OF_THREE = 1.29, 64
# Microseconds of a key of a tile, and more for each column of queries and of values up to 128.
US_OF_KEY, US_OF_COLUMN = 0.0045, 0.0000172
USUAL_LENGTH = 4096  # where it is not known
STAGES = 2
STEPS_OF_A_PART = 2  # at least
MOST_SPLITS = 16  # a thread of the second kernel reads as many numbers, one after another
# Of two consumers the producer leaves more registers where more than these are held: with 34 of 232
# left, and results of parts to store, ptxas 13.0 spills 32 bytes.
HELD_BY_DEFAULT, WIDE_SPLIT = 188, (24, 240)
BESIDE_COMPUTED = 24  # registers of what scores are computed with: less spills 132 bytes
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
    - `band`: from which key on, and up to which one, row 0 sees keys, if both move with the row.
      None: all that there are; by `is_masked`, the last row sees the last key.
    - `is_computed`: whether scores are more than products and masks, as with a softcap.
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
    band: tuple[int | None, int | None] = (None, None)
    is_computed: bool = False

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
        states = 5 * wgmma.ROWS_OF_THREAD + BESIDE_COMPUTED * self.is_computed
        return [keys // 2, self.columns // 2, keys // 4, states]


@dataclass(frozen=True)
class RankedAttention:
    """A configuration with all fields, and its estimated time.

    `is_relative`: sizes are not known, and the time is that of 128 rows of a head.
    """

    config: AttentionConfig
    microseconds: float
    is_relative: bool = False

    def __str__(self) -> str:
        config, tile = self.config, self.config.tile or (0, 0)
        groups = f"{config.consumers} consumer{'s' * ((config.consumers or 0) > 1)}"
        parts = f" in {config.splits} parts" if (config.splits or 1) > 1 else ""
        order = "tiles in turn" if config.persistent else "a block each tile"
        what = f"{tile[0]}x{tile[1]}{parts}, {groups}, {config.stages} stages, {order}"
        return what if self.is_relative else f"{what}: {self.microseconds:.1f} us"


def choose_attention(shape: AttentionShape, given: AttentionConfig) -> AttentionConfig:
    """Fill in what a configuration leaves open.

    - raises ScheduleError: no tile fits the chip, or the given one does not.
    """
    return rank_attention(shape, given)[0].config


def rank_attention(shape: AttentionShape, given: AttentionConfig) -> list[RankedAttention]:
    """Return the configurations that have the given fields, the fastest first.

    Parts of the keys follow from the tile, and not the tile from its parts.

    - raises ScheduleError: as `choose_attention`.
    """
    packs = shape.has_room_for_group if given.packs is None else given.packs
    shape = shape.packed if packs else shape
    stages = given.stages or STAGES
    tiles = [given.tile] if given.tile else _legal_tiles(shape, given, stages)
    is_relative = None in (shape.rows, shape.keys, shape.heads)
    found = []
    for tile in tiles:
        config = _completed(shape, replace(given, packs=packs, stages=stages), tile)
        for persistent in _orders(shape, config):
            made = replace(config, persistent=persistent)
            whole = _time(shape, made if given.splits else replace(made, splits=1))
            ranked = RankedAttention(made, _time(shape, made), is_relative)
            found.append(((whole, -tile[1]), ranked))
    return [x for _, x in sorted(found, key=lambda x: x[0])]


def _completed(
    shape: AttentionShape, given: AttentionConfig, tile: tuple[int, int]
) -> AttentionConfig:
    """Fill in all but the order of tiles."""
    assert given.stages is not None
    consumers = given.consumers or max(x for x in CONSUMERS if tile[0] // ROWS % x == 0)
    if tile[0] % (consumers * ROWS):
        need = f"a multiple of {consumers * ROWS} rows for {consumers} consumers"
        raise cannot_schedule("attention", f"tile={tile}", need)
    taken, most = shape.shared_bytes(tile, given.stages), ARCH.tile_bytes
    if taken > most:
        raise cannot_schedule(
            "attention",
            f"tile={tile} and {given.stages} stages of head dimensions {shape.depth} and "
            f"{shape.columns}: {taken} bytes of shared memory",
            f"at most {most}",
            "choose fewer keys, rows or stages",
        )
    tight = consumers == 2 and sum(shape.held(tile[1])) > HELD_BY_DEFAULT
    return replace(
        given,
        registers=given.registers or (WIDE_SPLIT if tight else None),
        tile=tile,
        consumers=consumers,
        overlap=given.stages > 1 if given.overlap is None else given.overlap,
        in_order=bool(given.in_order),
        splits=given.splits or _fill_chip(shape, tile),
    )


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


def _orders(shape: AttentionShape, config: AttentionConfig) -> list[int]:
    """Return the thread blocks of a persistent kernel, and 0 where one block a tile may be faster.

    Pairs of tiles whose steps grow with the row are even, but dealt out by two.
    """
    if config.persistent is not None:
        return [config.persistent]
    if shape.heads is None or shape.rows is None or shape.keys is None:
        return [BY_DEVICE]
    assert config.tile is not None
    tiles = -(-shape.rows // config.tile[0]) * shape.heads * (config.splits or 1)
    if tiles <= chip_of_target().num_sms:
        return [0]
    return [BY_DEVICE, 0] if shape.is_masked else [BY_DEVICE]


def _time(shape: AttentionShape, config: AttentionConfig) -> float:
    """Estimate the time of a kernel in microseconds."""
    assert config.tile is not None
    sms, each = chip_of_target().num_sms, -(-(shape.rows or USUAL_LENGTH) // config.tile[0])
    whole = _time_of_steps(shape, config.tile)  # of a head
    parts = config.splits or 1
    mean = whole / (each * parts)
    share = max(config.tile[0] / (2 * ROWS), 1)  # a tile of 64 rows waits as long as one of 128
    next_tile = (TIME_OF_TILE + TIME_OF_TILE_COLUMN * (shape.depth + shape.columns)) * share
    us = US_OF_KEY + US_OF_COLUMN * (shape.depth + min(shape.columns, 2 * ROWS))
    if shape.heads is None or shape.rows is None:
        return us * (mean * parts + next_tile) / share
    heads = shape.heads * parts
    tiles = heads * each
    if tiles <= sms:
        longest = mean * (2 if shape.is_masked and parts == 1 else 1)
        merged = (TIME_OF_MERGE + TIME_OF_PART * parts) * (parts > 1)
        return us * (longest + TIME_OF_BLOCK + merged)
    if not config.persistent:  # the last blocks end one by one
        return us * (tiles * (mean + TIME_OF_BLOCK) / sms + mean)
    if shape.is_masked:
        return us * -(-(-(-heads // 2) * each) // sms) * 2 * (mean + next_tile)
    return us * -(-tiles // sms) * (mean + next_tile)


def _time_of_steps(shape: AttentionShape, tile: tuple[int, int]) -> float:
    """Return the time of the steps of all tiles of a head, in keys of a tile of 128 rows."""
    rows = shape.rows or USUAL_LENGTH
    keys = shape.keys or USUAL_LENGTH
    begin, end = shape.band
    if shape.is_masked and end is None:
        end = keys - rows + 1
    tiles = range(0, rows, tile[0])
    steps = 0
    for row in tiles:
        low = 0 if begin is None else max(0, row + begin)
        high = keys if end is None else max(1, min(keys, row + tile[0] - 1 + end))
        steps += max(0, -(-high // tile[1]) - low // tile[1])
    is_masked = begin is not None or end is not None
    ends = TIME_OF_MASK * is_masked + TIME_OF_RAGGED * (keys % tile[1] > 0)
    of_rows = TIME_OF_THREE if tile[0] > 2 * ROWS else 1
    step = tile[1] + TIME_OF_STEP + TIME_OF_COLUMN * max(0, shape.columns - 2 * ROWS)
    return steps * step * of_rows + len(tiles) * ends


def _legal_tiles(
    shape: AttentionShape, given: AttentionConfig, stages: int
) -> list[tuple[int, int]]:
    """Return the rows and keys that registers and shared memory hold.

    - raises ScheduleError: there are none.
    """
    consumers = [given.consumers] if given.consumers else _consumers(shape)
    most = None if shape.keys is None else -(-shape.keys // KEY_STEP) * KEY_STEP
    own = None if given.registers is None else given.registers[1]
    legal = []
    for number in consumers:
        for keys in range(KEY_STEP, wgmma.MAX_N + 1, KEY_STEP):
            if most is not None and keys > most:
                break
            most_each = own or (WIDE_SPLIT[1] if number == 2 else None)
            budget = registers.accumulator_budget(shape.held(keys), number, ARCH, most_each, True)
            tile = (number * ROWS, keys)
            if budget.fits and shape.shared_bytes(tile, stages) <= ARCH.tile_bytes:
                legal.append(tile)
    if legal:
        return legal
    raise cannot_schedule(
        "attention",
        f"head dimensions {shape.depth} and {shape.columns}",
        "a sum, scores and weights that registers hold: at most 256 columns",
        "give more registers to consumers, or split the head dimension of the values",
    )


def _consumers(shape: AttentionShape) -> list[int]:
    """Return how many warp groups may share a tile's rows."""
    if shape.rows is not None and shape.rows <= ROWS:
        return [1]
    narrow = max(shape.depth, shape.columns) <= MOST_COLUMNS_OF_THREE
    return [2, 3] if narrow and (shape.rows is None or shape.rows > 2 * ROWS) else [2]
