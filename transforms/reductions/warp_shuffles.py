"""Reduce across the lanes of a warp by butterfly shuffles, and across warps.

    for each distance 16, 8, 4, 2, 1:
        total[0] = total[0] + shuffle_xor(total[0], distance)

Both operands of a step are the same in both lanes but for their order.

What four or eight warps have left in shared memory each thread loads whole, in the same order: a
vector and two additions take less time than three shuffles, one after another.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import registers
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.programming_model import THREADS_PER_WARP as WARP

LANES = 4  # words of a vector
PARTIAL_SLOTS = (
    2  # one barrier an iteration: it orders loads before the stores of two iterations later
)
WARPS_LOADED_WHOLE = (4, 8)  # values of warps that each thread loads; of more a lane loads one
WORDS = ("float32", "int32", "uint32")


@dataclass(frozen=True)
class ThreadReduction:
    """One reduction of a kernel: what each thread has, and where the result goes."""

    scope: tirx.AttrStmt
    reducer: Any
    sources: tuple[Any, ...]
    results: tuple[Any, ...]
    axis: ir.For  # of the threads of a row
    rows: int  # of a thread block
    cluster: ir.For | None = None  # of the thread blocks that share a row
    turn: Any = 0  # which of its slots it uses, in a loop
    num_rooms: int = 1
    trip: Any = None  # the number of the iteration, None outside of loops
    loop: ir.For | None = None
    turns: int | None = None  # of that loop and those around it, None if run time counts them
    is_pipelined: bool = False  # the loop's next row is reduced before this turn waits
    has_barrier: bool = True  # between its warps; else InsertSyncs places it, as beside copies

    @property
    def num_threads(self) -> int:
        """Threads of a row."""
        return int(self.axis.extent)

    @property
    def num_warps(self) -> int:
        """Warps of a row."""
        return -(-self.num_threads // WARP)

    @property
    def by_blocks(self) -> bool:
        """Whether a thread block combines its warps' values before it sends one to the cluster.

        Iterations of the row loop: the exchange between thread blocks bounds their rate.
        """
        return self.cluster is not None and self.trip is not None and self.num_warps > 1

    @property
    def own_rooms(self) -> int:
        """Slots of a thread block's warps, by iteration, followed by those of the cluster."""
        return PARTIAL_SLOTS if self.by_blocks else 0

    @property
    def num_partials(self) -> int:
        """Values of a row that are combined last: of warps, or of thread blocks that share it."""
        blocks = int(self.cluster.extent) if self.cluster is not None else 1
        return blocks if self.by_blocks else self.num_warps * blocks


def takes_all(one: ThreadReduction) -> bool:
    """Tell a reduction whose warps' values each thread loads, all of them by one or two vectors."""
    own = one.cluster is None and len(one.results) == 1
    return own and one.num_partials in WARPS_LOADED_WHOLE and ir.dtype_of(one.results[0]) in WORDS


def take_all(one: ThreadReduction, buffer: ir.Var, place: list[Any], taken: ir.Var) -> list[Any]:
    """Load the values of all warps of a row, and combine halves of them until one is left."""

    def part(number: Any) -> ir.Stmt:
        def element(lane: Any) -> ir.Stmt:
            index = number * LANES + lane
            return ir.BufferStore(taken, tirx.BufferLoad(buffer, [*place, index]), [index])

        return ir.make_loop("lane", LANES, element, ir.ForKind.VECTORIZED)

    count = one.num_partials
    stmts = [ir.make_loop("part", count // LANES, part, ir.ForKind.UNROLLED)]
    while count > 1:
        count //= 2
        for i in range(count):
            pair = (tirx.BufferLoad(taken, [i]), tirx.BufferLoad(taken, [i + count]))
            values = dict(zip((*one.reducer.lhs, *one.reducer.rhs), pair, strict=True))
            (value,) = one.reducer.result
            to = taken[i] if count > 1 else one.results[0]
            stmts.append(store(to, ir.substitute(value, values)))
    return stmts


def gather(
    one: ThreadReduction, places: list[tuple[ir.Var, list[Any]]], lane: Any, count: int
) -> list[Any]:
    """Let each lane combine what it takes of so many values of a row.

    Halves of what it takes are combined until one is left: groups of as many values.
    """
    width, identities = lanes_together(count), one.reducer.identity_element
    groups: list[list[Any]] = []
    for first in range(0, count, width):
        values: list[Any] = []
        for (buffer, place), identity in zip(places, identities, strict=True):
            value: Any = tirx.BufferLoad(buffer, [*place, first + lane % width])
            if first + width > count:
                inside = lane % width < count - first
                value = tirx.if_then_else(inside, value, identity)
            values.append(value)
        groups.append(values)
    stmts = [store(x, value) for x, value in zip(one.results, groups[0], strict=True)]
    if len(groups) == 1:
        return stmts
    # Names of names would be written out by TVM, over and over: later groups wait in registers.
    arrays = [
        ir.new_buffer("taken", (len(groups) - 1,), ir.dtype_of(x), "local") for x in one.results
    ]
    kept = [list(one.results)]
    kept += [[tirx.BufferLoad(x, [n]) for x in arrays] for n in range(len(groups) - 1)]
    for loads, values in zip(kept[1:], groups[1:], strict=True):
        stmts += [store(x, value) for x, value in zip(loads, values, strict=True)]
    while len(kept) > 1:
        half = (len(kept) + 1) // 2
        for own, other in zip(kept, kept[half:], strict=False):
            stmts += _combine_all(one, own, other)
        kept = kept[:half]
    return [ir.opaque_block("take", ir.seq(*stmts), alloc_buffers=arrays)]


def lanes_together(count: int) -> int:
    """Return how many neighbouring lanes combine so many values."""
    return min(WARP, 1 << (count - 1).bit_length())


def butterfly(one: ThreadReduction, width: int) -> list[ir.Stmt]:
    """Combine the values of `width` neighbouring lanes; each of them has the result."""
    steps: list[ir.Stmt] = []
    distance = width // 2
    while distance:
        others = [registers.shuffle_xor(x, distance) for x in one.results]
        values = dict(zip(one.reducer.lhs, one.results, strict=True))
        if len(others) == 1:
            values |= dict(zip(one.reducer.rhs, others, strict=True))
            steps += _combine(one, values)
        else:  # a result may depend on all of the others: take them before one is changed
            steps += _combine_all(one, list(one.results), others)
        distance //= 2
    return steps


def _combine_all(one: ThreadReduction, to: list[Any], other: list[Any]) -> list[Any]:
    """Combine what some registers hold with other values, each of which all results may need."""
    own, taken = ([ir.Var(name, ir.dtype_of(x)) for x in one.results] for name in ("own", "other"))
    values = dict(zip((*one.reducer.lhs, *one.reducer.rhs), (*own, *taken), strict=True))
    pairs = [*zip(taken, other, strict=True), *zip(own, to, strict=True)]
    bound = [tirx.Bind(var, x) for var, x in pairs]
    results = zip(to, one.reducer.result, strict=True)
    return [*bound, *(store(x, ir.substitute(value, values)) for x, value in results)]


def _combine(one: ThreadReduction, values: dict[Any, Any]) -> list[ir.Stmt]:
    return [
        store(to, ir.substitute(value, values))
        for to, value in zip(one.results, one.reducer.result, strict=True)
    ]


def store(to: ir.TensorLoad, value: Any) -> ir.Stmt:
    """Store a value where a load takes it from."""
    return ir.BufferStore(to.source, value, list(to.indices))


# -- tell whether a reducer of tuples depends on the order of its operands
# (index, value) by a > b: of equal values the one on the right      threads meet in any order
# (index, value) by a > b or (a == b and index a < index b)          the same from either side


def check_order(where: str, reducer: Any) -> None:
    """Refuse reducers of tuples that are not commutative."""
    count = len(reducer.lhs)
    for numbers in product((1, 2), repeat=2 * count):
        found = [_combined(reducer, *x) for x in (_halves(numbers), _halves(numbers)[::-1])]
        if not all(map(tvm_ffi.structural_equal, *found)):
            raise cannot_lower(
                where,
                f"{', '.join(map(str, found[0]))} of {_halves(numbers)}, and "
                f"{', '.join(map(str, found[1]))} of the same in the other order",
                "a commutative rule, since threads combine in any order",
                "of equal values take the lower index: a > b or (a == b and index a < index b)",
            )


def _halves(numbers: tuple[int, ...]) -> list[tuple[int, ...]]:
    half = len(numbers) // 2
    return [numbers[:half], numbers[half:]]


def _combined(reducer: Any, one: tuple[int, ...], other: tuple[int, ...]) -> list[Any]:
    """Return what a reducer makes of two tuples of numbers."""
    values = zip([*reducer.lhs, *reducer.rhs], [*one, *other], strict=True)
    known = {var: tirx.const(x, ir.dtype_of(var)) for var, x in values}
    return [ir.simplify(ir.substitute(x, known)) for x in reducer.result]
