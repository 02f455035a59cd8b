"""Check a program with placed syncs, and return the first unit that lacks one.

With fixed placements every transfer function is monotone (`state`). So the state at a loop head is
a least fixpoint, reached by joining the back edge's state until nothing changes. That ends:

- a phase at the head is one of the phases before the loop, and only ever falls out. Of a
  buffer with promised copies it falls out once, or comes once and stays; versions lie between the
  furthest that is copied ahead and `-num_slots`, where `advance` drops them;
- between two such changes touches are only added or weakened. Their keys are finite, since a slot
  is a number below `num_slots` and a phase is one of the above; `pending` is a natural number that
  only falls, and the two flags are only ever set.

The places of a body are its units, the edges into each join (the ends of arms and of loop bodies,
and the front of loops), and its end. They are checked by stable states alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce

from .nodes import BranchNode, LoopNode, Node, Sequence, Unit
from .program import Path, Sync, WaitPhase
from .state import FLIES, Phase, State, advance, apply, execute, join, lacks, lacks_at_end


@dataclass(frozen=True)
class Need:
    """The sync that a place lacks; `branch` is the outermost non-uniform branch around it."""

    name: str
    path: Path
    syncs: tuple[Sync, ...]
    branch: Path | None


class _Found(Exception):
    """Ends the walk at the first need."""

    def __init__(self, need: Need) -> None:
        self.need = need


def first_need(tree: Sequence, placed: Mapping[Path, tuple[Sync, ...]]) -> Need | None:
    """Return the first place of a tree, in program order, that lacks a sync."""
    walk = _Walk(placed)
    try:
        state = walk.sequence(tree, State())
        walk.demand("the end of the body", tree.end, lacks_at_end(state))
    except _Found as found:
        return found.need
    return None


class _Walk:
    def __init__(self, placed: Mapping[Path, tuple[Sync, ...]]) -> None:
        self.placed = placed
        self.num_unstable = 0  # loops around whose fixpoint is still being looked for
        self.branch: Path | None = None

    def demand(self, name: str, path: Path, syncs: Iterable[Sync]) -> None:
        """End the walk if something is lacked, unless the state is not stable yet."""
        if self.num_unstable == 0 and (found := tuple(syncs)):
            raise _Found(Need(name, path, found, self.branch))

    def arrive(self, path: Path, state: State) -> State:
        return reduce(apply, self.placed.get(path, ()), state)

    def sequence(self, sequence: Sequence, state: State) -> State:
        for node in sequence.nodes:
            state = self.node(node, self.arrive(node.path, state))
        return self.arrive(sequence.end, state)

    def node(self, node: Node, state: State) -> State:
        if isinstance(node, Unit):
            self.demand(node.name, node.path, (s for use in node.uses for s in lacks(state, use)))
            return execute(state, node)
        return (
            self.branches(node, state) if isinstance(node, BranchNode) else self.loop(node, state)
        )

    def branches(self, node: BranchNode, state: State) -> State:
        outer = self.branch
        if not node.is_uniform and outer is None:
            self.branch = node.path
        ends = [self.sequence(arm, state) for arm in node.arms]
        joined = reduce(join, ends)
        for arm, end in zip(node.arms, ends, strict=True):
            self.edge("the end of an arm", arm.end, end.in_flight(), joined)
        self.branch = outer
        return joined

    def loop(self, node: LoopNode, entry: State) -> State:
        if node.is_once:  # nothing comes back to its head
            return self.trip(node, entry)
        head = self.fixpoint(node, entry)
        self.edge(f"loop {node.name!r}", node.path, entry.in_flight(), head)
        back = self.trip(node, head)
        # Behind the last iteration of the body versions are named as in the body.
        for buffer, ahead in back.in_flight():
            if head.phases.get((buffer, ahead)) != FLIES:
                here = (buffer, ahead + (buffer in node.advances))
                self.edge(f"the end of loop {node.name!r}", node.body.end, [here], None)
        return back if node.min_trips else head

    def fixpoint(self, node: LoopNode, entry: State) -> State:
        self.num_unstable += 1
        head = entry
        while (joined := join(head, self.trip(node, head))) != head:
            head = joined
        self.num_unstable -= 1
        return head

    def trip(self, node: LoopNode, head: State) -> State:
        return advance(self.sequence(node.body, head), node.advances)

    def edge(self, name: str, path: Path, phases: list[Phase], joined: State | None) -> None:
        """Demand a wait for each copy in flight that is not issued on every edge of a join."""
        lost = [phase for phase in phases if joined is None or joined.phases.get(phase) != FLIES]
        self.demand(name, path, (WaitPhase(*phase) for phase in lost))
