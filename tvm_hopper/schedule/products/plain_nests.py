"""Build plain loops around one store: what `normalize` and `box_pixels` write next to a product."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx import IterVar

from tvm_hopper import ir


def replace_load(value: Any, old: Any, new: Any) -> Any:
    """Read something else where an expression reads one element."""

    def visit(load: Any, mutator: Any) -> Any:
        same = load.source.same_as(old.source) and tvm_ffi.structural_equal(
            load.indices, old.indices
        )
        return new if same else mutator.default_mutate(load)

    return ir.mutate(value, [(ir.TensorLoad, visit)])


def spatial_nest(name: str, axes: list[Any], extents: list[Any], store: Any) -> ir.Stmt:
    """Build plain loops around one store."""
    dtype = ir.dtype_of(extents[0]) if extents else "int32"
    zero = tirx.IntImm(dtype, 0)
    iter_vars = [
        IterVar(tvm.ir.Range.from_min_extent(zero, extent), var, IterVar.DataPar)
        for var, extent in zip(axes, extents, strict=True)
    ]
    block = ir.SBlock(
        iter_vars,
        regions([store.value]),
        [point(store.buffer, list(store.indices))],
        name,
        store,
    )
    loops = [ir.Var(f"ax{i}", dtype) for i in range(len(axes))]
    stmt: ir.Stmt = ir.SBlockRealize(loops, True, block)
    for var, extent in reversed(list(zip(loops, extents, strict=True))):
        stmt = ir.For(var, zero, extent, ir.ForKind.SERIAL, stmt)
    return stmt


def regions(values: list[Any], without: Any = None) -> list[Any]:
    """List what expressions read, each tensor once: a reduction's own output is not named."""
    found: list[Any] = []
    for value in values:
        for load in ir.find_all(value, ir.TensorLoad):
            if without is not None and load.source.same_as(without):
                continue
            region = point(load.source, list(load.indices))
            if not any(
                region.source.same_as(x.source)
                and tvm_ffi.structural_equal(region.region, x.region)
                for x in found
            ):
                found.append(region)
    return found


def point(buffer: Any, indices: list[Any]) -> Any:
    """Return the region of one element."""
    ranges = [tvm.ir.Range.from_min_extent(x, tirx.IntImm(ir.dtype_of(x), 1)) for x in indices]
    return tirx.BufferRegion(buffer, ranges)
