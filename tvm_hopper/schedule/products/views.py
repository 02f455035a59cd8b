"""Rewrite products on views and parts of tensors to plain operands and outputs.

    C[i + 16, j] += A[i, 1, k + 8] * B[k, j + 32]
  ->
    A_view[i, k] = A[i, 1, k + 8]
    B_view[k, j] = B[k, j + 32]
    C_view[i, j] += A_view[i, k] * B_view[k, j]
    C[i + 16, j] = C_view[i, j]

A view has the product's own extents, so it is padded at the part's bounds and not at the tensor's.
No view is ever stored: `async_copy` and `fuse_epilogue` inline them again.  An access that is no
part of a tensor is left as it is, for `find_matmul` to refuse by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import s_tir
from tvm.tirx import IndexMap

from tvm_hopper import ir
from tvm_hopper.analysis.access import strides_bytes
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts import tensor_map as maps
from tvm_hopper.facts.dtypes import DTYPES, dtype_bytes

from .axes import contiguous_axis, merge_axes, tile_axes, walks_through
from .recognize import check_plain_loops, loops_around, product_loads


@dataclass(frozen=True)
class ViewAccess:
    """An access of a block: which tensor dimensions follow which iteration variables.

    `moving` maps a dimension to the position of the block's variable, `offsets` to what is added.
    """

    buffer: Any
    moving: dict[int, int]
    offsets: dict[int, Any]
    rest: dict[int, Any]  # dimension -> index that no variable changes


@dataclass(frozen=True)
class View:
    """One tensor that needs a view, and the block's variables in the order of its dimensions."""

    buffer: Any
    order: tuple[int, ...]


def make_views(sch: s_tir.Schedule, block: Any, loads: tuple[Any, Any] | None = None) -> list[Any]:
    """Merge axes, and insert views where a product does not work on whole tensors of its axes.

    Returns the buffers of the operands' views.

    - `block` (SBlockRV): the multiply-add, in plain loops.
    - `loads` (tuple): those of its operands, if they are known.
    - raises ScheduleError: a part of an operand lies in memory as no tensor map can describe it.
    """
    node = sch.get(block)
    where = f"block {node.name_hint}"
    check_plain_loops(where, loops_around(sch, block), node)
    loads = loads or product_loads(where, node)
    for buffer in (*(load.source for load in loads), node.body.buffer):
        _check_declaration(where, buffer)
    if merge_axes(sch, block, loads):
        node = sch.get(block)
        loads = product_loads(where, node)
    operands = [view for load in loads if (view := plan_operand(where, node, load))]
    output = plan_output(node, loads)
    made = []
    for view in (*operands, *plan_initial_values(node, loads)):
        position = _position(node.reads, view.buffer)
        sch.reindex_cache_read(block, position, "global", _index_map(node, view))
        node = sch.get(block)
        made.append(node.reads[position].source)
    if output is not None:
        sch.reindex_cache_write(block, 0, "global", _index_map(node, output))
    return made


def _check_declaration(where: str, buffer: Any) -> None:
    """Refuse elements of no whole bytes, and strides that no call can bind, by TVM's own rules."""
    tensor = f"{where}, tensor {buffer.name}"
    if ir.dtype_of(buffer) not in DTYPES:
        found = f"elements of type {ir.dtype_of(buffer)}"
        fix = "store several in an integer, and take them apart in a block before the product"
        raise cannot_schedule(tensor, found, f"one of {', '.join(DTYPES)}", fix)
    strides, shape = list(buffer.ty.strides or ()), list(buffer.shape)
    if not strides:
        return
    if len(strides) != len(shape):
        found = f"{len(strides)} strides for {len(shape)} dimensions"
        raise cannot_schedule(tensor, found, "one stride a dimension, or none")
    types = {ir.dtype_of(x) for x in (*strides, *shape)}
    if len(types) != 1:
        raise cannot_schedule(
            tensor,
            f"strides and extents of types {', '.join(sorted(types))}",
            "one type: TVM binds both from the same call",
            f"declare the strides as {ir.dtype_of(shape[0])}",
        )


def plan_operand(where: str, node: Any, load: Any) -> View | None:
    """Decide whether an operand needs a view: rows, then what is contiguous in memory."""
    if str(load.source.scope()) != "global":
        return None
    access = find_access(node, load.source, load.indices)
    if access is None:
        return _in_digits(node, load)
    if len(access.moving) < 2:
        return None
    inner = _contiguous(node, access)
    if inner is None:
        return None
    kept = [d for d, v in access.moving.items() if not _is_unit(node, v)]
    last = max(access.moving)
    if _is_whole(node, access) and inner == last == len(load.indices) - 1:
        return None
    outer = [d for d in sorted(access.moving) if d != inner]
    outer.sort(key=lambda d: d in kept)  # dimensions of extent one in front
    _check_memory(where, access, inner, outer)
    _check_start(where, access, inner)
    return View(load.source, tuple(access.moving[d] for d in (*outer, inner)))


def _in_digits(node: Any, load: Any) -> View | None:
    """View an operand of which each index follows one variable, and one variable several indices.

    B[j % 16 // 8, j // 16, j % 8, k] becomes B_view[j, k]: each digit of j is a dimension.
    """
    used = _variables_of(node, load.indices)
    used = tuple(sorted(used, key=lambda v: not _is_unit(node, v)))
    inner = contiguous_axis(node, load)
    if len(used) < 2 or inner not in (None, used[-1]):
        return None
    return View(load.source, used)


def _variables_of(node: Any, indices: Any) -> tuple[int, ...]:
    """Return the variables that indices follow, in order; none where an index follows several."""
    variables = [x.var for x in node.iter_vars]
    used = [[i for i, v in enumerate(variables) if ir.depends_on(x, [v])] for x in indices]
    if any(len(x) > 1 for x in used):
        return ()
    return tuple(dict.fromkeys(x[0] for x in used if x))


def plan_output(node: Any, loads: Any) -> View | None:
    """Decide whether the output needs a view: tiles' rows and columns after all others."""
    store = node.body
    access = find_access(node, store.buffer, store.indices)
    used = _variables_of(node, store.indices)
    if len(used) < 2 or (access is None and not walks_through(store)):
        return None
    units = [v for v in used if _is_unit(node, v)]
    rows_and_columns = tile_axes(node, loads)[:2]
    wide = [v for v in used if v in rows_and_columns and v not in units]
    missing = max(0, 2 - len(wide))  # a row or a column of extent one: the innermost unit
    matrix = [v for v in used if v in [*wide, *units[len(units) - missing :]]]
    if missing and len(matrix) < 2:
        return None
    order = (*(v for v in used if v not in matrix), *matrix)
    rank = len(store.indices)
    last = [] if access is None else sorted(d for d, v in access.moving.items() if v in matrix)
    if access is not None and _is_whole(node, access) and last == [rank - 2, rank - 1]:
        return None
    return View(store.buffer, order)


def plan_initial_values(node: Any, loads: tuple[Any, ...]) -> list[View]:
    """List the tensors that the initial value reads at an offset: padding takes plain indices."""
    views: list[View] = []
    for load in ir.find_all(node.init, ir.TensorLoad):
        access = find_access(node, load.source, load.indices)
        if (
            access is not None
            and any(not ir.is_const(x, 0) for x in access.offsets.values())
            and not any(load.source.same_as(x.source) for x in loads)
            and not any(load.source.same_as(x.buffer) for x in views)
        ):
            views.append(View(load.source, tuple(v for _, v in sorted(access.moving.items()))))
    return views


def find_access(node: Any, buffer: Any, indices: Any) -> ViewAccess | None:
    """Read an access as one variable a dimension plus an offset; None if it is anything else."""
    variables = [x.var for x in node.iter_vars]
    moving: dict[int, int] = {}
    offsets: dict[int, Any] = {}
    rest: dict[int, Any] = {}
    for d, index in enumerate(indices):
        used = [i for i, var in enumerate(variables) if ir.depends_on(index, [var])]
        if not used:
            rest[d] = index
            continue
        if len(used) > 1 or used[0] in moving.values():
            return None
        offset = ir.simplify(index - ir.cast_like(variables[used[0]], index))
        if ir.depends_on(offset, variables):
            return None
        moving[d], offsets[d] = used[0], offset
    return ViewAccess(buffer, moving, offsets, rest)


def _is_whole(node: Any, access: ViewAccess) -> bool:
    """Tell whether the block walks over the whole tensor, from its start."""
    shape = access.buffer.shape
    return all(
        ir.is_const(access.offsets[d], 0)
        and ir.is_const(ir.simplify(shape[d] - ir.cast_like(_extent(node, v), shape[d])), 0)
        for d, v in access.moving.items()
    ) and all(ir.is_const(shape[d], 1) for d in access.rest)


def _contiguous(node: Any, access: ViewAccess) -> int | None:
    """Return the dimension along which neighbors are neighbors in memory, None without one.

    One of extent one has no neighbors: a column B[k, 1] lies in memory as the row B[1, k].
    """
    size = dtype_bytes(ir.dtype_of(access.buffer))
    strides = strides_bytes(access.buffer)
    found = [d for d in access.moving if ir.is_const(strides[d], size)]
    wide = [d for d in found if not _is_unit(node, access.moving[d])]
    return max(wide or found, default=None)


def _check_memory(where: str, access: ViewAccess, inner: int, outer: list[int]) -> None:
    """Refuse a part whose rows a tensor map cannot step over (`cuTensorMapEncodeTiled`)."""
    buffer, strides = access.buffer, strides_bytes(access.buffer)
    for d in outer:
        stride = ir.static_int(strides[d])
        if (
            stride is not None
            and stride % maps.STRIDE_ALIGNMENT
            and not ir.is_const(buffer.shape[d], 1)
        ):
            raise cannot_schedule(
                f"{where}, tensor {buffer.name}",
                f"rows {stride} bytes apart",
                f"a multiple of {maps.STRIDE_ALIGNMENT} bytes",
                "pad the tensor's last dimension, or copy the part into a separate tensor",
            )


def _check_start(where: str, access: ViewAccess, inner: int) -> None:
    """Refuse columns that TMA cannot begin at; an offset of a call is checked there."""
    size = dtype_bytes(ir.dtype_of(access.buffer))
    offset = ir.static_int(access.offsets[inner])
    if offset is not None and offset * size % maps.COORDINATE_ALIGNMENT:
        raise cannot_schedule(
            f"{where}, tensor {access.buffer.name}",
            f"columns from {offset}, {offset * size} bytes",
            f"a start at a multiple of {maps.COORDINATE_ALIGNMENT} bytes",
            "copy the part into a separate tensor",
        )


def _extent(node: Any, position: int) -> Any:
    return node.iter_vars[position].dom.extent


def _is_unit(node: Any, position: int) -> bool:
    return ir.is_const(_extent(node, position), 1)


def _position(regions: Any, buffer: Any) -> int:
    return next(i for i, region in enumerate(regions) if region.source.same_as(buffer))


def _index_map(node: Any, view: View) -> IndexMap:
    return IndexMap.from_func(
        lambda *variables: [variables[i] for i in view.order],
        ndim=len(node.iter_vars),
        index_dtype=ir.dtype_of(node.iter_vars[0].var),
    )
