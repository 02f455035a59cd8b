"""Use programmatic dependent launch: start early, wait before reading earlier results.

    for k0 in ...:
        with sblock("B_local", annotations={"tvm_hopper.early_loads": 1}): B_local[...] = B[...]
        A_local[...] = A[...]
        C += A_local * B_local
  ->
    griddepcontrol.launch_dependents                    the next launch may begin as early
    for k0 in ...:
        B_local[...] = B[...]
        if k0 == 0: griddepcontrol.wait                 for the launches before this one
        A_local[...] = A[...]
        C += A_local * B_local

and the kernel is launched with "programmatic stream serialization" (TVM's word for it is a tag
among the launch parameters). Statements before the wait read only data that no earlier launch of
the stream writes, as the schedule promises: weights.

    for bx in thread_binding(64, "blockIdx.x", annotations={"tvm_hopper.early_launch": 1}):
        if t == 0: barriers, and words to fetch tensor maps
        __syncthreads
        if t < 128: loads by TMA else: products, and stores
  ->
    for bx in thread_binding(64, "blockIdx.x"):
        if t == 0: barriers, and words to fetch tensor maps
        __syncthreads
        griddepcontrol.wait
        if t < 128: loads by TMA, griddepcontrol.launch_dependents else: products, and stores

promises nothing: all that touches memory is after the wait, which all threads come to.  The
next launch may begin when this one's loads are on their way, or before it stores.

`RemoveRestrict` takes `__restrict__` off kernels that are launched so, when TVM has made them.

Before: loads are as they will run.  After: every kernel of a function with early loads waits, and
each that asks (`early_launch`); none has an annotation of these left.  Not here: other kernels are
launched as usual (RemoveRestrict), and all are where the chip has no such instruction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import fences
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.arch import Arch
from tvm_hopper.facts.op_names import ASYNC_COPIES, is_op
from tvm_hopper.requests.keys import EARLY_LAUNCH, EARLY_LOADS
from tvm_hopper.requests.targets import processor_of
from tvm_hopper.transforms.kernel_pass import function_pass

LAUNCH_PARAMS = "tirx.kernel_launch_params"
PROGRAMMATIC = "tirx.use_programtic_dependent_launch"  # so TVM's runtime calls it
PROMISED = "tvm_hopper.promised_tensors"  # parameters that are loaded early, by place


@dataclass(frozen=True)
class WaitPlace:
    """Where a kernel waits: before a statement, in the first iteration of the loops around it."""

    stmt: ir.Stmt
    loops: tuple[ir.For, ...]


def plan_wait(kernel: ir.For) -> WaitPlace | None:
    """Find the first statement that touches what an earlier launch may; None if nothing does."""
    early = ir.find_blocks(kernel, EARLY_LOADS)
    place = _descend(kernel, early, ())
    if place is None and early:
        where = f"block {early[0].name_hint}, {EARLY_LOADS}"
        found = "nothing but such loads in the kernel"
        raise cannot_lower(where, found, "an access to wait for after it")
    for block in early:
        for store in ir.find_all(block, ir.BufferStore):
            if str(store.buffer.scope()) != "local":
                raise cannot_lower(
                    f"block {block.name_hint}, {EARLY_LOADS}",
                    f"a store into {store.buffer.name}",
                    "a load into registers",
                )
    return place


def _descend(stmt: Any, early: list[Any], loops: tuple[ir.For, ...]) -> WaitPlace | None:
    if not _is_late(stmt, early):
        return None
    is_plain = not any(ir.uses_node(stmt, x) for x in early) and not _binds_threads(stmt)
    if is_plain and (early or not _is_straight(stmt)):
        return WaitPlace(stmt, loops)
    if isinstance(stmt, ir.SeqStmt):
        first = next(x for x in stmt.seq if _is_late(x, early))
        return _descend(first, early, loops)
    if isinstance(stmt, ir.For):
        repeats = stmt.kind != ir.ForKind.THREAD_BINDING and not ir.is_const(stmt.extent, 1)
        return _descend(stmt.body, early, (*loops, stmt) if repeats else loops)
    if isinstance(stmt, ir.SBlockRealize):
        return _descend(stmt.block.body, early, loops)
    if isinstance(stmt, tirx.AttrStmt):
        return _descend(stmt.body, early, loops)
    return WaitPlace(stmt, loops)


def _is_straight(stmt: Any) -> bool:
    """Tell a statement all of whose parts every thread comes to: barriers are made in front."""
    if isinstance(stmt, ir.SBlockRealize):
        return ir.is_const(stmt.predicate, 1)
    return isinstance(stmt, (ir.SeqStmt, tirx.AttrStmt))


def _binds_threads(stmt: Any) -> bool:
    return ir.has_any(stmt, ir.For, lambda x: x.kind == ir.ForKind.THREAD_BINDING)


def _is_late(stmt: Any, early: list[Any]) -> bool:
    """Tell whether a statement touches memory of the device in any other way than early loads."""
    rest = stmt
    if early:
        without = {x: ir.with_block(x, body=ir.seq()) for x in early}
        rest = ir.replace_nodes(stmt, ir.SBlock, without)
    return (
        ir.has_any(rest, ir.BufferStore, lambda x: _is_global(x.buffer))
        or ir.has_any(rest, ir.TensorLoad, lambda x: _is_global(x.source))
        or ir.has_any(rest, ir.Call, lambda x: is_op(x, ASYNC_COPIES))  # perhaps by a tensor map
        or ir.has_any(rest, ir.Call, lambda x: _is_global(ir.pointer_of(x)))
    )


def _is_global(buffer: Any) -> bool:
    return buffer is not None and str(buffer.scope()) in ("", "global")


def rewrite_wait(kernel: ir.For, place: WaitPlace | None) -> ir.For:
    """Put the wait in its place, and let the next launch begin."""
    if place is None:
        return without_request(kernel)
    first = ir.conjunction(loop.loop_var.equal(loop.min) for loop in place.loops)
    wait = ir.seq(fences.wait_for_launches())
    if not ir.is_const(first, 1):
        wait = ir.IfThenElse(first, wait, None)
    if ir.find_blocks(kernel, EARLY_LOADS):
        body = ir.replace_nodes(kernel, ir.Stmt, {place.stmt: ir.seq(wait, place.stmt)})
        body = let_next_begin(ir.replace(body, ir.SBlock, _without_loads))
        return without_request(body)
    begun = _begin_behind_loads(place.stmt)
    after = place.stmt if begun is None else begun
    body = ir.replace_nodes(kernel, ir.Stmt, {place.stmt: ir.seq(wait, after)})
    return without_request(_begin_before_stores(body) if begun is None else body)


def _begin_behind_loads(roles: ir.Stmt) -> ir.Stmt | None:
    """Let a producer's thread have the next launch begin after its last load; None without one.

    Blocks of that launch take the free resources: SMs that are idle get all that have room
    there, and the sooner they come the fewer SMs they share.
    """
    if not isinstance(roles, ir.IfThenElse) or roles.else_case is None:
        return None
    for part in ir.statements(roles.then_case):
        if isinstance(part, ir.IfThenElse) and part.else_case is None:
            loads = ir.seq(part.then_case, fences.launch_dependents())
            elected = ir.IfThenElse(part.condition, loads, None)
            return ir.replace_nodes(roles, ir.IfThenElse, {part: elected})
    return None


def _begin_before_stores(kernel: ir.For) -> ir.For:
    stores = find_stores(kernel)
    go = ir.seq(fences.launch_dependents(), stores)
    return ir.replace_nodes(kernel, type(stores), {stores: go})


def find_stores(stmt: ir.Stmt) -> ir.Stmt:
    """Return the first statement of a kernel that all threads come to and that stores to memory."""
    if isinstance(stmt, ir.SeqStmt):
        return find_stores(next((x for x in stmt.seq if _stores(x)), stmt.seq[-1]))
    if isinstance(stmt, ir.SBlockRealize) and ir.is_const(stmt.predicate, 1):
        return find_stores(stmt.block.body)
    binds = isinstance(stmt, ir.For) and stmt.kind == ir.ForKind.THREAD_BINDING
    if binds or isinstance(stmt, tirx.AttrStmt):
        return find_stores(stmt.body)
    return stmt


def _stores(stmt: ir.Stmt) -> bool:
    is_global = ("", "global")
    return bool(ir.find_all(stmt, ir.BufferStore, lambda x: str(x.buffer.scope()) in is_global))


def let_next_begin(kernel: ir.For) -> ir.For:
    """Let the next launch begin as soon as all of this one's thread blocks have."""
    outer = ir.find_all(kernel, ir.SBlock)[0]
    start = ir.with_block(outer, body=ir.seq(fences.launch_dependents(), outer.body))
    return ir.replace_nodes(kernel, ir.SBlock, {outer: start})


def _without_loads(block: ir.SBlock) -> ir.SBlock:
    if EARLY_LOADS not in block.annotations:
        return block
    rest = {k: v for k, v in block.annotations.items() if k != EARLY_LOADS}
    return ir.with_block(block, annotations=rest)


def _asks(loop: ir.For) -> bool:
    return EARLY_LAUNCH in loop.annotations


def without_request(kernel: ir.For) -> ir.For:
    """Take the request for an early launch off a kernel."""

    def plain(loop: ir.For) -> ir.For:
        if not _asks(loop):
            return loop
        rest = {k: v for k, v in loop.annotations.items() if k != EARLY_LAUNCH}
        return ir.with_body(loop, loop.body, annotations=rest)

    return ir.replace(kernel, ir.For, plain)


def _wait_for_launches(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let the kernels of one function begin early."""
    early = ir.find_blocks(func.body, EARLY_LOADS)
    if not early and not ir.find_all(func.body, ir.For, _asks):
        return func
    chip = processor_of(func)
    if not early and isinstance(chip, Arch) and not chip.waits_for_launches:
        return ir.map_kernels(func, without_request)

    def wait(kernel: ir.For) -> ir.For:
        if early or ir.find_all(kernel, ir.For, _asks):
            return rewrite_wait(kernel, plan_wait(kernel))
        return kernel  # launched as usual, see RemoveRestrict

    after = ir.map_kernels(func, wait)
    assert not ir.find_blocks(after.body, EARLY_LOADS), "EnableProgrammaticLaunch left a load"
    tags = [str(x) for x in after.attrs.get(LAUNCH_PARAMS, [])]
    if early:  # the simulator is told which tensors are promised to be there
        read = {load.source for x in early for load in ir.find_all(x, ir.TensorLoad)}
        after = after.with_attr(PROMISED, [i for i, x in enumerate(func.params) if x in read])
    return after.with_attr(LAUNCH_PARAMS, [*tags, PROGRAMMATIC])


EnableProgrammaticLaunch = function_pass("EnableProgrammaticLaunch", _wait_for_launches)
