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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tvm import s_tir
from tvm.tirx import IndexMap

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.programming_model import (
    LINE_BYTES,
    MAX_THREADS,
    SECTOR_BYTES,
    THREAD_ACCESS_BYTES,
    THREADS_PER_WARP,
)
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
from tvm_hopper.schedule.memory_bound.tiles import flat, is_multiple, sum_bytes, widest_vector

from .config import MOST_CHUNKS, PointwiseConfig

TILE_BYTES = 8192  # eight thread blocks of them are in flight on an SM
STATIC_SHARED_BYTES = 48 << 10  # of arrays whose size the compiler knows
THREADS = 256
Place = Callable[[Any, Any], list[Any]]  # of an element i, j of a tile, in an array
MULTIPLE, CHUNKS = 128, 2  # threads are a multiple, where each has so many vectors
GROWTH = 32  # vectors that a side of a tile may be longer, so that all threads have as many


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

    @property
    def extents(self) -> list[Any]:
        """Extents of the output's dimensions."""
        return [x.dom.extent for x in self.parts[0].spatial]

    def size(self, group: int) -> Any:
        """Return the number of elements along a group of dimensions."""
        first, *rest = (self.extents[x] for x in self.groups[group])
        return prod(rest, start=first)


@dataclass(frozen=True)
class SharedTile:
    """A tile of i times j elements: how many of each, and in vectors of how many."""

    i: int
    j: int
    i_vector: int
    j_vector: int

    @property
    def counts(self) -> list[int]:
        """Vectors along each side that it has."""
        return [self.i * self.j // x for x in (self.i_vector, self.j_vector)]

    def sides(self, along: str) -> tuple[int, int]:
        """Return the elements of a row along one side, and those of its vectors."""
        return (self.i, self.i_vector) if along == "i" else (self.j, self.j_vector)

    def pitch(self, dtype: str) -> int:
        """Return how far apart elements lie that threads next to one another read at once."""
        unit = max(1, THREAD_ACCESS_BYTES // dtype_bytes(dtype))
        return (-(-self.i * self.j_vector // unit) | 1) * unit

    def num_bytes(self, tensor: Any) -> int:
        """Return the bytes of shared memory that a tensor takes."""
        dtype = ir.dtype_of(tensor)
        return self.j // self.j_vector * self.pitch(dtype) * dtype_bytes(dtype)

    def in_shared(self, dtype: str) -> Place:
        """Return where elements of a tile lie in shared memory."""
        pitch, rows = self.pitch(dtype), self.j_vector
        return lambda i, j: [j // rows * pitch + j % rows * self.i + i]

    def of_thread(self, threads: int, along: str) -> Place:
        """Return the vector, the thread and the element where it lies in registers."""

        def place(i: Any, j: Any) -> list[Any]:
            row, x = (j, i) if along == "i" else (i, j)
            size, vector = self.sides(along)
            number = row * (size // vector) + x // vector
            return [number // threads, number % threads, x % vector]

        return place


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
    found: list[Crossed] = []
    for number, tensor in enumerate(tensors):
        if any(tensor.same_as(x) for x in tensors[:number]):
            continue
        readers = tuple(p for p in parts if any(x.source.same_as(tensor) for x in p.loads))
        orders = {
            _order(x, p.spatial) for p in readers for x in p.loads if x.source.same_as(tensor)
        }
        (order, *more) = orders
        if order is not None and not more:
            found.append(Crossed(Read(tensor, readers, True), order))
    found = [x for x in found if _last(x.order) == _last(found[0].order)]
    if not found:
        return None
    others = [x for x in find_reads(sch, parts) if x.has_rows]
    return Transposition(parts, tuple(found), tuple(others), _groups(parts[0], found))


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
    pairs = [set(zip(x, x[1:], strict=False)) for x in orders]
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


def apply_transposition(
    sch: s_tir.Schedule, plan: Transposition, given: PointwiseConfig
) -> PointwiseConfig:
    """Cut the program into tiles that each go through shared memory; return what was chosen."""
    parts, full = plan.parts, frozenset(p.name for p in plan.parts)
    written = in_memory(sch, parts, full)
    loaded = [x.read.tensor for x in plan.crossed]
    beside = [x.tensor for x in plan.others]
    tile, threads = _choose_tile(plan, loaded, [*written, *beside], given.threads)
    if len(loaded) > 1 and sum(map(tile.num_bytes, loaded)) > STATIC_SHARED_BYTES:
        fewer = replace(plan, crossed=plan.crossed[:-1])  # the last one is read by elements
        return apply_transposition(sch, fewer, given)
    hint = given.hint
    if hint is None:
        total = ir.static_int(prod(plan.extents[1:], start=plan.extents[0]))
        moved = sum_bytes([*written, *beside, *loaded])
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


def _choose_tile(
    plan: Transposition, loaded: list[Any], beside: list[Any], given: int | None
) -> tuple[SharedTile, int]:
    """Choose a tile of whole cache lines on both sides, of equal parts of each extent.

    All its threads have as many vectors, on both sides: a tile may go on after its extent for that.
    """
    i, j = (plan.size(x) for x in (-2, -1))
    i_vector, j_vector = widest_vector(i, loaded), widest_vector(j, beside)
    widths = [max(dtype_bytes(ir.dtype_of(x)) for x in some) for some in (loaded, beside)]
    sides = [LINE_BYTES // x for x in widths]
    area = TILE_BYTES // widths[0]
    rows = _equal_parts(j, sides[1], j_vector, widths[1])
    columns = _equal_parts(i, max(sides[0], area // rows), i_vector, widths[0])
    rows = _equal_parts(j, max(sides[1], area // columns), j_vector, widths[1])
    vectors = (i_vector, j_vector)
    unit = given or (
        MULTIPLE if columns * rows >= CHUNKS * MULTIPLE * max(vectors) else THREADS_PER_WARP
    )
    grown = [
        SharedTile(columns + a * i_vector, rows + b * j_vector, i_vector, j_vector)
        for a in range(GROWTH)
        for b in range(GROWTH)
    ]
    grown = [x for x in grown if not any(count % unit for count in x.counts)]
    tile = min(grown, key=lambda x: x.i * x.j, default=None)
    if tile is None or tile.num_bytes(loaded[0]) > STATIC_SHARED_BYTES:
        found, need = f"threads={unit}", "a divisor of the number of vectors of a tile"
        raise cannot_schedule("PointwiseConfig", found, need, "leave it out")
    counts = tile.counts
    sizes = range(unit, max(THREADS, max(counts) // MOST_CHUNKS) + 1, unit)
    fitting = [x for x in sizes if x <= MAX_THREADS and not any(count % x for count in counts)]
    return tile, given or max(fitting)


def _equal_parts(extent: Any, most: int, vector: int, width: int) -> int:
    """Return the elements of a part, where an extent has as few as possible of at most so many.

    Parts begin at whole sectors, where all rows do.
    """
    while vector * width < SECTOR_BYTES and is_multiple(extent, 2 * vector):
        vector *= 2
    size, most = ir.static_int(extent), max(1, most // vector)
    if size is None:
        return most * vector
    vectors = size // vector
    return -(-vectors // -(-vectors // most)) * vector


def _stage(sch: s_tir.Schedule, one: Crossed) -> tuple[Nest, Nest]:
    """Load a tensor into registers, and from there into shared memory."""
    store = keep_read(sch, one.read, "shared")
    return Nest(sch.cache_read(store, 0, "local"), Work.LOAD), Nest(store, Work.STAGE)


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
    whole, vector = tile.sides(along)
    one, other = (i, j) if along == "i" else (j, i)
    vectors, element = sch.split(one, [None, vector])
    one, vectors = sch.split(vectors, [None, whole // vector])
    other, inner = sch.split(other, [None, tile.j if along == "i" else tile.i])
    i, j = (one, other) if along == "i" else (other, one)
    sch.reorder(*rows, i, j, inner, vectors, element)
    chunk, thread = sch.split(sch.fuse(inner, vectors), [None, threads])
    sch.bind(thread, "threadIdx.x")
    sch.unroll(chunk)
    if nest.work is Work.COMPUTE:
        sch.unroll(element)
    elif vector > 1:
        sch.vectorize(element)
    return sch.fuse(*rows, i, j)


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
