"""Build the running form of softmax attention: one loop over steps of keys.

    for j0 in range(first, last):
        S[i, j] = Q[i, k] * K[j, k]
        row_max[i] = max(row_max[i], S[i, j])
        rescale[i] = exp2((old maximum - row_max[i]) * c)
        S[i, j] = exp2((S[i, j] - row_max[i]) * c)
        row_sum[i] = row_sum[i] * rescale[i] + S[i, j]
        acc[i, c] = acc[i, c] * rescale[i] + S[i, j] * V[j, c]
    out[i, c] = acc[i, c] / row_sum[i]

A row without a key so far has the maximum minus infinity, in whose place exponents take 0: its
weights are exp2(-inf) = 0.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from tvm import ir as tvm_ir, s_tir, sym, tirx
from tvm.script import tirx as T
from tvm.tirx import IterVar

from tvm_hopper import ir

from .description import Attention, LoopAxis, StoredResult
from .element_nests import ElementNests, to
from .key_range import MaskBounds
from .merge import Parts, merge
from .scores import FLOAT32, MINUS_INFINITY, constant, may_be_large

ROW_STATES = "row_max", "old_max", "offset", "row_sum", "rescale"
DEPTH_STEP = 16  # terms that an instruction multiplies: operands are filled up with zeros


@dataclass(frozen=True)
class AttentionTile:
    """Rows of a thread block, keys of a step, and the parts that the rows are cut into.

    `splits` are the parts that the keys are cut into, each for thread blocks of its own; a call
    decides their number where it is an expression.
    """

    rows: int
    keys: int
    parts: int
    splits: Any = 1

    @property
    def rows_of_a_part(self) -> int:
        """Rows of each part."""
        return self.rows // self.parts


@dataclass(frozen=True)
class _Buffers:
    """Buffers of one part of a tile, and of a step."""

    limit: Any
    first_key: Any
    scores: Any
    weights: Any
    accumulator: Any
    row_max: Any
    old_max: Any
    offset: Any
    row_sum: Any
    rescale: Any

    def all(self) -> list[Any]:
        """Return them in the order of their fields."""
        every = [getattr(self, x.name) for x in fields(self)]
        return [x for x in every if x is not None]


class RunningForm:
    """Builds the loops of one attention.

    - `attention`: what is computed.
    - `tile`: the sizes of a tile.
    - `probabilities`: type of the weights that multiply values.
    """

    def __init__(self, attention: Attention, tile: AttentionTile, probabilities: str) -> None:
        self.attention, self.tile = attention, tile
        a = attention
        self.dtype = ir.dtype_of(a.key.var)
        self.analyzer = sym.Analyzer()
        self.lead_names = [str(x.var.name).removeprefix("v_") for x in a.leads]
        self.lead_vars = [
            ir.Var(f"v{name}", ir.dtype_of(x.var))
            for name, x in zip(self.lead_names, a.leads, strict=True)
        ]
        self.by_lead = {x.var: v for x, v in zip(a.leads, self.lead_vars, strict=True)}
        self.row_tile, self.row_part, self.key_tile = (
            ir.Var(x, self.dtype) for x in ("vi0", "vi1", "vj0")
        )
        self.row_tiles, self.key_tiles = (
            self._tiles(axis, size) for axis, size in ((a.row, tile.rows), (a.key, tile.keys))
        )
        for var, extent in (
            *zip(self.lead_vars, (x.extent for x in a.leads), strict=True),
            *((self.row_tile, self.row_tiles), (self.key_tile, self.key_tiles)),
        ):
            zero = tirx.IntImm(ir.dtype_of(var), 0)
            self.analyzer.bind(var, tvm_ir.Range.from_min_extent(zero, ir.cast_like(extent, var)))
        self.cuts_rows = not self._divides(a.row, tile.rows)
        self.cuts_keys = not self._divides(a.key, tile.keys)
        first = self.row_tile * tile.rows
        self.bounds = MaskBounds(a, (first, first + tile.rows), self.analyzer)
        rows = tile.rows_of_a_part
        self.depth = ir.simplify(_ceildiv(a.depth.extent, DEPTH_STEP) * DEPTH_STEP)
        self.cuts_depth = not self._divides(a.depth, DEPTH_STEP)
        extents = {"i": rows, "j": tile.keys, "k": self.depth, "c": a.column.extent}
        self.loops = ElementNests(extents, self.dtype)
        from_row = None if a.limits is None else a.limits.from_row
        self.buffers = _Buffers(
            None if a.limits is None else ir.new_buffer("limit", (rows,), self.dtype, "global"),
            None if from_row is None else ir.new_buffer("first_key", (rows,), self.dtype, "global"),
            ir.new_buffer("S", (rows, tile.keys), FLOAT32, "global"),
            ir.new_buffer("P", (rows, tile.keys), probabilities, "global"),
            ir.new_buffer("acc", (rows, a.column.extent), FLOAT32, "global"),
            *(ir.new_buffer(name, (rows,), FLOAT32, "global") for name in ROW_STATES),
        )
        padded = ir.simplify(self.row_tiles * tile.rows)
        leads = [x.extent for x in a.leads]
        self.queries = self._tile_buffer("Q_tile", a.query, (*leads, padded, self.depth))
        self.split = None if ir.is_const(tile.splits, 1) else Parts.of(a, tile.splits)
        self.part = tirx.IntImm(self.dtype, 0) if self.split is None else ir.Var("vp", self.dtype)
        self.keys = self._tile_buffer("K_tile", a.keys, (tile.keys, self.depth))
        self.values = self._tile_buffer("V_tile", a.values, (tile.keys, a.column.extent))

    def _tile_buffer(self, name: str, load: Any, shape: tuple[Any, ...]) -> Any:
        return ir.new_buffer(name, shape, ir.dtype_of(load.source), "global")

    def build(self) -> tuple[ir.Stmt, list[Any]]:
        """Return the program, and the buffers to allocate around it."""
        a, b, loops = self.attention, self.buffers, self.loops
        split = self.split
        of_rows = [] if a.log_sum is None else [a.log_sum]
        output, *of_rows = [a.output, *of_rows] if split is None else split.results(a, self.part)
        body = ir.seq(
            loops.fill("row_max_init", b.row_max, "i", self._first_max),
            loops.fill("row_sum_init", b.row_sum, "i", self._first_sum),
            loops.fill("acc_init", b.accumulator, "ic", lambda i, c: constant(0.0)),
            self._limits(),
            self._steps(),
            self._store("out", output, "ic"),
            [self._store(x.buffer.name if split else "lse", x, "i") for x in of_rows],
        )
        one = tirx.IntImm(self.dtype, self.tile.parts)
        axes = [
            *([] if split is None else [("p", self.part, ir.cast_like(split.count, self.part))]),
            *zip(self.lead_names, self.lead_vars, (x.extent for x in a.leads), strict=True),
            *(("i0", self.row_tile, self.row_tiles), ("i1", self.row_part, one)),
        ]
        block = self._block("tile", [self._iter_var(v, x) for _, v, x in axes], body, b.all())
        names = [(ir.Var(name, ir.dtype_of(v)), v, x) for name, v, x in axes]
        bound: list[Any] = [x for x, *_ in names]
        # The longest tiles start first. TVM finds no box of a tile that is counted back from a
        # symbolic number of them, and does not see that such tiles cover what a merge reads.
        counts_back = (ir.static_int(self.row_tiles) or 0) > 1 and split is None
        if self.bounds.grow_with_rows and counts_back:
            bound[-2] = self.row_tiles - 1 - bound[-2]
        stmt: ir.Stmt = ir.SBlockRealize(bound, True, block)
        for var, _, extent in reversed(names):
            zero = tirx.IntImm(ir.dtype_of(var), 0)
            stmt = ir.For(var, zero, ir.cast_like(extent, var), ir.ForKind.SERIAL, stmt)
        if split is None:
            return ir.seq(self._query_rows(), stmt), [self.queries]
        body = ir.seq(self._query_rows(), stmt, merge(a, split, self._block_of))
        return body, [self.queries, *split.buffers]

    def _query_rows(self) -> ir.Stmt:
        """Build the copy of the queries whose rows fill all tiles."""
        a = self.attention
        leads = [ir.Var(f"v{name}", ir.dtype_of(v)) for name, v in self.by_lead_names()]
        row, depth = (ir.Var(x, self.dtype) for x in ("vi", "vk"))
        at = {a.row.var: row, a.depth.var: depth}
        at.update({x.var: v for x, v in zip(a.leads, leads, strict=True)})
        value = self._placed(a.query, at, [a.row, a.depth])
        variables = [*leads, row, depth]
        extents = [ir.cast_like(x, v) for x, v in zip(self.queries.shape, variables, strict=True)]
        store = ir.BufferStore(self.queries, value, variables)
        loops = [ir.Var(x.name.removeprefix("v"), ir.dtype_of(x)) for x in variables]
        return ir.block_nest("Q_tile", variables, extents, store, loops=loops)

    def by_lead_names(self) -> list[tuple[str, Any]]:
        """Return the leading axes by name."""
        return list(zip(self.lead_names, self.lead_vars, strict=True))

    # ---- the loop over keys

    def _steps(self) -> ir.Stmt:
        first, steps = self._step_range()
        axis = self._iter_var(self.key_tile, self.key_tiles, reduced=True)
        block = self._block("step", [axis], ir.seq(*self._step()), [self.keys, self.values])
        var, zero = ir.Var("j0", self.dtype), tirx.IntImm(self.dtype, 0)
        realize = ir.SBlockRealize([ir.simplify(first + var)], True, block)
        return ir.For(var, zero, steps, ir.ForKind.SERIAL, realize)

    def _step_range(self) -> tuple[Any, Any]:
        """Return the first step and the number of steps."""
        limits, zero = self.attention.limits, tirx.IntImm(self.dtype, 0)
        if limits is not None and limits.steps is not None:
            first, steps = limits.steps(self.part)
            return ir.substitute(first, self.by_lead), ir.substitute(steps, self.by_lead)
        if limits is None:
            key_range = self.bounds.key_range()
        else:
            key_range = (zero if limits.begin is None else limits.begin, limits.end)
        low, high = (ir.substitute(x, self.by_lead) for x in key_range)
        first = self.analyzer.simplify(tirx.floordiv(low, self.tile.keys))
        steps = self.analyzer.simplify(_ceildiv(high, self.tile.keys) - first)
        if not self.analyzer.can_prove(steps >= 0):
            steps = T.max(steps, zero)
        if self.split is None:
            return first, steps
        # each part takes as many steps, as far as there are any
        most = _ceildiv(steps, self.split.count)
        begin = self.part * most
        return first + begin, T.max(T.min(most, steps - begin), zero)

    def _step(self) -> list[Any]:
        a, b, loops = self.attention, self.buffers, self.loops
        return [
            loops.fill("K_tile", self.keys, "jk", lambda j, k: self._key_element(a.keys, j, k)),
            loops.fill("V_tile", self.values, "jc", lambda j, c: self._key_element(a.values, j, c)),
            loops.fill("S_init", b.scores, "ij", lambda i, j: constant(0.0)),
            loops.reduce("S", b.scores, "ijk", self._product),
            self._scores(),
            loops.fill("old_max", b.old_max, "i", lambda i: b.row_max[i]),
            loops.reduce("row_max", b.row_max, "ij", lambda i, j: b.scores[i, j], T.max),
            loops.fill("offset", b.offset, "i", self._offset),
            loops.fill("rescale", b.rescale, "i", lambda i: self._power(b.old_max[i], i)),
            loops.fill("exponentials", b.scores, "ij", lambda i, j: self._power(b.scores[i, j], i)),
            loops.fill("row_sum_rescale", b.row_sum, "i", lambda i: b.row_sum[i] * b.rescale[i]),
            loops.reduce("row_sum", b.row_sum, "ij", lambda i, j: b.scores[i, j]),
            loops.fill("P", b.weights, "ij", lambda i, j: b.scores[i, j]),
            loops.fill(
                "acc_rescale", b.accumulator, "ic", lambda i, c: b.accumulator[i, c] * b.rescale[i]
            ),
            loops.reduce(
                "O",
                b.accumulator,
                "icj",
                lambda i, c, j: to(FLOAT32, b.weights[i, j]) * to(FLOAT32, self.values[j, c]),
            ),
        ]

    def _key_element(self, load: Any, j: Any, other: Any) -> Any:
        a = self.attention
        along = a.depth if load is a.keys else a.column
        at = {a.key.var: self._key_at(j), along.var: other, **self.by_lead}
        return self._placed(load, at, [a.key, along])

    def _product(self, i: Any, j: Any, k: Any) -> Any:
        query = tirx.BufferLoad(self.queries, [*self.lead_vars, self._row_at(i), k])
        return to(FLOAT32, query) * to(FLOAT32, self.keys[j, k])

    def _scores(self) -> Any:
        """Build the block that makes scores of the product; None if they are the product.

        Its predicate leaves out steps in which no key is masked, if masks are all that it does.
        """
        a, b = self.attention, self.buffers
        if isinstance(a.score, ir.Var) and not self.cuts_keys and a.limits is None:
            return None

        def store(i: Any, j: Any) -> ir.BufferStore:
            at = {a.row.var: self._row_at(i), a.key.var: self._key_at(j)}
            at.update({a.states.product: b.scores[i, j], **self.by_lead})
            value = self._placed(a.score, at, [a.row, a.key])
            if self.cuts_keys or a.limits is not None:
                inside = _below(self._key_at(j), a.key) if a.limits is None else self._sees(i, j)
                # a Select reads both sides: what it says may not be left out of a read's condition
                reads = ir.has_any(value, ir.TensorLoad, lambda x: not x.source.same_as(b.scores))
                choose = T.if_then_else if reads else tirx.Select
                value = choose(inside, value, constant(MINUS_INFINITY))
            return ir.BufferStore(b.scores, value, [i, j])

        first = self.key_tile * self.tile.keys
        end = first + self.tile.keys
        edges = self.bounds.edges(first, end - 1)
        if edges is None:
            return self.loops.nest("scores", "ij", store)
        if a.limits is not None:
            edges.append(tirx.GT(end, a.limits.full))
            if a.limits.all_from is not None:
                edges.append(tirx.LT(first, a.limits.all_from))
        elif self.cuts_keys:
            edges.append(tirx.GT(end, ir.cast_like(a.key.extent, end)))
        reached: Any = None
        for edge in (ir.substitute(x, self.by_lead) for x in edges):
            reached = edge if reached is None else tirx.Or(reached, edge)
        return self.loops.nest("scores", "ij", store, where=lambda *_: reached)

    def _offset(self, i: Any) -> Any:
        """Return what is added to the exponents of a row, or subtracted from its scores."""
        top = self.buffers.row_max[i]
        value = top
        if not may_be_large(self.attention.score):
            value = top * constant(-self.attention.exponent_scale)
        none = tirx.EQ(top, constant(MINUS_INFINITY))
        return tirx.Select(none, constant(0.0), value)

    def _power(self, score: Any, i: Any) -> Any:
        """Return the weight of a score, by one rounding where no score can be as large as -1e9.

        The product of such a score and the scale is rounded in the row's offset and not in the
        score's exponent, so that their difference may be far from 0.
        """
        scale = constant(self.attention.exponent_scale)
        offset = self.buffers.offset[i]
        if may_be_large(self.attention.score):
            return tirx.exp2((score - offset) * scale)
        return tirx.exp2(T.fma(score, scale, offset))

    def _limits(self) -> list[Any]:
        """Build the nests of the first key that a row does not see, and of the first that it does.

        The second one is left out where that is the first of all.
        """
        limits, b = self.attention.limits, self.buffers
        if limits is None:
            return []

        def of_row(limit: Any) -> Any:
            row = self.attention.row.var
            return lambda i: ir.substitute(limit, {**self.by_lead, row: self._row_at(i)})

        pairs = ("limit", b.limit, limits.of_row), ("first_key", b.first_key, limits.from_row)
        return [
            self.loops.fill(name, buffer, "i", of_row(limit))
            for name, buffer, limit in pairs
            if buffer is not None
        ]

    def _sees(self, i: Any, j: Any) -> Any:
        key, first = self._key_at(j), self.buffers.first_key
        is_before = tirx.LT(key, self.buffers.limit[i])
        return is_before if first is None else tirx.And(first[i] <= key, is_before)

    # ---- states and results

    def _first_max(self, i: Any) -> Any:
        """Return the maximum of no keys: a sink is one, which parts leave to their merge."""
        has_sink = self.attention.sink is not None and self.split is None
        return self._sink(i) if has_sink else constant(MINUS_INFINITY)

    def _first_sum(self, i: Any) -> Any:
        if self.attention.sink is None or self.split is not None:
            return constant(0.0)
        none = tirx.EQ(self._sink(i), constant(MINUS_INFINITY))
        return tirx.Select(none, constant(0.0), constant(1.0))

    def _sink(self, i: Any) -> Any:
        a = self.attention
        return self._placed(a.sink, {**self.by_lead, a.row.var: self._row_at(i)}, [a.row])

    def _store(self, name: str, result: StoredResult, axes: str) -> ir.Stmt:
        a, b = self.attention, self.buffers

        def store(i: Any, *column: Any) -> ir.BufferStore:
            at = {a.row.var: self._row_at(i), a.states.row_max: b.row_max[i]}
            at.update({a.states.row_sum: b.row_sum[i], **self.by_lead})
            for c in column:
                at.update({a.column.var: c, a.states.accumulator: b.accumulator[i, c]})
            value = self._by_inverse(result.value) if column else result.value
            value, *indices = (ir.substitute(x, at) for x in (value, *result.indices))
            return ir.BufferStore(result.buffer, to(ir.dtype_of(result.buffer), value), indices)

        some_exist = self.cuts_rows or a.row_count is not None

        def exists(i: Any, *_: Any) -> Any:
            row = self._row_at(i)
            if a.row_count is None:
                return _below(row, a.row)
            return tirx.LT(row, ir.substitute(a.row_count, self.by_lead))

        return self.loops.nest(name, axes, store, where=exists if some_exist else None)

    # ---- helpers

    def _by_inverse(self, value: Any) -> Any:
        """Multiply by the reciprocal of a row's sum, which all columns share.

        The sum is 0 or from 1 on, as its largest weight is: the reciprocal is a normal number. A
        division has a branch, over which the compiler moves nothing.
        """
        total = self.attention.states.row_sum

        def divide(node: Any, mutator: Any) -> Any:
            node = mutator.default_mutate(node)
            if not isinstance(node.b, ir.Var) or not node.b.same_as(total):
                return node
            return node.a * tirx.Div(constant(1.0), node.b)

        return ir.mutate(value, [(tirx.Div, divide)])

    def _placed(self, expr: Any, at: dict[Any, Any], axes: list[LoopAxis]) -> Any:
        """Place an expression in the tile; what lies past the end of an axis is read as 0."""
        a = self.attention
        cuts = {a.row.var: self.cuts_rows, a.key.var: self.cuts_keys, a.depth.var: self.cuts_depth}
        cut = [x for x in axes if cuts.get(x.var, False)]

        def load(node: Any, mutator: Any) -> Any:
            indices = list(node.indices)
            terms = [_below(at[x.var], x) for x in cut if ir.depends_on(indices, [x.var])]
            if node.source in a.conditions:
                terms.append(ir.substitute(a.conditions[node.source], at))
            placed = ir.substitute(mutator.default_mutate(node), at)
            if not terms:
                return placed
            zero = tirx.const(0, ir.dtype_of(placed))
            return T.if_then_else(ir.conjunction(terms), placed, zero)

        return ir.substitute(ir.mutate(expr, [(ir.TensorLoad, load)]), at)

    def _row_at(self, i: Any) -> Any:
        part = self.row_tile * self.tile.parts + self.row_part
        return part * self.tile.rows_of_a_part + i

    def _key_at(self, j: Any) -> Any:
        return self.key_tile * self.tile.keys + j

    def _tiles(self, axis: LoopAxis, size: int) -> Any:
        return ir.simplify(_ceildiv(ir.cast_like(axis.extent, self.row_tile), size))

    def _divides(self, axis: LoopAxis, size: int) -> bool:
        rest = tirx.floormod(axis.extent, size)
        return bool(self.analyzer.can_prove(tirx.EQ(rest, ir.cast_like(0, axis.var))))

    def _iter_var(self, var: Any, extent: Any, reduced: bool = False) -> Any:
        zero = tirx.IntImm(ir.dtype_of(var), 0)
        kind = IterVar.CommReduce if reduced else IterVar.DataPar
        return IterVar(tvm_ir.Range.from_min_extent(zero, ir.cast_like(extent, var)), var, kind)

    def _block_of(self, name: str, axes: list[Any], body: Any, own: list[Any]) -> Any:
        return self._block(name, [self._iter_var(v, x) for v, x in axes], body, own)

    def _block(self, name: str, iter_vars: list[Any], body: Any, own: list[Any]) -> Any:
        """Build a block of blocks, with what it reads and writes of other blocks' buffers."""
        block = ir.SBlock(iter_vars, [], [], name, body, alloc_buffers=own)
        loads = [x.source for x in ir.find_all(block, ir.TensorLoad)]
        used = ir.once(loads + [x.buffer for x in ir.find_all(block, ir.BufferStore)])
        regions = s_tir.analysis.get_sblock_read_write_region(block, {x: x for x in used})
        reads, writes = (
            [x for x in part if not any(x.source.same_as(y) for y in own)] for part in regions
        )
        return ir.with_block(block, reads=reads, writes=writes)


def _ceildiv(extent: Any, size: int) -> Any:
    return tirx.floordiv(extent + (size - 1), size)


def _below(place: Any, axis: LoopAxis) -> Any:
    return tirx.LT(place, ir.cast_like(axis.extent, place))
