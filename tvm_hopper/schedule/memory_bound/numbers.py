"""Index tensors of several dimensions as consecutive rows.

X[n, g * 10 + k, h, w]     reduced over k, h, w: row n * 32 + g of X, element (k * 64 + h) * 64 + w
"""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
from tvm import s_tir, sym, tirx
from tvm.tirx import IndexMap

from tvm_hopper import ir

from .program import Part, equal, load_shape
from .tiles import flat, regroup, zero_of


def is_numbered(access: Any, part: Part, axes: list[Any]) -> bool:
    """Tell whether an access names the element whose number the axes count, the first slowest.

    - `access` (TensorLoad or BufferStore): of a tensor of any dimensions.
    - `part`: the block that it is in.
    - `axes` (list of IterVar): some of the block's variables.
    """
    shape = list(load_shape(access))
    extents = [x.dom.extent for x in axes]
    if not axes or not equal(_product(shape), _product(extents)):
        return False
    analyzer = sym.Analyzer()
    for axis in part.node.iter_vars:
        analyzer.bind(axis.var, tvm.ir.Range(0, axis.dom.extent))
    zero = zero_of([axes[0].var])
    (own,) = flat([_within(x, analyzer) for x in access.indices], shape) or [zero]
    (number,) = flat([x.var for x in axes], extents) or [zero]
    return ir.is_const(analyzer.simplify(own - ir.cast_like(number, own)), 0)


def _within(index: Any, analyzer: sym.Analyzer) -> Any:
    """Simplify an index, and leave out remainders of what is less; TVM does by constants alone."""

    def plain(node: tirx.FloorMod) -> Any:
        is_less = analyzer.can_prove(node.a >= 0) and analyzer.can_prove(node.a < node.b)
        return node.a if is_less else node

    index = analyzer.simplify(index)
    for _ in ir.find_all(index, tirx.FloorMod):  # one may be in another
        index = analyzer.simplify(ir.replace(index, tirx.FloorMod, plain))
    return index


def _product(extents: list[Any]) -> Any:
    return prod(extents[1:], start=extents[0]) if extents else tirx.IntImm("int32", 1)


def number_block(sch: s_tir.Schedule, part: Part, rows: list[Any], columns: Any) -> bool:
    """Let a block count rows by one variable and elements of a row by another one.

    - `part`: the block.
    - `rows` (list): extents of the dimensions that number rows.
    - `columns` (int): elements of a row.
    - returns: False for a block of another number of elements, which stays as it is.
    """
    axes = list(part.node.iter_vars)
    extents = [x.dom.extent for x in axes]
    count = len(axes) - len(part.reduced)
    own = [x.dom.extent for x in part.spatial]
    is_row = bool(part.reduced) or equal(_product(own), _product(rows))
    if not is_row and not equal(_product(own), _product([*rows, columns])):
        return False

    def index(*i: Any) -> list[Any]:
        wanted = rows if is_row else [*rows, columns]
        return [
            *regroup(list(i[:count]), extents[:count], wanted),
            *flat(i[count:], extents[count:]),
        ]

    dtype = ir.dtype_of(axes[0].var)
    numbered = IndexMap.from_func(index, ndim=len(axes), index_dtype=dtype)
    if len(numbered.final_indices) != len(axes):
        sch.transform_block_layout(part.block, numbered)
    return True
