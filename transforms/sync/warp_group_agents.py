"""Treat the warp groups of a role as separate agents if each stores its own part.

    tile[t // 128 * 64 + i, j] = ...                         all threads of a warp group
    store(&tile[t // 128 * 64, 0])                           one thread of each warp group

Threads that synchronise only within their warp group need no barrier of the whole role: each
group has a named barrier and a thread that is elected. Which of a role's statements tell groups
apart follows from their indices alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import ir as tvm_ir, sym

from tvm_hopper import ir
from tvm_hopper.analysis.access import step_of
from tvm_hopper.analysis.effects import find_effects
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.async_ops import ASYNC_OPS, BY_ONE_THREAD
from tvm_hopper.facts.op_names import STMATRIX
from tvm_hopper.facts.programming_model import WARP_GROUP_THREADS
from tvm_hopper.requests.keys import ASYNC_COPY, ASYNC_OP, CHANNEL
from tvm_hopper.transforms.common.overlay_pairs import find_overlays
from tvm_hopper.transforms.common.warp_group_view import GroupView
from tvm_hopper.transforms.warp_specialization.ping_pong_plan import is_in_turns


@dataclass(frozen=True)
class Electing:
    """The thread that issues a role's operations: the role's first, or each warp group's.

    `meets_alone`: the threads of a warp group share memory with no other one's.
    """

    by_group: bool
    meets_alone: bool


BY_ROLE = Electing(by_group=False, meets_alone=False)


def plan_warp_group_agents(
    kernel: Any, body: ir.Stmt, thread: ir.Var | None, first_thread: int
) -> Electing:
    """Decide who is elected among threads that run `body`; reasons to refuse are raised here."""
    if thread is None:
        return BY_ROLE
    if is_in_turns(body):  # each warp group has output tiles of its own
        return Electing(by_group=False, meets_alone=True)
    view = GroupView.of(thread, first_thread)
    issued = [
        block
        for block in ir.find_blocks(body, ASYNC_OP)
        if CHANNEL not in block.annotations
        and ASYNC_OPS[str(block.annotations[ASYNC_OP])].completion in BY_ONE_THREAD
    ]
    issued += [block for block in ir.find_blocks(body, ASYNC_COPY) if is_copy_out(block)]
    varying = [block for block in issued if ir.depends_on(block, [thread])]
    if not varying:
        return BY_ROLE
    for block in varying:
        if view.varies_in_group(block):
            raise cannot_lower(
                f"block {block.name_hint}",
                "a separate copy in each thread",
                f"one that the {WARP_GROUP_THREADS} threads of a warp group make together: one of "
                "them stores the whole part",
                "store at the loop over warp groups, or remove the annotation",
            )
    if len(varying) < len(issued):
        names = ", ".join(x.name_hint for x in issued)
        raise cannot_lower(
            f"blocks {names}",
            "copies of a warp group's part next to copies that all threads make together",
            "one or the other: groups of stores are waited for by the thread that issued them",
            "store both at the same loop",
        )
    return Electing(by_group=True, meets_alone=_meets_alone(kernel, body, view))


def is_copy_out(block: ir.SBlock) -> bool:
    """Tell a copy from shared to global memory that no pass has lowered yet."""
    store = block.body
    return (
        ASYNC_COPY in block.annotations
        and isinstance(store, ir.BufferStore)
        and str(store.buffer.scope()) in ("", "global")
    )


def _meets_alone(kernel: Any, body: ir.Stmt, view: GroupView) -> bool:
    """Tell whether each warp group keeps to parts of its own of all tiles that this role writes."""
    operations = ir.find_blocks(body, ASYNC_OP)  # loads of channels too, where no producer has them
    rest = ir.replace(
        body,
        ir.SBlock,
        lambda x: ir.with_block(x, body=ir.seq()) if ASYNC_OP in x.annotations else x,
    )
    effects = [x for x in find_effects(rest) if ir.is_shared(x.buffer)]
    written = [x.buffer for x in effects if x.writes]
    written += [x.source for block in operations for x in block.writes if ir.is_shared(x.source)]
    pairs = find_overlays(kernel)
    analyzer = sym.Analyzer()
    analyzer.bind(view.lane, tvm_ir.Range(0, WARP_GROUP_THREADS))
    for loop in ir.find_all(body, ir.For):
        analyzer.bind(loop.loop_var, ir.range_of(loop))
    for tile in ir.once(written):
        if any(tile.same_as(x) for pair in pairs for x in pair):
            return False
        if not _has_parts(_touched(rest, operations, tile), tile, view, analyzer):
            return False
    return True


Box = list[tuple[Any, int]]  # where it begins and how far it goes, along each dimension


def _touched(rest: ir.Stmt, operations: list[ir.SBlock], tile: ir.Var) -> list[Box] | None:
    """Return the rows of a tile that statements touch; None if unknown."""
    rows = [call for call in ir.find_all(rest, ir.Call, _is_matrix_store)]
    pointers = [
        call
        for call in ir.find_all(rest, ir.Call, lambda x: x.op.name == "tirx.address_of")
        if isinstance(call.args[0], ir.TensorLoad) and call.args[0].source.same_as(tile)
    ]
    if not all(any(ir.uses_node(row, pointer) for row in rows) for pointer in pointers):
        return None
    found: list[Box] = []
    for access in ir.accesses(rest, tile):
        if isinstance(access, ir.Call):
            return None
        found.append([(index, 1) for index in access.indices])
    for block in operations:
        for region in (*block.reads, *block.writes):
            if region.source.same_as(tile):
                extents = [ir.static_int(x.extent) for x in region.region]
                if None in extents:
                    return None
                found.append([(x.min, int(x.extent)) for x in region.region])
    return found


def _is_matrix_store(call: ir.Call) -> bool:
    """Tell a call that writes 16 bytes behind its pointer and nothing else (`stmatrix`)."""
    return str(getattr(call.op, "name", "")) == STMATRIX


def _has_parts(boxes: list[Box] | None, tile: ir.Var, view: GroupView, analyzer: Any) -> bool:
    """Tell whether along one dimension, not within a row, each group has a range of its own."""
    if boxes is None:
        return False
    return any(
        _is_cut(
            [(view.split(box[dim][0]), box[dim][1]) for box in boxes],
            view,
            analyzer,
        )
        for dim in range(len(tile.shape) - 1)
    )


def _is_cut(ranges: list[tuple[Any, int]], view: GroupView, analyzer: Any) -> bool:
    steps = {step_of(start, view.group) for start, _ in ranges}
    if len(steps) != 1:
        return False
    (step,) = steps
    if not step or step < 0:
        return False
    for start, extent in ranges:
        inside = analyzer.simplify(start - view.group * step)
        if ir.depends_on(inside, [view.group]):
            return False
        known = analyzer.const_int_bound(inside)
        if int(known.min_value) < 0 or int(known.max_value) + extent > step:
            return False
    return True
