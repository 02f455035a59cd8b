"""Find the accesses to rows that begin at any element, which their lanes make one by one.

for v in unroll(8):                       row r of 151 elements begins at 151 r
    with sblock("load"):
        where(tx * 8 + v < 151)
        tile[v] = X[r, tx * 8 + v]
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.programming_model import THREADS_PER_WARP as WARP, WORD_BYTES

MAX_VECTOR_BYTES = 16


class LaneAccess(Enum):
    """What the lanes of a vector do."""

    LOAD = "load neighbours of a row into registers"
    LOAD_SHARED = "load neighbours of what all rows share"
    LOAD_MOVED = "the same by whole vectors, which are moved in registers"
    STORE = "store registers to neighbours of a row"
    COMPUTE = "compute registers from registers"
    OTHER = "reduce, or load where an index says"


@dataclass(frozen=True)
class Lanes:
    """The loop over the lanes of a vector, and how their elements lie in a row."""

    loop: ir.For
    access: LaneAccess
    column: Any  # of a lane's element; not below zero
    rest: tuple[Any, ...]  # terms of the condition without the bound on columns

    @property
    def realize(self) -> ir.SBlockRealize:
        """The block that a lane runs."""
        return self.loop.body

    @property
    def store(self) -> Any:
        """The one statement of a load or a store."""
        return self.realize.block.body

    @property
    def size(self) -> int:
        """Lanes."""
        return int(self.loop.extent)

    def at(self, lane: int) -> Any:
        """Return the column of one lane."""
        return ir.simplify(ir.substitute(self.column, {self.loop.loop_var: lane}))


@dataclass(frozen=True)
class OddRows:
    """The lanes of a kernel over rows of so many elements, and the number of a thread's row."""

    lanes: tuple[Lanes, ...]
    columns: int
    row: Any
    by_warps: bool  # several warps share a row

    @property
    def shift(self) -> Any:
        """Elements between the start of a row's first vector and the row; fits 32 bits always."""
        size = self.lanes[0].size
        return ir.simplify(self.row % size * (self.columns % size) % size)

    @property
    def distance(self) -> Any:
        """The same in a form by which TVM sees that vectors are aligned: it ends in a multiple."""
        size, first = self.lanes[0].size, self.row * self.columns
        return first - first // size * size


def plan_odd_rows(kernel: ir.For) -> OddRows | None:
    """Find the lanes of rows that are no multiple of their vectors; None unless all agree."""
    inner = [
        x.loop_var
        for x in ir.find_all(kernel, ir.For)
        if x.kind != ir.ForKind.THREAD_BINDING or _counts_columns(x)
    ]
    found, starts = [], []
    lengths: set[tuple[int | None, int]] = set()
    for loop in ir.find_all(kernel, ir.For, _is_over_lanes):
        terms = list(ir.conjuncts(loop.body.predicate))
        bounds = [x for x in terms if ir.depends_on(x, [loop.loop_var])]
        if len(bounds) != 1 or not isinstance(bounds[0], tirx.LT):
            continue
        beyond = ir.simplify(bounds[0].a - bounds[0].b)
        length = ir.simplify(ir.cast_like(0, beyond) - _first(beyond, inner))
        column = ir.simplify(beyond + length)
        if not _is_of_neighbours(column, loop.loop_var):
            continue  # a loop over vectors of one element, which lie apart
        lengths.add((ir.static_int(length), int(loop.extent)))
        access, start = _classify(loop, column, inner)
        starts += [] if start is None else [start]
        rest = tuple(x for x in terms if x is not bounds[0])
        lanes = Lanes(loop, access, column, rest)
        moved = access is LaneAccess.LOAD_SHARED and _has_words(lanes)
        found.append(replace(lanes, access=LaneAccess.LOAD_MOVED) if moved else lanes)
    agreed = _shared_row(lengths, starts)
    if agreed is None:
        return None
    columns, row = agreed
    threads = ir.thread_axes(kernel)["threadIdx.x"]
    return OddRows(tuple(found), columns, row, int(threads.extent) > WARP)


def _shared_row(lengths: set[tuple[int | None, int]], starts: list[Any]) -> tuple[int, Any] | None:
    """Return the length and number of the row that all accesses are in; None unless they agree."""
    if len(lengths) != 1 or not starts:
        return None
    ((columns, vector),) = lengths
    if columns is None or columns % vector == 0:
        return None
    row = ir.simplify(starts[0] // columns)
    agree = all(ir.is_zero(ir.simplify(x - row * columns)) for x in starts)
    return (columns, row) if agree else None


def _has_words(lanes: Lanes) -> bool:
    """Tell whether a vector is whole words, and begins at a multiple of its elements."""
    num_bytes = dtype_bytes(ir.dtype_of(lanes.store.value))
    return (
        num_bytes <= WORD_BYTES
        and num_bytes * lanes.size % WORD_BYTES == 0
        and ir.is_zero(ir.simplify(lanes.at(0) % lanes.size))
    )


def _is_of_neighbours(column: Any, lane: ir.Var) -> bool:
    first = ir.substitute(column, {lane: ir.cast_like(0, lane)})
    return ir.is_zero(ir.simplify(column - first - ir.cast_like(lane, column)))


def _counts_columns(loop: ir.For) -> bool:
    return str(loop.thread_binding.thread_tag) in ("threadIdx.x", "threadIdx.z", "blockIdx.z")


def _is_over_lanes(loop: ir.For) -> bool:
    extent = ir.static_int(loop.extent)
    is_vector = extent in (2, 4, 8, 16) and isinstance(loop.body, ir.SBlockRealize)
    return loop.kind == ir.ForKind.UNROLLED and is_vector and not loop.body.iter_values


def _first(expr: Any, variables: list[ir.Var]) -> Any:
    return ir.simplify(ir.substitute(expr, {x: ir.cast_like(0, x) for x in variables}))


def _classify(loop: ir.For, column: Any, inner: list[ir.Var]) -> tuple[LaneAccess, Any]:
    """Return what lanes do, and the number of a row's first element where they access rows."""
    store = loop.body.block.body
    if not isinstance(store, ir.BufferStore) or loop.body.block.init is not None:
        return LaneAccess.OTHER, None
    loads = ir.find_all(store.value, ir.TensorLoad)
    is_kept = _is_local(store.buffer)
    if is_kept and all(_is_local(x.source) for x in loads):
        return (LaneAccess.COMPUTE if _is_own(store, loads, loop) else LaneAccess.OTHER), None
    if len(loads) != 1 or not loads[0].same_as(store.value):
        return LaneAccess.OTHER, None
    place, buffer = (loads[0], loads[0].source) if is_kept else (store, store.buffer)
    start = ir.simplify(flat_index(place) - column)
    if is_kept and ir.is_zero(start):
        return LaneAccess.LOAD_SHARED, None
    num_bytes = loop.extent * dtype_bytes(ir.dtype_of(buffer))
    if num_bytes > MAX_VECTOR_BYTES or ir.depends_on(start, inner):
        return LaneAccess.OTHER, None
    if not is_kept:
        return LaneAccess.STORE, start
    return LaneAccess.LOAD, start


def _is_own(store: ir.BufferStore, loads: list[Any], loop: ir.For) -> bool:
    """Tell a store of each lane's register, which depends on what others hold in no way."""
    own = any(x.source.same_as(store.buffer) for x in loads)
    each = ir.depends_on(list(store.indices), [loop.loop_var])
    return each and not own and not _names_lane(store.value, loads, loop)


def _names_lane(value: Any, loads: list[Any], loop: ir.For) -> bool:
    """Tell a value that counts lanes, as the index of an element does, not only its registers."""
    lane = loop.loop_var
    of_registers = [x for y in loads for i in y.indices for x in _uses(i, lane)]
    return len(_uses(value, lane)) > len(of_registers)


def _uses(expr: Any, var: ir.Var) -> list[ir.Var]:
    return ir.find_all(expr, ir.Var, var.same_as)


def _is_local(buffer: ir.Var) -> bool:
    return str(buffer.scope()) == "local"


def flat_index(access: Any) -> Any:
    """Return the number of the element that a load or a store names in a packed tensor."""
    buffer = access.source if isinstance(access, ir.TensorLoad) else access.buffer
    number: Any = 0
    for index, extent in zip(access.indices, buffer.shape, strict=True):
        number = number * ir.cast_like(extent, index) + index
    return number
