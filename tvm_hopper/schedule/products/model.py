"""`choose_config`: fill in the open fields of a matmul's configuration.

Every legal tile (`candidates`) is checked by a formula with measured constants (`estimate`,
`rates`), and the one with the least estimated time is taken. The order of tiles and the number of
thread blocks follow by rules. The number of SMs and the rates of the chip are those of the target
in scope, else an H200's.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.devices import Chip
from tvm_hopper.facts.dtypes import OPERAND_DTYPES, OUTPUT_DTYPES, dtype_bytes
from tvm_hopper.requests.keys import BY_DEVICE, MOST_PARTS
from tvm_hopper.requests.targets import chip_of_target
from tvm_hopper.schedule.arguments import as_choice, as_size, as_sizes, check_type

from .boxes import leave_as_boxes
from .candidates import MAX_STAGES, Candidates, candidates
from .config import ARCH, CONSUMERS, MatmulConfig, find_violations, most_stages
from .dot_choice import choose_dots, estimate_dots
from .estimate import KernelForm, estimate
from .field_values import TRANSPOSED, UNTRANSPOSED, Raster, SplitK
from .parts import (
    CLUSTER_DIVISIBLE_PARTS,
    CLUSTER_SIZES,
    NONPORTABLE_CLUSTER_SIZES,
    in_clusters,
    in_parts,
    may_share_sums,
)
from .product_shape import ProductShape
from .rates import MEASURED
from .split import ANYWHERE, CALLER, CLUSTER

RASTER_GROUP = 16  # rows of tiles visited together: what they read of A and B fits the L2 cache
BLOCKS_SHARING_LINES = 16  # thread blocks that load the same lines
RESIDENT_BYTES = 8 << 20  # of a B that stays in the L2 cache in whatever order tiles are visited
SYMBOLIC_EXTENT = 4096  # what an extent that is known at run time only is taken for
SYMBOLIC_BATCH = 32  # what a batch that is known at run time only is taken for
MAJORS = ("k", "mn")
# Rows on an instruction's columns where extents are symbolic, or a tensor of the output's shape is
# read: TMA brings that for rows of the output alone.
MOST_TRANSPOSED = 1024
MIN_GAIN_TO_REPORT = 0.05  # of the time, by which parts that do not run everywhere are reported
CONFIGS_SHOWN = 5  # the best, by `explain`


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

    def __str__(self) -> str:
        tile = "x".join(map(str, self.tile))
        groups = f"{self.consumers} consumer{'s' * (self.consumers > 1)}"
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
    config = _choose_ring(config, sizes, dtype, k)
    return _choose_order(config, sizes, (m, n, k, batch), dtype, chip.num_sms, is_open)


def _choose_tile(wanted: ProductShape, config: MatmulConfig, chip: Chip) -> MatmulConfig:
    """Take the tile with the least estimated time, and what goes with it."""
    best, *_ = rank_both(wanted, config, chip, 1)
    count = config.turns if config.takes_turns else best.consumers
    config = replace(config, tile=best.tile, consumers=count)
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


def _choose_ring(
    config: MatmulConfig, sizes: tuple[tuple[int, ...], ...], dtype: str, k: Any
) -> MatmulConfig:
    """Choose the consumers of a tile, and the slots of the ring that they read."""
    if config.consumers is None:
        count = 2 if config.takes_turns else choose_consumers(sizes, dtype)
        config = replace(config, consumers=count)
    if config.takes_turns and config.wgmma_pending is None and config.num_stages != 1:
        config = replace(config, wgmma_pending=1)  # the others store while one multiplies
    if config.stages is None:
        largest = max(sizes[0]), max(sizes[1]), max(sizes[2])
        most = most_stages(largest, dtype, ARCH)
        step = max(1, min(sizes[2])) * config.parts
        config = replace(config, stages=max(1, _stages(most, _known(k), step)))
    return config


def _choose_order(
    config: MatmulConfig,
    sizes: tuple[tuple[int, ...], ...],
    extents: tuple[Any, Any, Any, Any],
    dtype: str,
    num_sms: int,
    is_open: bool,
) -> MatmulConfig:
    """Choose in which order tiles are visited, and by how many thread blocks."""
    rows, columns, depth = map(_known, extents[:3])
    batch = _known(extents[3], SYMBOLIC_BATCH)
    # Thread blocks of a cluster are one in all orders.
    row_blocks, column_blocks = config.cluster or (1, 1)
    smallest = min(sizes[0]) * row_blocks, min(sizes[1]) * column_blocks
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
        whole = all(isinstance(x, int) for x in (*extents[:2], extents[3]))
        static = whole and all(len(x) == 1 for x in sizes[:2])
        clusters = num_sms // (row_blocks * column_blocks)
        # each SM gets one at most
        alone = static and batch * num_tiles(rows, columns, smallest) <= clusters
        # Blocks that share a sum compute one tile each.
        alone = (alone or config.parts > 1) and not config.takes_turns
        config = replace(config, persistent=0 if alone else BY_DEVICE)
    return config


def _known(extent: Any, large: int = SYMBOLIC_EXTENT) -> int:
    """Return an extent; one that is known at run time only is taken to be large."""
    return extent if isinstance(extent, int) else large


def num_tiles(m: int, n: int, tile: tuple[int, ...]) -> int:
    """Return how many output tiles there are."""
    return math.ceil(m / tile[0]) * math.ceil(n / tile[1])


def as_product(
    m: Any, n: Any, k: Any, dtype: str, majors: tuple[str, str], out_dtype: str, batch: Any = 1
) -> ProductShape:
    """Describe a product for the estimate; symbolic extents are taken to be large."""
    rows, columns, depth = map(_known, (m, n, k))
    symbolic = not all(isinstance(e, int) for e in (m, n, k, batch))
    out_bytes, batch = dtype_bytes(out_dtype), _known(batch, SYMBOLIC_BATCH)
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
    tiles = candidates(wanted.dtype, given)
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
    boxes = _in_boxes(wanted, tiles, given)
    form = KernelForm(by_kernels, boxes=boxes, streams=given.streams)
    times = estimate(wanted, tiles, chip, MEASURED, form)
    order = np.argsort(times, kind="stable")[:count]
    return [
        RankedTile(
            tiles.tile(i),
            int(tiles.consumers[i]),
            int(tiles.pending[i]),
            _stages(int(tiles.stages[i]), wanted.k, int(tiles.depth[i] * tiles.parts[i])),
            float(times[i]),
            parts=int(tiles.parts[i]),
            cluster=(int(tiles.rows_of_blocks[i]), int(tiles.columns_of_blocks[i])),
            by_kernels=by_kernels and bool(tiles.parts[i] > 1),
        )
        for i in order.tolist()
    ]


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
    return _rank_both(wanted, given, chip, max(count, CONFIGS_SHOWN), sizes)[:count]


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
    return tuple(sorted(found, key=lambda x: x.microseconds)[:count])


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


def _in_boxes(wanted: ProductShape, tiles: Candidates, given: MatmulConfig) -> Any:
    """Tell which tiles' outputs are stored by TMA, where nothing else is requested."""
    asked = given.store is not None or given.takes_turns or given.streams
    if asked or wanted.is_transposed or wanted.is_symbolic:
        return False
    size = wanted.output_bytes
    boxes = leave_as_boxes(tiles.rows, tiles.columns, wanted.k, wanted.n, size)
    return boxes & (tiles.parts == 1)


def _too_large(wanted: ProductShape, tiles: Candidates) -> Any:
    """Tell which tiles reach further over an edge than a smaller one has to."""
    largest = [
        (sizes, max(int(sizes.min()), -(-extent // step) * step))
        for sizes, extent, step in (
            (tiles.rows, wanted.m, 64),
            (tiles.columns, wanted.n, 16),
            (tiles.depth, wanted.k, int(tiles.depth.min())),
        )
    ]
    return np.any([sizes > most for sizes, most in largest], axis=0)


def _stages(most: int, depth: int, tile_depth: int) -> int:
    """Return the slots of a ring: no more than there are steps, but two."""
    return min(most, MAX_STAGES, max(2, -(-depth // tile_depth)))


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
