"""Fence, commit and wait for the asynchronous operations that complete by group.

    with sblock(async_op="wgmma"): wgmma.mma_async(acc, slot k)
    with sblock(release=1): mbarrier.arrive(empty[slot k - 1])
    C[...] = acc
  ->
    wgmma.fence
    wgmma.mma_async(acc, slot k)
    wgmma.commit_group
    wgmma.wait_group 1                     the slot given back must not be read any more
    mbarrier.arrive(empty[slot k - 1])
    wgmma.wait_group 0                     the accumulator is read
    C[...] = acc

Where groups stay in flight over an iteration, or there is one iteration, the last wait is followed
by a fence of the code and a hold of each register.

Walks the consumers' role in order with the operations in flight; which kinds complete by group is
asked of the table in `facts.async_ops`. A block of them is fenced and committed as one group. Waits
come before what uses their results, and before a release, which lets the producer overwrite what
they read. After a wait for all groups of a kind its operations are forgotten.

Before: roles are built.  After: no `async_op` block of a group kind is left unwaited, nor the
annotations of our passes.
Not here: mbarriers (pipeline_mbarriers.py), which complete by phase.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tvm.script import tirx as T
from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.codegen_patches.hold import fence_code, hold_all
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.async_ops import ASYNC_OPS
from tvm_hopper.keys import ASYNC_OP, RELEASE, TILE_LOOP


@dataclass(frozen=True)
class GroupInstructions:
    """How one kind's groups are fenced, committed and waited for."""

    fence: Callable[[], Any]
    commit: Callable[[], Any]
    wait: Callable[[int], Any]


INSTRUCTIONS = {
    "wgmma": GroupInstructions(
        fence=lambda: T.ptx.wgmma.fence.sync.aligned(),
        commit=lambda: T.ptx.wgmma.commit_group.sync.aligned(),
        wait=lambda pending: T.ptx.wgmma.wait_group.sync.aligned(pending),
    )
}


@dataclass
class InFlight:
    """Operations issued and not yet waited for: kind -> buffers they write."""

    results: dict[str, list[Any]] = field(default_factory=dict)
    over_iterations: bool = False  # a loop has left groups in flight behind it

    def issue(self, kind: str, block: ir.SBlock) -> None:
        """Remember what an operation writes."""
        self.results.setdefault(kind, []).extend(region.source for region in block.writes)

    def touched_by(self, stmt: ir.Stmt) -> list[str]:
        """Return the kinds whose results a statement uses."""
        return [
            kind
            for kind, buffers in self.results.items()
            if any(ir.uses(stmt, buffer) for buffer in buffers)
        ]

    def forget(self, kind: str) -> None:
        """Forget the operations of a kind: they are complete."""
        self.results.pop(kind, None)


def rewrite_waits(stmt: ir.Stmt, in_flight: InFlight) -> ir.Stmt:
    """Place fences, commits and waits in one role's statements, in order."""
    out: list[Any] = []
    for part in ir.statements(stmt):
        out.extend(_rewrite_part(part, in_flight))
    return ir.seq(out)


def _rewrite_part(part: ir.Stmt, in_flight: InFlight) -> list[Any]:
    block = part.block if isinstance(part, ir.SBlockRealize) else None
    if block is not None and _group_kind(block):
        kind = _group_kind(block)
        in_flight.issue(kind, block)
        make = INSTRUCTIONS[kind]
        return [make.fence(), _plain(part, ASYNC_OP), make.commit()]
    if block is not None and RELEASE in block.annotations:
        pending = int(block.annotations[RELEASE])
        waits = [INSTRUCTIONS[kind].wait(pending) for kind in in_flight.results]
        if not pending:
            in_flight.results.clear()
        in_flight.over_iterations |= bool(pending and waits)
        return [*waits, _plain(part, RELEASE)]
    if isinstance(part, ir.For) and _holds_operations(part):
        body = rewrite_waits(part.body, in_flight)
        runs_once = ir.is_const(part.extent, 1) and TILE_LOOP not in part.annotations
        if not runs_once or in_flight.results:
            return [ir.with_body(part, body)]
        return [ir.with_body(part, body), *_keep_behind(_results(part))]
    if _holds_operations(part):
        names = [b.name_hint for key in (ASYNC_OP, RELEASE) for b in ir.find_blocks(part, key)]
        kind = "an if" if isinstance(part, ir.IfThenElse) else f"a {type(part).__name__}"
        raise cannot_lower(
            f"block {names[0]}",
            f"an asynchronous operation inside of {kind} of its role",
            "one that every warp of the role issues, in its statements or loops",
            "take the condition away, or apply it to what is stored",
        )
    waits = []
    for kind in in_flight.touched_by(part):
        waits.append(INSTRUCTIONS[kind].wait(0))
        if in_flight.over_iterations:
            waits += _keep_behind(in_flight.results[kind])
        in_flight.forget(kind)
    return [*waits, part]


def _keep_behind(results: list[ir.Var]) -> list[Any]:
    """Keep what reads accumulators behind the wait, which does not name them.

    Where each of several iterations waits for its own group the loop does that: nothing is moved
    into it.
    """
    return [fence_code(), *map(hold_all, results)]


def _results(part: ir.Stmt) -> list[ir.Var]:
    """Return the buffers that operations completing by group write, each once."""
    found: list[ir.Var] = []
    for block in ir.find_all(part, ir.SBlock, lambda x: bool(_group_kind(x))):
        for region in block.writes:
            if not any(region.source.same_as(x) for x in found):
                found.append(region.source)
    return found


def _group_kind(block: ir.SBlock) -> str:
    """Return the kind of a block's operations if they complete by group, else an empty string."""
    kind = str(block.annotations.get(ASYNC_OP, ""))
    return kind if kind and ASYNC_OPS[kind].needs_commit else ""


def _holds_operations(stmt: ir.Stmt) -> bool:
    return bool(ir.find_blocks(stmt, ASYNC_OP) or ir.find_blocks(stmt, RELEASE))


def _plain(realize: ir.SBlockRealize, key: str) -> ir.SBlockRealize:
    notes = {k: v for k, v in realize.block.annotations.items() if k != key}
    return ir.SBlockRealize([], True, ir.with_block(realize.block, annotations=notes))


def plan_waits(kernel: ir.For) -> tuple[ir.Stmt, ...]:
    """Return the role that issues operations completing by group, or nothing."""
    operations = ir.find_all(kernel, ir.SBlock, lambda block: bool(_group_kind(block)))
    if not operations:
        return ()
    branches = ir.find_all(kernel, ir.IfThenElse, lambda x: x.else_case is not None)
    roles = [b for x in branches for b in (x.then_case, x.else_case) if _holds_operations(b)]
    left = [x for x in operations if not roles or not ir.uses_node(roles[0], x)]
    if left:
        raise cannot_lower(
            f"blocks {[block.name_hint for block in left]}",
            "asynchronous operations outside of a warp group's role",
            "a pipelined loop with asynchronous copies around them",
        )
    return (roles[0],)


@prim_func_pass(opt_level=0, name="tvm_hopper.InsertAsyncWaits")
class InsertAsyncWaits:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Place the waits of one function."""

        def insert(kernel: ir.For) -> ir.For:
            for role in plan_waits(kernel):
                in_flight = InFlight()
                after = rewrite_waits(role, in_flight)
                drain = [INSTRUCTIONS[kind].wait(0) for kind in in_flight.results]
                kernel = ir.replace_nodes(kernel, ir.Stmt, {role: ir.seq(after, drain)})
            assert not plan_waits(kernel), "InsertAsyncWaits left an operation behind"
            return kernel

        return ir.map_kernels(func, insert)
