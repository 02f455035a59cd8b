"""Schedule a tiled product: loops, operand copies, output stores.

  for i, j, k: C[i, j] += A[i, k] * B[j, k]
->
  blockIdx.y, blockIdx.x     tiles of rows, tiles of columns
    threadIdx.y                consumer warp groups
      accumulator = 0
      for k0: copy A's tile, copy B's tile, multiply-add        (pipelined)
      store the accumulator, with the epilogue inlined
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import s_tir
from tvm.tirx import IndexMap

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.requests import keys
from tvm_hopper.schedule import cluster, reductions, steps, tile_order

from . import fuse
from .axes import element_of_index
from .config import MatmulConfig, Roles
from .converted import find_converted
from .gather import fuse_gather, is_gather
from .narrow_operands import find_decoder, values_by_step
from .operands import widest_swizzle
from .outputs import Gather, keep_in_registers, separate_outputs, starts_early
from .promote import begin_sums, promote_sums
from .recognize import Matmul, MatmulOperand, read_index
from .staging import stage_output

SHARED = "shared.dyn"


@dataclass(frozen=True)
class TilePlan:
    """The complete plan of a tiled product."""

    config: MatmulConfig
    axis: str  # along which consumers share a tile: "m" or "n"
    gathered: Gather | None  # what takes several elements of the product for each of the output
    asked_slots: int | None  # operands of the epilogue that were asked to be loaded ahead
    choices: str  # what `explain` says of the choice
    noted: list[int]  # what `keys.CHOSEN_FOR` says


def oriented(problem: Matmul, config: MatmulConfig) -> Matmul:
    """Return the product as it is multiplied."""
    return problem.transposed if config.transposed else problem


@dataclass(frozen=True)
class RowReduction:
    """A reduction over rows of the output, and the copy of what it reads."""

    block: Any
    copy: Any


def apply_tiles(
    sch: s_tir.Schedule,
    block: Any,
    problem: Matmul,
    tiles: TilePlan,
    outputs: int,
    rows: Sequence[RowReduction] = (),
) -> Any:
    """Cut a product into tiles, copy its operands and store its outputs; return its block."""
    config = tiles.config
    tile_m, tile_n, tile_k = config.tile or (0, 0, 0)
    rows_of_blocks, columns_of_blocks = config.cluster or (1, 1)
    m, n = tile_m * rows_of_blocks, tile_n * columns_of_blocks
    if config.transposed:
        m, n = n, m
    in_output = m, n, tile_k * config.parts
    depth = problem.k.extent
    is_even = isinstance(depth, int) and depth % in_output[2] == 0
    problem = oriented(steps.pad_matmul(sch, block, problem, in_output), config)
    inline_decoders(sch, block)
    for producer in sch.get_producers(block):  # what the sum starts from
        if not any(_writes(sch, producer, x.buffer) for x in (problem.lhs, problem.rhs)):
            steps.inline_copies(sch, producer)
    several = separate_outputs(sch, block) if outputs > 1 or rows else []
    loops = split_loops(sch, block, problem, tiles, is_even)
    product = block
    if config.promotes:
        product, loops = promote_sums(sch, block, loops)
    deal_out(sch, loops, tiles)
    if several:
        stores = keep_in_registers(sch, block, several)
    else:
        stores = [sch.cache_write(block, 0, "local")]
    for store in stores:
        sch.reverse_compute_at(store, loops.part)
    copy_operands(sch, product, problem, loops.k_outer, config)
    partial = [_reduce_rows(sch, x, stores, tiles, loops) for x in rows]
    _store(sch, stores, problem, tiles, loops)
    drop_unit_dims(sch, block, problem.output_kept)
    if loops.k_parts is not None:
        sch.decompose_reduction(block, loops.k_parts)
        reductions.across_cluster(sch, loops.k_parts, config.split_mode or "cluster")
    for reduced in partial:
        sch.decompose_reduction(reduced, sch.get_loops(reduced)[-2])
    if config.promotes:
        drop_unit_dims(sch, product, tuple(d + 1 for d in problem.output_kept))  # behind the step
        begin_sums(sch, block, product, loops.k_outer)
    return multiply(sch, [(product, problem)], tiles, loops)


def multiply(
    sch: s_tir.Schedule, products: Sequence[tuple[Any, Matmul]], tiles: TilePlan, loops: TileLoops
) -> Any:
    """Let warp groups multiply, in a pipelined loop over steps; return the first block."""
    config = tiles.config
    found = [
        steps.wgmma(sch, block, _accumulate(problem, config), config.operands)
        for block, problem in products
    ]
    if tiles.choices:
        sch.annotate(found[0], keys.CHOSEN, tiles.choices)
    steps.pipeline(
        sch,
        loops.k_outer,
        config.stages,
        Roles(config.sharers, config.registers),
        wgmma_pending=config.wgmma_pending,
    )
    return found[0]


def _reduce_rows(
    sch: s_tir.Schedule, rows: RowReduction, stores: list[Any], tiles: TilePlan, loops: TileLoops
) -> Any:
    """Reduce rows of a tile in registers and store what each tile has; return the reduction.

    The store that computes what it reads becomes part of it, and leaves `stores`.
    """
    copy = sch.get(rows.copy)
    store = next(x for x in stores if any(copy.same_as(sch.get(y)) for y in sch.get_consumers(x)))
    stores.remove(store)
    fuse.fuse_epilogue(sch, store)
    assert tiles.config.tile is not None
    width = tiles.config.tile[1] // (tiles.config.sharers if tiles.axis == "n" else 1)
    _, columns = sch.get_loops(rows.block)
    tile, _ = sch.split(columns, [None, width])
    partial = sch.rfactor(tile, 0)
    left = sch.cache_write(partial, 0, "local")
    sch.reverse_compute_at(partial, loops.part, preserve_unit_loops=True)
    fuse.inline_block(sch, sch.compute_inline, store)
    sch.reverse_compute_at(left, loops.part, preserve_unit_loops=True)
    return partial


@dataclass(frozen=True)
class TileLoops:
    """Loops of a product in tiles, as they are nested."""

    rows: Any  # over tiles of rows, and a batch
    n_outer: Any  # over tiles of columns
    blocks: tuple[Any, ...]  # over tiles of a cluster
    part: Any  # over parts of a tile
    k_parts: Any  # over parts of a sum; None: it is whole
    k_outer: Any  # over steps


def split_loops(
    sch: s_tir.Schedule, block: Any, problem: Matmul, tiles: TilePlan, is_even: bool = True
) -> TileLoops:
    """Cut the loops of a product into tiles; `is_even` says that its depth was not padded."""
    config, parts = tiles.config, tiles.config.parts
    tile_m, tile_n, tile_k = config.tile or (0, 0, 0)
    loops = sch.get_loops(block)
    lead = [loops[a.loop] for a in problem.lead if a.loop >= 0]
    m, n, k = (loops[a.loop] for a in (problem.m, problem.n, problem.k))
    m_outer, m_tile = sch.split(m, [None, tile_m])
    n_outer, n_tile = sch.split(n, [None, tile_n])
    blocks: list[Any] = []
    if config.in_cluster:
        rows_of_blocks, columns_of_blocks = config.cluster or (1, 1)
        m_outer, m_block = sch.split(m_outer, [None, rows_of_blocks])
        n_outer, n_block = sch.split(n_outer, [None, columns_of_blocks])
        blocks = [m_block, n_block]
    k_outer, k_inner = sch.split(k, [None, tile_k * parts])
    k_parts = None
    if parts > 1:  # which take the steps in turn: so a symbolic depth divides, too
        k_parts, k_inner = sch.split(k_inner, [parts, tile_k])
    deep = [loops[a.loop] for a in problem.deep if a.loop >= 0]
    if tiles.axis == "m":
        part, m_tile = sch.split(m_tile, [config.sharers, None])
    else:
        part, n_tile = sch.split(n_tile, [config.sharers, None])
    steps_of_k = (*deep, k_outer) if k_parts is None else (k_parts, *deep, k_outer)
    outer = [*lead, m_outer]
    is_cut = parts > 1 or not is_even
    if (len(lead) > 1 or is_cut) and not isinstance(problem.m.extent, int):
        # With symbolic tiles TVM does not see that x // (2 * tiles) < 3 for x < 6 * tiles, nor
        # which rows of an operand with a condition of its own are at x % tiles.
        outer = [m_outer, *lead]
    sch.reorder(*outer, n_outer, *blocks, part, *steps_of_k, m_tile, n_tile, k_inner)
    rows = sch.fuse(*outer) if lead else m_outer
    k_outer = sch.fuse(*deep, k_outer) if deep else k_outer
    return TileLoops(rows, n_outer, tuple(blocks), part, k_parts, k_outer)


def deal_out(sch: s_tir.Schedule, loops: TileLoops, tiles: TilePlan) -> None:
    """Deal tiles out to thread blocks and warp groups."""
    config, n_outer = tiles.config, loops.n_outer
    sch.bind(loops.rows, "blockIdx.y")
    sch.bind(n_outer, "blockIdx.x")
    if loops.blocks:
        cluster.share_loads(sch, sch.fuse(*loops.blocks))
    sch.bind(loops.part, "threadIdx.y")
    turns = config.turns if config.takes_turns else None
    order = config.raster_group, config.persistent, turns, None, config.raster_curve
    tile_order.raster(sch, n_outer, *order, stream=config.streams or None)
    if tiles.noted:
        sch.annotate(n_outer, keys.CHOSEN_FOR, tiles.noted)


def copy_operands(
    sch: s_tir.Schedule, block: Any, problem: Matmul, place: Any, config: MatmulConfig
) -> None:
    """Bring tiles of both operands on chip, in a loop over steps; copies are before conversions."""
    converted = find_converted(sch, block, problem)
    for operand in converted:
        convert_operand(sch, block, operand, place, config)
    for operand in (problem.lhs, problem.rhs):
        if not any(operand.buffer.same_as(x.buffer) for x in converted):
            position = 1 if converted else -1  # threads give back the converted one earlier
            copy_operand(sch, block, problem, operand, place, config, position=position)


def inline_decoders(sch: s_tir.Schedule, block: Any) -> None:
    """Let the pad of an operand be its decoder, with zeros beyond the operand's end."""
    for pad in sch.get_producers(block):
        for maker in sch.get_producers(pad):
            if find_decoder(sch.get(maker)) is not None:
                sch.compute_inline(maker)


def convert_operand(
    sch: s_tir.Schedule, block: Any, operand: MatmulOperand, place: Any, config: MatmulConfig
) -> None:
    """Bring tiles of an operand to shared memory in their narrow type; threads convert them."""
    (maker,) = (x for x in sch.get_producers(block) if _writes(sch, x, operand.buffer))
    decoder = find_decoder(sch.get(maker))
    assert decoder is not None
    _, _, tile_k = config.tile or (0, 0, 0)
    moving = [i for i, x in enumerate(decoder.load.indices) if not ir.is_const(x, 0)]
    sch.set_scope(maker, 0, "local")
    sch.compute_at(maker, place)
    reads = [x.source for x in sch.get(maker).reads]
    packed = next(i for i, x in enumerate(reads) if x.same_as(decoder.packed))
    copy = sch.cache_read(maker, packed, SHARED)
    sch.compute_at(copy, place, index=0)
    row = (ir.static_int(sch.get(sch.get_loops(copy)[-1]).extent) or 0) * dtype_bytes(
        ir.dtype_of(decoder.packed)
    )
    steps.async_copy(sch, copy, "tma", widest_swizzle(row))
    drop_unit_dims(sch, copy, tuple(moving[-2:]))
    for number, values in enumerate(values_by_step(sch.get(maker), tile_k)):
        reads = [x.source for x in sch.get(maker).reads]
        index = next(i for i, x in enumerate(reads) if x.same_as(values))
        copy = sch.cache_read(maker, index, SHARED)
        sch.compute_at(copy, place, index=1 + number)
        steps.async_copy(sch, copy)
    drop_unit_dims(sch, maker, operand.kept)


def copy_operand(
    sch: s_tir.Schedule,
    block: Any,
    problem: Matmul,
    operand: MatmulOperand,
    place: Any,
    config: MatmulConfig,
    others: Sequence[Any] = (),
    position: int = -1,
) -> None:
    """Bring tiles of an operand to shared memory, in a loop over steps, as its n-th statement.

    `others` are products that read the same tile.
    """
    index, mechanism = read_index(sch, block, operand), _mechanism(sch, block, operand)
    # the epilogue may read the tensor too, from global memory
    copy = sch.cache_read(block, index, SHARED, consumer_blocks=[block, *others])
    sch.compute_at(copy, place, index=position)
    # Rows along k end in zeros; of many tiles few cross an edge, unless there may be any rows.
    is_static = isinstance(problem.m.extent, int) and isinstance(problem.n.extent, int)
    rows = problem.ragged[operand is problem.rhs]
    spare = rows and operand.major == "k" and not (is_static and config.persistent)
    steps.async_copy(sch, copy, mechanism, config.swizzle, spare_rows=spare)
    drop_unit_dims(sch, copy, operand.kept)


def _mechanism(sch: s_tir.Schedule, block: Any, operand: MatmulOperand) -> str:
    """Return what loads tiles of an operand: threads, where a tensor names each row."""
    makers = [x for x in sch.get_producers(block) if _writes(sch, x, operand.buffer)]
    while makers:
        maker = makers.pop()
        load = fuse.filled_load(getattr(sch.get(maker).body, "value", None))
        indices = [] if load is None else list(load.indices)
        if any(element_of_index(x) is not None for x in indices):
            return "cp_async"
        makers += [x for x in sch.get_producers(maker) if not fuse.is_own_kernel(sch, x)]
    return "tma"


def _store(
    sch: s_tir.Schedule, stores: list[Any], problem: Matmul, tiles: TilePlan, loops: TileLoops
) -> None:
    """Compute the epilogue in the blocks that store, and say how tiles leave."""
    config, operands = tiles.config, 0
    for number, store in enumerate(stores):
        if tiles.gathered is not None and is_gather(sch, store):
            stores[number] = fuse_gather(sch, store, loops.part, tiles.gathered)
            continue
        fuse.fuse_epilogue(sch, store)
        if guarded := fuse.guarded_store(sch, store):
            sch.reverse_compute_at(guarded, loops.part, preserve_unit_loops=True)
            fuse.inline_block(sch, sch.compute_inline, store)
            stores[number] = guarded
            if table := sch.get(guarded).annotations.get(keys.ROW_TABLE):
                sch.annotate(loops.n_outer, keys.ROW_TABLE, str(table))
            continue
        if config.by_tma:
            operands += stage_output(sch, store, config)
    if starts_early(sch, stores, config.early_launch):
        sch.annotate(loops.n_outer, keys.EARLY_LAUNCH, 1)
    if tiles.asked_slots and not operands:
        raise cannot_schedule(
            f"block {problem.name}",
            f"operand_slots={tiles.asked_slots} of an epilogue that reads no tensor as a whole",
            "a tensor of the output's shape, of which each element meets its own of the product",
            "leave operand_slots out",
        )


def _writes(sch: s_tir.Schedule, block: Any, buffer: Any) -> bool:
    return any(region.source.same_as(buffer) for region in sch.get(block).writes)


def drop_unit_dims(sch: s_tir.Schedule, block: Any, kept: tuple[int, ...]) -> None:
    """Leave the tile that a block writes two dimensions and a batch, of which it has one."""
    shape = sch.get(block).writes[0].source.shape
    rank = len(shape)
    batch = [d for d in range(rank) if d not in kept and not ir.is_const(shape[d], 1)]
    left = [*batch, *kept]
    if left == list(range(rank)):
        return
    tile = IndexMap.from_func(lambda *i: [i[d] for d in left], ndim=rank, index_dtype="int32")
    sch.transform_layout(block, ("write", 0), tile)


def _accumulate(problem: Matmul, config: MatmulConfig) -> str | None:
    """Return the accumulator's type when it is not the block's own."""
    is_own = config.promotes or problem.acc_dtype == config.accumulate
    return None if is_own else config.accumulate
