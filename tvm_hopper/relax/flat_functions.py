"""Flatten batch and sequence into one dimension inside a function.

    for b, s, n, k: C[b, s, n] += A[b, s, k] * W[n, k]             A: (b, s, K), C: (b, s, N)
    for b, s, n: D[b, s, n] = C[b, s, n] + R[b, s, n]
  ->
    for m, n, k: C[m, n] += A[m, k] * W[n, k]                      A: (m, K), C: (m, N), m = b * s
    for m, n: D[m, n] = C[m, n] + R[m, n]

Element for element it is the same program: rows of a tensor lie one after the other in memory, so
that callers need no copy, but another view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import s_tir, sym, tirx
from tvm.tirx import IndexMap, IterVar

from tvm_hopper import ir
from tvm_hopper.dlight.product import products

ROWS = "rows"  # the name of their number: calls say what it is, as batch * length


@dataclass(frozen=True)
class FlatFunction:
    """A function whose leading dimensions were made one.

    - `func`: as it is now.
    - `lead`: how many dimensions were made one.
    - `flattened`: of each tensor among the parameters: whether its leading dimensions are among
      them.
    """

    func: tirx.PrimFunc
    lead: int
    flattened: tuple[bool, ...]


def flatten_function(func: tirx.PrimFunc, lead: int | None = None) -> FlatFunction | None:
    """Make rows of a function's batch and sequence; None where that is not what it computes.

    Of a product that is every dimension before its columns: one operand has them all, and the
    other none. Of any other function it is the symbolic dimensions that its output begins with,
    and those of one element after them. Every block has to run over all of these dimensions, or to
    touch no tensor that has them.

    - `func`: plain loops.
    - `lead`: how many dimensions to make one, of a function without a product.
    """
    tensors = [x for x in func.params if tirx.is_buffer_var(x)]
    if not tensors:
        return None
    given, func = func, _name_lengths(func, tensors)
    tensors = [x for x in func.params if tirx.is_buffer_var(x)]
    if len(tensors) < len(func.params):
        return None
    sch = s_tir.Schedule(func.with_attr("global_symbol", "main"))
    names = products(sch)
    if len(names) > 1:
        return None
    if names:
        product = sch.get(sch.get_sblock(names[0]))
        shape, lead = list(product.writes[0].source.shape), _lead_of_product(product)
    else:
        shape = list(func.params[-1].ty.shape)
        lead = _lead_of_rows(shape) if lead is None else lead
    if lead < 2:
        return None
    dims = shape[:lead]
    least = lead + 1 if names else lead  # dimensions of a tensor of rows: a square weight is none
    places = _places_of(sch, dims, least)
    if places is None:
        return None
    touched, layouts = places
    flattened = tuple(any(x.same_as(buffer) for buffer in layouts) for x in func.params)
    for buffer, (block, kind, i) in layouts.items():
        sch.transform_layout(block, (kind, i), _as_rows(dims, len(buffer.shape)))
    for block, rank in touched:
        sch.transform_block_layout(block, _as_rows(dims, rank))
    flat = _name_rows(sch.mod["main"], dims)
    if flat is None:
        return None
    if "global_symbol" not in given.attrs:
        flat = flat.without_attr("global_symbol")
    else:
        flat = flat.with_attr("global_symbol", given.attrs["global_symbol"])
    return FlatFunction(flat, lead, flattened)


def _places_of(
    sch: s_tir.Schedule, dims: list[Any], least: int
) -> tuple[list[tuple[Any, int]], dict[Any, tuple[Any, str, int]]] | None:
    """Return the blocks that touch tensors with some dimensions, and where each tensor is touched.

    None if one of them does not run over all of these dimensions.
    """
    touched: list[tuple[Any, int]] = []
    places: dict[Any, tuple[Any, str, int]] = {}
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        node = sch.get(block)
        regions = [*(("read", i, x) for i, x in enumerate(node.reads))]
        regions += [("write", i, x) for i, x in enumerate(node.writes)]
        large = [(kind, i, x) for kind, i, x in regions if _has_dims(x.source, dims, least)]
        if not large:
            continue
        if not _runs_over(node, dims, [x for _, _, x in large]):
            return None
        touched.append((block, len(node.iter_vars)))
        for kind, i, x in large:
            places.setdefault(x.source, (block, kind, i))
    return touched, places


def _name_lengths(func: tirx.PrimFunc, tensors: Sequence[Any]) -> tirx.PrimFunc:
    """Give a length that a slice left as an expression a name, where nothing else of it is read.

    The last token's length is min(s, max) - min(s - 1, s): TVM hands s over next to the tensors.
    """
    extents = [x for tensor in tensors for x in tensor.ty.shape]
    for extent in extents:
        if isinstance(extent, (tirx.IntImm, tirx.Var)):
            continue
        taken = {str(x.name) for x in ir.find_all(func, tirx.Var)}
        name = tirx.Var(free_name("length", taken), ir.dtype_of(extent))

        def named(node: Any, extent: Any = extent, name: Any = name) -> Any:
            return name if tvm_ffi.structural_equal(node, extent) else node

        func = tvm_ffi.structural_map(func, [(type(extent), named)], order="pre")
    shapes = [x for p in func.params if tirx.is_buffer_var(p) for x in p.ty.shape]
    scalars = [x for x in func.params if not tirx.is_buffer_var(x)]
    if any(ir.depends_on(x, scalars) for x in shapes) or any(
        ir.uses(func.body, x) for x in scalars
    ):
        return func
    kept = [x for x in func.params if tirx.is_buffer_var(x)]
    return tirx.PrimFunc(kept, func.body, func.ret_type).with_attrs(dict(func.attrs))


def has_product(func: tirx.PrimFunc) -> bool:
    """Tell whether a function computes one product."""
    return len(products(s_tir.Schedule(func.with_attr("global_symbol", "main")))) == 1


def _lead_of_rows(shape: Sequence[Any]) -> int:
    """Return how many dimensions are symbolic or of one element, from the first, but the last."""
    known = [ir.static_int(x) for x in shape[:-1]]
    lead = next((i for i, x in enumerate(known) if x not in (None, 1)), len(known))
    return lead if None in known[:lead] else 0


def _lead_of_product(product: Any) -> int:
    """Return how many dimensions of a product's output are before its columns."""
    axes = [x.var for x in product.iter_vars if x.iter_type == IterVar.DataPar]
    out = [x.min for x in product.writes[0].region]
    if len(out) < 3 or not all(any(x.same_as(axis) for axis in axes) for x in out):
        return 0
    rows = [[x.min for x in read.region] for read in product.reads]
    having = [sum(any(x.same_as(axis) for x in row) for axis in out[:-1]) for row in rows]
    return len(out) - 1 if sorted(having) == [0, len(out) - 1] else 0


def _has_dims(buffer: Any, dims: Sequence[Any], least: int) -> bool:
    shape = list(buffer.shape)
    return len(shape) >= least and all(
        tvm_ffi.structural_equal(a, b) for a, b in zip(shape, dims, strict=False)
    )


def _runs_over(node: Any, dims: Sequence[Any], regions: Sequence[Any]) -> bool:
    """Tell whether a block's first loops are those dimensions, and index them everywhere."""
    axes = list(node.iter_vars)[: len(dims)]
    if len(axes) < len(dims) or not all(
        axis.iter_type == IterVar.DataPar and tvm_ffi.structural_equal(axis.dom.extent, dim)
        for axis, dim in zip(axes, dims, strict=True)
    ):
        return False
    return all(
        x.min.same_as(axis.var) and ir.is_const(x.extent, 1)
        for region in regions
        for x, axis in zip(region.region, axes, strict=False)
    )


def _as_rows(dims: Sequence[Any], rank: int) -> IndexMap:
    """Return the map that makes one dimension of the first ones."""

    def at(*indices: Any) -> list[Any]:
        row = indices[0]
        for dim, index in zip(dims[1:], indices[1:], strict=False):
            row = row * dim + index
        return [row, *indices[len(dims) :]]

    return IndexMap.from_func(at, ndim=rank, index_dtype="int64")


def count_rows(dims: Sequence[Any]) -> Any:
    """Return the product of some extents, simplified."""
    total = dims[0]
    for dim in dims[1:]:
        total = total * dim
    return sym.Analyzer().simplify(total)


def _name_rows(func: tirx.PrimFunc, dims: Sequence[Any]) -> tirx.PrimFunc | None:
    """Give the number of rows a name; None where its factors are needed next to it."""
    total = count_rows(dims)
    if isinstance(total, tirx.IntImm):
        return func
    shapes = [extent for param in func.params for extent in param.ty.shape]
    places = [func.body, *func.params, *shapes]
    taken = {str(x.name) for place in places for x in ir.find_all(place, tirx.Var)}
    rows = tirx.Var(free_name(ROWS, taken), ir.dtype_of(total))

    def named(node: Any) -> Any:
        return rows if tvm_ffi.structural_equal(node, total) else node

    func = tvm_ffi.structural_map(func, [(type(total), named)], order="pre")
    factors = [x for x in dims if isinstance(x, tirx.Var)]
    shapes = [x for param in func.params for x in param.ty.shape]
    if any(ir.depends_on(x, factors) for x in shapes) or any(
        ir.uses(func.body, x) for x in factors
    ):
        return None
    return func


def free_name(wanted: str, taken: set[str]) -> str:
    """Return a name, with a number after it where another one has it."""
    numbered = (f"{wanted}_{i}" for i in range(1, len(taken) + 2))
    return wanted if wanted not in taken else next(x for x in numbered if x not in taken)
