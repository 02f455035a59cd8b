"""Merge the results of parts of the keys.

    for p in range(4): top = max(top, part_max[p, i])
    for p in range(4): total = total + exp2((part_max[p, i] - top) * c) * part_sum[p, i]
    for p in range(4): acc = acc + exp2((part_max[p, i] - top) * c) * parts[p, i, c]
    O[i, c] = acc / total

A part without a key has the maximum -inf, and no weight. What the program computes of the sum of
values, the sum of weights and the maximum it computes of these. A sink is one more part, which
`top` and `total` begin with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from tvm_hopper import ir

from .description import Attention, StoredResult
from .scores import FLOAT32, MINUS_INFINITY, constant


@dataclass(frozen=True)
class Parts:
    """What the kernel of each part of the keys stores: weighted values, maxima and sums.

    `values[p, leads, row, column]`, `maxima[p, leads, row]` and `sums[p, leads, row]`.
    """

    count: Any
    values: Any
    maxima: Any
    sums: Any

    @staticmethod
    def of(attention: Attention, count: Any) -> Parts:
        """Declare them, in float32."""
        shape = [count, *(x.extent for x in attention.leads), attention.row.extent]
        values = ir.new_buffer("parts", (*shape, attention.column.extent), FLOAT32, "global")
        maxima, sums = (
            ir.new_buffer(x, tuple(shape), FLOAT32, "global") for x in ("part_max", "part_sum")
        )
        return Parts(count, values, maxima, sums)

    @property
    def buffers(self) -> list[Any]:
        """All of them."""
        return [self.values, self.maxima, self.sums]

    def results(self, attention: Attention, part: Any) -> list[StoredResult]:
        """Return what a part stores."""
        s, row = attention.states, (part, *(x.var for x in (*attention.leads, attention.row)))
        return [
            StoredResult(self.values, (*row, attention.column.var), s.accumulator),
            StoredResult(self.maxima, row, s.row_max),
            StoredResult(self.sums, row, s.row_sum),
        ]


def merge(attention: Attention, parts: Parts, block: Callable[..., Any]) -> ir.Stmt:
    """Build the loops that merge parts; `block` makes a block of blocks."""
    a, s = attention, attention.states
    axes = [*a.leads, a.row, a.column]
    dtype = ir.dtype_of(a.row.var)
    own = [ir.Var(f"v{x.var.name}".replace("v_", ""), ir.dtype_of(x.var)) for x in axes]
    top, total, acc = (ir.new_buffer(x, (1,), FLOAT32, "global") for x in ("top", "total", "sum"))
    zero, row = tirx.IntImm(dtype, 0), own[:-1]

    def most(p: Any) -> Any:
        return tirx.BufferLoad(parts.maxima, [p, *row])

    def weight(score: Any) -> Any:
        none = tirx.EQ(top[zero], constant(MINUS_INFINITY))
        below = score - tirx.Select(none, constant(0.0), top[zero])
        return tirx.exp2(below * constant(a.exponent_scale))

    def weighted(p: Any, state: Any, place: list[Any]) -> Any:
        return weight(most(p)) * tirx.BufferLoad(state, [p, *place])

    def over_parts(
        name: str, buffer: Any, first: Any, combine: Callable[[Any, Any], Any]
    ) -> list[Any]:
        p, u = (ir.Var(x, dtype) for x in ("vp", "vu"))
        new = combine(tirx.BufferLoad(buffer, [zero]), p)
        one, count = tirx.IntImm(dtype, 1), ir.cast_like(parts.count, p)
        begin = ir.BufferStore(buffer, constant(first), [zero])
        return [
            ir.block_nest(f"{name}_init", [u], [one], begin),
            ir.block_nest(name, [p], [count], ir.BufferStore(buffer, new, [zero]), reduced=1),
        ]

    values = {s.accumulator: acc[zero], s.row_sum: total[zero]}
    values[s.row_max] = top[zero]
    values.update({x.var: v for x, v in zip(axes, own, strict=True)})

    def stored(name: str, result: StoredResult, where: Any) -> ir.Stmt:
        value, *indices = (ir.substitute(x, values) for x in (result.value, *result.indices))
        kind = ir.dtype_of(result.buffer)
        value = value if ir.dtype_of(value) == kind else tirx.Cast(kind, value)
        store = ir.BufferStore(result.buffer, value, indices)
        one, u = tirx.IntImm(dtype, 1), ir.Var("vu", dtype)
        return ir.block_nest(name, [u], [one], store, predicate=where)

    sink = MINUS_INFINITY if a.sink is None else ir.substitute(a.sink, values)
    body = ir.seq(
        over_parts("merge_max", top, sink, lambda x, p: T.max(x, most(p))),
        over_parts(
            "merge_sum",
            total,
            0.0 if a.sink is None else weight(sink),
            lambda x, p: x + weighted(p, parts.sums, row),
        ),
        over_parts("merge_values", acc, 0.0, lambda x, p: x + weighted(p, parts.values, own)),
        stored("merged", a.output, True),
        None if a.log_sum is None else stored("merged_lse", a.log_sum, tirx.EQ(own[-1], 0)),
    )
    merged = block("merge", list(zip(own, (x.extent for x in axes), strict=True)), body,
                   [top, total, acc])  # fmt: skip
    loops = [ir.Var(x.name.removeprefix("v"), ir.dtype_of(x)) for x in own]
    stmt: ir.Stmt = ir.SBlockRealize(loops, True, merged)
    for var, axis in zip(reversed(loops), reversed(axes), strict=True):
        start = tirx.IntImm(ir.dtype_of(var), 0)
        stmt = ir.For(var, start, ir.cast_like(axis.extent, var), ir.ForKind.SERIAL, stmt)
    return stmt
