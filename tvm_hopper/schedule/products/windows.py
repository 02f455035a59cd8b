"""Recognise products of windows: convolutions, whose operand's index follows several variables.

    P[n, i, j, c] = if_then_else(1 <= i and i < H + 1 and ..., X[n, i - 1, j - 1, c], 0)
    C[n, y, x, o] += P[n, 2 * y + r, 2 * x + s, c] * W[r, s, c, o]
  ->
    Windows(rows n, y, x; steps 1, 2, 2; source X[n, 2 * y + r - 1, 2 * x + s - 1, c])

Any number of axes of an image and any of its steps, dilations and pads are lists of these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import s_tir, sym, tirx
from tvm.tirx import IndexMap, IterVar

from tvm_hopper import ir
from tvm_hopper.analysis.access import step_of
from tvm_hopper.analysis.at_places import at_places
from tvm_hopper.analysis.bounds import MOST_PLACES
from tvm_hopper.analysis.contraction import find_contraction
from tvm_hopper.errors import HopperError, cannot_schedule
from tvm_hopper.facts import tensor_map as maps

from .axes import sort_axes
from .fuse import filled_load
from .recognize import check_plain_loops, product_loads


@dataclass(frozen=True)
class Windows:
    """A product whose one operand is read by windows.

    - `node`: the block.
    - `load`: the operand as the block reads it.
    - `source`: what lies in memory there, of the tensor that `pad` fills around, if there is a pad.
    - `condition`: where it lies in memory; None: everywhere.
    - `pad`: the tensor that the pad's block writes; None without one.
    - `rows`: variables, by position, that move the output and this operand, as its dimensions
      follow.
    - `steps`: by how many elements of its dimension each of them moves.
    """

    node: Any
    load: Any
    source: Any
    condition: Any
    pad: Any
    rows: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def channels(self) -> Any:
        """The variable along which this operand is contiguous in memory."""
        last = self.load.indices[-1]
        return next(self.node.iter_vars[i] for i in _movers(self.node, last))

    @property
    def extents(self) -> tuple[Any, ...]:
        """How many rows each of the variables counts: an int, or an expression."""
        domains = [self.node.iter_vars[i].dom.extent for i in self.rows]
        return tuple(x if ir.static_int(x) is None else int(x) for x in domains)


def find_windows(func: tirx.PrimFunc, block: str) -> Windows | None:
    """Recognise a product of windows; None for whatever else is there.

    - raises ScheduleError: windows that tensor maps cannot describe: the message names the tensor.
    """
    nests = [x for x in ir.statements(func.body.block.body) if isinstance(x, ir.For)]
    by_name = {}
    for nest in nests:
        loops, realize = ir.loop_nest(nest)
        if isinstance(realize, ir.SBlockRealize):
            by_name[str(realize.block.name_hint)] = loops, realize.block
    if block not in by_name or not isinstance(by_name[block][1].body, ir.BufferStore):
        return None
    loops, node = by_name[block]
    where = f"block {block}"
    try:
        check_plain_loops(where, loops, node)
        loads = product_loads(where, node)
    except HopperError:
        return None  # `find_matmul` says why
    pads = {
        made.body.buffer: made
        for _, made in by_name.values()
        if isinstance(made.body, ir.BufferStore) and _is_pad(made.body.value)
    }
    found = [x for i in (0, 1) if (x := _windows(node, loads, i, pads)) is not None]
    for windows in found:
        other = next(x for x in loads if x is not windows.load)
        if len(found) == 2 or other.source.same_as(windows.source.source):
            what = f"windows of {windows.source.source.name} and of {other.source.name}"
            need = "windows of one operand, and another tensor indexed by loop variables alone"
            raise cannot_schedule(where, what, need, "copy one of them into a separate tensor")
        _check(f"{where}, tensor {windows.source.source.name}", windows)
        return windows
    return None


def _is_pad(value: Any) -> bool:
    """Tell a tensor that is filled around; of tiles that a table places nothing is cut again."""
    filled = filled_load(value)
    return filled is not None and not ir.find_all(list(filled.indices), ir.TensorLoad)


def split_groups(sch: s_tir.Schedule, block: str) -> tirx.PrimFunc:
    """Cut rows into groups that read one matrix each: B[E[i // 128], j, k] becomes B[E[g], j, k].

    - `sch`: of one function, changed in place: the block's row is a group and a row in it, where
      groups are whole.
    - `block`: the multiply-add.
    - returns: the function, with plain indices.
    - raises ScheduleError: the last group may have fewer rows.
    """
    node = sch.get(sch.get_sblock(block))
    found = [(i, size) for i, x in enumerate(node.iter_vars) if (size := _group_size(node, x))]
    if len(found) != 1:
        return sch.mod["main"]
    ((at, size),) = found
    cut = IndexMap.from_func(
        lambda *old: [*old[:at], old[at] // size, old[at] % size, *old[at + 1 :]],
        ndim=len(node.iter_vars),
        index_dtype=ir.dtype_of(node.iter_vars[at].var),
    )
    sch.transform_block_layout(block, cut)
    func, node = sch.mod["main"], sch.get(sch.get_sblock(block))
    analyzer = sym.Analyzer()
    for axis in node.iter_vars:
        analyzer.bind(axis.var, axis.dom)
    plain = [
        (kind, lambda x, m: analyzer.simplify(m.default_mutate(x)))
        for kind in (tirx.FloorDiv, tirx.FloorMod)
    ]
    return func.with_body(ir.replace_nodes(func.body, ir.SBlock, {node: ir.mutate(node, plain)}))


def _group_size(node: Any, axis: IterVar) -> int:
    """Return how many rows in turn read one matrix, which divides them; 0 for other variables."""
    if not isinstance(node.body, ir.BufferStore) or axis.iter_type == IterVar.CommReduce:
        return 0
    is_row = any(axis.var.same_as(x) for x in node.body.indices)
    if not is_row or _has_other_rows(node, axis):  # of a batch, then
        return 0
    sizes = _quotients(node, axis)
    size, extent = sizes.pop() if len(sizes) == 1 else 0, ir.static_int(axis.dom.extent) or 0
    if size > 1 and (not extent or extent % size):
        raise cannot_schedule(
            f"block {node.name_hint}",
            f"{axis.dom.extent} rows in groups of {size}, of which each reads one matrix",
            "whole groups",
            f"pad the rows, or write C[g, i, j] with {size} rows i in a group g",
        )
    return size if 1 < size < extent else 0


def _quotients(node: Any, axis: IterVar) -> set[int]:
    """Return by which numbers a variable is divided in operands that it moves in no other way."""
    found: set[int] = set()
    for load in ir.find_all(node.body.value, ir.TensorLoad):
        moved = [x for x in load.indices if ir.depends_on(x, [axis.var])]
        groups = [x for x in ir.find_all(moved, tirx.FloorDiv) if axis.var.same_as(x.a)]
        if groups and not all(isinstance(x, (tirx.FloorDiv, ir.TensorLoad)) for x in moved):
            return set()  # a part of a sum, as channels of groups
        if len(ir.find_all(moved, ir.Var, lambda x: x.same_as(axis.var))) == len(groups):
            found |= {ir.static_int(x.b) or 0 for x in groups}
    return found


def _has_other_rows(node: Any, axis: IterVar) -> bool:
    """Tell whether another variable moves the output and one operand that this one moves, too."""
    contraction = find_contraction(node.body, node.init)
    loads = () if contraction is None else contraction.products[0].loads
    if len(loads) != 2 or None in loads:
        return True
    indices = [list(x.indices) for x in loads]
    alone = (*_moving_alone(node, *indices), *_moving_alone(node, *indices[::-1]))
    plain = [i for i in (0, 1) if any(axis.var.same_as(x) for x in indices[i])]
    return len(plain) != 1 or any(
        ir.depends_on(indices[plain[0]], [node.iter_vars[i].var]) for i in alone
    )


def _windows(node: Any, loads: Sequence[Any], which: int, pads: dict[Any, Any]) -> Windows | None:
    load, indices = loads[which], list(loads[which].indices)
    axes = sort_axes(node, loads)
    own = axes.columns if which else axes.rows
    moving = _moving_alone(node, indices, list(loads[1 - which].indices))
    variables = [node.iter_vars[i].var for i in moving]
    last = [node.iter_vars[i].var for i in _movers(node, indices[-1])]
    steps = [_step(load, x) for x in variables]
    if None in steps or ir.depends_on(indices[:-1], last):  # A[i + k, k] is no window
        return None
    made = pads.get(load.source)
    source, condition = (load, None) if made is None else _through(made, load)
    is_filled = condition is not None and ir.depends_on(condition, variables)
    is_window = _is_dilated(node, indices) or any(
        ir.depends_on(x, variables) and len(_movers(node, x)) > 1 for x in indices
    )
    # of one axis of rows alone steps are the operand's strides, which boxes have as they are
    in_steps = len(moving) > 1 and any(
        x not in (0, 1) for i, x in zip(moving, steps, strict=True) if i in own
    )
    if not (is_filled or is_window or in_steps):
        return None
    pad = None if made is None else load.source
    rows = sorted(moving, key=lambda i: _dimension(load, node.iter_vars[i].var))
    by_row = dict(zip(moving, steps, strict=True))
    return Windows(node, load, source, condition, pad, tuple(rows), tuple(by_row[i] for i in rows))


def _is_dilated(node: Any, indices: list[Any]) -> bool:
    """Tell whether a sum steps over elements, of another dimension than the last."""
    summed = [x.var for x in node.iter_vars if x.iter_type == IterVar.CommReduce]
    return any((step_of(x, v) or 0) > 1 for x in indices[:-1] for v in summed)


def _moving_alone(node: Any, indices: list[Any], others: list[Any]) -> list[int]:
    """Return the variables of the output that move one operand and not the other."""
    return [
        i
        for i, x in enumerate(node.iter_vars)
        if x.iter_type != IterVar.CommReduce
        and ir.depends_on(indices, [x.var])
        and not ir.depends_on(others, [x.var])
    ]


def _through(made: Any, load: Any) -> tuple[Any, Any]:
    """Return what a pad's block reads for an element of it, and under which condition."""
    at = dict(zip(made.body.indices, load.indices, strict=True))
    at = {x: ir.cast_like(y, x) for x, y in at.items()}
    condition, source, _ = made.body.value.args
    return ir.substitute(source, at), ir.substitute(condition, at)


def _movers(node: Any, index: Any) -> list[int]:
    """Return the variables of more than one value that an index follows."""
    return [
        i
        for i, x in enumerate(node.iter_vars)
        if not ir.is_const(x.dom.extent, 1) and ir.depends_on(index, [x.var])
    ]


def _step(load: Any, var: Any) -> Any:
    """Return by how much the one dimension that follows a variable moves; None: not evenly."""
    steps = [step_of(x, var) for x in load.indices if ir.depends_on(x, [var])]
    return steps[0] if len(steps) == 1 else None


def _dimension(load: Any, var: Any) -> int:
    return next(d for d, x in enumerate(load.indices) if ir.depends_on(x, [var]))


def _check(where: str, windows: Windows) -> None:
    """Refuse windows whose channels do not lie next to each other, and indices that are no sums."""
    node, load = windows.node, windows.load
    for i, var in enumerate(node.iter_vars):
        if any(ir.depends_on(x, [var.var]) and step_of(x, var.var) is None for x in load.indices):
            found = f"the index {list(load.indices)}, in which {node.iter_vars[i].var.name} is cut"
            need = "sums of loop variables, each times a constant: groups = 1"
            fix = "compute each group by a function of its own, or leave it to TVM"
            raise cannot_schedule(where, found, need, fix)
    last = load.indices[-1]
    inner = [i for i in _movers(node, last) if step_of(last, node.iter_vars[i].var) == 1]
    summed = [i for i in inner if node.iter_vars[i].iter_type == IterVar.CommReduce]
    if len(summed) != 1 or len(inner) > 1 or len(_movers(node, last)) > 1:
        raise cannot_schedule(
            where,
            f"the index {last} along its last dimension",
            "channels there, of the sum: TMA begins a box at a multiple of "
            f"{maps.COORDINATE_ALIGNMENT} bytes",
            "store images with their channels last (NHWC)",
        )
    for index, extent in zip(windows.source.indices, windows.source.source.shape, strict=True):
        if windows.condition is not None and _is_outside(node, index, extent):
            raise cannot_schedule(
                where,
                f"the index {index}, which is none of its {extent} elements",
                "a window that meets the images",
                "leave the product out: all of it is zeros",
            )
    for step, i in zip(windows.steps, windows.rows, strict=True):
        if step > maps.MAX_ELEMENT_STRIDE:
            raise cannot_schedule(
                where,
                f"windows at each {step} elements along {node.iter_vars[i].var.name}",
                f"at most {maps.MAX_ELEMENT_STRIDE}, what a tensor map steps over",
            )


def _is_outside(node: Any, index: Any, extent: Any) -> bool:
    """Tell whether an index is outside of a dimension for all values of its variables."""
    axes = [x for x in node.iter_vars if ir.depends_on(index, [x.var])]
    sizes = [ir.static_int(x) or 0 for x in (extent, *(x.dom.extent for x in axes))]
    if not 0 < math.prod(sizes) <= MOST_PLACES:
        return False
    places = dict(zip((x.var for x in axes), np.indices(sizes[1:]), strict=True))
    try:
        found = np.asarray(at_places(index, places))
    except KeyError:  # what is no sum of loops
        return False
    return not np.any((found >= 0) & (found < sizes[0]))
