"""Let a kernel begin before the launch in front of it has ended, and wait before it reads results.

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
among the launch parameters).  What stands in front of the wait, the schedule has promised, reads
what no earlier launch of the stream writes: weights.

CUDA's compiler takes for constant what is read through `__restrict__` pointers alone, and loads it
where it likes, in front of the wait too (seen in SASS).  `LoadInOrder` takes the word off kernels
that are launched so, when TVM has made them.

A kernel that asks for it (`early_launch` on the loop of its blocks) begins early without any such
load: it waits first, and lets the next launch begin in front of what it stores, so that one launch
at a time is ready and takes no room from the one that runs.  A kernel of few rows takes longer to
be launched than to run.

Before: loads stand as they will run.  After: every kernel of such a function waits; none has an
`early_loads` block, nor asks for an early launch.
Not here: other functions, and chips without the instruction; they are launched as ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import fences
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.arch import Arch
from tvm_hopper.requests.keys import EARLY_LAUNCH, EARLY_LOADS
from tvm_hopper.requests.targets import processor_of

LAUNCH_PARAMS = "tirx.kernel_launch_params"
PROGRAMMATIC = "tirx.use_programtic_dependent_launch"  # so TVM's runtime calls it


@dataclass(frozen=True)
class WaitPlace:
    """Where a kernel waits: in front of a statement, in the first turn of the loops around it."""

    stmt: ir.Stmt
    loops: tuple[ir.For, ...]


def plan_wait(kernel: ir.For) -> WaitPlace:
    """Find the first statement that touches what an earlier launch may."""
    early = ir.find_blocks(kernel, EARLY_LOADS)
    place = _descend(kernel, early, ())
    if place is None:
        name = early[0].name_hint if early else kernel.loop_var.name
        found = "nothing but such loads in the kernel"
        raise cannot_lower(f"block {name}, {EARLY_LOADS}", found, "something to wait for behind it")
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
    if not any(ir.uses_node(stmt, x) for x in early) and not _binds_threads(stmt):
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


def find_stores(stmt: ir.Stmt) -> ir.Stmt:
    """Return the first statement of a kernel that all threads come to and that stores to memory."""
    if isinstance(stmt, ir.SeqStmt):
        return find_stores(next(x for x in stmt.seq if _stores(x)))
    if isinstance(stmt, ir.SBlockRealize) and ir.is_const(stmt.predicate, 1):
        return find_stores(stmt.block.body)
    binds = isinstance(stmt, ir.For) and stmt.kind == ir.ForKind.THREAD_BINDING
    if binds or isinstance(stmt, tirx.AttrStmt):
        return find_stores(stmt.body)
    return stmt


def _stores(stmt: ir.Stmt) -> bool:
    is_global = ("", "global")
    return bool(ir.find_all(stmt, ir.BufferStore, lambda x: str(x.buffer.scope()) in is_global))


def _asks(loop: ir.For) -> bool:
    return EARLY_LAUNCH in loop.annotations


def _binds_threads(stmt: Any) -> bool:
    return bool(ir.find_all(stmt, ir.For, lambda x: x.kind == ir.ForKind.THREAD_BINDING))


def _is_late(stmt: Any, early: list[Any]) -> bool:
    """Tell whether a statement touches memory of the device in any other way than early loads."""
    rest = ir.replace_nodes(stmt, ir.SBlock, {x: ir.with_block(x, body=ir.seq()) for x in early})
    loads = (x.source for x in ir.find_all(rest, ir.TensorLoad))
    stores = (x.buffer for x in ir.find_all(rest, ir.BufferStore))
    calls = ir.find_all(rest, ir.Call, lambda x: ir.pointer_of(x) is not None)
    touched = [*loads, *stores, *(ir.pointer_of(x) for x in calls)]
    return any(str(x.scope()) in ("", "global") for x in touched)


def without_request(kernel: ir.For) -> ir.For:
    """Take the request for an early launch off a kernel."""

    def plain(loop: ir.For) -> ir.For:
        if EARLY_LAUNCH not in loop.annotations:
            return loop
        rest = {k: v for k, v in loop.annotations.items() if k != EARLY_LAUNCH}
        return ir.with_body(loop, loop.body, annotations=rest)

    return ir.replace(kernel, ir.For, plain)


def rewrite_wait(kernel: ir.For, place: WaitPlace, is_early: bool) -> ir.For:
    """Put the wait in its place, and let the next launch begin: at once, or behind the wait."""
    first = ir.conjunction(loop.loop_var.equal(loop.min) for loop in place.loops)
    wait = ir.seq(fences.wait_for_launches())
    if not ir.is_const(first, 1):
        wait = ir.IfThenElse(first, wait, None)
    body = ir.replace_nodes(kernel, ir.Stmt, {place.stmt: ir.seq(wait, place.stmt)})

    def plain(block: ir.SBlock) -> ir.SBlock:
        if EARLY_LOADS not in block.annotations:
            return block
        rest = {k: v for k, v in block.annotations.items() if k != EARLY_LOADS}
        return ir.with_block(block, annotations=rest)

    body = without_request(ir.replace(body, ir.SBlock, plain))
    if not is_early:
        last = find_stores(body)
        go = ir.seq(fences.launch_dependents(), last)
        return ir.replace_nodes(body, type(last), {last: go})
    outer = ir.find_all(body, ir.SBlock)[0]
    start = ir.with_block(outer, body=ir.seq(fences.launch_dependents(), outer.body))
    return ir.replace_nodes(body, ir.SBlock, {outer: start})


@prim_func_pass(opt_level=0, name="tvm_hopper.WaitForLaunches")
class WaitForLaunches:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Let the kernels of one function begin early."""
        is_early = bool(ir.find_blocks(func.body, EARLY_LOADS))
        if not is_early and not ir.find_all(func.body, ir.For, _asks):
            return func
        chip = processor_of(func)
        if not is_early and isinstance(chip, Arch) and not chip.waits_for_launches:
            return ir.map_kernels(func, without_request)
        after = ir.map_kernels(func, lambda x: rewrite_wait(x, plan_wait(x), is_early))
        assert not ir.find_blocks(after.body, EARLY_LOADS), "WaitForLaunches left a load"
        tags = [str(x) for x in after.attrs.get(LAUNCH_PARAMS, [])]
        return after.with_attr(LAUNCH_PARAMS, [*tags, PROGRAMMATIC])
