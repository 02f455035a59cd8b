"""Epilogues that combine several elements of a row: gated activations, rotary embedding.

    C[i, j] += A[i, k] * W[j % 16 // 8, j // 16, j % 8, k]
    D[i, j] = silu(C[i, j // 8 * 16 + j % 8]) * C[i, j // 8 * 16 + 8 + j % 8]

    R[i, j] = C[i, j] * cos[i, j] + (-C[i, j + 64] if j % 128 < 64 else C[i, j - 64]) * sin[i, j]

Columns of gate and up are in eights next to each other: a thread holds both, in any tile of whole
sixteens. It holds what rotary embedding combines in any tile of whole heads. TVM's
reverse_compute_inline takes one element for one; here the block moves to the tile, and reads the
accumulator there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import s_tir

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.requests.targets import chip_of_target

from .classes import ClassKernel, product_of
from .config import ARCH, MatmulConfig, find_violations, split_axis
from .field_values import THREADS, UNTRANSPOSED, WEIGHTS
from .fuse import followers, fuse_side_inputs, inline_block
from .model import CONFIGS_SHOWN, RankedTile, rank_both
from .outputs import Gather, takes_several
from .product_shape import ProductShape
from .recognize import Matmul

READ_REGION = "explicit_read_region"  # TVM's, of annotate_buffer_access
RANKED = 400  # tiles that are looked at, the best first


def plain_config(given: MatmulConfig) -> MatmulConfig:
    """Return a configuration with what goes with such an epilogue, its tile open or as it was."""
    return replace(
        given,
        form=UNTRANSPOSED,
        split_k=1,
        cluster=(1, 1),
        store=THREADS,
    )


def choose_tile(
    wanted: ProductShape,
    config: MatmulConfig,
    whole: int,
    products: int = 1,
    columns: int = 0,
) -> tuple[MatmulConfig, list[str]]:
    """Choose a tile of whole groups; the best ones are returned too, a line each.

    - `wanted`: the product.
    - `config`: of `plain_config`; where it has a tile it stays as it is.
    - `whole`: what the columns of a tile are a multiple of, for each consumer.
    - `products`: how many accumulators they are summed in.
    - `columns`: a multiple of the columns of a tile, if they have to divide it.
    """
    if config.tile is not None:
        return config, []
    ranked = rank_both(wanted, config, chip_of_target(), RANKED)

    def fits(found: RankedTile) -> bool:
        one = replace(config, tile=None, consumers=found.consumers)
        fits_columns = is_whole(found.tile, found.consumers, whole) and not found.takes_turns
        if columns % found.tile[1] or not fits_columns:
            return False
        return not find_violations(found.tile, found.stages, one, wanted.dtype, ARCH, products)

    fitting = [x for x in ranked if fits(x)]
    if fitting:
        best, *_ = fitting
        pending = config.wgmma_pending
        pending = best.pending or None if pending is None else pending
        config = replace(config, tile=best.tile, consumers=best.consumers, wgmma_pending=pending)
    shown = (
        replace(x, tile=(x.tile[0], x.tile[1] // products, x.tile[2]))
        for x in fitting[:CONFIGS_SHOWN]
    )
    return config, [str(x) for x in shown]


def excluded(given: MatmulConfig) -> str:
    """Return what of a configuration does not go with such an epilogue, empty if all does."""
    asked = {
        f"form={given.form!r}": given.transposed or not given.has_tiles,
        f"split_k={given.split_k!r}": given.shares_sums,
        f"store={given.store!r}": given.by_tma,
        f"cluster={given.cluster}": given.in_cluster,
        f"early_launch={given.early_launch!r}": given.early_launch == WEIGHTS,
    }
    return next((name for name, is_asked in asked.items() if is_asked), "")


def for_gather(
    problem: Matmul, kernel: ClassKernel, gathered: Gather, out_dtype: str
) -> tuple[ClassKernel, list[str]]:
    """Leave a kernel what goes with such an epilogue, and choose a tile of whole groups.

    The best tiles are returned too, a line each; none where one is given.

    - raises ScheduleError: what was requested needs an element of the product for each of the
      output.
    """
    if name := excluded(kernel.config):
        raise cannot_schedule(
            f"block {problem.name}",
            f"{name}, and several elements of a row after it for each of the output",
            "rows of the product in the rows of a tile that one thread block sums and stores",
            "leave it out, or make the block after it a separate kernel",
        )
    wanted = product_of(problem, kernel, (out_dtype,))
    config, lines = choose_tile(wanted, plain_config(kernel.config), gathered.columns)
    return replace(kernel, config=config), lines


def check_gather(problem: Matmul, tile_n: int, groups: int, columns: int) -> None:
    """Refuse a tile that cuts through a group of columns.

    - raises ScheduleError: columns of a consumer are no multiple of those of a group.
    """
    if tile_n % (groups * columns):
        raise cannot_schedule(
            f"block {problem.name}",
            f"a tile of {tile_n} columns"
            + (f" for {groups} consumers" if groups > 1 else "")
            + f", and outputs of several of {columns} columns",
            f"multiples of {columns} columns" + (" for each" if groups > 1 else ""),
            "choose another tile",
        )


def is_whole(tile: tuple[int, int, int], consumers: int, columns: int) -> bool:
    """Tell whether each consumer of a tile has whole groups of columns."""
    groups = consumers if split_axis(tile[0], tile[1], consumers) == "n" else 1
    return tile[1] % (groups * columns) == 0


def is_gather(sch: s_tir.Schedule, store: Any) -> bool:
    """Tell whether what reads a stored product takes several elements of it, past the crop."""
    while readers := followers(sch, store):
        if takes_several(sch, store, readers[0]):
            return True
        store = readers[0]
    return False


def fuse_gather(sch: s_tir.Schedule, store: Any, part: Any, gathered: Gather) -> Any:
    """Move the block after the product to its tile, in place of what stores the accumulator.

    - `store` (SBlockRV): what `cache_write` of the accumulator returned, already at its loop.
    - `part` (LoopRV): that loop.
    - `gathered`: what the block takes.
    - returns (SBlockRV): the block, which reads the accumulator and stores the output.
    """
    (reader,) = sch.get_consumers(store)
    while followers(sch, reader):  # the crop of padding
        (following,) = followers(sch, reader)
        inline_block(sch, sch.compute_inline, reader)
        reader = following
    fuse_side_inputs(sch, reader, store)
    start, count = gathered.start(sch.get(reader).writes[0].source), gathered.count

    def note_region(buffer: Any) -> None:
        """Say which columns a block reads: of a whole tile these are all of the tile's."""
        reads = sch.get(reader).reads
        index = next(i for i, x in enumerate(reads) if x.source.same_as(buffer))

        def region(*at: Any) -> list[Any]:
            first = (at[-1] + start) * count
            return [*((x, x + 1) for x in at[:-1]), (first, first + count)]

        sch.annotate_buffer_access(reader, index, "read", region)

    note_region(sch.get(store).writes[0].source)  # TVM finds no way to it from the indices
    sch.reverse_compute_at(reader, part, preserve_unit_loops=True)
    sch.unannotate(reader, READ_REGION)
    summed = sch.get(store).reads[0].source
    inline_block(sch, sch.compute_inline, store)
    # TVM would size the tile by all indices, also where a condition keeps them from being read.
    note_region(summed)
    return reader
