"""Stage outputs through shared memory, in parts.

    for part in threadIdx.y:
        accumulator = ...                                          in registers
        for piece in range(store.parts):
            staging[rows, columns of a piece] = f(accumulator)
            output[rows, columns of a piece] = staging             by TMA, fire and forget

Fewer parts wait less often; more parts leave more of shared memory to the ring.  Where a thread
block computes one output tile the ring is dead by then, and the staging may lie in its bytes; but
not where operands of the epilogue are still loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from tvm import s_tir

from tvm_hopper import ir
from tvm_hopper.facts.arch import Arch
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.swizzle import CHUNK_BYTES, span_bytes
from tvm_hopper.schedule import steps
from tvm_hopper.transforms.common.shared_memory_size import (
    TILE_ALIGNMENT,
    SharedArray,
    SharedMemory,
    ring_memory,
)

from .axes import walk_as_one
from .boxes import (
    ENOUGH_STAGES,
    LEAST_DEEP,
    MEASURED_BYTES,
    MOST_PIECES,
    leave_as_boxes,
    terms_by_output,
)
from .config import MatmulConfig, ring_slots, split_axis
from .field_values import TMA, TmaStore
from .operands import is_loadable, stage_operands, widest_swizzle

Tile = tuple[int, int, int]
WIDEST = span_bytes(128)  # bytes of a row that the widest swizzle takes
LEAST_SPREAD = 32  # bytes of a piece's rows below which threads load as fast from memory
STAGED = ("staging", "operand")  # how names of arrays begin that are no part of the product's ring


@dataclass(frozen=True)
class EpilogueTypes:
    """The types of what goes through shared memory after a product."""

    outputs: tuple[str, ...]  # of the tensors that it writes
    # of the tensors of the output's shape that it reads, and that TMA can load
    operands: tuple[str, ...] = ()
    # whether the output is staged in the slots of an operand (copies/reuse_operand_tiles.py)
    in_place: bool = False
    # of an element of A in its slot, where it is converted on its way; 0: it is not
    stored_bytes: float = 0


def staging_memory(
    tile: Tile, stages: int, config: MatmulConfig, dtype: str, epilogue: EpilogueTypes
) -> SharedMemory:
    """Return the shared memory of a ring, of a piece of each output, and of those of operands.

    - `tile`, `stages`: of the ring; elements, slots.
    - `config`: with parts and slots of `store`, and `persistent` where it is known.
    - `dtype`, `epilogue`: types of the product's operands, and of what follows it.
    """
    ring = ring_memory(ring_slots(tile, dtype, epilogue.stored_bytes), stages)
    tile_m, tile_n, _ = tile
    parts = config.store_parts or 1
    pieces = [
        SharedArray(f"staging {n}", tile_m * tile_n * dtype_bytes(out) // parts, TILE_ALIGNMENT)
        for n, out in enumerate(epilogue.outputs)
    ]
    operands = _operand_rings(tile, config, epilogue)
    if operands and epilogue.in_place:
        pieces = []
    first = len(ring.arrays)
    overlays = frozenset(
        frozenset((i, first + n))
        for i, array in enumerate(ring.arrays)
        for n in range(len(pieces))
        if config.persistent == 0 and array.alignment == TILE_ALIGNMENT and not operands
    )
    return SharedMemory((*ring.arrays, *pieces, *operands), overlays)


def _operand_rings(tile: Tile, config: MatmulConfig, epilogue: EpilogueTypes) -> list[SharedArray]:
    """Return the rings of what the epilogue reads, with their barriers."""
    slots, parts = config.operand_slots or 0, config.store_parts or 1
    arrays: list[SharedArray] = []
    for n, operand in enumerate(epilogue.operands if slots else ()):
        size = tile[0] * tile[1] * dtype_bytes(operand) // parts
        slot = SharedArray(f"operand {n}", size, TILE_ALIGNMENT)
        arrays += ring_memory([slot], slots).arrays
    return arrays


def legal_parts(tile_n: int, groups: int, outputs: tuple[str, ...]) -> list[int]:
    """List in how many parts columns can be stored, those of whole widest swizzles in front.

    - `tile_n`: columns of the tile.
    - `groups`: warp groups that share them: then it is one, as parts of several are no run of
      columns.
    - `outputs`: types of the outputs: a row of a piece is a multiple of 16 bytes of each.
    """
    columns = tile_n // groups
    found = [
        parts
        for parts in range(1, (columns // 8 if groups == 1 else 1) + 1)
        if columns % (8 * parts) == 0
        and all(columns // parts * dtype_bytes(x) % CHUNK_BYTES == 0 for x in outputs)
    ]
    whole = [
        parts
        for parts in found
        if all(columns // parts * dtype_bytes(x) % WIDEST == 0 for x in outputs)
    ]
    return [*whole, *(x for x in found if x not in whole)]


def takes_place(config: MatmulConfig, shape: Any, epilogue: EpilogueTypes) -> bool:
    """Tell whether an output can be staged where an operand came: of its type, in whole tiles."""
    if config.tile is None or len(epilogue.outputs) != 1:
        return False
    sizes = zip(map(ir.static_int, shape[-2:]), config.tile, strict=False)
    whole = all(isinstance(n, int) and size is not None and size % n == 0 for size, n in sizes)
    return whole and epilogue.outputs[0] in epilogue.operands


def leaves_operands_open(config: MatmulConfig) -> bool:
    """Tell whether the staging of operands and outputs is open.

    Transposed tiles and blocks that share a sum have no other way than by threads.
    """
    is_by_threads = config.transposed or config.shares_sums or config.takes_turns
    return config.store is None and not is_by_threads


def through_shared_memory(
    config: MatmulConfig, shape: Any, epilogue: EpilogueTypes
) -> MatmulConfig:
    """Stage outputs through shared memory if operands are staged there, unless requested otherwise.

    - `config`: as it was given.
    - `shape`: of the outputs.
    - `epilogue`: with the operands that TMA can load.
    """
    if not leaves_operands_open(config) or not epilogue.operands:
        return config
    rows = {dtype: is_loadable(shape, dtype) for dtype in epilogue.outputs}
    return replace(config, store=TMA) if all(rows.values()) else config


def leaves_as_boxes(
    config: MatmulConfig, shape: Any, dtype: str, epilogue: EpilogueTypes, k: Any
) -> bool:
    """Tell whether threads would touch parts of sectors, or have no time, and TMA is worth it."""
    depth, row = ir.static_int(k), ir.static_int(shape[-1])
    if not leaves_operands_open(config) or depth is None or row is None or config.tile is None:
        return False
    (rows, columns, _), size = config.tile, dtype_bytes(dtype)
    slot = sum(x.num_bytes for x in ring_slots(config.tile, dtype, epilogue.stored_bytes))
    every = all(is_loadable(shape, dtype) for dtype in epilogue.outputs)
    return every and any(
        leave_as_boxes(
            rows, columns, terms_by_output(depth, size, out), row, out, slot, config.persistent != 0
        )
        for out in map(dtype_bytes, epilogue.outputs)
    )


def choose_staging(
    config: MatmulConfig,
    sizes: tuple[tuple[int, ...], ...],
    may_take_stages: bool,
    dtype: str,
    epilogue: EpilogueTypes,
    arch: Arch,
) -> MatmulConfig:
    """Choose the fewest parts that fit next to the ring, and fewer stages only if none do.

    Whole tiles are worth stages beyond the third, as long as nothing has requested these. Operands
    of the epilogue take as many slots as fit.

    - `config`: complete but for the parts of `store`.
    - `sizes`: the values that each size of the tile can take.
    - `may_take_stages`: the number of stages is not requested.
    """
    if not config.by_tma:
        return config
    if config.store_parts is not None:
        shared = [config.store_parts]
    else:
        legal = [
            legal_parts(n, _column_groups((m, n, k), config), epilogue.outputs)
            for m, n, k in product(*sizes)
        ]
        shared = [x for x in legal[0] if all(x in others for others in legal)]
    largest = max(sizes[0]), max(sizes[1]), max(sizes[2])
    stages = config.num_stages or 1
    choices = _choices(config, stages, may_take_stages, shared, epilogue, largest[1])
    for slots, parts, ahead in choices:
        trial = replace(config, store=TmaStore(parts, ahead))
        if staging_memory(largest, slots, trial, dtype, epilogue).fits_on(arch):
            return replace(trial, stages=slots) if may_take_stages else trial
    ahead = config.operand_slots or 0
    return replace(config, store=TmaStore(shared[-1] if shared else 1, ahead))


def _choices(
    config: MatmulConfig,
    stages: int,
    may_take_stages: bool,
    parts: list[int],
    epilogue: EpilogueTypes,
    columns: int,
) -> Iterator[tuple[int, int, int]]:
    """List stages, parts and slots of operands, the best first.

    Residual + relu after 8192x14336x4096, of the plain product's time (bfloat16, H200): by tiles
    of 128x256 in place 3.1% more with a slot next to those of a tile's four parts and 3.4% without,
    8 parts 4.7%, one 3.4%; by tiles of 256x160 and three stages 2.5% with three of five parts
    ahead and 4.1% with seven of ten, by four stages and one of ten 13%.
    """
    least = min(stages, 2) if may_take_stages else stages
    enough = range(stages, max(least, min(stages, ENOUGH_STAGES)) - 1, -1)
    if config.operand_slots is not None or not epilogue.operands:
        ahead = config.operand_slots or 0
        yield from ((slots, 1, ahead) for slots in enough if 1 in parts)
        yield from ((slots, x, ahead) for slots in range(stages, least - 1, -1) for x in parts)
        return
    swizzles = {x: _swizzle(columns // x, epilogue) for x in parts}
    if epilogue.in_place and config.persistent != 0:  # all of a tile, a slot for its last store
        several = [x for x in parts if x > 1 and swizzles[x] == WIDEST]
        yield from ((slots, x, x + 1) for slots in enough for x in several)
    yield from ((slots, x, x) for slots in enough for x in parts)  # all of a tile
    spread = [x for x in parts if swizzles[x] >= WIDEST // 2]
    yield from (  # or most of it, in rows that are spread over many banks
        (slots, x, ahead)
        for slots in enough
        for x in spread
        for ahead in range(x - 1, (x - 1) // 2 + epilogue.in_place, -1)
    )
    loaded = parts
    if epilogue.in_place:  # with one slot each load waits for the store before it
        loaded = [x for x in parts if swizzles[x] >= LEAST_SPREAD]
        every = range(stages, least - 1, -1)
        yield from ((n, x, y) for n in every for x in loaded for y in range(x - 1, 1, -1))
    for slots in range(stages, least - 1, -1):
        yield from ((slots, x, ahead) for x in loaded for ahead in range(x - 1, 0, -1))
        yield from ((slots, x, 0) for x in parts)


def _swizzle(columns: int, epilogue: EpilogueTypes) -> int:
    """Return the narrowest of the patterns that rows of a piece take."""
    return min(widest_swizzle(columns * dtype_bytes(x)) for x in epilogue.outputs)


def leaves_by_tma(
    config: MatmulConfig,
    shape: Any,
    dtype: str,
    epilogue: EpilogueTypes,
    k: Any,
    may_take_stages: bool,
    arch: Arch,
) -> bool:
    """Tell whether outputs are stored by TMA by default.

    So do those of several waves of deep sums, in boxes of whole swizzles, where `ENOUGH_STAGES`
    have room next to half a tile or all of it: threads are then back at the next tile before the
    last one is stored.

    - `config`: complete, but for how outputs leave.
    - `shape`: of the outputs.
    - `dtype`: of the operands.
    - `epilogue`: types of what is written and read after the product.
    - `k`: terms of the sum.
    - `may_take_stages`: the number of stages is not requested.
    - `arch`: the chip's limits.
    """
    if leaves_as_boxes(config, shape, dtype, epilogue, k):
        return True
    depth, tile = ir.static_int(k), config.tile
    if not leaves_operands_open(config) or config.persistent == 0 or not may_take_stages:
        return False
    if depth is None or tile is None or _column_groups(tile, config) > 1:
        return False
    if terms_by_output(depth, dtype_bytes(dtype), MEASURED_BYTES) < LEAST_DEEP:
        return False
    if not all(is_loadable(shape, x) for x in epilogue.outputs):
        return False
    sizes = {dtype_bytes(x) for x in epilogue.outputs}
    if (config.num_stages or 0) < ENOUGH_STAGES or sizes != {MEASURED_BYTES}:
        return False
    legal = [x for x in legal_parts(tile[1], 1, epilogue.outputs) if x <= MOST_PIECES]
    parts = [x for x in legal if tile[1] // x * MEASURED_BYTES % WIDEST == 0]
    trials = (replace(config, store=TmaStore(x, 0)) for x in parts)
    return any(
        staging_memory(tile, ENOUGH_STAGES, x, dtype, epilogue).fits_on(arch) for x in trials
    )


def find_staging_violations(
    tile: Tile,
    stages: int,
    config: MatmulConfig,
    dtype: str,
    epilogue: EpilogueTypes,
    arch: Arch,
) -> list[str]:
    """Return what the staging of a tile of known size breaks, as "found ...; need ..."."""
    if not config.by_tma:
        return []
    parts, groups = config.store_parts or 1, _column_groups(tile, config)
    broken, outputs, apart, more = [], epilogue.outputs, "", "more parts, "
    if groups > 1:
        apart, more = f"; {groups} warp groups share the columns: parts of theirs are no run", ""
    legal = sorted(legal_parts(tile[1], groups, outputs))
    if parts not in legal:
        one = f"one of {', '.join(map(str, legal))}, of which" if legal else "a tile of which"
        broken.append(
            f"found {parts} parts of {tile[1] // groups} columns of {' and '.join(outputs)}; need "
            f"{one} a row is a multiple of {CHUNK_BYTES} bytes and of 8 elements{apart}"
        )
    if config.operand_slots and not epilogue.operands:
        broken.append(
            f"found operand_slots={config.operand_slots} of an epilogue without a tensor to load; "
            "need one of the output's shape, static, whose rows are multiples of 16 bytes"
        )
    memory = staging_memory(tile, stages, config, dtype, epilogue)
    if not broken and not memory.fits_on(arch):
        staging = sum(x.num_bytes for x in memory.arrays if x.name.startswith(STAGED))
        broken.append(
            f"found a ring of {stages} stages and {staging} B of staging ({config.store}), "
            f"{memory.num_bytes} B of shared memory; need at most "
            f"{arch.smem_per_block} B, by {more}fewer stages or a smaller tile"
        )
    return broken


def _column_groups(tile: Tile, config: MatmulConfig) -> int:
    consumers = config.sharers
    return consumers if split_axis(tile[0], tile[1], consumers) == "n" else 1


def stage_output(sch: s_tir.Schedule, store: Any, config: MatmulConfig) -> int:
    """Let a store of the accumulator go through shared memory, in parts of its columns.

    - `store` (SBlockRV): the store, with all that follows it fused.
    - `config`: complete.
    - returns: tensors that the store reads and that come through shared memory too.
    """
    *_, columns = sch.get_loops(store)
    rows = sch.get_loops(store)[-2]
    piece, inner = sch.split(columns, [config.store_parts, None])
    sch.reorder(piece, rows, inner)
    copy = sch.cache_write(store, 0, "shared.dyn")
    walk_as_one(sch, copy, "read", sch.get(store).body)
    sch.reverse_compute_at(copy, piece)
    slots = config.operand_slots
    operands = stage_operands(sch, store, piece, slots) if slots else 0
    steps.async_store(sch, copy, TMA)
    return operands
