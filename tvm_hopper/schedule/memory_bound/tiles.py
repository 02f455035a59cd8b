"""Register tiles of rows, and the loops over them.

    for i in range(1000):                      rows
        for j in range(4096): tile[i, j] = X[i, j]
        for k in range(4096): S[i] += tile[i, k]
  ->
    for block in thread_binding(500, "blockIdx.x"):
        for row in thread_binding(2, "threadIdx.y"):
            for c in unroll(4):                                   4 vectors of a thread,
                for t in thread_binding(128, "threadIdx.x"):      in flight together
                    for v in vectorized(8): tile[.., c, t, v] = X[.., (c * 128 + t) * 8 + v]
            for c in unroll(4): for t in thread_binding(128, ...): for v in unroll(8):
                S[..] += tile[.., c, t, v]

All nests distribute a row in the same way, so that each thread keeps its elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import s_tir, tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.dtypes import dtype_bytes

from .program import equal

# counts a row's thread blocks until ReduceAcrossThreads makes a cluster of them
PART_AXIS = "threadIdx.z"


@dataclass(frozen=True)
class RegisterTile:
    """Distribution of a row part's elements over threads."""

    threads: int  # that share it, neighbours by their number
    vector: int  # elements that one of them loads and stores at once
    chunks: int  # vectors that one of them has, which are in flight together
    rows: int = 1  # of a thread block, each with separate threads
    cluster: int = 1  # thread blocks that share a row, each with a part of it
    # Elements of the row before, at most, in the vector in which a row begins (ALIGNED_ROWS).
    shift: int = 0
    unroll: int = 1  # rows of a thread, one after another; their loads are in flight together

    @property
    def block_rows(self) -> int:
        """Rows of a thread block."""
        return self.rows * self.unroll

    @property
    def columns(self) -> int:
        """Elements of a row that its threads have room for."""
        return self.threads * self.vector * self.chunks * self.cluster


def deal_out(
    sch: s_tir.Schedule,
    loop: Any,
    tile: RegisterTile,
    *,
    whole: bool,
    share: str | None = None,
    inside: bool = False,
) -> Any:
    """Split a loop over the elements of a row between tiles, vectors, threads and elements.

    - `loop` (LoopRV): runs over a row.
    - `whole`: whether the innermost loop becomes one instruction: loads and stores.
    - `share`: the axis of thread blocks that have one vector of each thread, instead of all of
      them.
    - `inside`: whether the loop runs over the elements that threads have at once, not over a row.
    - returns (LoopRV): the loop over tiles.
    """
    extent = sch.get(loop).extent
    if tile.shift:  # one bound, on elements
        turns = 1 if inside else -(-(int(extent) + tile.shift) // tile.columns)
        factors = [turns, tile.chunks, tile.threads, tile.vector]
        parts = [tile.cluster] if tile.cluster > 1 else []
        *part, outer, chunk, thread, element = sch.split(loop, [*parts, *factors])
        for axis in part:
            sch.bind(axis, PART_AXIS)
    elif tile.cluster > 1:
        vectors, element = sch.split(loop, [None, tile.vector])
        turns = -(-int(extent) // tile.columns)  # TVM takes one more for None here
        factors = [tile.cluster, turns, tile.chunks, tile.threads]
        part, outer, chunk, thread = sch.split(vectors, factors)
        sch.bind(part, PART_AXIS)
    else:
        vectors, element = sch.split(loop, [None, tile.vector])
        outer, chunk, thread = sch.split(vectors, [None, tile.chunks, tile.threads])
    sch.bind(thread, "threadIdx.x")
    if share is None:
        sch.unroll(chunk)
    else:
        sch.bind(chunk, share)
    if tile.shift or not whole:
        sch.unroll(element)
    elif tile.vector > 1:
        sch.vectorize(element)
    return outer


def lay_out(
    sch: s_tir.Schedule,
    block: Any,
    tile: RegisterTile,
    num_row_dims: int,
    columns: Any = None,
    has_rows: bool = True,
) -> None:
    """Index the register array that a block writes by row, vector, thread and element.

    Its last `num_row_dims` dimensions, of those that are longer than one, make a row; or all are
    numbered, where rows of so many columns begin or end within a dimension.
    """
    shape = list(sch.get(block).writes[0].source.shape)
    first = first_of_row(shape, num_row_dims)
    crosses = columns is not None and not ends_with(shape, columns)
    whole, vector = tile.threads * tile.vector, tile.vector

    def index(*i: Any) -> list[Any]:
        rows = flat(i[:first], shape[:first])
        (column,) = flat(i[first:], shape[first:]) or [zero_of(i)]
        if crosses:
            *rows, column = regroup(list(i), shape, [None, columns])
            rows = rows if has_rows and not is_one_row(shape, columns) else []
        place = [column // whole, column % whole // vector, column % vector]
        return [*rows, *place]

    # One to one, and not onto where the last vectors of a row lie after its end.
    sch.transform_layout(block, ("write", 0), index, assume_injective_transform=True)


def lay_out_rows(sch: s_tir.Schedule, block: Any) -> None:
    """Index the register arrays that a block writes, one value a row, by the number of the row."""
    for number, region in enumerate(sch.get(block).writes):
        shape = list(region.source.shape)
        if len(shape) > 1:
            _number(sch, block, number, shape)


def _number(sch: s_tir.Schedule, block: Any, number: int, shape: list[Any]) -> None:
    sch.transform_layout(block, ("write", number), lambda *i: flat(i, shape) or [zero_of(i)])


def first_of_row(extents: list[Any], count: int) -> int:
    """Return the first of the last `count` dimensions, not counting those of extent one."""
    real = [i for i, x in enumerate(extents) if not ir.is_const(x, 1)]
    return real[len(real) - count] if 0 < count <= len(real) else len(extents)


def ends_with(extents: Sequence[Any], columns: Any) -> bool:
    """Tell whether the last dimension longer than one is a row."""
    real = [x for x in extents if not ir.is_const(x, 1)]
    return not real or equal(real[-1], columns)


def is_one_row(extents: Sequence[Any], columns: Any) -> bool:
    """Tell whether all dimensions together are one row."""
    return equal(prod(extents[1:], start=extents[0]), columns)


def flat(indices: Any, extents: Any) -> list[Any]:
    """Return one index in place of those of several dimensions, none for none."""
    number: Any = None
    for index, extent in zip(indices, extents, strict=True):
        if ir.is_const(extent, 1):
            continue
        number = index if number is None else number * ir.cast_like(extent, index) + index
    return [] if number is None else [number]


def regroup(indices: list[Any], extents: list[Any], wanted: list[Any]) -> list[Any]:
    """Return the index along each of other dimensions, of as many elements, the last one first.

    A dimension that two of them share is split, so that TVM can invert the whole.
    """
    left = [x for x in zip(indices, extents, strict=True) if not ir.is_const(x[1], 1)]
    found: list[Any] = []
    for extent in reversed(wanted[1:]):
        taken: list[tuple[Any, Any]] = []
        missing = ir.static_int(extent)
        while missing is not None and missing > 1 and left:
            index, size = left.pop()
            known = ir.static_int(size)
            if known is not None and missing % known == 0:
                taken, missing = [(index, size), *taken], missing // known
                continue
            if known is None or known % missing:
                break  # neither is a part of the other
            part = ir.cast_like(missing, index)
            taken = [(index % part, part), *taken]
            left.append((index // part, ir.simplify(ir.cast_like(size, index) // part)))
            missing = 1
        if missing != 1:
            return _divide(indices, extents, wanted)
        found = [*(flat(*zip(*taken, strict=True)) if taken else [zero_of(indices)]), *found]
    if not wanted:
        return []
    rest = flat(*zip(*left, strict=True)) if left else []
    return [*(rest or [zero_of(indices)]), *found]


def _divide(indices: list[Any], extents: list[Any], wanted: list[Any]) -> list[Any]:
    """Return the same by divisions of the number of an element."""
    (number,) = flat(indices, extents) or [zero_of(indices)]
    found: list[Any] = []
    for extent in reversed(wanted[1:]):
        size = ir.cast_like(extent, number)
        found, number = [number % size, *found], number // size
    return [number, *found]


def zero_of(indices: Any) -> Any:
    """Return the one index of what has one element, in the type of its indices."""
    return tirx.IntImm(ir.dtype_of(indices[0]), 0)


def widest_vector(columns: Any, tensors: list[Any], most: int | None = None) -> int:
    """Return the elements of the widest vectors in which rows of tensors can be loaded."""
    dtypes = [ir.dtype_of(x) for x in tensors]
    vector = min(16 // max(map(dtype_bytes, dtypes)), most or 16)
    apart = [x for tensor in tensors for x in _apart(tensor)]
    while vector > 1 and not all(is_multiple(x, vector) for x in (columns, *apart)):
        vector //= 2
    return vector


def is_multiple(extent: Any, vector: int) -> bool:
    """Tell whether an extent is known to be a number of whole vectors."""
    return ir.is_const(ir.simplify(extent % vector), 0)


def whole_vector(
    config: str, where: str, columns: Any, tensors: list[Any], asked: int | None
) -> int:
    """Return the elements of a vector; refuse a request that rows or the widest tensor rule out.

    `where` says of which rows; without tensors a vector is one element.
    """
    vector = widest_vector(columns, tensors, asked) if tensors else 1
    if asked is not None and vector != asked:
        need = f"at most 16 bytes of the widest tensor, and whole vectors: {vector}"
        raise cannot_schedule(config, f"vector={asked}{where}", need)
    return vector


def sum_bytes(tensors: Iterable[Any]) -> int:
    """Return the bytes of one element of each tensor."""
    return sum(dtype_bytes(ir.dtype_of(x)) for x in tensors)


def _apart(tensor: Any) -> list[Any]:
    """Return how far apart rows begin in a tensor with strides; 1 if elements are no neighbours."""
    *rows, element = list(tensor.ty.strides or ()) or [1]
    return [*rows, *([] if ir.is_const(element, 1) else [1])]
