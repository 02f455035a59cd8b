"""Vector loads of mma.sync fragments from global memory: see lower_mma_sync.py.

    if in bounds:
        for v in vectorized(8): A_local[number * 8 + v] = A[row, k + v]
    else:
        for v in vectorized(8): A_local[number * 8 + v] = 0

Where they are none in memory (rows run the other way, or begin anywhere), element by element.
"""

from __future__ import annotations

from typing import Any

from tvm import sym, tirx

from tvm_hopper import ir
from tvm_hopper.analysis.divisors import divides

from .lower_mma_sync_plan import FragmentLoad, WarpProduct, runs_along


def loops(extents: tuple[int, ...], body: Any) -> ir.Stmt:
    """Build unrolled loops with their bodies."""

    def nest(rest: tuple[int, ...], values: list[Any]) -> Any:
        if not rest:
            return body(*values)
        return ir.make_loop("u", rest[0], lambda x: nest(rest[1:], [*values, x]), unroll=True)

    return ir.seq(nest(extents, []))


def load_vector(
    plan: WarpProduct,
    load: FragmentLoad,
    buffer: ir.Var,
    number: Any,
    place: tuple[Any, Any],
    along: ir.Var,
    width: int,
) -> Any:
    """Load one vector of an operand, or zeros; element by element where it is none in memory."""
    v = ir.Var("v", "int32")
    row, k = (
        x + v if along.same_as(y) else x for x, y in zip(place, (load.row, load.k), strict=True)
    )
    values = {load.row: row, load.k: k}
    analyzer = sym.Analyzer()
    analyzer.bind(v, ir.range_of(_counted(v, width, ir.seq())))
    indices = [ir.simplify(ir.substitute(x, values), analyzer) for x in load.load.indices]
    element = tirx.BufferLoad(load.load.source, indices)
    to = [number * width + v]
    zero = tirx.const(0, plan.dtype)
    condition = None
    if load.condition is not None:
        condition = ir.simplify(ir.substitute(load.condition, values), analyzer)
    first = ir.substitute(indices[-1], {v: 0})
    is_vector = (
        runs_along(load, along)
        and divides(width, first)
        and all(divides(width, x) for x in load.load.source.shape[-1:])
        and (condition is None or not ir.depends_on(condition, [v]))
    )
    kind = ir.ForKind.VECTORIZED if is_vector else ir.ForKind.UNROLLED

    def block(value: Any, notes: Any = None) -> Any:
        store = ir.BufferStore(buffer, value, to)
        loads = [value] if isinstance(value, ir.TensorLoad) else []
        return _counted(v, width, ir.block_of_store(store, loads, notes or {}), kind)

    notes = dict(load.block.annotations)
    if not is_vector and condition is not None:
        return ir.fresh_variables(block(tirx.if_then_else(condition, element, zero), notes))
    loaded = ir.fresh_variables(block(element, notes))
    if condition is None or ir.is_const(condition, 1):
        return loaded
    return ir.IfThenElse(condition, loaded, ir.fresh_variables(block(zero)))


def _counted(v: ir.Var, extent: int, body: Any, kind: Any = ir.ForKind.SERIAL) -> ir.For:
    return ir.For(v, tirx.IntImm("int32", 0), tirx.IntImm("int32", extent), kind, body)
