"""`choose_config`: fill in the open fields of a matmul's configuration.

Every legal tile (`candidates`) is checked by a formula with measured constants (`estimate`,
`rates`), and the one with the least estimated time is taken. The order of tiles and the number of
thread blocks follow by rules. The number of SMs and the rates of the chip are those of the target
in scope, else an H200's.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts import registers
from tvm_hopper.facts.devices import Chip
from tvm_hopper.facts.dtypes import OPERAND_DTYPES, OUTPUT_DTYPES, dtype_bytes
from tvm_hopper.facts.programming_model import WARP_GROUP_THREADS
from tvm_hopper.facts.swizzle import CHUNK_BYTES
from tvm_hopper.requests.keys import BY_DEVICE, MOST_PARTS
from tvm_hopper.requests.targets import chip_of_target
from tvm_hopper.schedule.arguments import as_choice, as_size, as_sizes, check_type

from .boxes import (
    DEEP_GAIN,
    MEASURED_BYTES,
    leave_as_boxes,
    leave_behind_loads,
    terms_by_output,
)
from .candidates import Candidates, candidates
from .config import ARCH, PINGPONG, MatmulConfig, split_axis
from .dot_choice import choose_dots, estimate_dots
from .estimate import KernelForm, estimate
from .field_values import TILES, TRANSPOSED, UNTRANSPOSED, SplitK
from .parts import (
    CLUSTER_DIVISIBLE_PARTS,
    CLUSTER_SIZES,
    NONPORTABLE_CLUSTER_SIZES,
    in_clusters,
    in_parts,
    may_load_together,
    may_share_sums,
)
from .product_shape import ProductShape
from .rates import MEASURED
from .ring_and_order import (
    SYMBOLIC_BATCH,
    choose_order,
    choose_ring,
    known,
    num_tiles,
    ring_stages,
)
from .split import ANYWHERE, CALLER, CLUSTER

MAJORS = ("k", "mn")
# Rows on an instruction's columns where extents are symbolic, or a tensor of the output's shape is
# read: TMA brings that for rows of the output alone.
MOST_TRANSPOSED = 1024
MIN_GAIN_TO_REPORT = 0.05  # of the time, by which parts that do not run everywhere are reported
CONFIGS_SHOWN = 5  # the best, by `explain`
FASTEST_CONSUMERS = 2  # of a converted operand: three took 1.1 to 2.4 of the time of two
ROWS_OF_THREAD = 32  # of a tile, of which a thread has one
FEWEST_NEIGHBOURS = 16  # that have one value, of which a register holds it
MOST_FOR_CONVERTED = 200  # of which those are taken that suit a converted operand
# Consumers take turns by default where each of several tiles is a short time of 8-bit products next
# to its store: of four problems of 768 to 1536 terms in float8 they were 5 to 8% faster. Products
# of 16 bits gain nothing by it (benchmarks/results/turns_2026-11-23_0230.md), nor do longer sums,
# and shorter ones leave by TMA.
TURNS = 2
TURN_BYTES = 512, 2048  # of a row of operands
TURN_GAIN = 1.08  # by which consumers that share a tile take longer there than estimated


@dataclass(frozen=True)
class RankedTile:
    """A tile, what goes with it, and how long the product is estimated to take, in microseconds."""

    tile: tuple[int, int, int]
    consumers: int
    pending: int
    stages: int
    microseconds: float
    transposed: bool = False
    parts: int = 1
    cluster: tuple[int, int] = (1, 1)
    by_kernels: bool = False
    takes_turns: bool = False

    def __str__(self) -> str:
        tile = "x".join(map(str, self.tile))
        groups = f"{self.consumers} consumer{'s' * (self.consumers > 1)}"
        groups += " in turn" * self.takes_turns
        way = ", transposed" * self.transposed
        shared = f" in {self.parts} parts" if self.parts > 1 else ""
        shared += " by two kernels" * self.by_kernels
        if self.cluster != (1, 1):
            shared += f", clusters of {self.cluster[0]} x {self.cluster[1]}"
        return f"{tile}{shared}{way}, {groups}, {self.stages} stages: {self.microseconds:.1f} us"


def choose_config(
    m: Any,
    n: Any,
    k: Any,
    dtype: str = "float16",
    given: MatmulConfig | None = None,
    sizes: tuple[tuple[int, ...], ...] | None = None,
    majors: tuple[str, str] = ("k", "k"),
    out_dtype: str | None = None,
    batch: Any = 1,
) -> MatmulConfig:
    """Choose the open fields of a configuration from the shape, for a kernel of tiles.

    The target in scope says for which GPU, an H200 without one. The kernel is correct on others.

    Parameters
    ----------
    m, n, k : int or expression
        Extents of the product; symbolic ones are taken to be large.
    dtype : str
        Type of the operands.
    given : MatmulConfig, optional
        Fields that are fixed.
    sizes : tuple, optional
        The values that each size of the given tile can take, when it is sampled.
    majors : tuple of str
        For A and for B, along which of its dimensions rows are contiguous in memory: "k", or "mn".
    out_dtype : str, optional
        Type of the output; None: that of the operands.
    batch : int or expression
        How many such products the kernel computes.

    Returns
    -------
    config : MatmulConfig
        With tile, consumers and stages.

    Raises
    ------
    ScheduleError
        An argument is illegal. `hs.matmul` checks the limits of the chip.
    """
    m, n, k, batch = (
        as_size("choose_config", name, size, symbolic="an expression of a symbolic extent")
        for name, size in (("m", m), ("n", n), ("k", k), ("batch", batch))
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
    out_dtype = as_choice("choose_config", "out_dtype", out_dtype, OUTPUT_DTYPES) or dtype
    if not isinstance(majors, tuple) or len(majors) != 2 or set(majors) - set(MAJORS):
        raise cannot_schedule("choose_config", f"majors={majors!r}", 'two of "k" and "mn"')
    config = given or MatmulConfig()
    is_open = config.tile is None
    chip = chip_of_target()
    if is_open:
        wanted = as_product(m, n, k, dtype, majors, out_dtype, batch)
        config = _choose_tile(wanted, config, chip)
    if not config.shares_sums:
        config = replace(config, split_k=config.split_parts)
    if config.streams and config.persistent in (None, BY_DEVICE):  # shares follow from the number
        config = replace(config, persistent=chip.num_sms)
    if config.transposed:
        m, n = n, m
    if sizes is None or given is None or given.tile is None:
        sizes = tuple((size,) for size in config.tile or ())
    extents = m, n, k, batch
    config = choose_ring(config, sizes, dtype, extents, chip.num_sms)
    return choose_order(config, sizes, extents, dtype, chip.num_sms, is_open)


def _choose_tile(wanted: ProductShape, config: MatmulConfig, chip: Chip) -> MatmulConfig:
    """Take the tile with the least estimated time, and what goes with it."""
    best, *_ = rank_both(wanted, config, chip, 1)
    return with_tile(config, best)


def with_tile(config: MatmulConfig, best: RankedTile) -> MatmulConfig:
    """Fill in a tile and what goes with it."""
    config = replace(config, tile=best.tile, consumers=best.consumers)
    if best.takes_turns:
        config = replace(config, schedule=PINGPONG, persistent=BY_DEVICE)
    if best.transposed:
        config = replace(config, form=TRANSPOSED)
    if best.parts > 1:
        mode = (config.split_mode or CALLER) if best.by_kernels else None
        config = replace(config, split_k=SplitK(best.parts, mode))
    if best.cluster != (1, 1):
        config = replace(config, cluster=best.cluster)
    if best.pending and config.wgmma_pending is None:
        config = replace(config, wgmma_pending=best.pending)
    return config


def as_product(
    m: Any, n: Any, k: Any, dtype: str, majors: tuple[str, str], out_dtype: str, batch: Any = 1
) -> ProductShape:
    """Describe a product for the estimate; symbolic extents are taken to be large."""
    rows, columns, depth = map(known, (m, n, k))
    symbolic = not all(isinstance(e, int) for e in (m, n, k, batch))
    out_bytes, batch = dtype_bytes(out_dtype), known(batch, SYMBOLIC_BATCH)
    return ProductShape(
        rows, columns, depth, dtype, majors, out_bytes, is_symbolic=symbolic, batch=batch
    )


def rank(
    wanted: ProductShape,
    given: MatmulConfig,
    chip: Chip,
    count: int,
    sizes: tuple[int, ...] = CLUSTER_SIZES,
) -> list[RankedTile]:
    """Return the configurations with the least estimated times, the best one first.

    Parameters
    ----------
    wanted : ProductShape
        What is computed.
    given : MatmulConfig
        What is decided already; its tile is not looked at.
    chip : Chip
        Where.
    count : int
        How many, at most.
    sizes : tuple of int
        Numbers of parts of a sum to try next to the whole one.

    Raises
    ------
    ScheduleError
        No tile is legal with what is given.
    """
    tiles = candidates(wanted.dtype, given, wanted.converted_bytes)
    if len(tiles):
        tiles = tiles.where(~_too_large(wanted, tiles))
    if not len(tiles):
        need = "what a tile can be found for: fewer stages, or other consumers or registers"
        raise cannot_schedule("choose_config", f"no tile that fits {given}", need)
    tiles = in_parts(tiles, wanted, given, chip, sizes)
    tiles = in_clusters(tiles, wanted, given, chip)
    if not len(tiles):
        need = "a cluster that a tile can be cut for: fewer rows or columns of tiles"
        raise cannot_schedule("choose_config", f"no tile that fits cluster={given.cluster}", need)
    by_kernels = given.split_mode in ANYWHERE
    boxes, deep = _in_boxes(wanted, tiles, given, chip)
    form = KernelForm(by_kernels, boxes=boxes, streams=given.streams, turns=given.turns)
    times = estimate(wanted, tiles, chip, MEASURED, form) * (1 - DEEP_GAIN * deep)
    order = np.argsort(times, kind="stable")[:count]
    steps = _steps_of_block(wanted, tiles, given, chip)
    return [
        RankedTile(
            tiles.tile(i),
            max(int(tiles.consumers[i]), given.turns),
            int(tiles.pending[i]),
            ring_stages(int(tiles.stages[i]), int(steps[i])),
            float(times[i]),
            parts=int(tiles.parts[i]),
            cluster=(int(tiles.rows_of_blocks[i]), int(tiles.columns_of_blocks[i])),
            by_kernels=by_kernels and bool(tiles.parts[i] > 1),
            takes_turns=given.takes_turns,
        )
        for i in order.tolist()
    ]


def _steps_of_block(
    wanted: ProductShape, tiles: Candidates, given: MatmulConfig, chip: Chip
) -> Any:
    """Return how many steps a thread block has in all of its tiles."""
    steps = -(-wanted.steps_deep(tiles.depth) // tiles.parts)
    clusters = chip.num_sms // (tiles.rows_of_blocks * tiles.columns_of_blocks)
    alone = (tiles.parts > 1) | (given.persistent == 0)
    return steps * np.where(alone, 1, -(-_num_clusters(wanted, tiles) // clusters))


def _num_clusters(wanted: ProductShape, tiles: Candidates) -> Any:
    """Return how many clusters of output tiles there are."""
    rows, columns = tiles.rows * tiles.rows_of_blocks, tiles.columns * tiles.columns_of_blocks
    return wanted.batch * wanted.tiles_down(rows) * -(-wanted.n // columns)


def rank_both(
    wanted: ProductShape,
    given: MatmulConfig,
    chip: Chip,
    count: int,
    sizes: tuple[int, ...] = CLUSTER_SIZES,
) -> tuple[RankedTile, ...]:
    """Return the best configurations of both ways to multiply, as far as `given` leaves them open.

    Outputs of many rows gain nothing by the other way, and lose wide stores. Unless clusters are
    requested, split-K by workspace is tried, too.
    """
    if not wanted.converted_bytes:
        return _rank_both(wanted, given, chip, max(count, CONFIGS_SHOWN), sizes)[:count]
    ranked = _rank_both(wanted, given, chip, MOST_FOR_CONVERTED, sizes)
    ranked = tuple(x for x in ranked if _has_room(given, x))
    whole = tuple(x for x in ranked if is_whole(wanted, x))  # else each element meets a condition
    return (whole or ranked)[:count]


def is_whole(wanted: ProductShape, best: RankedTile) -> bool:
    """Tell whether tiles divide an operand that is converted."""
    rows, _, depth = best.tile
    shape = wanted.transposed if best.transposed else wanted
    return not shape.m % rows and not shape.k % (depth * best.parts)


def _has_room(given: MatmulConfig, best: RankedTile) -> bool:
    """Tell whether registers hold the rows of a converted operand, and what was measured suits it.

    By default consumers share a tile: each converts a part of it.
    """
    rows, columns, depth = best.tile
    if best.takes_turns and not given.takes_turns:
        return False
    many = best.consumers > FASTEST_CONSUMERS and given.consumers is None
    if many or (best.cluster != (1, 1) and given.cluster is None):  # clusters were not measured
        return False
    by_rows = split_axis(rows, columns, best.consumers) == "m"
    own = rows // best.consumers if by_rows else rows
    words = own * depth // (2 * WARP_GROUP_THREADS)
    values = own // ROWS_OF_THREAD * (1 + depth // FEWEST_NEIGHBOURS)
    held = registers.accumulator_registers(rows, columns, best.consumers) + words + values
    return registers.accumulator_budget([held], best.consumers, ARCH).fits


@functools.lru_cache(maxsize=64)  # a schedule is tried on a copy first, and `explain` lists them
def _rank_both(
    wanted: ProductShape, given: MatmulConfig, chip: Chip, count: int, sizes: tuple[int, ...]
) -> tuple[RankedTile, ...]:
    if given.split_parts is not None or given.split_mode == CLUSTER or given.streams:
        return tuple(_rank_ways(wanted, given, chip, count, sizes))
    found = _rank_ways(wanted, replace(given, split_k=CLUSTER), chip, count, sizes)
    if sizes == CLUSTER_SIZES and may_share_sums(given) and not wanted.is_symbolic:
        mode = given.split_mode or CALLER  # outside of clusters the safest one
        parts = CLUSTER_DIVISIBLE_PARTS if mode == CALLER else tuple(range(2, MOST_PARTS + 1))
        wide = replace(given, split_k=mode)
        found += [x for x in _rank_ways(wanted, wide, chip, count, parts) if x.by_kernels]
    if may_take_turns(wanted, given):
        in_turn = replace(given, schedule=PINGPONG, consumers=TURNS)
        most = chip.num_sms // wanted.batch
        ranked = rank(wanted, in_turn, chip, count, sizes)
        several = [x for x in ranked if num_tiles(wanted.m, wanted.n, x.tile) > most]
        found = [replace(x, microseconds=x.microseconds * TURN_GAIN) for x in found] + several
    return tuple(sorted(found, key=lambda x: x.microseconds)[:count])


def may_take_turns(wanted: ProductShape, given: MatmulConfig) -> bool:
    """Tell whether consumers that take turns on tiles are tried by default."""
    low, high = TURN_BYTES
    fields = given.consumers, given.registers, given.persistent, given.store, given.schedule
    is_open = all(x is None for x in fields) and given.form in (None, TILES, UNTRANSPOSED)
    whole = not given.shares_sums and may_load_together(given) and given.cluster is None
    fits = dtype_bytes(wanted.dtype) == 1 and wanted.output_bytes <= 2 and low <= wanted.k <= high
    return is_open and whole and fits and not wanted.is_symbolic


def _rank_ways(
    wanted: ProductShape, given: MatmulConfig, chip: Chip, count: int, sizes: tuple[int, ...]
) -> list[RankedTile]:
    ways = [given.transposed]
    if given.is_orientation_open:
        ways = [False, True] if may_be_transposed(wanted, given) else [False]
    found = []
    for way in ways:
        shape = wanted.transposed if way else wanted
        found += [replace(x, transposed=way) for x in rank(shape, given, chip, count, sizes)]
    return sorted(found, key=lambda x: x.microseconds)[:count]


def may_be_transposed(wanted: ProductShape, given: MatmulConfig) -> bool:
    """Tell whether C^T = B^T A^T is tried too, where a configuration leaves that open."""
    return not given.by_tma and (wanted.m <= MOST_TRANSPOSED or not wanted.is_symbolic)


def in_rows(given: MatmulConfig, rows: Any) -> MatmulConfig:
    """Keep many rows of the output on the tile's rows, where nothing else is requested."""
    is_open = given.tile is None and given.is_orientation_open
    many = not isinstance(rows, int) or rows > MOST_TRANSPOSED
    return replace(given, form=UNTRANSPOSED) if is_open and many else given


def listed(wanted: ProductShape, given: MatmulConfig, chip: Chip) -> list[str]:
    """List the best configurations for people, and what a request or a promise would change."""
    best = rank_both(wanted, given, chip, CONFIGS_SHOWN)
    lines = [*map(str, best)]
    if not best:
        return []  # nothing takes it: what refuses it says so
    more, *_ = rank_both(wanted, given, chip, 1, NONPORTABLE_CLUSTER_SIZES)
    if more.microseconds < (1 - MIN_GAIN_TO_REPORT) * best[0].microseconds:
        lines.append(f"on request, where the chip holds clusters of {more.parts} blocks: {more}")
    if given.batch_invariant:
        variant = replace(given, batch_invariant=False)
        free, *_ = rank_both(wanted, variant, chip, 1)
        other = str(free)
        if choose_dots(wanted, variant, free.microseconds, chip):
            other = f"dot products: {estimate_dots(wanted, chip):.1f} us"
        lines.append(f"without batch_invariant: {other}")
    return lines


def _in_boxes(
    wanted: ProductShape, tiles: Candidates, given: MatmulConfig, chip: Chip
) -> tuple[Any, Any]:
    """Tell which tiles' outputs are stored by TMA, where nothing else is requested.

    First those whose stores are a large share, then those that gain a little by it.
    """
    asked = given.store is not None or given.takes_turns or given.streams
    if asked or wanted.is_transposed or wanted.is_symbolic:
        return False, False
    size = wanted.output_bytes
    terms = terms_by_output(wanted.k, dtype_bytes(wanted.dtype), size)
    blocks = tiles.rows_of_blocks * tiles.columns_of_blocks
    several = _num_clusters(wanted, tiles) > chip.num_sms // blocks
    slots = (tiles.rows + tiles.columns) * tiles.depth * dtype_bytes(wanted.dtype)
    boxes = leave_as_boxes(tiles.rows, tiles.columns, terms, wanted.n, size, slots, several)
    deep = leave_behind_loads(tiles, terms, slots, several) & (size == MEASURED_BYTES)
    deep &= wanted.n * size % CHUNK_BYTES == 0
    return boxes & (tiles.parts == 1), deep & (tiles.parts == 1)


def _too_large(wanted: ProductShape, tiles: Candidates) -> Any:
    """Tell which tiles reach further over an edge than a smaller one has to."""
    largest = [
        (sizes, max(int(sizes.min()), -(-extent // step) * step))
        for sizes, extent, step in (
            (tiles.rows, wanted.m, 64),
            (tiles.columns, wanted.n, 16),
            (tiles.depth, wanted.channels or wanted.k, int(tiles.depth.min())),
        )
    ]
    return np.any([sizes > most for sizes, most in largest], axis=0)
