"""Compute what follows a product while the tensor cores work on its other half.

    for tile in range(T):
        row, column = place(tile)
        acc[..] = 0
        for k in range(64):
            trip = 64 * tile + k
            await_filled(0, trip)
            for s in unroll(2): acc[s] += A[trip % 4, s] * B[trip % 4]      a row of instructions each
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

In the last `steps` trips of a tile the first half of the rows is multiplied first, in the first ones
of the next tile, too: half of the epilogue then runs beside the products of the other half. Each
element is the same sum in the same order.

Before: roles, trips and output tiles stand; the products are asynchronous blocks without a wait.
After: the option is served.
Not here: waits and fences (insert_syncs.py), which find that the halves are registers of their own.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.codegen_patches.hold import hold_all
from tvm_hopper.codegen_patches.ptx import wgmma
from tvm_hopper.plan.channel import find_split
from tvm_hopper.plan.notes import RemarkNote, note_kernels
from tvm_hopper.plan.overlap_plan import OverlapPlan, plan_overlap
from tvm_hopper.requests import options
from tvm_hopper.requests.keys import ARRIVALS, OVERLAP, RELEASE, TRIPS


class _Halves:
    """The two halves of an accumulator, and the statements about one of them."""

    def __init__(self, plan: OverlapPlan) -> None:
        self.plan = plan
        cut = plan.half * plan.of_subtile
        sizes = cut, int(plan.accumulator.shape[0]) - cut
        dtype = ir.dtype_of(plan.accumulator)
        name = plan.accumulator.name
        self.registers = [
            ir.new_buffer(f"{name}_{n}", (size,), dtype, "local") for n, size in enumerate(sizes)
        ]
        self.firsts = 0, cut

    def of(self, stmt: ir.Stmt, number: int) -> ir.Stmt:
        """Return a copy of a statement that runs over all rows, of those of one half."""
        plan = self.plan
        first, count = (0, plan.half) if number == 0 else (plan.half, plan.subtiles - plan.half)

        def rows(loop: ir.For, mutator: Any) -> ir.Stmt:
            if loop.loop_var.name != "subtile":
                return mutator.default_mutate(loop)
            return take(loop, first, count)

        return self._moved(ir.mutate(ir.fresh_variables(stmt), [(ir.For, rows)]), number)

    def _moved(self, stmt: ir.Stmt, number: int) -> ir.Stmt:
        new, first = self.registers[number], self.firsts[number]
        old = self.plan.accumulator
        whole = list(ir.full_region(new).region)
        return ir.reindex(
            stmt, old, new, lambda at: [ir.simplify(at[0] - first)], lambda _: whole
        )

    def both(self, stmt: ir.Stmt) -> ir.Stmt:
        """Return a statement over all rows, as one for each half in turn."""
        return ir.seq(self.of(stmt, 0), self.of(stmt, 1))


def overwriting(product: ir.Stmt) -> ir.Stmt:
    """Let the first instruction on each register ignore what it holds.

    No loop keeps a fill with zeros in front of `wgmma.fence`: ptxas would serialise (C7519).
    """

    def adds(step: Any) -> Any:
        def one(call: ir.Call) -> ir.Call:
            is_flag = [isinstance(x, tirx.IntImm) and ir.dtype_of(x) == "bool" for x in call.args]
            if not any(is_flag):
                return call
            args = [step if f else x for f, x in zip(is_flag, call.args, strict=True)]
            return ir.Call(call.op, args, ret_ty=call.ty, attrs=call.attrs)

        return one

    def steps(loop: ir.For, mutator: Any) -> ir.For:
        if loop.loop_var.name != "step":
            return mutator.default_mutate(loop)
        return ir.replace(loop, ir.Call, adds(tirx.NE(loop.loop_var, 0)))

    if any(x.loop_var.name == "step" for x in ir.find_all(product, ir.For)):
        return ir.mutate(product, [(ir.For, steps)])
    return ir.replace(product, ir.Call, adds(tirx.IntImm("bool", 0)))


def take(loop: ir.For, first: int, count: int) -> ir.Stmt:
    """Return some of the iterations of a loop; one is none."""
    if count == 1:
        return ir.substitute(loop.body, {loop.loop_var: first})
    var = ir.Var(loop.loop_var.name, ir.dtype_of(loop.loop_var))
    body = ir.substitute(loop.body, {loop.loop_var: var + first if first else var})
    notes = {**loop.annotations}
    if "pragma_unroll" in notes:
        notes["pragma_unroll"] = count
    return ir.with_body(
        loop, body, loop_var=var, extent=tirx.IntImm(ir.dtype_of(var), count), annotations=notes
    )


def rewrite_overlap(plan: OverlapPlan) -> ir.Stmt:
    """Build the consumers' loop over output tiles anew, and what is left to do behind it."""
    halves = _Halves(plan)
    tiles, k, steps = plan.tiles, plan.loop.loop_var, plan.steps
    last = int(plan.loop.extent) - steps

    def at(first: int) -> tuple[tirx.Bind, list[dict[Any, Any]]]:
        """Bind the trip of a step, and name the following ones by it."""
        trip = ir.Var(plan.trip.var.name, ir.dtype_of(plan.trip.var))
        bind = tirx.Bind(trip, ir.simplify(ir.substitute(plan.trip.value, {k: first})))
        return bind, [{plan.trip.var: trip + s if s else trip, k: tirx.IntImm("int32", first + s)} for s in range(steps)]

    def multiply(values: dict[Any, Any], number: int) -> ir.Stmt:
        product = halves.of(plan.product, number)
        starts = ir.is_const(values[k], 0)
        return ir.substitute(overwriting(product) if starts else product, values)

    def first_half(every: list[dict[Any, Any]]) -> list[ir.Stmt]:
        return [
            ir.seq([ir.substitute(x, values) for x in plan.awaits], multiply(values, 0))
            for values in every
        ]

    def releases(every: list[dict[Any, Any]]) -> list[ir.Stmt]:
        found = []
        for ahead, values in enumerate(every):
            block = ir.substitute(ir.fresh_variables(plan.release), values).block
            notes = {**block.annotations, RELEASE: -ahead, ARRIVALS: 0}
            found.append(ir.SBlockRealize([], True, ir.with_block(block, annotations=notes)))
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
        wgmma.wait_group(steps),
        hold_all(halves.registers[1]),
        ir.IfThenElse(tiles.loop_var > 0, of_tile(tiles.loop_var - 1), None),
        [multiply(values, 1) for values in head],
        releases(head),
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
            loop.body, ir.SBlockRealize, {plan.product: halves.both(plan.product)}
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
        steps = int(options.read(OVERLAP, func, default=0))
        notes = {}

        def build(kernel: ir.For) -> ir.For:
            plan = plan_overlap(kernel, steps)
            if plan is None:
                return kernel
            notes[ir.number_of(func, kernel)] = [
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


def _without(kernel: ir.For, buffer: ir.Var) -> ir.For:
    """Allocate an array no more."""

    def allocate(block: ir.SBlock) -> ir.SBlock:
        if not any(x.same_as(buffer) for x in block.alloc_buffers):
            return block
        return ir.with_block(
            block, alloc_buffers=[x for x in block.alloc_buffers if not x.same_as(buffer)]
        )

    return ir.replace(kernel, ir.SBlock, allocate)
