"""Find which axes of an output are rows, columns and the rest.

  out[b, i, x] = O[b * 4 + x // 64, i, x % 64]
->
  leads b, h; row i; column c:      out[b, i, h * 64 + c]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule

from .definitions import Definition, PlainTensors
from .description import LoopAxis
from .sums import Sums


@dataclass(frozen=True)
class OutputAxes:
    """An output by its axes: its value, the sum that it reads, its indices."""

    leads: tuple[LoopAxis, ...]
    row: LoopAxis
    column: LoopAxis
    value: Any
    load: Any
    indices: tuple[Any, ...]


def find_axes(sums: Sums, output: Definition, value: Any, load: Any) -> OutputAxes:
    """Sort the axes of an output, which reads the sum of weighted values `load`."""
    program = sums.program
    row_dim, column_dim = _row_and_column(sums, load)
    indices = list(output.indices)
    axes = [LoopAxis(x, output.domains[x].extent) for x in indices if isinstance(x, ir.Var)]
    for dim in (row_dim, column_dim):
        split = _split(program, axes, None if dim is None else load.indices[dim])
        if split is not None:
            axes, by = split
            value, load = (program.simplify(ir.substitute(x, by)) for x in (value, load))
            indices = [ir.substitute(x, by) for x in indices]
    row, column = (_axis_along(load, axes, x) for x in (row_dim, column_dim))
    leads = tuple(x for x in axes if not x.var.same_as(row.var) and not x.var.same_as(column.var))
    return OutputAxes(leads, row, column, value, load, tuple(indices))


def _row_and_column(sums: Sums, load: Any) -> tuple[int | None, int]:
    """Return which dimensions of a sum are rows and columns; None if it has no row."""
    program = sums.program
    definition = program.reduction(load)
    assert definition is not None
    program.bind_all(definition)
    own = list(definition.indices)
    found = sums.weighted(tirx.BufferLoad(load.source, own))
    assert found is not None
    moving = [(n, x) for n, x in enumerate(own) if isinstance(x, ir.Var)]
    columns = [
        n
        for n, x in moving
        if ir.depends_on(found.value, [x]) and not ir.depends_on(found.exponent, [x])
    ]
    if len(columns) != 1:
        need = "one axis of columns, which the values have and the scores lack"
        raise cannot_schedule(f"block {definition.block}", f"{len(columns)} axes of columns", need)
    product = sums.product(found.scores, found.key)
    others = [product.keys, found.value]
    rows = {
        n: x
        for n, x in moving
        if n not in columns and ir.depends_on(product.query, [x]) and not ir.depends_on(others, [x])
    }
    if rows:  # of several the one that is next to the keys where products lie

        def place(n: int) -> int:
            order = enumerate(product.load.indices)
            return max(i for i, x in order if ir.depends_on(x, [rows[n]]))

        return max(rows, key=place), columns[0]
    units = [n for n, x in enumerate(load.source.shape) if ir.is_const(x, 1) and n not in columns]
    return (units[-1] if units else None), columns[0]


def _split(
    program: PlainTensors, axes: list[LoopAxis], index: Any
) -> tuple[list[LoopAxis], dict[Any, Any]] | None:
    """Split an axis `x` that a sum is read along as `x % size`; None if it is not."""
    if not isinstance(index, tirx.FloorMod) or not isinstance(index.a, ir.Var):
        return None
    whole, size = index.a, index.b
    extent = next(x.extent for x in axes if x.var.same_as(whole))
    if not ir.is_const(ir.simplify(tirx.floormod(extent, size)), 0):
        return None
    place = next(i for i, x in enumerate(axes) if x.var.same_as(whole))
    dtype = ir.dtype_of(whole)
    count = ir.simplify(tirx.floordiv(axes[place].extent, size))
    outer = LoopAxis(program.bind(ir.Var("h", dtype), count), count)
    inner = LoopAxis(program.bind(ir.Var("x", dtype), size), size)
    split = [*axes[:place], outer, inner, *axes[place + 1 :]]
    return split, {whole: outer.var * size + inner.var}


def _axis_along(load: Any, axes: list[LoopAxis], dim: int | None) -> LoopAxis:
    """Return the axis of the output along one dimension of the sum, a new one for a single row."""
    index = None if dim is None else load.indices[dim]
    for axis in axes:
        if index is not None and axis.var.same_as(index):
            return axis
    if dim is None or ir.is_const(load.source.shape[dim], 1):
        dtype = ir.dtype_of(axes[0].var)
        return LoopAxis(ir.Var("i", dtype), tirx.IntImm(dtype, 1))
    raise cannot_schedule(
        f"tensor {load.source.name}",
        f"the index {index}, from which the output reads",
        "rows and columns of the sum along axes of the output",
    )
