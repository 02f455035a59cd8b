"""Sort the axes of a product: rows, columns, depth, and those outside of its tiles.

    for b, s, j, h, k: C[b, s, j] += A[b, s, h, k] * W[j, h, k]
  ->
    rows (b, s), columns (j), depth (h, k); one axis each, as A, W and C have them one after another
    in memory: A_view[r, x] = A[r // S, r % S, x // K, x % K]

Axes that memory keeps apart stay apart: one of each kind is cut into tiles, and a thread block has
one value of the others, as it has of a batch axis, which moves both operands and the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import s_tir, tirx
from tvm.tirx import IndexMap, IterVar

from tvm_hopper import ir
from tvm_hopper.analysis.access import AffineAccess, step_of, strides_bytes
from tvm_hopper.analysis.digits import find_runs, is_digit, merge
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.dtypes import dtype_bytes

STORE_BY_TMA = 'store="tma"'
LARGE = 1 << 40  # what an extent that is known at run time only counts as


@dataclass(frozen=True)
class ProductAxes:
    """Positions of a block's variables by what they move; variables of extent one are left out.

    `rows` move the output and the first factor, `columns` the output and the second one, `depth`
    the sum, `batch` the output and both factors or neither.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    depth: tuple[int, ...]
    batch: tuple[int, ...]


def sort_axes(node: Any, loads: Sequence[Any]) -> ProductAxes:
    """Sort the variables of a product's block by what they move.

    - `node` (SBlock): its body is one store.
    - `loads` (sequence of TensorLoad): of both factors.
    """
    found: dict[str, list[int]] = {"rows": [], "columns": [], "depth": [], "batch": []}
    for i, var in enumerate(node.iter_vars):
        if ir.is_const(var.dom.extent, 1):
            continue
        left, right = (ir.depends_on(list(x.indices), [var.var]) for x in loads)
        kind = "batch" if left == right else "rows" if left else "columns"
        found["depth" if var.iter_type == IterVar.CommReduce else kind].append(i)
    return ProductAxes(**{kind: tuple(places) for kind, places in found.items()})


def element_of_index(index: Any) -> Any:
    """Return the element of a tensor that an index is, cast or not; None for other indices."""
    index = index.value if isinstance(index, tirx.Cast) else index
    return index if isinstance(index, ir.TensorLoad) else None


def tile_axes(node: Any, loads: Sequence[Any]) -> tuple[int | None, int | None, int | None]:
    """Choose the rows, columns and depth that are cut into tiles; None where there are none.

    Operands come in rows that are contiguous in memory, so that an axis that is so is chosen; else
    the largest one.
    """
    axes = sort_axes(node, loads)
    inner = [contiguous_axis(node, x) for x in loads]

    def pick(group: tuple[int, ...]) -> int | None:
        contiguous = [x for x in inner if x in group]
        extents = {x: ir.static_int(node.iter_vars[x].dom.extent) or LARGE for x in group}
        return (
            contiguous[0] if contiguous else max(group, key=lambda x: (extents[x], x), default=None)
        )

    return pick(axes.rows), pick(axes.columns), pick(axes.depth)


def contiguous_axis(node: Any, load: Any) -> int | None:
    """Return the variable along which a tensor's elements are neighbours in memory, if any is."""
    size = dtype_bytes(ir.dtype_of(load.source))
    variables = [x.var for x in node.iter_vars]
    for index, stride in reversed(list(zip(load.indices, strides_bytes(load.source), strict=True))):
        moving = [i for i, v in enumerate(variables) if ir.depends_on(index, [v])]
        if not ir.is_const(stride, size) or len(moving) != 1:
            continue
        if not ir.is_const(node.iter_vars[moving[0]].dom.extent, 1):
            return moving[0]
    return None


def merge_axes(sch: s_tir.Schedule, block: Any, loads: Sequence[Any]) -> bool:
    """Make one axis of those of a kind that lie one after another in every tensor that has them.

    - `block` (SBlockRV): the multiply-add, in plain loops.
    - `loads` (sequence of TensorLoad): of both factors.
    - returns: whether any were: then the block's variables are other ones.
    """
    node = sch.get(block)
    axes = sort_axes(node, loads)
    accesses = [*loads, node.body]
    extents = [x.dom.extent for x in node.iter_vars]
    runs: list[list[int]] = [[i] for i in range(len(extents))]
    for group in (axes.rows, axes.columns, axes.depth):
        for outer in group:
            for inner in group:
                if outer == inner or not _follow(node, accesses, outer, inner):
                    continue
                first = next(x for x in runs if x and x[-1] == outer)
                second = next(x for x in runs if x and x[0] == inner)
                first.extend(second)
                second.clear()
    runs = [x for x in runs if x]
    if len(runs) == len(extents):
        return False

    def merged(*variables: Any) -> list[Any]:
        found = []
        for run in runs:
            value = variables[run[0]]
            for i in run[1:]:
                value = value * extents[i] + variables[i]
            found.append(value)
        return found

    dtype = ir.dtype_of(node.iter_vars[0].var)
    sch.transform_block_layout(
        block, IndexMap.from_func(merged, ndim=len(extents), index_dtype=dtype)
    )
    return True


def walks_through(store: Any) -> bool:
    """Tell an index that is a variable, or digits of one, in each dimension: no element twice."""
    shape = list(store.buffer.shape)
    strides = AffineAccess(store.buffer, tuple(store.indices), ()).strides
    indices = list(store.indices)
    merged = [
        merge([indices[d] for d in run], [shape[d] for d in run])
        for run in find_runs(indices, shape, strides)
    ]
    return not any(is_digit([x]) for x in merged)


def walk_as_one(sch: s_tir.Schedule, copy: Any, kind: str, store: Any) -> None:
    """Merge the dimensions of a tile that a store walks through as through one.

    - `copy` (SBlockRV): copies between the tile and a tensor, all of it.
    - `kind`: "read" or "write": what it does to the tile.
    - `store` (BufferStore): its index says which dimensions those are; the tile has as many.
    - raises ScheduleError: such dimensions, but the first of them, are symbolic: TVM finds no
      bounds of their product.
    """
    shape = list(store.buffer.shape)
    runs = find_runs(store.indices, shape, _compact(shape))
    if len(runs) == len(shape):
        return
    for run in runs:
        if symbolic := [shape[d] for d in run[1:] if ir.static_int(shape[d]) is None]:
            raise cannot_schedule(
                f"block {sch.get(copy).name_hint}",
                f"{', '.join(map(str, symbolic))}, symbolic, inside of rows that are one axis of "
                f"the tile, with {STORE_BY_TMA}",
                "static dimensions there: TMA takes the merged rows as one dimension",
                f"leave {STORE_BY_TMA} out: threads store the rows",
            )
    as_one = IndexMap.from_func(
        lambda *i: [merge([i[d] for d in run], [shape[d] for d in run]) for run in runs],
        ndim=len(shape),
        index_dtype=ir.dtype_of(store.indices[0]),
    )
    sch.transform_block_layout(copy, as_one)
    sch.transform_layout(copy, (kind, 0), as_one)


def _compact(shape: Sequence[Any]) -> list[Any]:
    """Return the strides of a compact tensor."""
    strides: list[Any] = [1]
    for extent in reversed(shape[1:]):
        strides.insert(0, tirx.Cast("int64", extent) * strides[0])
    return strides


def _follow(node: Any, accesses: Sequence[Any], outer: int, inner: int) -> bool:
    """Tell whether one axis continues another one in every tensor that has either of them."""
    pair = [node.iter_vars[x] for x in (outer, inner)]
    for access in accesses:
        places = [
            [d for d, x in enumerate(access.indices) if ir.depends_on(x, [v.var])] for v in pair
        ]
        if places == [[], []]:
            continue
        if [len(x) for x in places] != [1, 1]:
            return False
        (first,), (second,) = places
        follows = _in_one_dimension if first == second else _in_two_dimensions
        if not follows(access, pair, first, second):
            return False
    return True


def _in_one_dimension(access: Any, pair: list[Any], first: int, _: int) -> bool:
    """Tell an index x * length of y + y, and what neither of them moves."""
    steps = [step_of(access.indices[first], x.var) for x in pair]
    return steps == [ir.static_int(pair[1].dom.extent), 1]


def _in_two_dimensions(access: Any, pair: list[Any], first: int, second: int) -> bool:
    """Tell two whole dimensions that lie one after the other in memory."""
    tensor = access.buffer if isinstance(access, ir.BufferStore) else access.source
    strides, places = strides_bytes(tensor), (first, second)
    whole = all(
        x.var.same_as(access.indices[d]) and _same(tensor.shape[d], x.dom.extent)
        for d, x in zip(places, pair, strict=True)
    )
    length = ir.cast_like(pair[1].dom.extent, strides[second])
    return whole and _same(strides[first], strides[second] * length)


def _same(a: Any, b: Any) -> bool:
    return ir.is_const(ir.simplify(a - ir.cast_like(b, a)), 0)
