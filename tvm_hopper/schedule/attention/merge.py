"""Merge the results of parts of the keys.

    for p in range(4): top = max(top, lse[p, i])
    for p in range(4): total = total + exp2(lse[p, i] - top)
    for p in range(4): acc = acc + exp2(lse[p, i] - top) * parts[p, i, c]
    O[i, c] = acc / total

A part without a key has lse = -inf, and no weight. What the program computes of the sum of values,
the sum of weights and the maximum it computes of these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from tvm_hopper import ir

from .description import Attention
from .scores import FLOAT32, MINUS_INFINITY, constant


@dataclass(frozen=True)
class Parts:
    """What parts of the keys leave: `sums[p, leads, row, column]` and `logs[p, leads, row]`."""

    count: int
    sums: Any
    logs: Any

    @staticmethod
    def of(attention: Attention, count: int) -> Parts:
        """Declare them, in float32."""
        shape = [count, *(x.extent for x in attention.leads), attention.row.extent]
        sums = ir.new_buffer("parts", (*shape, attention.column.extent), FLOAT32, "global")
        return Parts(count, sums, ir.new_buffer("parts_lse", tuple(shape), FLOAT32, "global"))


def part_values(attention: Attention) -> tuple[Any, Any]:
    """Return what a part stores of its states: the weighted mean, and log2 of its sum."""
    s = attention.states
    is_empty = tirx.EQ(s.row_sum, constant(0.0))
    mean = tirx.Select(is_empty, constant(0.0), s.accumulator / s.row_sum)
    log = s.row_max * constant(attention.exponent_scale) + tirx.log2(s.row_sum)
    return mean, tirx.Select(is_empty, constant(MINUS_INFINITY), log)


def merge(attention: Attention, parts: Parts, block: Callable[..., Any]) -> ir.Stmt:
    """Build the loops that merge parts; `block` makes a block of blocks."""
    a, s = attention, attention.states
    axes = [*a.leads, a.row, a.column]
    dtype = ir.dtype_of(a.row.var)
    own = [ir.Var(f"v{x.var.name}".replace("v_", ""), ir.dtype_of(x.var)) for x in axes]
    top, total, acc = (ir.new_buffer(x, (1,), FLOAT32, "global") for x in ("top", "total", "sum"))
    zero, row = tirx.IntImm(dtype, 0), own[:-1]

    def log(p: Any) -> Any:
        return tirx.BufferLoad(parts.logs, [p, *row])

    def weight(p: Any) -> Any:
        none = tirx.EQ(top[zero], constant(MINUS_INFINITY))
        return tirx.exp2(log(p) - tirx.Select(none, constant(0.0), top[zero]))

    def weighted(p: Any) -> Any:
        return weight(p) * tirx.BufferLoad(parts.sums, [p, *own])

    def over_parts(
        name: str, buffer: Any, first: float, combine: Callable[[Any, Any], Any]
    ) -> list[Any]:
        p, u = (ir.Var(x, dtype) for x in ("vp", "vu"))
        new = combine(tirx.BufferLoad(buffer, [zero]), p)
        one, count = tirx.IntImm(dtype, 1), tirx.IntImm(dtype, parts.count)
        begin = ir.BufferStore(buffer, constant(first), [zero])
        return [
            ir.block_nest(f"{name}_init", [u], [one], begin),
            ir.block_nest(name, [p], [count], ir.BufferStore(buffer, new, [zero]), reduced=1),
        ]

    values = {s.accumulator: acc[zero], s.row_sum: total[zero]}
    values[s.row_max] = top[zero] * constant(1.0 / a.exponent_scale)
    values.update({x.var: v for x, v in zip(axes, own, strict=True)})
    value, *indices = (ir.substitute(x, values) for x in (a.output.value, *a.output.indices))
    kind = ir.dtype_of(a.output.buffer)
    value = value if ir.dtype_of(value) == kind else tirx.Cast(kind, value)
    u = ir.Var("vu", dtype)
    store = ir.BufferStore(a.output.buffer, value, indices)
    body = ir.seq(
        over_parts(
            "merge_max",
            top,
            MINUS_INFINITY,
            lambda x, p: T.max(x, log(p)),
        ),
        over_parts("merge_sum", total, 0.0, lambda x, p: x + weight(p)),
        over_parts(
            "merge_values",
            acc,
            0.0,
            lambda x, p: x + weighted(p),
        ),
        ir.block_nest("merged", [u], [tirx.IntImm(dtype, 1)], store),
    )
    merged = block("merge", list(zip(own, (x.extent for x in axes), strict=True)), body,
                   [top, total, acc])  # fmt: skip
    loops = [ir.Var(x.name.removeprefix("v"), ir.dtype_of(x)) for x in own]
    stmt: ir.Stmt = ir.SBlockRealize(loops, True, merged)
    for var, axis in zip(reversed(loops), reversed(axes), strict=True):
        start = tirx.IntImm(ir.dtype_of(var), 0)
        stmt = ir.For(var, start, ir.cast_like(axis.extent, var), ir.ForKind.SERIAL, stmt)
    return stmt
