"""Insert fences, commits, waits and barriers for asynchronous operations.

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

A block with `async_op` means "complete before its next use". The engine in `tvm_hopper.sync` places
them, for the statements of each role (or of the whole kernel): waits for groups and for slots that
are filled, fences between proxies, barriers of the role's threads.

Where groups stay in flight over an iteration, or there is one iteration, nothing may move over the
last wait: the code after it is fenced, and each register held.

Before: roles and channels are; operations are such as the target's arch executes.  After: no
`async_op` block lacks anything; its annotation goes.
Not here: the barriers of channels (lower_channels_to_mbarriers.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.arch import Processor
from tvm_hopper.requests.bodies import map_bodies
from tvm_hopper.requests.keys import (
    ASYNC_COPY,
    ASYNC_OP,
    CHANNEL,
    HANDED_ON,
    LATE,
    PIPELINE_KEYS,
    SHIFT,
    TURNS,
)
from tvm_hopper.requests.targets import processor_of
from tvm_hopper.transforms.common.channel import find_split
from tvm_hopper.transforms.kernel_pass import function_pass
from tvm_hopper.transforms.layouts.swizzled_accesses import swizzle_plain_copies
from tvm_hopper.transforms.pipeline.plan_ring_buffers import open_channels
from tvm_hopper.transforms.prepare.fuse_thread_axes import fuse_threads

from .role_syncs import RoleSyncs
from .sync_body import check_operations

SERVED = (ASYNC_OP, SHIFT, LATE, HANDED_ON)


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
                "one next to the readers of its results: the producer only issues loads",
                "move it into the loop of the consumers",
            )


def rewrite_syncs(kernel: Any, processor: Processor) -> Any:
    """Place what the operations of a kernel need, in each of its roles or in the whole of it."""
    if processor.has_threads:
        kernel = fuse_threads(kernel)
    kernel = swizzle_plain_copies(open_channels(kernel, processor))
    threads = ir.threads_of(kernel)
    if not processor.has_threads:
        return without_operations(RoleSyncs(kernel, threads.body, None).rewrite())
    if found := find_consumers(kernel):
        consumers, first = found
        new = RoleSyncs(kernel, consumers, first).rewrite()
        kernel = ir.replace_nodes(kernel, ir.Stmt, {consumers: new})
    else:
        kernel = threads.run(ir.mark_ours(RoleSyncs(kernel, threads.body, None).rewrite()))
    return without_operations(kernel)


def needs_syncs(kernel: Any) -> bool:
    """Tell whether a kernel issues operations, or has copies that its threads distribute by us.

    TVM's own passes let every thread make all of such a copy.
    """
    if ir.find_blocks(kernel, ASYNC_OP):
        return True
    return "threadIdx.x" in ir.thread_axes(kernel) and bool(ir.find_blocks(kernel, ASYNC_COPY))


def without_operations(kernel: Any) -> Any:
    """Take the annotations away that have been served, so that stock passes do not see them.

    A pipeline that no pass has expanded runs in the order of the program.
    """

    def done(block: ir.SBlock) -> ir.SBlock:
        notes = {k: v for k, v in block.annotations.items() if k not in SERVED}
        if len(notes) == len(block.annotations):
            return block
        return ir.with_block(block, annotations=notes)

    stripped = ir.replace(kernel, ir.SBlock, done)
    return without_pipelines(stripped, lambda _: True, (*PIPELINE_KEYS, TURNS))


def without_pipelines(
    kernel: Any, where: Callable[[ir.For], bool], keys: Iterable[str] = PIPELINE_KEYS
) -> Any:
    """Let loops run in the order of the program.

    Where threads have come to make all copies, TVM's own pass pipelines them: of one turn it would
    wait for groups whose number it does not know, and print none in vectors.
    """

    def plain(loop: ir.For) -> ir.For:
        # of an axis it is for ScheduleTiles to serve
        own = [k for k in keys if k != TURNS or loop.thread_binding is None]
        notes = {k: v for k, v in loop.annotations.items() if k not in own}
        if len(notes) == len(loop.annotations) or not where(loop):
            return loop
        return ir.with_body(loop, loop.body, annotations=notes)

    return ir.replace(kernel, ir.For, plain)


def _insert_syncs(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Place the syncs of one function."""
    processor = processor_of(func)

    def insert(kernel: Any) -> Any:
        check_operations(kernel, processor)
        if needs_syncs(kernel):
            return rewrite_syncs(kernel, processor)
        return without_pipelines(kernel, lambda loop: ir.static_int(loop.extent) in (0, 1))

    return map_bodies(func, insert)


InsertSyncs = function_pass("InsertSyncs", _insert_syncs)
