"""Compute what follows a product while the tensor cores work on its other half.

    for tile in range(T):
        row, column = place(tile)
        acc[..] = 0
        for k in range(64):
            trip = 64 * tile + k
            await_filled(0, trip)
            for s in unroll(2): acc[s] += A[trip % 4, s] * B[trip % 4]  rows of instructions
            free_slot(0, trip)
        for s in unroll(2): C[row, column, s] = f(acc[s])
  ->
    for tile in range(T):
        row, column = place(tile)
        with sblock(trips=2):
            trip = 64 * tile
            await_filled(0, trip), acc_0 = A[trip % 4, 0] * B[trip % 4]
            await_filled(0, trip + 1), acc_0 += A[(trip + 1) % 4, 0] * ..
            if tile > 0: C[place(tile - 1), 1] = f(acc_1)
            acc_1 = A[trip % 4, 1] * B[trip % 4], acc_1 += A[(trip + 1) % 4, 1] * ..
            free_slot(0, trip), free_slot(0, trip + 1)
        for k in range(2, 62): ...                                          as before
        with sblock(trips=2):
            trip = 64 * tile + 62
            ... the same steps, acc_0 first, then acc_1 ...
            C[row, column, 0] = f(acc_0), with free_slot(0, trip), free_slot(0, trip + 1) in between
    if T > 0: C[place(T - 1), 1] = f(acc_1)

In the last `steps` trips of a tile the first half of the rows is multiplied first, and in the first
ones of the next tile, too: half of the epilogue then runs beside the products of the other half.
Each element is the same sum in the same order.

Before: roles, trips and output tiles stand; the products are asynchronous blocks without a wait.
After: the request is served.
Not here: waits and fences (insert_syncs.py), which find that the halves are registers of their own.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.codegen_patches.hold import hold_all
from tvm_hopper.codegen_patches.ptx.groups import GROUPS
from tvm_hopper.plan.channel import find_split
from tvm_hopper.plan.notes import RemarkNote, note_kernels
from tvm_hopper.plan.overlap_plan import OverlapPlan, plan_overlap
from tvm_hopper.requests import options
from tvm_hopper.requests.keys import ARRIVALS, OVERLAP, RELEASE, TRIPS

from .tile_halves import TileHalves, overwriting, take


def rewrite_overlap(plan: OverlapPlan) -> ir.Stmt:
    """Build the consumers' loop over output tiles anew, and what is left to do behind it."""
    halves = TileHalves(plan)
    tiles, k, steps = plan.tiles, plan.loop.loop_var, plan.steps
    last = int(plan.loop.extent) - steps

    def at(first: int) -> tuple[tirx.Bind, list[dict[Any, Any]]]:
        """Bind the trip of a step, and name the following ones by it."""
        trip = ir.Var(plan.trip.var.name, ir.dtype_of(plan.trip.var))
        bind = tirx.Bind(trip, ir.simplify(ir.substitute(plan.trip.value, {k: first})))
        return bind, [
            {plan.trip.var: trip + s if s else trip, k: tirx.IntImm("int32", first + s)}
            for s in range(steps)
        ]

    def multiply(values: dict[Any, Any], number: int) -> ir.Stmt:
        product = halves.of(plan.product, number)
        starts = ir.is_const(values[k], 0)
        return ir.substitute(overwriting(product) if starts else product, values)

    def first_half(every: list[dict[Any, Any]]) -> list[ir.Stmt]:
        return [
            ir.seq([ir.substitute(x, values) for x in plan.awaits], multiply(values, 0))
            for values in every
        ]

    def releases(every: list[dict[Any, Any]], arrivals: int = 0) -> list[ir.Stmt]:
        """Give slots back; the arrivals of all these blocks are those of one."""
        found = []
        for ahead, values in enumerate(every):
            release = ir.substitute(ir.fresh_variables(plan.release), values)
            count = 0 if ahead else arrivals
            found.append(_annotated(release, {RELEASE: -ahead, ARRIVALS: count}))
        return found

    def of_tile(tile: Any) -> ir.Stmt:
        """Store the second half of an earlier tile."""
        stmt = ir.seq(*plan.binds, *(halves.of(x, 1) for x in plan.epilogue))
        return ir.substitute(ir.fresh_variables(stmt), {tiles.loop_var: tile})

    bind, head = at(0)
    begin = ir.seq(
        bind,
        first_half(head),
        # What the loop's last turn waited for ptxas counts to the groups under way: it is told anew
        # that all but these steps are over.
        GROUPS[plan.completion].wait(steps, False),
        hold_all(halves.registers[1]),
        ir.IfThenElse(tiles.loop_var > 0, of_tile(tiles.loop_var - 1), None),
        [multiply(values, 1) for values in head],
        releases(head, int(plan.release.block.annotations[ARRIVALS])),
    )
    bind, tail = at(last)
    end = ir.seq(
        bind,
        first_half(tail),
        [multiply(values, 1) for values in tail],
        _between([halves.of(x, 0) for x in plan.epilogue], releases(tail)),
    )
    loop = plan.loop
    middle = ir.For(
        k, tirx.IntImm(ir.dtype_of(k), steps), ir.cast_like(last - steps, k), loop.kind,
        ir.replace_nodes(
            loop.body,
            ir.SBlockRealize,
            {
                plan.product: halves.both(plan.product),
                plan.release: _annotated(plan.release, {ARRIVALS: 0}),
            },
        ),
        annotations=loop.annotations,
    )  # fmt: skip
    body = ir.seq(
        *plan.binds,
        ir.opaque_block("begin", begin, annotations={TRIPS: steps}),
        middle if last > steps else None,
        ir.opaque_block("end", end, annotations={TRIPS: steps}),
    )
    left = ir.IfThenElse(tiles.extent > 0, of_tile(tiles.extent - 1), None)
    work = ir.seq(ir.with_body(tiles, body), left)
    return ir.opaque_block("halves", work, alloc_buffers=halves.registers)


def _annotated(realize: ir.SBlockRealize, more: dict[str, int]) -> ir.SBlockRealize:
    block = realize.block
    new = ir.with_block(block, annotations={**block.annotations, **more})
    return ir.SBlockRealize([], True, new)


def _between(stmts: list[ir.Stmt], extras: list[ir.Stmt]) -> ir.Stmt:
    """Put statements in between the iterations of the first loop of an epilogue."""
    first, *rest = stmts

    def inside(stmt: ir.Stmt) -> ir.Stmt:
        if isinstance(stmt, ir.SBlockRealize):
            block = stmt.block
            new = ir.with_block(block, body=inside(block.body))
            return ir.SBlockRealize(stmt.iter_values, stmt.predicate, new)
        parts = ir.statements(stmt)
        at = next((n for n, x in enumerate(parts) if isinstance(x, ir.For)), None)
        count = 0 if at is None else int(parts[at].extent)
        if at is None or count < len(extras):
            return ir.seq(parts, extras)
        cuts = [count * n // len(extras) for n in range(len(extras) + 1)]
        pieces = [
            ir.seq(ir.fresh_variables(take(parts[at], a, b - a)), extra)
            for a, b, extra in zip(cuts, cuts[1:], extras, strict=False)
        ]
        return ir.seq(parts[:at], pieces, parts[at + 1 :])

    return ir.seq(inside(first), rest)


@prim_func_pass(opt_level=0, name="tvm_hopper.OverlapEpilogue")
class OverlapEpilogue:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Divide the products of one function where that is asked for."""
        notes = {}

        def build(kernel: ir.For) -> ir.For:
            number = ir.number_of(func, kernel)
            kernel, asked = _without_request(kernel)
            steps = int(options.read(OVERLAP, func, asked, default=0))
            plan = plan_overlap(kernel, steps, bool(asked))
            if plan is None:
                return kernel
            notes[number] = [
                RemarkNote(
                    f"half of the epilogue runs beside the other half's products of {steps} steps "
                    "at each end of an output tile"
                )
            ]
            split = find_split(kernel)
            assert split is not None, "a plan has roles"
            new = ir.replace_nodes(split.else_case, ir.For, {plan.tiles: rewrite_overlap(plan)})
            roles = ir.IfThenElse(split.condition, split.then_case, new)
            kernel = ir.replace_nodes(kernel, ir.IfThenElse, {split: roles})
            return _without(kernel, plan.accumulator)

        return note_kernels(ir.map_kernels(func, build), notes)


def _without_request(kernel: ir.For) -> tuple[ir.For, dict[str, Any]]:
    """Take the request off a kernel's axis; return it, too."""
    asked: dict[str, Any] = {}

    def plain(loop: ir.For) -> ir.For:
        if OVERLAP not in loop.annotations:
            return loop
        rest = dict(loop.annotations)
        asked[OVERLAP] = rest.pop(OVERLAP)
        return ir.with_body(loop, loop.body, annotations=rest)

    return ir.replace(kernel, ir.For, plain), asked


def _without(kernel: ir.For, buffer: ir.Var) -> ir.For:
    """Allocate an array no more."""

    def allocate(block: ir.SBlock) -> ir.SBlock:
        if not any(x.same_as(buffer) for x in block.alloc_buffers):
            return block
        return ir.with_block(
            block, alloc_buffers=[x for x in block.alloc_buffers if not x.same_as(buffer)]
        )

    return ir.replace(kernel, ir.SBlock, allocate)
