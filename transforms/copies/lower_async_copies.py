"""Turn annotated copies into asynchronous operations: TMA, bulk copies, cp.async or DMA.

    for p, r, s in grid(2, 128, 64):             annotations={"tvm_hopper.async_copy": "tma", ...}
        A_shared[p, r, s] = if_then_else(
            m + r < M and k + p * 64 + s < K, A[m + r, k + p * 64 + s], 0)
  ->
    A_map = tvm_stack_alloca("tensormap", 1)                          on the host, at each call
    cuTensorMapEncodeTiled(A_map, A, dims (K, M), box (64, 128), 128 B swizzle, zero fill)
    with sblock(annotations={"tvm_hopper.async_op": "tma_load"}):
        for p in range(2):
            tma_load(&A_shared[p, 0, 0], A_map, k + p * 64, m)

    for p, r, s in grid(2, 128, 64): C[m + r, n + p * 64 + s] = C_shared[p, r, s]
  ->
    with sblock(annotations={"tvm_hopper.async_op": "tma_store"}):
        for p in range(2):
            cp.async.bulk.tensor.2d.global(C_map, n + p * 64, m, &C_shared[p, 0, 0])

    for i, j in grid(8, 512): tile[i, j] = A[m + i, n + j]                 async_copy="bulk"
  ->
    with sblock(annotations={"tvm_hopper.async_op": "bulk_load"}):
        for i in range(8):
            bulk_load(&tile[i, 0], &A[m + i, n], 1024)

    ... the same with tile in global.vtcm                                async_copy="dma"
  ->
    with sblock(annotations={"tvm_hopper.async_op": "dma_load"}):
        for i in range(8):
            dma_copy(0, &tile[i, 0], &A[m + i, n], 1024, 0)

    ... = A_shared[p, i, j]                             in plain loops, under a swizzle
  ->
    ... = A_shared[p, i, (j // 8 ^ i % 8) * 8 + j % 8]

TMA and the tensor cores apply the swizzle themselves; plain loads and stores have to do it
themselves. A load out of bounds is filled with zeros by the hardware, and a store there left out,
which is what the predicate says; any other predicate or fill is refused. A map ends where the
predicate says, which may be inside the tensor, and steps over rows where the source is read with a
step; copies whose maps would be alike share one. It has the dimensions of the tensor that are
longer than one, five at most; a box has at most 256 rows, and longer panels take several.

Before: tiles that TMA touches are panels (SwizzleSharedTiles).  After: no `async_copy` annotation
is left; a `tma_load` or `bulk_load` call has no barrier yet. Not here: barriers, groups and waiting
(insert_syncs.py, lower_channels_to_mbarriers.py); loads for other blocks (multicast_loads.py), for
which a tile is cut into as many boxes.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.arch import Processor
from tvm_hopper.requests.bodies import map_bodies
from tvm_hopper.requests.keys import ASYNC_COPY, ASYNC_OP, CACHE_HINT, SWIZZLE
from tvm_hopper.requests.targets import processor_of
from tvm_hopper.transforms.common.explain_notes import Note, RemarkNote
from tvm_hopper.transforms.common.transfer import find_transfers
from tvm_hopper.transforms.kernel_pass import function_pass, map_noted
from tvm_hopper.transforms.layouts.swizzled_accesses import swizzle_accesses
from tvm_hopper.transforms.mechanisms.mechanism import Host, PlannedCopy
from tvm_hopper.transforms.mechanisms.table import MECHANISMS, mechanism_of

Plan = dict[str, tuple[PlannedCopy, ...]]  # the copies of a kernel, by mechanism


def plan_copies(kernel: Any, processor: Processor) -> Plan:
    """Plan every annotated copy of a kernel; reasons to refuse are raised here."""
    for copy in find_transfers(kernel):
        if copy.op.name not in processor.async_ops:
            able = processor.mechanisms(copy.op.is_load)
            names = " or ".join(map(repr, able)) or "none that copies this way"
            other = "request that one" if able else "let threads copy"
            fix = f"{other}, or build for a chip that has the other"
            others = [str(x.annotations[ASYNC_OP]) for x in ir.find_blocks(kernel, ASYNC_OP)]
            if missing := [x for x in others if x not in processor.async_ops]:
                fix = f'it has no {missing[0]} either: build with target="nvidia/nvidia-h200"'
            raise cannot_lower(
                copy.where,
                f"{ASYNC_COPY} = {copy.op.mechanism!r} on {processor.name}",
                f"a mechanism that it has: {names}",
                fix,
            )
    plan = {}
    for mechanism in MECHANISMS.values():
        copies = tuple(x for x in find_transfers(kernel) if mechanism_of(x) is mechanism)
        plan[mechanism.name] = mechanism.plan(kernel, copies, processor)
    return {name: planned for name, planned in plan.items() if planned}


def rewrite_copies(kernel: Any, plan: Plan, no_input: list[ir.Var], names: ir.Names) -> ir.Stmt:
    """Put instructions in place of the copy nests, and what they need before the launch."""
    host = Host(names, no_input)
    nests: dict[Any, Any] = {}
    for name, planned in plan.items():
        nests |= MECHANISMS[name].emit(planned, host)
    kernel = ir.replace_nodes(kernel, ir.Stmt, nests)
    copies = [x.copy for planned in plan.values() for x in planned]
    swizzled = [copy for copy in copies if int(copy.block.annotations.get(SWIZZLE, 0))]
    tiles = {copy.tile.buffer: copy for copy in swizzled}  # one of them may be copied both ways
    return ir.seq(host.stmts, swizzle_accesses(kernel, tiles.values()))


def find_guards(kernel: ir.For, plan: Plan) -> tuple[list[ir.Var], list[ir.Var]]:
    """Return the symbolic extents that leave no output tile when 0, and those that leave no input.

    Of the second kind is the k of a sum: over nothing it is 0, and has to be stored. Nobody has to
    encode the input of copies without a map.
    """
    blocks = [loop.extent for loop in ir.thread_axes(kernel).values()]

    def leaves_no_tile(symbol: ir.Var) -> bool:
        return any(ir.is_const(ir.simplify(ir.substitute(x, {symbol: 0})), 0) for x in blocks)

    copies = [x for planned in plan.values() for x in planned]
    encoded = _symbols([extent for x in copies for extent in x.encoded])
    every = _symbols([*encoded, *(n for x in copies for n in x.copy.tensor.buffer.shape)])
    return [x for x in every if leaves_no_tile(x)], [x for x in encoded if not leaves_no_tile(x)]


def _symbols(extents: list[Any]) -> list[ir.Var]:
    """Return the variables in extents, each once."""
    found: list[ir.Var] = []
    for var in ir.find_all(extents, ir.Var):
        if not any(var.same_as(x) for x in found):
            found.append(var)
    return found


def _say_hints(kernel: Any) -> list[RemarkNote]:
    hints = [(x.where, x.block.annotations.get(CACHE_HINT)) for x in find_transfers(kernel)]
    return [RemarkNote(f"{where}: L2 policy {hint}") for where, hint in hints if hint is not None]


def _lower_copies(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Replace the annotated copies of one function."""
    processor = processor_of(func)
    names = ir.Names(param.name for param in func.params)

    def lower(kernel: Any, notes: list[Note]) -> ir.Stmt:
        if not (plan := plan_copies(kernel, processor)):
            return kernel
        for name, planned in plan.items():
            if (tell := MECHANISMS[name].notes) is not None:
                notes += tell(planned)
        notes += _say_hints(kernel)
        no_tile, no_input = find_guards(kernel, plan)
        after = rewrite_copies(kernel, plan, no_input, names)
        assert not plan_copies(after, processor), "LowerAsyncCopies left a copy"
        for symbol in no_tile:  # nothing is launched
            after = ir.IfThenElse(symbol > 0, after, None)
        return after

    return map_noted(func, lower, map_bodies)


LowerAsyncCopies = function_pass("LowerAsyncCopies", _lower_copies)
