"""Transposed reads through shared memory, with vector access on both sides.

  Y[i, j] = f(X[j, i], Z[i, j])
->
  blockIdx.x                    tiles of 64 x 64
    load X_shared               vectors along the rows of X: threadIdx.x
    Y_local = f(X_shared, Z)    one element after another
    store Y                     vectors along the rows of Y

A row of the tile is eight vectors, which turn by one from each eight rows to the next: eight
threads that read down a column at once, each eight rows from the next, find different banks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import s_tir

from tvm_hopper import ir
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.requests import keys
from tvm_hopper.schedule.memory_bound.program import Part, equal, is_plain, plain_index

from .config import PointwiseConfig

SIDE = 64  # rows and columns of a tile
THREADS = 256
VECTORS = 8  # of a row of a tile


@dataclass(frozen=True)
class Transposition:
    """The one block of a program, and the tensors of which it reads columns."""

    part: Part
    tensors: tuple[Any, ...]
    vector: int


def find_transposition(parts: list[Part], given: PointwiseConfig) -> Transposition | None:
    """Return what is read across its rows, where tiles serve it; None elsewhere.

    One block of 16-bit values, sides that are multiples of 64, and no vector requested. A tensor
    that is read in another way, too, has no one tile that serves all its reads: `x + x.T`.
    """
    if len(parts) != 1 or given.vector is not None or given.chunks is not None:
        return None
    (part,) = parts
    axes = part.spatial
    sides = [ir.static_int(x.dom.extent) for x in axes[-2:]]
    if len(sides) < 2 or any(x is None or x % SIDE for x in sides):
        return None
    (output,) = part.outputs
    found = [x.source for x in part.loads if _is_transposed(x, axes)]
    vector = SIDE // VECTORS
    if not found or any(dtype_bytes(ir.dtype_of(x)) * vector != 16 for x in (*found, output)):
        return None
    others = [x.source for x in part.loads if not _is_transposed(x, axes)]
    if any(x.same_as(y) for x in found for y in others):
        return None
    unique = tuple(x for i, x in enumerate(found) if not any(x.same_as(y) for y in found[:i]))
    return Transposition(part, unique, vector)


def _is_transposed(load: Any, axes: Any) -> bool:
    variables = [x.var for x in axes]
    index = plain_index(load, variables)
    wanted = [*variables[:-2], variables[-1], variables[-2]]
    if index is None or len(index) != len(wanted):
        return False
    extents = [x for x in load.source.shape if not ir.is_const(x, 1)]
    whole = [x.dom.extent for x in (*axes[:-2], axes[-1], axes[-2])]
    return all(x.same_as(v) for x, v in zip(index, wanted, strict=True)) and all(
        map(equal, extents, whole)
    )


def apply_transposition(
    sch: s_tir.Schedule, plan: Transposition, given: PointwiseConfig, hint: bool
) -> PointwiseConfig:
    """Cut the block into tiles that each go through shared memory; return what was chosen."""
    block, vector = plan.part.block, plan.vector
    threads = given.threads or THREADS
    others = _reads_along_rows(plan)
    store = sch.cache_write(block, 0, "local")
    tiles = [_cache(sch, block, x, "shared") for x in plan.tensors]
    kept = [_cache(sch, block, x, "local") for x in others]
    *lead, i, j = [x for x in sch.get_loops(block) if not ir.is_const(sch.get(x).extent, 1)]
    (i, inner_i), (j, inner_j) = (sch.split(x, [None, SIDE]) for x in (i, j))
    sch.reorder(*lead, i, j, inner_i, inner_j)
    outer = sch.fuse(*lead, i, j)
    sch.bind(outer, "blockIdx.x")
    for tile in (*tiles, *kept):
        sch.compute_at(tile, outer)
    sch.reverse_compute_at(store, outer)
    for nest in (*tiles, *kept, block, store):
        elements = sch.fuse(*sch.get_loops(nest)[-2:])
        vectors, element = sch.split(elements, [None, vector])
        chunk, thread = sch.split(vectors, [None, threads])
        sch.bind(thread, "threadIdx.x")
        sch.unroll(chunk)
        if nest is block:
            sch.unroll(element)
        else:
            sch.vectorize(element)
    for tile in tiles:
        sch.transform_layout(tile, ("write", 0), _turned, assume_injective_transform=True)
    for nest in (*kept, block):

        def own(*index: Any) -> list[Any]:
            *first, r, c = index
            place = r % SIDE * SIDE + c % SIDE
            of_thread = [place // (vector * threads), place // vector % threads, place % vector]
            return [*first, r // SIDE, c // SIDE, *of_thread]

        sch.transform_layout(nest, ("write", 0), own, assume_injective_transform=True)
    text = f"{threads} threads, tiles of {SIDE} x {SIDE} through shared memory"
    sch.annotate(outer, keys.MEMORY_BOUND, keys.POINTWISE)
    sch.annotate(outer, keys.CHOSEN, text)
    if given.early_launch:
        sch.annotate(outer, keys.EARLY_LAUNCH, 1)
    if hint:
        for nest in kept:
            sch.annotate(nest, keys.LOAD_HINT, "evict_last")
    return PointwiseConfig(threads=threads, hint=hint, early_launch=given.early_launch)


def _reads_along_rows(plan: Transposition) -> list[Any]:
    """Return the tensors that are read as the output is written, and nowhere else."""
    variables = [x.var for x in plan.part.spatial]
    found: list[Any] = []
    for load in plan.part.loads:
        alike = [x for x in plan.part.loads if x.source.same_as(load.source)]
        if is_plain(load, variables) and len(alike) == 1:
            found.append(load.source)
    return found


def _cache(sch: s_tir.Schedule, block: Any, tensor: Any, scope: str) -> Any:
    reads = sch.get(block).reads
    number = next(i for i, x in enumerate(reads) if x.source.same_as(tensor))
    return sch.cache_read(block, number, scope)


def _turned(*index: Any) -> list[Any]:
    """Place an element of a tile: its row's vectors turn by one every eight rows."""
    *first, r, c = index
    vector = SIDE // VECTORS
    return [*first, r, c // SIDE, (c % SIDE // vector + r // vector) % VECTORS, c % vector]
