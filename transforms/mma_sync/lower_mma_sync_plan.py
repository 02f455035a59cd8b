"""Plan mma.sync fragments: which lane of which warp holds which element.

mma.sync.m16n8k16 (PTX ISA 9.1, 9.7.14.5.8) gives lane `4 g + t` of its first operand rows g and
g + 8, of each the columns 2t, 2t + 1, 2t + 8 and 2t + 9, and of its second one the same of row g.
In which order a sum is taken is free as long as both operands take it alike, so a lane may hold
neighbours of a row:

    rows of both run along k    lane: 8 of row g, 8 of row g + 8            32 deep, 2 instructions
    the first's along its rows  lane: 8 rows from 8g on, of 4 k's           16 deep, 64 rows, 4

which are vectors of 16 bytes.  In the second case two words of neighbours in k are exchanged first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.dtypes import HALF_DTYPES
from tvm_hopper.facts.programming_model import THREADS_PER_WARP
from tvm_hopper.requests.keys import MMA_SYNC
from tvm_hopper.transforms.common.multiply_add import MultiplyAdd, match_multiply_add

from .decoded_fragments import Decoded, find_decoded

ROWS, COLUMNS = 16, 8  # of an instruction
VECTOR = 8  # elements of 16 bits in 16 bytes
NEED_DECODED = (
    "an element, or what 16 bytes of neighbours of a row make, whose other values are of groups of "
    "whole such runs"
)
BY_TILES = "multiply it in tiles, or compute it into a tensor first"
NEED = "if_then_else(in bounds, element, 0), or an element, of a tensor in global memory"


@dataclass(frozen=True)
class FragmentLoad:
    """A nest that fills one operand's registers.

    - `nest`: its outermost loop.
    - `row`, `k`: of its two loops, the one along the operand's rows and the one along the sum.
    - `block`: what is inside.
    - `load`: the element; None: it is computed from others.
    - `condition` (Expr or None): where there is one; else it is 0.
    - `decoded`: what it is computed from.
    """

    nest: ir.For
    row: ir.Var
    k: ir.Var
    block: ir.SBlock
    load: ir.TensorLoad
    condition: Any
    decoded: Decoded | None = None

    @property
    def buffer(self) -> ir.Var:
        """The operand in registers."""
        return self.block.body.buffer


@dataclass(frozen=True)
class SumNest:
    """A nest over all sums of a warp: what fills them, or what takes them.

    `loops` are those over the second and over the first axis of the accumulator.
    """

    nest: ir.For
    column: ir.Var
    row: ir.Var
    realize: ir.SBlockRealize


@dataclass(frozen=True)
class WarpProduct:
    """A product of fragments: `rows` along the instruction's 16, `columns` along its 8."""

    product: MultiplyAdd
    first: FragmentLoad
    second: FragmentLoad
    sums: tuple[SumNest, ...]
    lane: ir.Var
    rows: int
    columns: int
    depth: int
    along_k: bool

    def __post_init__(self) -> None:
        where = self.product.where
        rows, depth = self.instruction_rows, self.instruction_depth
        for found, step, axis in (
            (self.rows, rows, "columns of the output"),
            (self.columns, COLUMNS, "rows of the output"),
            (self.depth, depth, "deep"),
        ):
            if found % step:
                raise cannot_lower(where, f"a warp's tile {found} {axis}", f"a multiple of {step}")

    @property
    def dtype(self) -> str:
        """Type of both operands."""
        return ir.dtype_of(self.first.buffer)

    @property
    def accumulator(self) -> ir.Var:
        """The accumulator buffer."""
        return self.product.store.buffer

    @property
    def instruction_rows(self) -> int:
        """Rows that a lane's vectors of the first operand make."""
        return ROWS if self.along_k else COLUMNS * VECTOR

    @property
    def instruction_depth(self) -> int:
        """Depth that they make."""
        return 4 * self.width

    @property
    def width(self) -> int:
        """Neighbours in k that a lane holds of each row."""
        if self.first.decoded is not None:
            return self.first.decoded.width
        return VECTOR if self.along_k else VECTOR // 2

    @property
    def places(self) -> tuple[int, int, int]:
        """Number of such tiles along rows, k and columns."""
        return (
            self.rows // self.instruction_rows,
            self.depth // self.instruction_depth,
            self.columns // COLUMNS,
        )

    @property
    def num_sums(self) -> int:
        """Registers of a lane for sums."""
        return self.rows * self.columns // THREADS_PER_WARP

    @property
    def instructions(self) -> int:
        """Instructions of a lane's vectors, along k or along rows."""
        return self.width // 4 if self.along_k else 4


def plan_fragments(kernel: ir.For) -> WarpProduct | None:
    """Plan the product of a kernel whose warps load its fragments; refuse what cannot be one."""
    found = ir.find_all(kernel, ir.SBlockRealize, lambda x: MMA_SYNC in x.block.annotations)
    if not found:
        return None
    if len(found) > 1:
        names = ", ".join(x.block.name_hint for x in found)
        raise cannot_lower(f"blocks {names}", f"{len(found)} {MMA_SYNC} blocks", "one per kernel")
    product = match_multiply_add(found[0], MMA_SYNC)
    where = product.where
    lane = ir.thread_axes(kernel).get("threadIdx.x")
    if lane is None or not ir.is_const(lane.extent, THREADS_PER_WARP):
        count = "no threads" if lane is None else f"{lane.extent} threads"
        need = f"{THREADS_PER_WARP} on threadIdx.x, the lanes of a warp, and warps on threadIdx.y"
        raise cannot_lower(where, f"{count} on threadIdx.x", need)
    accumulator = product.store.buffer
    if ir.dtype_of(accumulator) != "float32" or str(accumulator.scope()) != "local":
        found_ = f"sums of {ir.dtype_of(accumulator)} in scope {str(accumulator.scope())!r}"
        raise cannot_lower(where, found_, "float32 in registers, cache_write(block, 0, 'local')")
    second = _find_load(kernel, product, product.left, product.m)
    first = _find_load(kernel, product, product.right, product.n, may_decode=True)
    rows, columns, depth = (_extent(product, x) for x in (product.n, product.m, product.k))
    along_k = first.decoded is not None or not runs_along(first, first.row)
    sums = _find_sums(kernel, product)
    return WarpProduct(product, first, second, sums, lane.loop_var, rows, columns, depth, along_k)


def _extent(product: MultiplyAdd, loop: ir.For) -> int:
    extent = ir.static_int(loop.extent)
    if extent is None or not ir.is_const(loop.min, 0):
        found = f"loop {loop.loop_var.name} over [{loop.min}, +{loop.extent})"
        raise cannot_lower(product.where, found, "static loops from 0")
    return extent


def runs_along(load: FragmentLoad, var: ir.Var) -> bool:
    """Tell whether neighbours in memory are neighbours along one of a nest's loops."""
    *outer, last = load.load.indices
    step = ir.simplify(ir.substitute(last, {var: var + 1}) - last)
    return ir.is_const(step, 1) and not any(ir.depends_on(x, [var]) for x in outer)


def _nests(kernel: ir.For, buffer: ir.Var, but: Any) -> list[tuple[ir.For, list[ir.For], Any]]:
    """Return the nests of loops around a single block that touch a buffer."""
    inside = {x.loop_var for x in ir.find_all(but, ir.For)}
    found = []
    for loop in ir.find_all(kernel, ir.For, lambda x: x.kind == ir.ForKind.SERIAL):
        loops, body = ir.loop_nest(loop)
        loops = [x for x in loops if not ir.is_const(x.extent, 1)]
        if loop.loop_var in inside or len(loops) != 2 or not isinstance(body, ir.SBlockRealize):
            continue
        if not ir.is_const(loop.extent, 1) and ir.uses(body, buffer):
            found.append((loop, loops, body))
    return found


def _find_load(
    kernel: ir.For,
    product: MultiplyAdd,
    operand: ir.TensorLoad,
    row: ir.For,
    may_decode: bool = False,
) -> FragmentLoad:
    buffer = operand.source
    where = f"{product.where}, operand {buffer.name}"
    if ir.dtype_of(buffer) not in HALF_DTYPES:
        raise cannot_lower(where, f"type {ir.dtype_of(buffer)}", " or ".join(HALF_DTYPES))
    nests = _nests(kernel, buffer, product.realize)
    if str(buffer.scope()) != "local" or len(nests) != 1:
        found = f"scope {str(buffer.scope())!r}, touched by {len(nests)} other nests of two loops"
        need = 'registers that one nest fills: cache_read(block, i, "local"), computed at a loop'
        raise cannot_lower(where, found, need)
    ((nest, _, realize),) = nests
    store = realize.block.body
    plain = isinstance(store, ir.BufferStore) and ir.is_const(realize.predicate, 1)
    value, condition = (store.value if plain else None), None
    if isinstance(value, ir.Call) and str(value.op.name).endswith("if_then_else"):
        condition, value, other = value.args
        value = value if ir.is_zero(other) else None
    own = _own_loops(store, operand, [row.loop_var, product.k.loop_var]) if plain else []
    if plain and not own:
        raise cannot_lower(where, f"index {list(store.indices)}", "a loop along each dimension")
    load, decoded = value if isinstance(value, ir.TensorLoad) else None, None
    if load is None and value is not None and may_decode:
        decoded = find_decoded(value, own[0], own[1], condition)
    if load is None and decoded is None:
        found = "a value that is no element of a tensor, or a condition"
        raise cannot_lower(where, found, NEED_DECODED if may_decode else NEED, BY_TILES)
    return FragmentLoad(nest, own[0], own[1], realize.block, load, condition, decoded)


def _own_loops(store: Any, operand: ir.TensorLoad, moved: list[ir.Var]) -> list[Any]:
    """Return a nest's loops along rows and along the sum; none where it has others.

    Its dimensions are those of the block's own index, in their order.
    """
    places = [i for v in moved for i, x in enumerate(operand.indices) if ir.depends_on(x, [v])]
    own = [store.indices[i] for i in places]
    return own if len(own) == 2 and all(isinstance(x, ir.Var) for x in own) else []


def _find_sums(kernel: ir.For, product: MultiplyAdd) -> tuple[SumNest, ...]:
    buffer = product.store.buffer
    found = []
    for nest, _, realize in _nests(kernel, buffer, product.realize):
        touched = ir.accesses(realize.block.body, buffer)
        index = [x for x in touched[0].indices if not ir.is_const(x, 0)]
        if len(index) != 2 or not all(isinstance(x, ir.Var) for x in index):
            found_ = f"sums at {list(touched[0].indices)}"
            raise cannot_lower(product.where, found_, "nests over all sums of a warp")
        found.append(SumNest(nest, index[0], index[1], realize))
        store = realize.block.body
        loops = ir.find_all(kernel, ir.For, lambda x: x.kind != ir.ForKind.THREAD_BINDING)
        around = [x for x in loops if _repeats_around(x, nest)]
        if isinstance(store, ir.BufferStore) and ir.is_shared(store.buffer) and around:
            found_ = f"sums handed on in each turn of loop {around[0].loop_var.name}"
            need = "one tile for each thread block: others may still read the last one's"
            raise cannot_lower(product.where, found_, need, "bind the loop to blockIdx")
    count = len(ir.accesses(kernel, buffer)) - len(ir.accesses(product.realize, buffer))
    if count != sum(len(ir.accesses(x.realize, buffer)) for x in found):
        need = "nests of two loops over all sums of a warp: what fills them, and what takes them"
        raise cannot_lower(product.where, f"other uses of {buffer.name}", need)
    return tuple(found)


def _repeats_around(loop: ir.For, nest: ir.For) -> bool:
    repeats = not ir.is_const(loop.extent, 1) and not loop.same_as(nest)
    return repeats and ir.uses_node(loop, nest)
