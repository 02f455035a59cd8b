"""Candidate split-K part counts for the tiles of a choice.

    128x128x64                    one thread block sums all of it
    128x128x64 in 2, 3, 4 ..      as many share it, where tiles alone would not fill the chip

What a part costs is for the estimate to say; here is only what is tried.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
from tvm.ir import Expr

from tvm_hopper.facts.arch import LARGEST_CLUSTER, MAX_CLUSTER
from tvm_hopper.facts.devices import Chip
from tvm_hopper.facts.programming_model import LINE_BYTES, SECTOR_BYTES
from tvm_hopper.requests.keys import MOST_PARTS

from .candidates import Candidates, Ints
from .config import MatmulConfig
from .field_values import UNTRANSPOSED
from .product_shape import ProductShape
from .split import ANYWHERE, CALLER, CLUSTER, WORKSPACE

CLUSTER_SIZES = tuple(range(2, MAX_CLUSTER + 1))  # that run everywhere
NONPORTABLE_CLUSTER_SIZES = tuple(range(MAX_CLUSTER + 1, LARGEST_CLUSTER + 1))
# Parts in a workspace that a cluster can sum, too, in fewer parts of as many steps each.
CLUSTER_DIVISIBLE_PARTS = tuple(
    x for x in range(2, MOST_PARTS + 1) if any(x % y == 0 for y in CLUSTER_SIZES)
)
MOST_WAVES = 3  # of tiles; where there are more the last one is a small part of the time
PAIRS = ((2, 1), (1, 2))  # rows and columns of tiles: clusters of two, which fill any part
# For operands whose rows begin at lines: most pairs lost, measured, and these gained.
LARGER = ((4, 1), (1, 4), (4, 2), (2, 4))
MOST_ALONE = 64  # rows or columns of outputs of which no clusters were measured
MOST_ROWS_ACROSS = 512  # rows that a kernel of symbolic rows is chosen for
SWIZZLE_ROWS = 8  # of a repetition
FEWEST_STEPS = 2  # of a part: the ring is filled once


def for_any_rows(config: MatmulConfig, chosen_for: Any = 0) -> MatmulConfig:
    """Let a product of symbolic rows be cut up so that any number of rows can be computed.

    Few rows would leave blocks of a cluster without any. Chosen for more than `MOST_ROWS_ACROSS`
    rows, a transposed tile serves no greater number of them well.
    """
    if not config.has_tiles:
        return config
    many = isinstance(chosen_for, int) and chosen_for > MOST_ROWS_ACROSS
    if config.is_orientation_open and many:
        config = replace(config, form=UNTRANSPOSED)
    return replace(config, cluster=(1, 1)) if config.cluster is None else config


def without_allocator(config: MatmulConfig) -> MatmulConfig:
    """Let parts of a sum be chosen for calls that come with no allocator: TVM's own tensors."""
    is_open = config.split_k is None and config.has_tiles
    return replace(config, split_k=CLUSTER) if is_open else config


def may_share_sums(given: MatmulConfig) -> bool:
    """Tell whether a configuration leaves open in how many parts a sum is taken."""
    decided = given.split_parts is not None or given.by_tma or given.persistent
    is_sampled = isinstance(given.stages, Expr)
    whole = given.batch_invariant or given.takes_turns or given.streams
    return not (whole or is_sampled or decided)


def in_parts(
    tiles: Candidates,
    product: ProductShape,
    given: MatmulConfig,
    chip: Chip,
    sizes: tuple[int, ...] = CLUSTER_SIZES,
) -> Candidates:
    """Return the tiles in each number of parts that may be worth it, whole ones in front.

    - `tiles`: whole ones.
    - `product`: what is computed.
    - `given`: a number of parts in it is taken as it is.
    - `chip`: where.
    - `sizes`: the numbers of parts to try where none is given.
    """
    if given.parts > 1:
        return _with(tiles, np.arange(len(tiles)), parts=given.parts)
    if not may_share_sums(given) or product.is_symbolic:
        return tiles
    count = product.batch * product.tiles_down(tiles.rows) * -(-product.n // tiles.columns)
    steps = product.steps_deep(tiles.depth)
    whole = not product.channels or product.channels % tiles.depth == 0  # else k is not one axis
    few = np.flatnonzero((count <= MOST_WAVES * chip.num_sms) & whole)
    places, parts = [np.arange(len(tiles))], [tiles.parts]
    for size in sizes:
        able = few[steps[few] >= FEWEST_STEPS * size]
        if product.channels:  # whole windows are not padded
            able = able[steps[able] % size == 0]
        if given.split_mode in ANYWHERE:  # any number may; more than SMs take turns
            able = able[count[able] * size <= chip.num_sms]
        places.append(able)
        parts.append(np.full(len(able), size))
    return _with(tiles, np.concatenate(places), parts=np.concatenate(parts))


def in_clusters(
    tiles: Candidates, product: ProductShape, given: MatmulConfig, chip: Chip
) -> Candidates:
    """Return the tiles alone, and in clusters that load for one another.

    - `tiles`: whole ones and such in parts.
    - `product`: what is computed.
    - `given`: a cluster in it is taken as it is.
    - `chip`: where.
    """
    if given.cluster is not None:
        rows, columns = given.cluster
        places = np.flatnonzero(_fits_cluster(tiles, product, given))
        return _with(tiles, places, rows_of_blocks=rows, columns_of_blocks=columns)
    few = min(product.m, product.n) <= MOST_ALONE
    if not may_load_together(given) or product.is_symbolic or few:
        return tiles
    found = [tiles]
    for rows, columns in PAIRS + LARGER:
        is_pair = rows * columns == 2
        start = product.row_bytes[rows > 1]
        is_larger = (rows > 1) == (product.n > product.m)  # of the operands, what a pair shares
        if is_pair and not is_larger and start % SECTOR_BYTES == 0:
            continue
        whole = tiles.parts == 1
        if is_pair and given.split_mode in (WORKSPACE, CALLER):  # else the parts are the cluster
            count = product.tiles_down(tiles.rows * rows)
            count *= product.batch * -(-product.n // (tiles.columns * columns))
            filled = count * tiles.parts * rows * columns <= chip.num_sms
            in_both = (tiles.parts % 2 == 0) | (tiles.parts % 3 == 0)
            whole |= filled & (in_both | (given.split_mode == WORKSPACE))
        able = whole & (product.m > tiles.rows * (rows - 1))
        able &= product.n > tiles.columns * (columns - 1)
        if is_pair and start % LINE_BYTES == 0:  # loaded once, or each load is fast enough alone
            able &= (product.m <= tiles.rows * 2) if rows > 1 else product.n <= tiles.columns * 2
        able &= _can_share_loads(tiles, product, rows, columns)
        places = np.flatnonzero(able)
        found.append(_with(tiles, places, rows_of_blocks=rows, columns_of_blocks=columns))
    names = [field.name for field in fields(Candidates)]
    return Candidates(*(np.concatenate([getattr(x, name) for x in found]) for name in names))


def _fits_cluster(tiles: Candidates, product: ProductShape, given: MatmulConfig) -> Any:
    """Tell which tiles, in parts or whole, a given cluster of several blocks can have."""
    rows, columns = given.cluster or (1, 1)
    if rows * columns == 1:
        return np.full(len(tiles), True)
    able = _can_share_loads(tiles, product, rows, columns)
    if min(rows, columns) > 1:  # `split.check_spread`
        able &= product.m > tiles.rows
    most = MAX_CLUSTER // (rows * columns)
    if given.split_mode == CALLER:
        in_both = [tiles.parts % x == 0 for x in range(2, most + 1)]
        able &= np.any([tiles.parts == 1, *in_both], axis=0)
    elif given.split_mode != WORKSPACE:
        able &= tiles.parts <= most
    return able


def _can_share_loads(tiles: Candidates, product: ProductShape, rows: int, columns: int) -> Any:
    """Tell which tiles can be loaded in as many pieces as a cluster has rows or columns of them."""
    able = np.full(len(tiles), True)
    # A tile whose rows run along k is cut into boxes of whole repetitions of its swizzle.
    if product.majors[1] == "k":
        able &= tiles.columns % (SWIZZLE_ROWS * rows) == 0
    if product.majors[0] == "k":
        able &= tiles.rows % (SWIZZLE_ROWS * columns) == 0
    if rows > 1 and columns > 2:
        # Here TVM writes the end of whole tiles as a predicate over blocks, not over B.
        whole_tiles = product.n % tiles.columns == 0
        able &= ~(whole_tiles & (product.n // tiles.columns % columns == columns // 2))
    return able


def may_load_together(given: MatmulConfig) -> bool:
    """Tell whether a configuration leaves open whether thread blocks load for one another."""
    is_sampled = isinstance(given.stages, Expr)
    alone = given.takes_turns or given.streams
    return given.parts == 1 and not is_sampled and not alone


def _with(tiles: Candidates, places: Ints, **changed: Ints | int) -> Candidates:
    """Return some of the tiles, with other values of some fields."""
    kept = {field.name: getattr(tiles, field.name)[places] for field in fields(Candidates)}
    new = {name: np.broadcast_to(value, places.shape) for name, value in changed.items()}
    return Candidates(**{**kept, **new})
