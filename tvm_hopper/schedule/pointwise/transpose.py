"""Permuted dimensions by tiles in shared memory, with vectors on both sides.

  Y[n, h, w, c] = f(X[n, c, h, w], Z[n, h, w, c], B[c])        dimensions that move together are one
->
  blockIdx.x                        tiles of i = (h, w), the last dimension of X, and j = c
    load X_local, X_shared          vectors along i: threadIdx.x
    load Z_local                    vectors along j
    Y_local = f(X_shared, Z, B)     one element of X_shared after another
    store Y                         vectors along j

A thread reads `vector` rows of the tile, one element of each; threads next to it read the rows
after these. So many rows of the tile take an odd number of 16 bytes: such threads find different
banks. Vectors are as wide as an extent allows, on each side by itself. The last tile of a side is
a part: conditions are on whole vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

from tvm import s_tir
from tvm.tirx import IndexMap

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.requests import keys
from tvm_hopper.requests.targets import chip_of_target
from tvm_hopper.schedule.memory_bound.arrays import Read, find_reads, keep_read
from tvm_hopper.schedule.memory_bound.estimate import model_of_target
from tvm_hopper.schedule.memory_bound.nests import (
    Nest,
    Work,
    hint_loads,
    in_memory,
    keep_arrays,
    keep_end,
    merge,
)
from tvm_hopper.schedule.memory_bound.program import Part, equal, plain_index
from tvm_hopper.schedule.memory_bound.tiles import flat, sum_bytes

from .config import PointwiseConfig
from .transpose_tile import Place, SharedTile, choose_tile


@dataclass(frozen=True)
class Crossed:
    """A tensor that is read with its dimensions in another order.

    `order` names for each of its dimensions the output's, None for those of extent one.
    """

    read: Read
    order: tuple[int | None, ...]


@dataclass(frozen=True)
class Transposition:
    """A program that goes through shared memory.

    `groups` are the output's dimensions that move together: those of which there is a tile each
    are the last two, that of the reads' last dimension first.
    """

    parts: list[Part]
    crossed: tuple[Crossed, ...]
    others: tuple[Read, ...]
    groups: tuple[tuple[int, ...], ...]
    tile: SharedTile
    threads: int

    @property
    def extents(self) -> list[Any]:
        """Extents of the output's dimensions."""
        return [x.dom.extent for x in self.parts[0].spatial]


def find_transposition(
    sch: s_tir.Schedule, parts: list[Part], given: PointwiseConfig
) -> Transposition | None:
    """Return what is read across its rows, where tiles serve it; None elsewhere.

    A tensor that is read in another way, too, has no one tile that serves all its reads:
    `x + x.T`. One that ends with another dimension than the first such tensor is read by elements.
    """
    if given.vector is not None or given.chunks is not None or len(parts[0].spatial) < 2:
        return None
    tensors = [x.source for p in parts for x in p.loads]
    used = [*tensors, *(x for p in parts for x in p.outputs)]
    if any(x.ty.strides for x in used):
        return None
    found = _read_across(parts, tensors)
    found = [x for x in found if _last(x.order) == _last(found[0].order)]
    if not found:
        return None
    others = tuple(x for x in find_reads(sch, parts) if x.has_rows)
    written = in_memory(sch, parts, frozenset(p.name for p in parts))
    beside = [*written, *(x.tensor for x in others)]
    sides = _sides(parts[0], _groups(parts[0], found))
    while found:  # those without room are read by elements
        tile = choose_tile(sides, [x.read.tensor for x in found], beside, given.threads)
        if tile is not None:
            groups = _groups(parts[0], found)
            return Transposition(parts, tuple(found), others, groups, *tile)
        found.pop()
    if given.threads is not None:
        found_threads, need = f"threads={given.threads}", "a divisor of the vectors of a tile"
        raise cannot_schedule("PointwiseConfig", found_threads, need, "leave it out")
    return None


def _read_across(parts: list[Part], tensors: list[Any]) -> list[Crossed]:
    """Return the tensors that are read in one way alone, across their rows."""
    found: list[Crossed] = []
    for number, tensor in enumerate(tensors):
        if any(tensor.same_as(x) for x in tensors[:number]):
            continue
        readers = tuple(p for p in parts if any(x.source.same_as(tensor) for x in p.loads))
        order, *more = {
            _order(x, p.spatial) for p in readers for x in p.loads if x.source.same_as(tensor)
        }
        if order is not None and not more:
            found.append(Crossed(Read(tensor, readers, True), order))
    return found


def _order(load: Any, axes: Sequence[Any]) -> tuple[int | None, ...] | None:
    """Return which dimension of the output each index is; None for no permutation of rows."""
    variables = [x.var for x in axes]
    index = plain_index(load, variables)
    if index is None or len(index) != len(axes) or index[-1].same_as(variables[-1]):
        return None
    places: list[int | None] = []
    for x, extent in zip(load.indices, load.source.shape, strict=True):
        at = next((i for i, v in enumerate(variables) if x.same_as(v)), None)
        if at is None and not ir.is_const(extent, 1):
            return None
        if at is not None and not equal(extent, axes[at].dom.extent):
            return None
        places.append(at)
    return tuple(places) if len(set(places) - {None}) == len(axes) else None


def _last(order: tuple[int | None, ...]) -> int:
    return [x for x in order if x is not None][-1]


def _groups(part: Part, crossed: list[Crossed]) -> tuple[tuple[int, ...], ...]:
    """Return the dimensions that lie next to one another in all tensors, outermost first."""
    orders = [[x for x in one.order if x is not None] for one in crossed]
    pairs = [set(pairwise(x)) for x in orders]
    groups: list[tuple[int, ...]] = []
    for axis, variable in enumerate(part.spatial):
        is_static = ir.static_int(variable.dom.extent) is not None
        if axis and is_static and all((axis - 1, axis) in x for x in pairs):
            groups[-1] += (axis,)
        else:
            groups.append((axis,))
    *rows, last = groups
    inner = next(x for x in rows if x[-1] == _last(crossed[0].order))
    return (*(x for x in rows if x is not inner), inner, last)


def _sides(part: Part, groups: tuple[tuple[int, ...], ...]) -> list[Any]:
    """Return the numbers of elements along the two groups of which there is a tile."""
    sizes = [[part.spatial[x].dom.extent for x in group] for group in groups[-2:]]
    return [prod(rest, start=first) for first, *rest in sizes]


def apply_transposition(
    sch: s_tir.Schedule, plan: Transposition, given: PointwiseConfig
) -> PointwiseConfig:
    """Cut the program into tiles that each go through shared memory; return what was chosen."""
    parts, full = plan.parts, frozenset(p.name for p in plan.parts)
    written = in_memory(sch, parts, full)
    loaded = [x.read.tensor for x in plan.crossed]
    tile, threads = plan.tile, plan.threads
    hint = given.hint
    if hint is None:
        total = ir.static_int(prod(plan.extents[1:], start=plan.extents[0]))
        moved = sum_bytes([*written, *(x.tensor for x in plan.others), *loaded])
        hint = model_of_target().outgrows_cache(None if total is None else total * moved)
    nests = keep_arrays(sch, parts, full, list(plan.others))
    staged = [_stage(sch, x) for x in plan.crossed]
    loops = []
    for one, pair in zip(plan.crossed, staged, strict=True):
        for nest in pair:
            _number(sch, nest.block, one.order, plan)
        load, store = pair
        _lay_out(sch, load, one.order, plan, tile, tile.of_thread(threads, "i"))
        _lay_out(sch, store, one.order, plan, tile, tile.in_shared(ir.dtype_of(one.read.tensor)))
        loops += [_deal_out(sch, x, tile, threads, "i") for x in pair]
    for nest in nests:
        axes = sch.get(nest.block).iter_vars
        _number(sch, nest.block, _dimensions([x.dom.extent for x in axes]), plan)
        if nest.work is not Work.STORE:
            order = _dimensions(sch.get(nest.block).writes[0].source.shape)
            own = tile.of_thread(threads, "j")
            _lay_out(sch, nest, order, plan, tile, own)
        loops.append(_deal_out(sch, nest, tile, threads, "j"))
    outer = merge(sch, loops)
    sch.bind(outer, "blockIdx.x")
    text = f"{threads} threads, tiles of {tile.i} x {tile.j} through shared memory"
    sch.annotate(outer, keys.MEMORY_BOUND, keys.POINTWISE)
    sch.annotate(outer, keys.CHOSEN, text)
    if given.early_launch:
        sch.annotate(outer, keys.EARLY_LAUNCH, 1)
    if hint:
        hint_loads(sch, [*(load for load, _ in staged), *nests])
        keep_end(sch, outer, tile.i * tile.j * sum_bytes(written), chip_of_target().l2_bytes)
    return PointwiseConfig(threads=threads, hint=hint, early_launch=given.early_launch)


def _stage(sch: s_tir.Schedule, one: Crossed) -> tuple[Nest, Nest]:
    """Load a tensor into registers, and from there into shared memory."""
    store = keep_read(sch, one.read, "shared")
    load = sch.cache_read(store, 0, "local", consumer_blocks=[store])
    return Nest(load, Work.LOAD), Nest(store, Work.STAGE)


def _along_groups(indices: Sequence[Any], order: Sequence[int | None], plan: Transposition) -> Any:
    """Return one index for each group, given those of a tensor whose dimensions have this order."""
    own = {axis: x for axis, x in zip(order, indices, strict=True) if axis is not None}
    extents = plan.extents
    return [flat([own[x] for x in one], [extents[x] for x in one])[0] for one in plan.groups]


def _number(
    sch: s_tir.Schedule, block: Any, order: Sequence[int | None], plan: Transposition
) -> None:
    """Let a block count along groups of dimensions."""
    axes = list(sch.get(block).iter_vars)
    numbered = IndexMap.from_func(
        lambda *index: _along_groups(index, order, plan),
        ndim=len(axes),
        index_dtype=ir.dtype_of(axes[0].var),
    )
    sch.transform_block_layout(block, numbered)


def _dimensions(shape: Sequence[Any]) -> list[int | None]:
    """Return the order of a shape with the output's dimensions, and others of extent one."""
    found: list[int | None] = []
    for extent in shape:
        is_one = ir.is_const(extent, 1)
        found.append(None if is_one else len([x for x in found if x is not None]))
    return found


def _deal_out(sch: s_tir.Schedule, nest: Nest, tile: SharedTile, threads: int, along: str) -> Any:
    """Cut a nest into tiles, and these into vectors of threads; return the loop over tiles."""
    *rows, i, j = sch.get_loops(nest.block)
    # nests of the two sides are split in the same way: symbolic numbers of tiles are the same
    (i, i_vectors, i_element), (j, j_vectors, j_element) = (
        _split(sch, loop, *tile.sides(side)) for side, loop in (("i", i), ("j", j))
    )
    if along == "i":
        sch.reorder(*rows, i, j, j_vectors, j_element, i_vectors, i_element)
        inner, vectors, element = sch.fuse(j_vectors, j_element), i_vectors, i_element
    else:
        sch.reorder(*rows, i, j, i_vectors, i_element, j_vectors, j_element)
        inner, vectors, element = sch.fuse(i_vectors, i_element), j_vectors, j_element
    chunk, thread = sch.split(sch.fuse(inner, vectors), [None, threads])
    sch.bind(thread, "threadIdx.x")
    sch.unroll(chunk)
    if nest.work is Work.COMPUTE:
        sch.unroll(element)
    elif tile.sides(along)[1] > 1:
        sch.vectorize(element)
    return sch.fuse(*rows, i, j)


def _split(sch: s_tir.Schedule, loop: Any, whole: int, vector: int) -> list[Any]:
    """Split a loop into tiles, their vectors, and elements of these."""
    vectors, element = sch.split(loop, [None, vector])
    return [*sch.split(vectors, [None, whole // vector]), element]


def _lay_out(
    sch: s_tir.Schedule,
    nest: Nest,
    order: Sequence[int | None],
    plan: Transposition,
    tile: SharedTile,
    place: Place,
) -> None:
    """Index the array that a block writes by its tile and the place in it."""

    def index(*indices: Any) -> list[Any]:
        *rows, i, j = _along_groups(indices, order, plan)
        return [*rows, i // tile.i, j // tile.j, *place(i % tile.i, j % tile.j)]

    # One to one, and not onto where the last tiles of a side are parts.
    sch.transform_layout(nest.block, ("write", 0), index, assume_injective_transform=True)
