"""Fence, commit and wait for asynchronous operations, and let the threads of a role meet.

    with sblock(async_op="op"): issue(acc, ring[trip % 4])
    with sblock(release=1): if t == 0: free_slot(0, trip - 1)
    C[...] = acc
  ->
    fence                                  the operation reads registers that others wrote
    issue(acc, ring[trip % 4])
    commit
    wait 1                                 the slot given back must not be read any more
    if t == 0: free_slot(0, trip - 1)
    wait 0                                 the result is read
    C[...] = acc

A block with `async_op` means "complete before its next use". What that takes is asked of the engine
in `tvm_hopper.sync`, for the statements of each role, or of the kernel where it has none: waits for
groups and for slots that are filled, fences between proxies, barriers of the role's threads.

Where groups stay in flight over an iteration, or there is one iteration, nothing may move over the
last wait: the code behind it is fenced, and each register held.

Before: roles and channels stand; operations are such as the target's arch executes.  After: no
`async_op` block lacks anything; its annotation goes.
Not here: the barriers of channels (lower_channels.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir, sync
from tvm_hopper.codegen_patches.hold import fence_code, hold_all
from tvm_hopper.codegen_patches.ptx import fences
from tvm_hopper.codegen_patches.ptx.groups import FENCES, GROUPS
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.arch import Arch
from tvm_hopper.facts.async_ops import ASYNC_OPS
from tvm_hopper.plan.channel import find_split, make_call
from tvm_hopper.plan.sync_body import BodyReader, BodyWriter, Item, check_operations, flatten, once
from tvm_hopper.plan.sync_placement import left_in_flight, place_syncs
from tvm_hopper.requests.keys import (
    ASYNC_COPY,
    ASYNC_OP,
    AWAIT_FILLED,
    CHANNEL,
    PIPELINE_KEYS,
)
from tvm_hopper.requests.targets import arch_of
from tvm_hopper.sync import Loop

from .fuse_threads import fuse_threads
from .plan_pipeline import open_channels
from .swizzled_accesses import swizzle_plain_copies

ROLE_BARRIER = 1  # named barrier of the consumers; number 0 is the whole block's


@dataclass(frozen=True)
class AwaitFilled:
    """Wait for what a channel brings `ahead` trips from now."""

    channel: int
    ahead: int


class RoleSyncs:
    """Places what one agent's statements need: those of a kernel, or of the consumers in it.

    `first_thread` is None where the agent is the whole thread block.
    """

    def __init__(self, kernel: ir.For, body: ir.Stmt, first_thread: int | None) -> None:
        axis = ir.thread_axes(kernel)["threadIdx.x"]
        self.num_threads = None if first_thread is None else int(axis.extent) - first_thread
        has_producer = first_thread is not None
        self.reader = BodyReader(kernel, axis.loop_var, has_producer, first_thread or 0)
        self.items = self.reader.sequence(body)
        self.placed: dict[tuple[int, ...], list[Any]] = defaultdict(list)
        for x in place_syncs(flatten(self.items)):
            one = self._by_channel(x.sync)
            if one not in self.placed[x.path]:  # buffers of one channel are filled together
                self.placed[x.path].append(one)
        self.leave_groups = set(left_in_flight(flatten(self.items), self.placed))

    def rewrite(self) -> ir.Stmt:
        """Return the statements with everything in place."""
        writer = BodyWriter(self.placed, self._emit, self.reader.channel_of)
        return writer.write([self._hold_behind(item) for item in self.items])

    def _emit(self, one: Any, trips: Mapping[int, ir.Var]) -> list[Any]:
        match one:
            case sync.Fence():
                return [FENCES[one.kind]()]
            case sync.Commit():
                return [GROUPS[one.completion].commit()]
            case sync.Wait():
                wait = GROUPS[one.completion].wait(one.num_pending, one.read_only)
                stays = one.completion in self.leave_groups and not one.num_pending
                return [wait, *(keep_behind(self._results(one.completion)) if stays else [])]
            case AwaitFilled():
                trip = trips[one.channel]
                later = trip + one.ahead if one.ahead else trip
                return [make_call(AWAIT_FILLED, one.channel, later)]
        assert isinstance(one, sync.Barrier), f"no instruction stands for {one}"
        return [self._barrier()]

    def _barrier(self) -> Any:
        if self.num_threads is None:
            return fences.sync_threads()
        return fences.sync_named(ROLE_BARRIER, self.num_threads)

    def _by_channel(self, one: Any) -> Any:
        """Name the channel that fills a buffer, where that is waited for."""
        if not isinstance(one, sync.WaitPhase):
            return one
        channel = next(
            number
            for number, rings in self.reader.channels.items()
            if any(self.reader.buffer(ring) == one.buffer for ring in rings)
        )
        return AwaitFilled(channel, one.ahead)

    def _results(self, completion: str, below: Any = None) -> list[ir.Var]:
        """Return the registers that operations of a completion write, each once."""
        found: list[ir.Var] = []
        roots = [item.stmt for item in self.items] if below is None else [below]
        for block in (b for root in roots for b in ir.find_blocks(root, ASYNC_OP)):
            if ASYNC_OPS[str(block.annotations[ASYNC_OP])].completion != completion:
                continue
            found += [x.source for x in block.writes if str(x.source.scope()).startswith("local")]
        return once(found)

    def _hold_behind(self, item: Item) -> Item:
        """Keep what reads results of a loop of one iteration behind it: it will be no loop."""
        inner = [[self._hold_behind(x) for x in items] for items in item.inner]
        item = replace(item, inner=inner)
        if not isinstance(item.node, Loop) or not ir.is_const(item.stmt.extent, 1):
            return item
        registers = [
            register
            for completion in GROUPS
            if completion not in self.leave_groups
            for register in self._results(completion, item.stmt)
        ]
        if not registers:
            return item
        rebuilt = item.rebuilt
        return replace(
            item, rebuild=lambda parts: ir.seq(rebuilt(parts), keep_behind(once(registers)))
        )


def keep_behind(registers: list[ir.Var]) -> list[Any]:
    """Keep what reads registers behind the wait for them, which does not name them.

    Where each of several iterations waits for its own group the loop does that: nothing is moved
    into it.
    """
    return [fence_code(), *map(hold_all, registers)]


def find_consumers(kernel: ir.For) -> tuple[ir.Stmt, int] | None:
    """Return the consumers' branch of a kernel that is split, and where their threads begin."""
    split = find_split(kernel)
    if split is None:
        return None
    _check_elsewhere(kernel, split.else_case)
    return split.else_case, int(split.condition.b)


def _check_elsewhere(kernel: ir.For, consumers: ir.Stmt) -> None:
    """Refuse operations that no role with statements of its own waits for."""
    for block in ir.find_blocks(kernel, ASYNC_OP):
        if CHANNEL not in block.annotations and not ir.uses_node(consumers, block):
            raise cannot_lower(
                f"block {block.name_hint}",
                "an asynchronous operation outside of the consumers' role",
                "one beside what reads its results: the producer issues loads alone",
                "move it into the loop of the consumers",
            )


def rewrite_syncs(kernel: ir.For, arch: Arch) -> ir.For:
    """Place what the operations of a kernel need, in each of its roles or in the whole of it."""
    kernel = swizzle_plain_copies(open_channels(fuse_threads(kernel), arch))
    axis = ir.thread_axes(kernel)["threadIdx.x"]
    if found := find_consumers(kernel):
        consumers, first = found
        new = RoleSyncs(kernel, consumers, first).rewrite()
        kernel = ir.replace_nodes(kernel, ir.Stmt, {consumers: new})
    else:
        new = ir.mark_ours(RoleSyncs(kernel, axis.body, None).rewrite())
        kernel = ir.replace_nodes(kernel, ir.For, {axis: ir.with_body(axis, new)})
    return without_operations(kernel)


def needs_syncs(kernel: ir.For) -> bool:
    """Tell whether a kernel issues operations, or has copies that its threads share out by us.

    TVM's own passes let every thread make all of such a copy.
    """
    if ir.find_blocks(kernel, ASYNC_OP):
        return True
    return "threadIdx.x" in ir.thread_axes(kernel) and bool(ir.find_blocks(kernel, ASYNC_COPY))


def without_operations(kernel: ir.For) -> ir.For:
    """Take the annotations away that have been served, so that stock passes do not see them.

    A pipeline that no pass has expanded runs in the order of the program.
    """

    def done(block: ir.SBlock) -> ir.SBlock:
        if ASYNC_OP not in block.annotations:
            return block
        notes = {k: v for k, v in block.annotations.items() if k != ASYNC_OP}
        return ir.with_block(block, annotations=notes)

    def plain(loop: ir.For) -> ir.For:
        notes = {k: v for k, v in loop.annotations.items() if k not in PIPELINE_KEYS}
        if len(notes) == len(loop.annotations):
            return loop
        return ir.with_body(loop, loop.body, annotations=notes)

    return ir.replace(ir.replace(kernel, ir.SBlock, done), ir.For, plain)


@prim_func_pass(opt_level=0, name="tvm_hopper.InsertSyncs")
class InsertSyncs:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Place the syncs of one function."""
        arch = arch_of(func)

        def insert(kernel: ir.For) -> ir.For:
            check_operations(kernel, arch)
            return rewrite_syncs(kernel, arch) if needs_syncs(kernel) else kernel

        return ir.map_kernels(func, insert)
