"""Schedule several products that share an operand as one kernel.

    C[i, j] += A[i, k] * G[j, k]
    U[i, j] += A[i, k] * W[j, k]
    D[i, j] = silu(C[i, j]) * U[i, j]
  ->
    blockIdx.y, blockIdx.x     tiles of rows, tiles of columns
      threadIdx.y                consumer warp groups
        accumulators = 0
        for k0: copy A's tile, copy G's tile, copy W's tile, both multiply-adds     (pipelined)
        store D, computed from both accumulators

A's tile is loaded once. For shared memory and the estimate, products of N columns are one product
of all their columns; a tile of the configuration is that of each product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tvm import s_tir

from tvm_hopper.analysis.column_reads import COLUMNS
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.requests import keys
from tvm_hopper.schedule import origins, steps
from tvm_hopper.schedule.arguments import as_block
from tvm_hopper.schedule.dry_run import block_names, check_lowering, check_nothing_left
from tvm_hopper.schedule.reasons import as_refusal
from tvm_hopper.schedule.trial import as_one_step, is_thrown_away, rehearse

from . import fuse, row_statistics
from .classes import Asked, ClassKernel, check_symbolic, product_of
from .config import MatmulConfig
from .converted import check_none_converted
from .fit import fit
from .gather import choose_tile, excluded, is_whole, plain_config
from .outputs import check_operands_stay, output_dtypes, starts_early
from .recognize import (
    Matmul,
    check_operands,
    check_outputs,
    check_product,
    find_matmul,
    find_swizzle_violations,
)
from .row_statistics import apply_with_rows, are_reductions
from .staging import EpilogueTypes
from .tile_kernel import (
    TileLoops,
    TilePlan,
    copy_operand,
    deal_out,
    drop_unit_dims,
    multiply,
    split_loops,
)

NEED = "products of one shape that share their left operand, and one block that reads them all"
FIX = "schedule the products one by one, each as its own kernel"


def matmul_together(
    sch: s_tir.Schedule, blocks: Sequence[Any], given: MatmulConfig, asked: Asked
) -> None:
    """Schedule products that share an operand as one kernel, see `hs.matmul`."""
    if asked.configs:
        found = "size classes of several products"
        raise cannot_schedule("matmul", found, "one kernel", "give rows= in place of classes")
    if len(blocks) < 2:
        found = f"{len(blocks)} products"
        raise cannot_schedule("matmul", found, "two or more", "give the block itself for one")
    if given.is_sampled:
        need = "sizes that are known: they are checked for all products together"
        raise cannot_schedule("matmul", "a sampled tile or stages for several products", need)
    kernel = ClassKernel(asked.rows, given, is_open=asked.rows is not None)
    before = block_names(sch)

    def step(copy: s_tir.Schedule, same: Callable[[Any], Any] = lambda x: x) -> Any:
        return _schedule(copy, [same(x) for x in blocks], kernel)

    def accept(copy: s_tir.Schedule, product: Any) -> None:
        check_nothing_left(copy, product, before)
        check_lowering(copy, product)

    rehearse(sch, step, accept)
    with origins.noted(sch), as_one_step():
        product = step(sch)
        if is_thrown_away():
            accept(sch, product)


def _schedule(sch: s_tir.Schedule, blocks: Sequence[Any], kernel: ClassKernel) -> Any:
    blocks = [as_block(sch, x) for x in blocks]
    names = " and ".join(str(sch.get(x).name_hint) for x in blocks)
    if are_reductions(sch, blocks):
        with as_refusal(f"blocks {names}", row_statistics.NEED, row_statistics.FIX):
            return apply_with_rows(sch, blocks, kernel, f"blocks {names}")
    with as_refusal(f"blocks {names}", NEED, FIX):
        return _apply(sch, blocks, kernel, f"blocks {names}")


def _apply(sch: s_tir.Schedule, blocks: list[Any], kernel: ClassKernel, where: str) -> Any:
    """Schedule the products; return the first one's block."""
    problems = []
    for block in blocks:
        check_product(sch, block)
        fuse.fuse_prologue(sch, block)
    for block in blocks:
        problems.append(find_matmul(sch, block))
        check_none_converted(sch, block, problems[-1])
        check_operands(problems[-1], kernel.config)
    if kernel.rows is not None:
        check_symbolic(problems[0], kernel.rows)
    _check_alike(where, problems)
    reader = _find_reader(sch, blocks, where)
    check_operands_stay(sch.get(reader), problems, where)
    outputs = output_dtypes(sch, reader)
    check_outputs(problems[0], outputs)
    tiles = _plan(sch, problems, kernel, outputs, where)
    problems = [
        steps.pad_matmul(sch, block, problem, tiles.config.tile or (1, 1, 1))
        for block, problem in zip(blocks, problems, strict=True)
    ]
    for block in blocks:  # before the loops of one are moved past the crop of another
        for crop in fuse.followers(sch, block):
            if fuse.followers(sch, crop):
                fuse.inline_block(sch, sch.compute_inline, crop)
    products = list(zip(blocks, problems, strict=True))
    loops = _merge(sch, [split_loops(sch, *product, tiles) for product in products], blocks[0])
    deal_out(sch, loops, tiles)
    for block in blocks:
        sch.set_scope(block, 0, "local")
    _copy_operands(sch, products, loops.k_outer, tiles.config)
    fuse.fuse_side_inputs(sch, reader, blocks[0])
    sch.reverse_compute_at(reader, loops.part, preserve_unit_loops=True)
    if starts_early(sch, [reader], tiles.config.early_launch):
        sch.annotate(loops.n_outer, keys.EARLY_LAUNCH, 1)
    for block, problem in products:
        drop_unit_dims(sch, block, problem.output_kept)
    return multiply(sch, products, tiles, loops)


def _check_alike(where: str, problems: list[Matmul]) -> None:
    """Refuse products that have not one shape, one type and one left operand."""
    first = problems[0]
    for other in problems[1:]:
        for name, one, two in (
            ("the left operand", first.lhs.name, other.lhs.name),
            ("M", first.m.extent, other.m.extent),
            ("N", first.n.extent, other.n.extent),
            ("K", first.depth, other.depth),
            ("a batch of", first.batch, other.batch),
            ("a sum in", first.acc_dtype, other.acc_dtype),
            ("rows along", first.rhs.major, other.rhs.major),
        ):
            if str(one) != str(two):
                found = f"{name} {one} in {first.name} and {two} in {other.name}"
                raise cannot_schedule(where, found, NEED, FIX)


def _find_reader(sch: s_tir.Schedule, blocks: list[Any], where: str) -> Any:
    """Inline all blocks between the products and the one that reads them all; return that one."""
    if inner := [x for x in blocks if fuse.is_needed(sch, x)]:
        name = sch.get(inner[0]).writes[0].source.name
        found = f"{name}, which is needed in memory, too"
        raise cannot_schedule(where, found, "products that one block after them reads", FIX)
    while True:
        readers = [x for block in blocks for x in fuse.followers(sch, block)]
        between = next((x for x in readers if fuse.followers(sch, x)), None)
        if between is None or fuse.is_needed(sch, between):
            break
        fuse.inline_block(sch, sch.compute_inline, between)
    last = [sch.get(x) for x in readers]
    if not readers or not all(x.same_as(last[0]) for x in last) or len(last) != len(blocks):
        names = ", ".join(dict.fromkeys(str(x.name_hint) for x in last)) or "no block"
        raise cannot_schedule(where, f"{names} after them", "one block that reads them all", FIX)
    for block in blocks:
        fuse.check_one_use(sch, block, readers[0])
    return readers[0]


def _plan(
    sch: s_tir.Schedule,
    problems: list[Matmul],
    kernel: ClassKernel,
    outputs: tuple[str, ...],
    where: str,
) -> TilePlan:
    """Choose a tile and what goes with it, as for one product of all columns; check it."""
    promoted = f"accumulate={kernel.config.accumulate!r}" if kernel.config.promotes else ""
    if name := promoted or excluded(kernel.config):
        need = "accumulators of all products in one thread block, which stores what it computes"
        raise cannot_schedule(where, name, need, "leave it out")
    first, count = problems[0], len(problems)
    names = " and ".join(x.name for x in problems)
    columns = replace(first.n, extent=first.n.extent * count)
    joint = replace(first, name=names, n=columns)
    config = plain_config(kernel.config)
    if config.tile is not None:
        tile_m, tile_n, tile_k = config.tile
        config = replace(config, tile=(tile_m, tile_n * count, tile_k))

    config, lines = choose_tile(product_of(joint, kernel, outputs), config, count * COLUMNS, count)
    asked = replace(kernel, config=config)
    config, axis = fit(sch, joint, asked, EpilogueTypes(outputs, ()), count)
    tile_m, all_columns, tile_k = config.tile or (0, 0, 0)
    tile = (tile_m, all_columns // count, tile_k)
    if not is_whole((tile_m, all_columns, tile_k), config.sharers, count * COLUMNS):
        found = f"a tile of {tile[1]} columns for {config.sharers} consumers"
        raise cannot_schedule(where, found, "a multiple of 8 columns for each consumer")
    if broken := find_swizzle_violations(first, tile, axis, config):
        found, _, need = broken[0].removeprefix("found ").partition("; need ")
        raise cannot_schedule(where, found, need)
    return TilePlan(replace(config, tile=tile), axis, None, None, "\n".join(lines), [])


def _merge(sch: s_tir.Schedule, each: list[TileLoops], block: Any) -> TileLoops:
    """Make one nest of the loops of all products; return its loops."""
    sch.merge(*(x.k_outer for x in each))
    rows, n_outer, part, k_outer = sch.get_loops(block)[:4]
    return TileLoops(rows, n_outer, (), part, None, k_outer)


def _copy_operands(
    sch: s_tir.Schedule, products: list[tuple[Any, Matmul]], place: Any, config: MatmulConfig
) -> None:
    """Bring the tiles of all operands to shared memory, in front of the products."""
    copies: list[Any] = []
    for block, problem in products:
        for operand in (problem.lhs, problem.rhs):
            if any(operand.buffer.same_as(x) for x in copies):
                continue
            alike = [x for x, other in products if other.lhs.buffer.same_as(operand.buffer)]
            others = [x for x in alike if not x.same_as(block)]
            copy_operand(sch, block, problem, operand, place, config, others, len(copies))
            copies.append(operand.buffer)
