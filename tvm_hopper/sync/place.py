"""Search for syncs: add until the check accepts, then remove the redundant ones.

1. Fold: a subtree of plain steps (no operation, no release, no ring advanced) that needs no sync
   of its own is one unit, so that waits are before a loop and not in it. Not where some
   path through it leaves out a read of what is copied only if it is read.
2. Grow: find the first place in program order that lacks a sync (`check.first_need`), place it
   there (a wait for a copy from outside a loop: before the loop), and repeat. Each round adds a
   sync or strengthens a Wait, and both places and syncs are finite.
3. Prune: in program order, try to remove each sync, else to weaken its wait. Syncs that a later
   one made redundant go; of two equivalent syncs the later one stays.
4. Join: adjacent groups become one if no wait distinguishes them.

Opens, commits and fences of groups follow from the program and are added at the end.

Theorem. What is returned is safe: the check accepts it, and the check knows no more than every path
of the program does. It is minimal: without any one of its syncs, or with a weaker Wait, the check
refuses. Since the analysis is exact for paths (`state`), some path is unsafe then. This takes
branches and iteration counts to be free of each other: any arm may follow any other, and a loop may
make any number of iterations from one (from none with `min_trips` 0) on. It also takes each copy
that is made only if it is read to be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from tvm_hopper.facts.async_ops import ASYNC_OPS, COMPLETIONS, WAIT_GROUP_READ, AsyncOp

from .check import Need, first_need
from .nodes import BranchNode, LoopNode, Node, Sequence, Unit, build, join_at, units
from .program import (
    Barrier,
    Body,
    Buffer,
    Commit,
    Fence,
    Open,
    Path,
    Placement,
    Sync,
    Wait,
    WaitPhase,
)
from .state import Phase

Placed = dict[Path, tuple[Sync, ...]]


def place_syncs(body: Body, table: Mapping[str, AsyncOp] = ASYNC_OPS) -> tuple[Placement, ...]:
    """Return the syncs that a body lacks.

    - `body`: what the threads of one agent run. Nothing is in flight before it; after it nothing in
      flight touches registers or shared memory.
    - `table`: the asynchronous operations, by name.
    - raises ValueError: for a step that its operation does not allow, and where threads that a
      branch divides would have to meet.
    """
    tree = build(body, table)
    tree = _fold(tree, _promised(tree))
    readable = {op.completion for op in table.values() if op.overwrite_needs == WAIT_GROUP_READ}
    placed = _prune(tree, _grow(tree), readable)
    tree = _join_groups(tree, placed)
    for unit in units(tree):
        if unit.op is not None and unit.op.needs_commit:
            if not unit.op.ordered_after_program:
                placed[unit.path] = _merge(placed.get(unit.path, ()), [Fence("wgmma")])
            if unit.op.opens_group:
                placed[unit.path] = _merge(placed.get(unit.path, ()), [Open(unit.op.completion)])
            placed[unit.end] = _merge(placed.get(unit.end, ()), [Commit(unit.op.completion)])
    return tuple(Placement(path, sync) for path in sorted(placed) for sync in placed[path])


def _promised(tree: Sequence) -> frozenset[Buffer]:
    """Return the buffers whose copies are made only if they are read."""
    return frozenset(use.buffer for unit in units(tree) if unit.only_if_read for use in unit.uses)


def _fold(sequence: Sequence, promised: frozenset[Buffer]) -> Sequence:
    return sequence._replace(nodes=tuple(_fold_node(node, promised) for node in sequence.nodes))


def _fold_node(node: Node, promised: frozenset[Buffer]) -> Node:
    if isinstance(node, Unit):
        return node
    inside = Sequence((node,), (*node.path[:-1], node.path[-1] + 1))
    found = list(units(inside))
    # No wait before a subtree for a copy that some paths through it do not read.
    touched = {(u.buffer, u.ahead) for unit in found for u in unit.uses if u.buffer in promised}
    is_unit = touched <= _always_touched(node) and _is_plain(node)
    if is_unit and first_need(inside, {}) is None:
        name = found[0].name if found else ""
        uses = tuple(dict.fromkeys(use for unit in found for use in unit.uses))
        return Unit(name, node.path, inside.end, uses)
    if isinstance(node, LoopNode):
        body = _fold(node.body, promised)
        return replace(node, body=body)
    arms = tuple(_fold(arm, promised) for arm in node.arms)
    return BranchNode(node.path, arms, node.is_uniform)


def _always_touched(node: Node | Sequence) -> frozenset[Phase]:
    """Return the versions that every path through a node touches."""
    if isinstance(node, Unit):
        return frozenset((use.buffer, use.ahead) for use in node.uses)
    if isinstance(node, Sequence):
        return frozenset[Phase]().union(*map(_always_touched, node.nodes))
    if isinstance(node, BranchNode):
        first, *others = map(_always_touched, node.arms)
        return first.intersection(*others)
    return _always_touched(node.body) if node.min_trips else frozenset()


def _is_plain(node: Node) -> bool:
    if isinstance(node, Unit):
        return node.op is None and not any(use.is_release or use.is_acquire for use in node.uses)
    if isinstance(node, LoopNode):
        return not node.advances and all(map(_is_plain, node.body.nodes))
    return all(_is_plain(inner) for arm in node.arms for inner in arm.nodes)


def _grow(tree: Sequence) -> Placed:
    placed: Placed = {}
    while need := first_need(tree, placed):
        for path, syncs in _homes(tree, need):
            before = placed.get(path, ())
            placed[path] = _merge(before, syncs)
            if placed[path] == before:  # the Barrier before the branch did not help
                raise ValueError(
                    f"step {need.name!r}: found a use of what other threads did in the same "
                    "branch, which is not uniform; need a Barrier in between, which not all would "
                    "reach: divide the branch, or make its condition uniform"
                )
    return placed


def _homes(tree: Sequence, need: Need) -> Iterator[tuple[Path, list[Sync]]]:
    """Yield where the syncs of a need are placed: a Barrier not in a branch that is not uniform."""
    for sync in need.syncs:
        if isinstance(sync, WaitPhase) and (home := _home(tree, need.path, sync)) != need.path:
            yield home, [sync]  # what else is lacked is found in the next round
            return
    syncs = list(need.syncs)
    if need.branch is not None and Barrier() in syncs:
        # Groups that are committed in the branch do not count before it.
        inside: list[Sync] = [sync for sync in syncs if isinstance(sync, WaitPhase)]
        if inside:
            yield need.path, inside
        outside: list[Sync] = [
            Wait(sync.completion, 0, sync.read_only) if isinstance(sync, Wait) else sync
            for sync in syncs
            if not isinstance(sync, WaitPhase)
        ]
        yield need.branch, outside
    else:
        yield need.path, syncs


def _home(tree: Sequence, path: Path, wait: WaitPhase) -> Path:
    """Return the front of the outermost loop around a path in which a copy cannot be issued.

    One wait is enough for all iterations there, if the copy is issued before the loop for sure. So
    it is before a branch that parts threads: those that take the other arm wait, too, if only
    for the end, and who waited in an arm would wait for the same phase again after it. And before a
    branch that all take alike: an iteration that nothing waits for is none that may pass.
    """
    copies = [unit for unit in units(tree) if _copies(unit, wait)]
    promised = any(unit.only_if_read for unit in copies)
    sequence, outer = tree, None
    while node := next((x for x in sequence.nodes if path[: len(x.path)] == x.path), None):
        if isinstance(node, Unit):
            break
        if isinstance(node, LoopNode):
            outer, sequence = _front_of_loop(node, wait, promised, outer), node.body
        else:
            outer = _front_of_branch(node, wait, promised, outer)
            sequence = node.arms[path[len(node.path)]]
    return path if outer is None else outer


def _front_of_loop(
    loop: LoopNode, wait: WaitPhase, promised: bool, outer: Path | None
) -> Path | None:
    """Return the front of a loop, or of one around it, if the wait may be there."""
    inside = any(_copies(unit, wait) for unit in units(loop.body))
    if inside or wait.buffer in loop.advances or (promised and not loop.min_trips):
        return None
    return loop.path if outer is None else outer


def _front_of_branch(
    branch: BranchNode, wait: WaitPhase, promised: bool, outer: Path | None
) -> Path | None:
    """Return the front of a branch, or of what is around it, if the wait may be there."""
    if promised or outer is not None:  # whether it is read depends on the branch
        return None if promised else outer
    inside = any(_copies(x, wait) for arm in branch.arms for x in units(arm))
    return None if branch.is_uniform and inside else branch.path


def _copies(unit: Unit, wait: WaitPhase) -> bool:
    if unit.op is None or unit.op.needs_commit:
        return False
    return any(use.is_write and use.buffer == wait.buffer for use in unit.uses)


def _prune(tree: Sequence, placed: Placed, readable: set[str]) -> Placed:
    for path in sorted(placed):
        for sync in placed[path]:
            weaker: Sync | None = sync
            while weaker is not None:
                weaker = _spare(tree, placed, path, weaker, readable)
    return {path: syncs for path, syncs in placed.items() if syncs}


def _spare(
    tree: Sequence, placed: Placed, path: Path, sync: Sync, readable: set[str]
) -> Sync | None:
    """Take a sync away or replace it by a weaker one; return that one, or None at the end."""
    for instead in _weaker(sync, readable):
        trial = [instead if s == sync else s for s in placed[path]]
        now = tuple(s for s in trial if s is not None)
        if first_need(tree, {**placed, path: now}) is None:
            placed[path] = now
            return instead
    return None


def _weaker(sync: Sync, readable: set[str]) -> Iterator[Sync | None]:
    yield None
    if isinstance(sync, Wait):
        if not sync.read_only and sync.completion in readable:
            yield Wait(sync.completion, sync.num_pending, read_only=True)
        yield Wait(sync.completion, sync.num_pending + 1, sync.read_only)


def _join_groups(tree: Sequence, placed: Placed) -> Sequence:
    """Take away the commits that no wait needs.

    Larger groups only make a Wait wait for less, so that what was minimal before still is.
    """
    for unit in units(tree):
        joined = join_at(tree, unit.path) if unit.path not in placed else tree
        if joined != tree and first_need(joined, placed) is None:
            tree = joined
    return tree


def _merge(syncs: Iterable[Sync], more: Iterable[Sync]) -> tuple[Sync, ...]:
    """Add syncs to those of one place: one Wait a completion, in the order of execution."""
    waits: dict[str, Wait] = {}
    others: dict[Sync, None] = {}
    for sync in (*syncs, *more):
        if not isinstance(sync, Wait):
            others[sync] = None
            continue
        known = waits.get(sync.completion, sync)
        waits[sync.completion] = Wait(
            sync.completion,
            min(known.num_pending, sync.num_pending),
            known.read_only and sync.read_only,
        )
    return tuple(sorted((*others, *waits.values()), key=_rank))


def _rank(sync: Sync) -> tuple[int, str, int]:
    """Order the syncs of one place.

    A group is closed before it is waited for; what is complete is fenced and then announced. Nobody
    waits while a group is open.
    """
    if isinstance(sync, Commit):
        return (0, "", 0)
    if isinstance(sync, WaitPhase):
        return (1, sync.buffer.name, sync.ahead)
    if isinstance(sync, Wait):
        return (2, "", COMPLETIONS.index(sync.completion))
    if isinstance(sync, Fence):
        return (3, "", 0) if sync.kind == "async_proxy" else (5, "", 0)
    if isinstance(sync, Open):
        return (6, "", 0)
    return (4, "", 0)
