"""Plan TMA loads and stores: the tensor map of a copy and its boxes.

The map follows the copy, not the tensor's declaration. Its innermost dimension is the one that is
contiguous in memory, wherever it is. A dimension ends where the copy's predicate says, so a part of
a tensor is filled with zeros, or written, up to the part's own bounds. Rows and offsets are the
tensor's.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import sym, tirx

from tvm_hopper import ir
from tvm_hopper.analysis.access import step_of
from tvm_hopper.analysis.bounds import as_less_than, find_bounds
from tvm_hopper.analysis.divisors import divides
from tvm_hopper.errors import cannot_lower, found_and_need
from tvm_hopper.facts import tensor_map as maps
from tvm_hopper.requests.keys import SPARE_ROWS, SWIZZLE
from tvm_hopper.transforms.common.copy_rules import check_alone, check_once
from tvm_hopper.transforms.common.multicast_groups import find_cluster_axis, sharing_of
from tvm_hopper.transforms.common.transfer import Transfer

from .mechanism import PlannedCopy
from .tma_memory_rows import (
    MOST_COUNTED_ROWS,
    check_places,
    check_single_rows,
    count_rows,
    find_table_loop,
)
from .tma_merged_dimensions import merge_dimensions
from .tma_row_dimensions import in_digits, row_boxes

NO_AXIS = -1  # of a dimension that the map has and the tensor has not


@dataclass(frozen=True)
class MapDim:
    """One dimension of a tensor map.

    `coordinate` is where the tile's element (p, 0, 0) lies; `axis` the tensor's dimension, of which
    the copy takes `box` elements, one at each `step`.
    """

    axis: int
    extent: Any
    stride_bytes: Any  # of the innermost one never used
    coordinate: Any
    box: int
    step: int = 1


@dataclass(frozen=True)
class TmaTransfer(PlannedCopy):
    """One tile: the map's dimensions, innermost first, and which of them the tile's rows follow.

    The first of several `row_dims` is the outermost of the tile; one row needs none. Each value of
    the loop `table` has boxes of its own. `left` rows exist where memory tells that.
    """

    dims: tuple[MapDim, ...]
    row_dims: tuple[int, ...]
    swizzle: int
    around: tuple[ir.For, ...]  # loops whose variables a coordinate may depend on
    tail: Any = None  # rows of the last tile inside of the tensor, where the others may be anything
    declared: Any = None  # the tensor, with the dimensions that the program gives it
    table: ir.For | None = None
    left: Any = None

    def __post_init__(self) -> None:
        longest = max((d or 0) for d in self.tensor_map.dims)
        if longest > maps.MAX_COORDINATE:
            raise cannot_lower(
                self.copy.where,
                f"a dimension of {longest}",
                f"at most {maps.MAX_COORDINATE}: the instruction's coordinates have 32 bits",
            )
        if broken := self.tensor_map.check():
            strides = [s for s in self.tensor_map.strides_bytes if s is not None and s % 16]
            size = self.copy.tensor.element_bytes
            inner = ir.static_int(self.copy.tensor.buffer.shape[-1])
            fix = "copy the tensor into one of another shape or type"
            if strides and inner is not None and not self.copy.tensor.buffer.ty.strides:
                fix = (
                    f"pad its last dimension from {inner} to {-(-inner * size // 16) * 16 // size}"
                )
            raise cannot_lower(self.copy.where, *found_and_need(broken), fix)

    @property
    def tensor_map(self) -> maps.TensorMap:
        """The map as far as it is known before run time; the rest is None."""
        return maps.TensorMap(
            ir.dtype_of(self.copy.tensor.buffer),
            tuple(ir.static_int(x.extent) for x in self.dims),
            tuple(ir.static_int(x.stride_bytes) for x in self.dims[1:]),
            tuple(x.box * x.step for x in self.dims),  # N elements: N times the step
            tuple(x.step for x in self.dims),
            swizzle_bytes=self.swizzle,
        )

    @property
    def encoded(self) -> list[Any]:
        """The extents of the tensor, and where the map ends."""
        return [*self.copy.tensor.buffer.shape, *(x.extent for x in self.dims)]

    @property
    def box(self) -> tuple[int, ...]:
        """Elements of one load, innermost dimension first."""
        return tuple(x.box for x in self.dims)

    @property
    def tail_box(self) -> tuple[Any, ...]:
        """The box of the last tile, or of one row, where that is another one."""
        cut, rows = self.row_dims[0], 1 if self.left is not None else self.tail
        return (*self.tensor_map.box[:cut], rows, *self.tensor_map.box[cut + 1 :])

    @property
    def has_tail(self) -> bool:
        """Tell whether there is such a box."""
        return self.tail is not None or self.left is not None

    @property
    def is_whole(self) -> Any:
        """Tell whether all rows of a tile lie inside of the tensor."""
        dim = self.dims[self.row_dims[0]]
        end = dim.coordinate + dim.box
        return ir.simplify(end <= ir.cast_like(dim.extent, end))

    @property
    def box_rows(self) -> int:
        """Rows of the tile that one load brings."""
        return prod(self.dims[i].box for i in self.row_dims)


def plan_tma_copies(
    kernel: ir.For, copies: tuple[Transfer, ...], _: Any = None
) -> tuple[TmaTransfer, ...]:
    """Plan the boxes of every copy by TMA; every reason to refuse is raised here."""
    around = tuple(ir.find_all(kernel, ir.For))
    for copy in copies:
        check_alone(kernel, copy)
        check_places(kernel, copy)
        check_once(copy)
    return tuple(_plan_boxes(copy, around) for copy in copies)


def _plan_boxes(given: Transfer, around: tuple[ir.For, ...]) -> TmaTransfer:
    copy, left = count_rows(in_digits(given), around)
    copy = merge_dimensions(copy, around)
    tensor, s, table = copy.tensor, copy.loops[-1], find_table_loop(copy)
    loops = [x for x in copy.loops[1:-1] if not ir.is_const(x.extent, 1) and x is not table]
    inner = _contiguous_axis(copy)
    rows = _row_axes(copy, loops, inner)
    no_axis = bool(loops) and not rows  # rows of which the tensor has one
    bounds, row_bound = _bounds(copy, around, has_rows=not no_axis)
    _check_strides(copy)
    steps = _row_steps(copy, loops)
    axis = find_cluster_axis(around)
    blocks = 1 if axis is None else sharing_of(tensor.indices, axis).count
    extents = [int(loop.extent) for loop in loops]
    if left is not None:
        check_single_rows(copy, loops)
    counted = maps.MAX_BOX if left is None else MOST_COUNTED_ROWS
    boxes = row_boxes(copy, extents, list(steps.values()), blocks, counted, table is not None)
    moving = (*(x for x in copy.loops[1:-1] if x is not table), s)
    start = tensor.start(moving)
    strides = tensor.strides_bytes
    shape = tensor.buffer.shape

    one = tirx.IntImm("int64", maps.STRIDE_ALIGNMENT)  # any stride will do for one row

    def dimension(axis: int, box: int) -> MapDim:
        extent = bounds[axis] if bounds[axis] is not None else shape[axis]
        stride = one if axis != inner and ir.is_const(extent, 1) else strides[axis]
        return MapDim(axis, extent, stride, start[axis], box, steps.get(axis, 1))

    dims = [dimension(inner, int(copy.tile.buffer.shape[2]))]
    if no_axis:
        where, extent = row_bound  # the map needs the dimension to end the tile after it
        first = ir.simplify(ir.substitute(where, {x.loop_var: 0 for x in moving}))
        dims.append(MapDim(NO_AXIS, extent, one, first, *boxes))
    # A dimension of extent one says nothing where no index leaves it.
    outer = [
        axis
        for axis in reversed(range(len(shape)))
        if axis != inner and (axis in rows or not _stays_at_zero(copy, axis, around))
    ]
    # A box lands with its dimensions in the map's order: those of the rows in the tile's.
    inwards = iter(zip(reversed(rows), reversed(boxes), strict=True))
    dims += [dimension(*next(inwards)) if axis in rows else dimension(axis, 1) for axis in outer]
    _check_start(copy, dims[0], around)
    axes = [x.axis for x in dims]
    row_dims = tuple(axes.index(axis) for axis in (rows or [NO_AXIS] * no_axis))
    swizzle = int(copy.block.annotations[SWIZZLE])
    tail = None
    if (
        rows
        and blocks == 1
        and boxes == extents
        and len(loops) == 1
        and list(steps.values()) in ([], [1])
        and table is left is None
    ):
        tail = _tail(copy, loops[0], dims[row_dims[0]])
    around = (*around, *copy.loops)
    declared = given.tensor.buffer
    return TmaTransfer(copy, tuple(dims), row_dims, swizzle, around, tail, declared, table, left)


def _stays_at_zero(copy: Transfer, axis: int, around: tuple[ir.For, ...]) -> bool:
    """Tell whether a dimension has one element, which no box lies before or after."""
    if not ir.is_const(copy.tensor.buffer.shape[axis], 1):
        return False
    analyzer = sym.Analyzer()
    for loop in (*around, *copy.loops):
        analyzer.bind(loop.loop_var, ir.range_of(loop))
    index = copy.tensor.indices[axis]
    return copy.condition is None or analyzer.can_prove(tirx.EQ(index, ir.cast_like(0, index)))


def _row_axes(copy: Transfer, loops: list[ir.For], inner: int) -> list[int]:
    """Return the tensor's dimension that each dimension of the tile's rows follows by itself."""
    axes = [copy.tensor.axes([loop]) for loop in loops]
    rows = [axis for found in axes for axis in found]
    _check_steps(copy, dict(zip(loops, axes, strict=True)), inner)
    if inner in rows or len(set(rows)) != len(rows) or (len(loops) > 1 and not all(axes)):
        raise _not_a_box(copy)
    return rows


def _row_steps(copy: Transfer, loops: list[ir.For]) -> dict[int, int]:
    """Return by how much each dimension moves with its loop, where that is known to be legal."""
    return {
        axis: step
        for loop in loops
        for axis, step in enumerate(copy.tensor.steps(loop))
        if step is not None and step > 0
    }


def _tail(copy: Transfer, rows: ir.For, dim: MapDim) -> Any:
    """Return the rows of the last tile, where those beyond the tensor's end may be anything."""
    if SPARE_ROWS not in copy.block.annotations or copy.condition is None:
        return None
    if not ir.uses(copy.condition, rows.loop_var) or not divides(dim.box, dim.coordinate):
        return None
    return ir.simplify(tirx.floormod(dim.extent - 1, ir.cast_like(dim.box, dim.extent)) + 1)


def _contiguous_axis(copy: Transfer) -> int:
    """Return the tensor's dimension along which the tile's rows run: its stride is one element."""
    source, p, s = copy.tensor.buffer, copy.loops[0], copy.loops[-1]
    axes = copy.tensor.axes([s, *([p] if int(p.extent) > 1 else [])])
    if len(axes) != 1:
        raise _not_a_box(copy)
    (axis,) = axes
    if ir.is_const(copy.tensor.strides_bytes[axis], copy.tensor.element_bytes):
        return axis
    if source.ty.strides:
        raise cannot_lower(
            copy.where,
            f"rows along dimension {axis} of {source.name}, whose stride is "
            f"{source.ty.strides[axis]} elements",
            "rows that are contiguous in memory",
            "cache_read the tensor so that the tile's last dimension is the contiguous one",
        )
    raise _not_a_box(copy)


def _check_steps(copy: Transfer, rows: dict[ir.For, list[int]], inner: int) -> None:
    """Refuse indices that do not move along one dimension for each loop, evenly.

    A load may step over some of the rows, not of the columns.
    """
    p, s = copy.loops[0], copy.loops[-1]
    expected = {s: {inner: 1}}
    if int(p.extent) > 1:
        expected[p] = {inner: int(s.extent)}
    most = maps.MAX_ELEMENT_STRIDE if copy.fills_shared else 1
    for loop, axes in rows.items():
        step = copy.tensor.steps(loop)[axes[0]] if axes else 1
        if step is not None and not 1 <= step <= most:
            raise _too_far(copy, axes[0], step)
        expected[loop] = dict.fromkeys(axes, step or 0)  # of no even one there is none
    if (found := copy.tensor.steps(s))[inner] not in (0, 1, None):
        raise cannot_lower(
            copy.where,
            f"columns at each {found[inner]} elements of {copy.tensor.buffer.name}",
            "columns one next to the other: the tensor map steps over rows alone",
            "let threads copy, or cp.async, or transpose the tensor before",
        )
    for loop, steps in expected.items():
        found = copy.tensor.steps(loop)
        if len(steps) > 1 or found != [steps.get(axis, 0) for axis in range(len(found))]:
            raise _not_a_box(copy)


def _too_far(copy: Transfer, axis: int, step: int) -> Exception:
    name = copy.tensor.buffer.name
    if not copy.fills_shared:
        found, need = f"stores at each {step} of dimension {axis} of {name}", "each row"
    else:
        found = f"rows at each {step} of dimension {axis} of {name}"
        need = f"a step of 1 to {maps.MAX_ELEMENT_STRIDE}, what a tensor map has"
    return cannot_lower(copy.where, found, need, "use a bulk copy, or let threads copy")


def _not_a_box(copy: Transfer) -> Exception:
    name = copy.tensor.buffer.name
    return cannot_lower(
        copy.where,
        f"index {list(copy.tensor.indices)}",
        f"rows along one dimension of {name}, columns along its last, each evenly",
        f"cache_{'read' if copy.fills_shared else 'write'} the tensor with its last dimension as "
        "the tile's last",
    )


# -- where the map ends


def _bounds(
    copy: Transfer, around: tuple[ir.For, ...], has_rows: bool
) -> tuple[list[Any], tuple[Any, Any]]:
    """Return the map's end along each dimension, and a row's number and end if the tensor has none.

    None where the predicate says nothing: there the tensor's own end will do.
    """
    shape = tuple(copy.tensor.buffer.shape)
    none: list[Any] = [None] * len(shape)
    row_bound: tuple[Any, Any] = (None, None)
    if copy.fills_shared and copy.condition is not None and not ir.is_zero(copy.fill):
        raise cannot_lower(copy.where, f"a fill of {copy.fill} out of bounds", "a fill of 0")
    indices: tuple[Any, ...] = copy.tensor.indices
    if not has_rows:
        row = _row_term(copy, around)
        if row is None:
            raise _not_a_box(copy)
        indices, shape = (*indices, row), (*shape, tirx.IntImm(ir.dtype_of(row), 1))
    if copy.condition is None:
        return none, row_bound
    loops = {loop.loop_var: loop for loop in (*around, *copy.loops)}
    found = find_bounds(copy.condition, indices, shape, tuple(loops.values()))
    if found is None:
        tensor = copy.tensor.buffer
        raise cannot_lower(
            copy.where,
            f"the predicate {copy.condition}",
            f"bounds of the indices of {tensor.name}{list(tensor.shape)} alone, by which "
            "the hardware fills",
            "apply any other predicate where the tile is used",
        )
    if not has_rows:
        *found_axes, last = found.below
        return [_clip(b, x) for b, x in zip(found_axes, shape, strict=False)], (indices[-1], last)
    return [_clip(b, x) for b, x in zip(found.below, shape, strict=True)], row_bound


def _clip(bound: Any, extent: Any) -> Any:
    """Keep a map inside its tensor, whatever the predicate allows."""
    if bound is None or ir.is_const(ir.simplify(extent - ir.cast_like(bound, extent)), 0):
        return None
    bound = ir.cast_like(bound, extent)
    if sym.Analyzer().can_prove(bound <= extent):
        return bound
    return ir.simplify(tirx.min(bound, extent))


def _row_term(copy: Transfer, around: tuple[ir.For, ...]) -> Any:
    """Return the number of a tile's row where only the predicate mentions it.

    The predicate must leave row 0 alone: a row before it would lie outside of the map.
    """
    (row,) = (x.loop_var for x in copy.loops[1:-1] if not ir.is_const(x.extent, 1))
    analyzer = sym.Analyzer()
    for loop in (*around, *copy.loops):
        analyzer.bind(loop.loop_var, ir.range_of(loop))
    for term in ir.conjuncts(copy.condition) if copy.condition is not None else ():
        ordered = as_less_than(term)
        if ordered is None or step_of(ordered[0], row) != 1:
            continue
        number = ir.simplify(ordered[0] - ordered[1] + 1)  # below 1, as the term says
        if analyzer.can_prove(number >= 0):
            return number
    return None


# -- what can be said of strides before run time


def _check_strides(copy: Transfer) -> None:
    """Refuse rows whose distance is no known multiple of 16 bytes.

    A stride that the program declares as a separate variable is checked at each call instead.
    """
    source = copy.tensor.buffer
    if source.ty.strides:
        return
    size, step = copy.tensor.element_bytes, None
    for extent in reversed(list(source.shape)[1:]):
        step = extent if step is None else step * ir.cast_like(extent, step)
        if ir.static_int(ir.simplify(step)) is not None:
            continue  # static: the tensor map's own rules judge it
        known = sym.Analyzer().modular_set(ir.simplify(step))
        stride = int(known.coeff) * size if int(known.base) == 0 else 1
        if stride % maps.STRIDE_ALIGNMENT:
            raise cannot_lower(
                copy.where,
                f"a symbolic dimension {extent}, so rows at multiples of {stride} bytes",
                f"rows at multiples of {maps.STRIDE_ALIGNMENT} bytes",
                "make every dimension but the first static",
            )


def _check_start(copy: Transfer, inner: MapDim, around: tuple[ir.For, ...]) -> None:
    """Refuse boxes that begin between two multiples of 16 bytes."""
    size = copy.tensor.element_bytes
    offset, rest = _split_start(inner.coordinate, (*around, *copy.loops))
    known = ir.static_int(offset)
    apart = divides(maps.COORDINATE_ALIGNMENT // size, rest)
    begins = known is None or known * size % maps.COORDINATE_ALIGNMENT == 0
    if apart and begins:
        return
    found = f"{known} elements, {known * size} bytes" if known is not None else f"{offset}"
    raise cannot_lower(
        copy.where,
        f"columns of {copy.tensor.buffer.name} from {rest if begins else found}",
        f"a start at a multiple of {maps.COORDINATE_ALIGNMENT} bytes",
        "copy the part into a separate tensor",
    )


def _split_start(coordinate: Any, loops: tuple[ir.For, ...]) -> tuple[Any, Any]:
    """Split a coordinate into what no loop changes and the rest."""
    offset = ir.simplify(ir.substitute(coordinate, {x.loop_var: 0 for x in loops}))
    return offset, ir.simplify(coordinate - ir.cast_like(offset, coordinate))


def run_time_strides(load: TmaTransfer) -> list[tuple[Any, str]]:
    """List the strides that a call decides, in elements, and what each is; of one row none."""
    buffer = load.copy.tensor.buffer
    return [
        (stride, f"stride {stride} of dimension {axis}")
        for axis, stride in enumerate(buffer.ty.strides or ())
        if axis != load.dims[0].axis and ir.static_int(stride) is None
        if not ir.is_const(buffer.shape[axis], 1)
    ]


def find_run_time_rules(load: TmaTransfer) -> list[tuple[Any, str]]:
    """List what can be checked at a call only: a value of elements, and what it is.

    Each value times the element's size has to be a multiple of 16 bytes
    (CUDA driver API, `cuTensorMapEncodeTiled`).
    """
    source = load.declared
    size = load.copy.tensor.element_bytes
    rules = run_time_strides(load)
    offset = source.ty.elem_offset
    if ir.static_int(offset) is None:
        if int(source.ty.offset_factor) * size % maps.ADDRESS_ALIGNMENT:  # else TVM checks it
            rules.append((offset, f"offset {offset}"))
    elif int(offset) * size % maps.ADDRESS_ALIGNMENT:
        raise cannot_lower(
            load.copy.where,
            f"an offset of {int(offset)} elements, {int(offset) * size} bytes",
            f"a multiple of {maps.ADDRESS_ALIGNMENT} bytes",
            "copy the part into a separate tensor",
        )
    variables = {x.loop_var: x for x in load.around}
    start, _ = _split_start(load.dims[0].coordinate, tuple(variables.values()))
    if ir.static_int(start) is None:
        rules.append((start, f"columns from {start}"))
    step = maps.STRIDE_ALIGNMENT // size
    return [(value, text) for value, text in rules if not divides(step, value)]
