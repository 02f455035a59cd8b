"""Decide how thread blocks of a cluster share a sum that each keeps in registers.

    acc[...] = 0
    for part in serial(4, annotations={"tvm_hopper.across_cluster": 1}):
        for k in serial(8): acc[...] += ...
    for g in range(12): D[..., g] = f(acc[4 * g : 4 * g + 4])

Each block of a cluster of four sums one part. Then a share of the loop `g` falls to each, three
iterations here: it adds what all four have summed for these, in the order of the parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

from tvm_hopper import ir
from tvm_hopper.analysis.access import step_of
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.arch import Arch
from tvm_hopper.facts.async_ops import ASYNC_OPS
from tvm_hopper.requests.keys import ACROSS_CLUSTER, ASYNC_OP, BY_CLUSTER, IN_TURNS, MOST_PARTS
from tvm_hopper.transforms.common.multicast_groups import AXIS, find_cluster_axis

SUM_DTYPES = ("float32", "uint32")  # of accumulator registers: words hold integers
WHY_SO_MANY = ": as many blocks as a cluster may have"
MOST_ELEMENTS = 1 << 12  # of an accumulator's accesses that are enumerated


@dataclass(frozen=True)
class ClusterSum:
    """A loop whose iterations the blocks of a cluster share, and who stores what of the sum.

    - `loop`: over the parts of the sum, one for each block.
    - `accumulator`: registers, numbered along the only dimension.
    - `start`: the statements that set the initial value, which the first part alone begins with.
    - `stores`: the statements after the loop that read the sum, in order.
    - `shares`: for each of `stores` the loop whose iterations are distributed, and the registers
      that one of them reads where the loop's variable is 0, with the step from one iteration to the
      next.
    - `next to`: the loop over blocks of other tiles that load for one another, if there is one:
      each part has as many.
    - `way`: how the parts are added, a value of `across_cluster`.
    - `num_sharers`: blocks that share the stores of a tile; 0: as many as the parts.
    """

    loop: ir.For
    accumulator: ir.Var
    start: tuple[ir.Stmt, ...]
    stores: tuple[ir.Stmt, ...]
    shares: tuple[Pieces, ...]
    beside: ir.For | None = None
    way: int = BY_CLUSTER
    num_sharers: int = 0

    @property
    def sharers(self) -> int:
        """Blocks that share the stores of a tile."""
        return self.num_sharers or self.num_blocks

    @property
    def num_blocks(self) -> int:
        """Blocks of a cluster."""
        return int(self.loop.extent)


@dataclass(frozen=True)
class Pieces:
    """The loop of a store whose iterations are distributed, and what these read."""

    loop: ir.For
    registers: tuple[int, ...]
    step: int

    def same_registers(self, other: Pieces) -> bool:
        """Tell whether the same sums are in the same registers for another store."""
        mine, its = ((x.registers, x.step, int(x.loop.extent)) for x in (self, other))
        return mine == its

    def per_block(self, num_blocks: int) -> int:
        """Return the iterations of a block; the last blocks may have fewer, or none."""
        return -(-int(self.loop.extent) // num_blocks)


def find_cluster_loops(root: Any) -> list[ir.For]:
    """Return the loops with a request for split-K."""
    return ir.find_all(root, ir.For, lambda x: ACROSS_CLUSTER in x.annotations)


def plan_split_k(kernel: ir.For, arch: Arch) -> ClusterSum | None:
    """Plan the shared sum of a kernel, if it has one; reasons to refuse are raised here."""
    loops = find_cluster_loops(kernel)
    if not loops:
        return None
    loop, *others = loops
    where = f"loop {loop.loop_var.name}, {ACROSS_CLUSTER}"
    if others:
        found = f"{len(loops)} such loops in one kernel"
        raise cannot_lower(where, found, "one: its iterations are the blocks of a cluster")
    way = int(loop.annotations[ACROSS_CLUSTER])
    by_kernels = way != BY_CLUSTER  # through global memory
    size = _number_of_parts(loop, arch, by_kernels, where)
    beside = _cluster_beside(kernel, arch, size, way, where)
    accumulator = accumulator_of(loop, where)
    before, behind = statements_around(kernel, loop, where)
    _check_start(before, accumulator, where)
    stores = tuple(x for x in behind if ir.uses(x, accumulator))
    for stmt in behind:
        if not ir.uses(stmt, accumulator):
            raise cannot_lower(
                where,
                "a statement after it that does not read the sum",
                "stores of the sum alone: each block would execute the others",
            )
    shares = tuple(_share(stmt, accumulator, where, 0 if by_kernels else size) for stmt in stores)
    return ClusterSum(loop, accumulator, tuple(before), stores, shares, beside, way)


def _number_of_parts(loop: ir.For, arch: Arch, by_kernels: bool, where: str) -> int:
    """Return the iterations of a loop whose sum is split, each of them a part."""
    size = ir.static_int(loop.extent)
    most = MOST_PARTS if by_kernels else arch.largest_cluster_size
    if size is not None and 2 <= size <= most and ir.is_const(loop.min, 0):
        return size
    raise cannot_lower(
        where,
        f"a loop from {loop.min} of {loop.extent} iterations",
        f"from 0, 2 to {most}"
        + (", as many as are added one by one" if by_kernels else WHY_SO_MANY),
        "split the sum into fewer parts",
    )


def _cluster_beside(kernel: ir.For, arch: Arch, size: int, way: int, where: str) -> ir.For | None:
    """Return the loop whose blocks load for one another, next to those that add up parts."""
    axes = ir.thread_axes(kernel)
    beside = find_cluster_axis(axes.values())
    if AXIS in axes and beside is None:
        raise cannot_lower(where, f"another loop on {AXIS}", "a separate axis")
    if beside is not None and way == IN_TURNS:
        raise cannot_lower(
            where,
            f"{int(beside.extent)} thread blocks that load for one another",
            "no cluster: blocks that add serially start one after another",
            "remove one of the two requests",
        )
    by_kernels = way != BY_CLUSTER
    tiles = 1 if beside is None or by_kernels else int(beside.extent)
    if tiles > 1 and size * tiles > arch.max_cluster_size:
        raise cannot_lower(
            where,
            f"{size} parts of {tiles} thread blocks that load for one another",
            f"at most {arch.max_cluster_size} blocks in a cluster",
            "take fewer parts, or smaller clusters",
        )
    return beside


def accumulator_of(loop: ir.For, where: str) -> ir.Var:
    """Return the registers that the loop's iterations add to."""
    found: list[ir.Var] = []
    for block in ir.find_blocks(loop, ASYNC_OP):
        if ASYNC_OPS[str(block.annotations[ASYNC_OP])].writes == "registers":
            found += [x.source for x in block.writes]
    if len(found) != 1 or ir.dtype_of(found[0]) not in SUM_DTYPES or len(found[0].shape) != 1:
        raise cannot_lower(
            where,
            f"{len(found)} products in it" if len(found) != 1 else f"sums of {found[0].name}",
            f"one product by WGMMA whose registers are {' or '.join(SUM_DTYPES)}",
        )
    return found[0]


def statements_around(
    kernel: ir.For, loop: ir.For, where: str
) -> tuple[list[ir.Stmt], list[ir.Stmt]]:
    """Return the statements before the loop and after it."""
    stmt: Any = kernel
    while True:
        parts = ir.statements(stmt)
        place = [n for n, part in enumerate(parts) if part.same_as(loop)]
        if place:
            return parts[: place[0]], parts[place[0] + 1 :]
        inside = parts[0] if len(parts) == 1 else None
        if isinstance(inside, ir.SBlockRealize) and ir.is_const(inside.predicate, 1):
            stmt = inside.block.body
        elif isinstance(inside, ir.For) and inside.thread_binding is not None:
            stmt = inside.body
        else:
            raise cannot_lower(
                where,
                "other loops or statements around it",
                "the outermost loop of what a thread block does, behind the initial value",
                "reorder it outwards",
            )


def _check_start(before: list[ir.Stmt], accumulator: ir.Var, where: str) -> None:
    """Refuse statements in front that do anything but set the initial value."""
    for stmt in before:
        stores = [x.buffer for x in ir.find_all(stmt, ir.BufferStore)]
        loads = [x.source for x in ir.find_all(stmt, ir.TensorLoad)]  # to hold what was set
        touched = stores or loads
        if touched and all(x.same_as(accumulator) for x in touched):
            continue
        raise cannot_lower(
            where,
            "statements before it that set no initial value",
            "the initial value of the sum alone: each block of the cluster executes the others",
            "put them into a separate kernel, or after the sum",
        )


def _share(stmt: ir.Stmt, accumulator: ir.Var, where: str, blocks: int) -> Pieces:
    """Choose the loop whose iterations are distributed, of those around all of a store.

    It is the one that leaves a block the smallest share; `blocks` 0: as many as there can be.
    """
    around: list[ir.For] = []
    found: list[Pieces] = []
    inside: Any = ir.peel_blocks(stmt)
    while isinstance(inside, ir.For):
        if (read := _registers(inside, accumulator, around)) is not None:
            found.append(Pieces(inside, *read))
        around.append(inside)
        inside = ir.peel_blocks(inside.body)
    if not found:
        raise cannot_lower(
            where,
            "a store of the sum without a loop over its registers",
            "loops whose iterations the blocks of a cluster can share",
            "choose a wider tile",
        )
    return min(found, key=lambda x: x.per_block(blocks or int(x.loop.extent)) / int(x.loop.extent))


def _registers(
    loop: ir.For, accumulator: ir.Var, around: list[ir.For]
) -> tuple[tuple[int, ...], int] | None:
    """Return what one iteration of a loop reads of the sum, and the step to the next, if even.

    It covers all iterations of the loops around it.
    """
    if ir.static_int(loop.extent) is None or int(loop.extent) < 2 or not ir.is_const(loop.min, 0):
        return None
    loads = ir.find_all(loop.body, ir.TensorLoad, lambda x: x.source.same_as(accumulator))
    steps = {step_of(load.indices[0], loop.loop_var) for load in loads}
    if len(steps) != 1 or None in steps or 0 in steps:
        return None
    (step,) = steps
    found: set[int] = set()
    for load in loads:
        index = ir.substitute(load.indices[0], {loop.loop_var: ir.cast_like(0, loop.loop_var)})
        places = _places(index, [*ir.find_all(loop.body, ir.For), *around])
        if places is None:
            return None
        found |= places
    return tuple(sorted(found)), int(step or 0)


def _places(index: Any, loops: list[ir.For]) -> set[int] | None:
    """Return the values of an index in all iterations of loops; None if one is unknown."""
    inner = [x for x in loops if ir.uses(index, x.loop_var)]
    extents = [ir.static_int(x.extent) for x in inner]
    zero = {x.loop_var: ir.cast_like(0, x.loop_var) for x in inner}
    start = ir.static_int(ir.simplify(ir.substitute(index, zero)))
    moves = [step_of(index, x.loop_var) for x in inner]
    if start is None or None in extents or None in moves:
        return None
    return {
        start + sum((m or 0) * i for m, i in zip(moves, place, strict=True))
        for place in product(*(range(e or 0) for e in extents))
    }
