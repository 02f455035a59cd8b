"""Build the running form of softmax attention: one loop over steps of keys.

    for j0 in range(first, last):
        S[i, j] = Q[i, k] * K[j, k]
        row_max[i] = max(row_max[i], S[i, j])
        rescale[i] = exp2((old maximum - row_max[i]) * c)
        S[i, j] = exp2((S[i, j] - row_max[i]) * c)
        row_sum[i] = row_sum[i] * rescale[i] + S[i, j]
        acc[i, c] = acc[i, c] * rescale[i] + S[i, j] * V[j, c]
    out[i, c] = acc[i, c] / row_sum[i]

A row without a key so far has the maximum minus infinity, which is replaced by 0 in exponents: its
weights are exp2(-inf) = 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from tvm import ir as tvm_ir
from tvm import s_tir, sym, tirx
from tvm.script import tirx as T
from tvm.tirx import IterVar

from tvm_hopper import ir

from .description import Attention, Axis, StoredResult
from .key_range import key_range
from .scores import FLOAT32, MINUS_INFINITY, constant


@dataclass(frozen=True)
class _Buffers:
    """The tile's buffers."""

    scores: Any
    weights: Any
    accumulator: Any
    row_max: Any
    old_max: Any
    row_sum: Any
    rescale: Any

    def all(self) -> list[Any]:
        """Return them in the order of their fields."""
        return [getattr(self, x.name) for x in fields(self)]


class RunningForm:
    """Builds the loops of one attention.

    Parameters
    ----------
    attention : Attention
        What is computed.
    tile : (int, int)
        Rows of a tile, keys of a step.
    probabilities : str
        Type of the weights that multiply values.
    """

    def __init__(self, attention: Attention, tile: tuple[int, int], probabilities: str) -> None:
        self.attention = attention
        self.rows, self.keys = tile
        self.dtype = ir.dtype_of(attention.key.var)
        self.analyzer = sym.Analyzer()
        self.columns = attention.column.extent
        row = (self.rows,)
        self.buffers = _Buffers(
            ir.new_buffer("S", tile, FLOAT32, "global"),
            ir.new_buffer("P", tile, probabilities, "global"),
            ir.new_buffer("acc", (self.rows, self.columns), FLOAT32, "global"),
            *(
                ir.new_buffer(name, row, FLOAT32, "global")
                for name in ("row_max", "old_max", "row_sum", "rescale")
            ),
        )
        self.lead_names = [str(x.var.name).removeprefix("v_") for x in attention.leads]
        self.lead_vars = [
            ir.Var(f"v{name}", ir.dtype_of(x.var))
            for name, x in zip(self.lead_names, attention.leads, strict=True)
        ]
        self.row_tile = ir.Var("vi0", self.dtype)
        self.key_tile = ir.Var("vj0", self.dtype)
        self.by_lead = {x.var: var for x, var in zip(attention.leads, self.lead_vars, strict=True)}
        for axis, var in zip(attention.leads, self.lead_vars, strict=True):
            self._bind(var, axis.extent)
        self._bind(self.row_tile, self._tiles(attention.row, self.rows))
        self._bind(self.key_tile, self._tiles(attention.key, self.keys))
        self.cuts_rows = not self._divides(attention.row, self.rows)
        self.cuts_keys = not self._divides(attention.key, self.keys)

    def build(self) -> ir.Stmt:
        """Return the loops over tiles."""
        a, buffers = self.attention, self.buffers
        body = ir.seq(
            self._row("row_max_init", buffers.row_max, lambda i: self._first_max(i)),
            self._row("row_sum_init", buffers.row_sum, lambda i: self._first_sum(i)),
            self._element("acc_init", buffers.accumulator, lambda i, c: constant(0.0)),
            self._steps(),
            self._out(a.output, ("i", "c")),
            [] if a.log_sum is None else self._out(a.log_sum, ("i",)),
        )
        block = self._with_regions(
            ir.SBlock(
                [
                    *(
                        self._iter_var(var, axis.extent)
                        for axis, var in zip(a.leads, self.lead_vars, strict=True)
                    ),
                    self._iter_var(self.row_tile, self._tiles(a.row, self.rows)),
                ],
                [], [], "tile", body, alloc_buffers=buffers.all(),
            )
        )  # fmt: skip
        names = [*self.lead_names, "i0"]
        extents = [*(x.extent for x in a.leads), self._tiles(a.row, self.rows)]
        loops = [
            ir.Var(name, ir.dtype_of(axis.var))
            for name, axis in zip(names, block.iter_vars, strict=True)
        ]
        stmt: ir.Stmt = ir.SBlockRealize(loops, True, block)
        for var, extent in reversed(list(zip(loops, extents, strict=True))):
            zero = tirx.IntImm(ir.dtype_of(var), 0)
            stmt = ir.For(var, zero, ir.cast_like(extent, var), ir.ForKind.SERIAL, stmt)
        return stmt

    # ---- the loop over keys

    def _steps(self) -> ir.Stmt:
        a = self.attention
        low, high = key_range(a, *self._row_range())
        low, high = (ir.substitute(x, self.by_lead) for x in (low, high))
        first = self.analyzer.simplify(tirx.floordiv(low, self.keys))
        steps = self.analyzer.simplify(self._ceil(high, self.keys) - first)
        if not self.analyzer.can_prove(steps >= 0):
            steps = T.max(steps, tirx.IntImm(self.dtype, 0))
        block = self._with_regions(
            ir.SBlock(
                [self._iter_var(self.key_tile, self._tiles(a.key, self.keys), True)],
                [], [], "step", ir.seq(*self._step()),
            )
        )  # fmt: skip
        var = ir.Var("j0", self.dtype)
        return ir.For(var, first, steps, ir.ForKind.SERIAL, ir.SBlockRealize([var], True, block))

    def _step(self) -> list[Any]:
        a, b = self.attention, self.buffers
        scale = constant(a.exponent_scale)

        def exponent(value: Any, i: Any) -> Any:
            top = b.row_max[i]
            safe = tirx.Select(tirx.EQ(top, constant(MINUS_INFINITY)), constant(0.0), top)
            return tirx.exp2(value * scale - safe * scale)

        return [
            self._element("S_init", b.scores, lambda i, j: constant(0.0)),
            self._sum("S", b.scores, ("i", "j", "k"), self._product),
            [] if self._score_is_product() else self._element("scores", b.scores, self._score),
            self._row("old_max", b.old_max, lambda i: b.row_max[i]),
            self._sum(
                "row_max", b.row_max, ("i", "j"), lambda i, j: b.scores[i, j], combine=T.max
            ),
            self._row("rescale", b.rescale, lambda i: exponent(b.old_max[i], i)),
            self._element("exponentials", b.scores, lambda i, j: exponent(b.scores[i, j], i)),
            self._row("row_sum_rescale", b.row_sum, lambda i: b.row_sum[i] * b.rescale[i]),
            self._sum("row_sum", b.row_sum, ("i", "j"), lambda i, j: b.scores[i, j]),
            self._element("P", b.weights, lambda i, j: b.scores[i, j]),
            self._element(
                "acc_rescale", b.accumulator, lambda i, c: b.accumulator[i, c] * b.rescale[i]
            ),
            self._sum(
                "O", b.accumulator, ("i", "c", "j"),
                lambda i, c, j: _to(FLOAT32, b.weights[i, j]) * self._value(c, j),
            ),
        ]  # fmt: skip

    def _product(self, i: Any, j: Any, k: Any) -> Any:
        a = self.attention
        at = {a.row.var: self._row_at(i), a.key.var: self._key_at(j), a.depth.var: k}
        sides = (a.query, [a.row]), (a.keys, [a.key])
        left, right = (self._guarded(load, at, axes) for load, axes in sides)
        return _to(FLOAT32, left) * _to(FLOAT32, right)

    def _value(self, c: Any, j: Any) -> Any:
        a = self.attention
        at = {a.key.var: self._key_at(j), a.column.var: c}
        return _to(FLOAT32, self._guarded(a.values, at, [a.key]))

    def _score_is_product(self) -> bool:
        a = self.attention
        return isinstance(a.score, ir.Var) and not self.cuts_keys

    def _score(self, i: Any, j: Any) -> Any:
        a = self.attention
        at = {
            a.row.var: self._row_at(i),
            a.key.var: self._key_at(j),
            a.states.product: self.buffers.scores[i, j],
        }
        value = self._guarded(a.score, at, [a.row, a.key])
        if self.cuts_keys:
            inside = _below(self._key_at(j), a.key)
            value = tirx.Select(inside, value, constant(MINUS_INFINITY))
        return value

    # ---- states and results

    def _first_max(self, i: Any) -> Any:
        return constant(MINUS_INFINITY) if self.attention.sink is None else self._sink(i)

    def _first_sum(self, i: Any) -> Any:
        if self.attention.sink is None:
            return constant(0.0)
        none = tirx.EQ(self._sink(i), constant(MINUS_INFINITY))
        return tirx.Select(none, constant(0.0), constant(1.0))

    def _sink(self, i: Any) -> Any:
        a = self.attention
        return self._guarded(a.sink, {a.row.var: self._row_at(i)}, [a.row])

    def _out(self, result: StoredResult, axes: tuple[str, ...]) -> ir.Stmt:
        a, b = self.attention, self.buffers

        def store(i: Any, *rest: Any) -> Any:
            at = {
                a.row.var: self._row_at(i),
                a.states.row_sum: b.row_sum[i],
                a.states.row_max: b.row_max[i],
            }
            if rest:
                at.update({a.column.var: rest[0], a.states.accumulator: b.accumulator[i, rest[0]]})
            value = ir.substitute(result.value, {**self.by_lead, **at})
            indices = [ir.substitute(x, {**self.by_lead, **at}) for x in result.indices]
            return ir.BufferStore(result.buffer, _to(ir.dtype_of(result.buffer), value), indices)

        return self._nest("out" if len(axes) == 2 else "lse", axes, store, cuts=self.cuts_rows)

    # ---- helpers

    def _extent(self, axis: str) -> Any:
        a = self.attention
        return {"i": self.rows, "j": self.keys, "k": a.depth.extent, "c": a.column.extent}[axis]

    def _row(self, name: str, buffer: Any, value: Callable[[Any], Any]) -> ir.Stmt:
        return self._update(name, buffer, ("i",), value)

    def _element(self, name: str, buffer: Any, value: Callable[[Any, Any], Any]) -> ir.Stmt:
        second = "c" if buffer.same_as(self.buffers.accumulator) else "j"
        return self._update(name, buffer, ("i", second), value)

    def _sum(
        self,
        name: str,
        buffer: Any,
        axes: tuple[str, ...],
        value: Callable[..., Any],
        combine: Callable[[Any, Any], Any] = lambda x, y: x + y,
    ) -> ir.Stmt:
        """Build a reduction over the axes behind the buffer's own."""
        own = len(buffer.shape)

        def update(*at: Any) -> Any:
            return combine(tirx.BufferLoad(buffer, list(at[:own])), value(*at))

        return self._update(name, buffer, axes, update)

    def _update(
        self, name: str, buffer: Any, axes: tuple[str, ...], value: Callable[..., Any]
    ) -> ir.Stmt:
        own = len(buffer.shape)

        def store(*at: Any) -> ir.BufferStore:
            return ir.BufferStore(buffer, _to(ir.dtype_of(buffer), value(*at)), list(at[:own]))

        return self._nest(name, axes, store, reduced=len(axes) - own)

    def _nest(
        self,
        name: str,
        axes: tuple[str, ...],
        store: Callable[..., ir.BufferStore],
        reduced: int = 0,
        cuts: bool = False,
    ) -> ir.Stmt:
        """Build loops over axes of the tile around one store; `cuts`: over rows that exist."""
        zero = tirx.IntImm(self.dtype, 0)
        extents = [ir.cast_like(self._extent(x), zero) for x in axes]
        loops = [ir.Var(x, self.dtype) for x in axes]
        variables = [ir.Var(f"v{x}", self.dtype) for x in axes]
        predicate = _below(self._row_at(loops[0]), self.attention.row) if cuts else True
        return ir.block_nest(
            name,
            variables,
            extents,
            store(*variables),
            loops=loops,
            reduced=reduced,
            predicate=predicate,
        )

    def _guarded(self, expr: Any, at: dict[Any, Any], axes: list[Axis]) -> Any:
        """Place an expression in the tile; what lies past the end of an axis is read as 0."""
        cut = [x for x in axes if (self.cuts_rows if x is self.attention.row else self.cuts_keys)]
        places = {**self.by_lead, **at}

        def load(node: Any, mutator: Any) -> Any:
            terms = [
                _below(at[x.var], x) for x in cut if ir.depends_on(list(node.indices), [x.var])
            ]
            placed = ir.substitute(mutator.default_mutate(node), places)
            if not terms:
                return placed
            return T.if_then_else(ir.conjunction(terms), placed, _zero(ir.dtype_of(placed)))

        guarded = ir.mutate(expr, [(ir.TensorLoad, load)])
        return ir.substitute(guarded, places)

    def _row_at(self, i: Any) -> Any:
        return self.row_tile * self.rows + i

    def _key_at(self, j: Any) -> Any:
        return self.key_tile * self.keys + j

    def _row_range(self) -> tuple[Any, Any]:
        first = self.row_tile * self.rows
        end: Any = first + self.rows
        if self.cuts_rows:
            end = T.min(end, ir.cast_like(self.attention.row.extent, end))
        return first, end - 1

    def _ceil(self, extent: Any, size: int) -> Any:
        return tirx.floordiv(extent + (size - 1), size)

    def _tiles(self, axis: Axis, size: int) -> Any:
        return ir.simplify(self._ceil(ir.cast_like(axis.extent, self.row_tile), size))

    def _divides(self, axis: Axis, size: int) -> bool:
        rest = tirx.floormod(axis.extent, size)
        return bool(self.analyzer.can_prove(tirx.EQ(rest, ir.cast_like(0, axis.var))))

    def _bind(self, var: Any, extent: Any) -> None:
        zero = tirx.IntImm(ir.dtype_of(var), 0)
        self.analyzer.bind(var, tvm_ir.Range.from_min_extent(zero, ir.cast_like(extent, var)))

    def _iter_var(self, var: Any, extent: Any, reduced: bool = False) -> Any:
        zero = tirx.IntImm(ir.dtype_of(var), 0)
        kind = IterVar.CommReduce if reduced else IterVar.DataPar
        return IterVar(tvm_ir.Range.from_min_extent(zero, ir.cast_like(extent, var)), var, kind)

    def _with_regions(self, block: Any) -> Any:
        """Declare what a block of blocks reads and writes."""
        buffers = {x: x for x in self._buffers_of(block)}
        regions = s_tir.analysis.get_sblock_read_write_region(block, buffers)
        own = list(block.alloc_buffers)
        reads, writes = (
            [x for x in part if not any(x.source.same_as(y) for y in own)] for part in regions
        )
        return ir.with_block(block, reads=reads, writes=writes)

    def _buffers_of(self, block: Any) -> list[Any]:
        loads = [x.source for x in ir.find_all(block, ir.TensorLoad)]
        return ir.once(loads + [x.buffer for x in ir.find_all(block, ir.BufferStore)])


def _to(dtype: str, value: Any) -> Any:
    return value if ir.dtype_of(value) == dtype else tirx.Cast(dtype, value)


def _below(place: Any, axis: Axis) -> Any:
    return tirx.LT(place, ir.cast_like(axis.extent, place))


def _zero(dtype: str) -> Any:
    return tirx.const(False, dtype) if dtype == "bool" else tirx.const(0, dtype)
