"""The program as a tree of nodes with paths; rejects malformed programs.

A `Unit` is what syncs are placed before: a step; a run of adjacent steps of one operation,
which form one group; or a subtree of plain steps that needs no barrier inside (`place.fold`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

from tvm_hopper.facts.async_ops import AsyncOp

from .program import Body, Branch, Buffer, Loop, Path, Space, Step


class Use(NamedTuple):
    """One access of a step, with who executes it and how."""

    buffer: Buffer
    ahead: int
    is_write: bool
    by_thread: bool  # by the elected thread, else by all
    op: AsyncOp | None
    is_release: bool = False
    is_acquire: bool = False

    @property
    def slot(self) -> int:
        """Return the slot of the version, relative to the ring's counter."""
        return self.ahead % self.buffer.num_slots


class Unit(NamedTuple):
    """Statements that syncs are before, never in between."""

    name: str
    path: Path
    end: Path
    uses: tuple[Use, ...]
    op: AsyncOp | None = None
    by_thread: bool = False
    only_if_read: bool = False


class Sequence(NamedTuple):
    """Nodes one after the other; `end` is the path of what is placed after the last one."""

    nodes: tuple[Node, ...]
    end: Path


@dataclass(frozen=True)
class LoopNode:
    """A loop whose body holds syncs."""

    path: Path
    body: Sequence
    advances: frozenset[Buffer]
    min_trips: int
    name: str
    is_once: bool = False


@dataclass(frozen=True)
class BranchNode:
    """A branch whose arms hold syncs."""

    path: Path
    arms: tuple[Sequence, ...]
    is_uniform: bool


Node = Unit | LoopNode | BranchNode


def must_follow(new: Use, is_write: bool, op: AsyncOp | None) -> bool:
    """Tell whether an access has to come after an earlier one, by `op`, of the same slot."""
    if not (new.is_write or is_write or new.is_release):
        return False
    in_place = op is not None and new.op == op and op.repeats_in_place
    return not (in_place and new.is_write and is_write)


def build(body: Body, table: Mapping[str, AsyncOp]) -> Sequence:
    """Check a body and turn it into a tree.

    - raises ValueError: where a step is none that the table's operations, or a release, can be.
    """
    _check_names(body)
    _check_promised(body)
    return _sequence(body, table, (), True)


def _sequence(body: Body, table: Mapping[str, AsyncOp], path: Path, is_uniform: bool) -> Sequence:
    nodes: list[Node] = []
    for i, statement in enumerate(body):
        at, end = (*path, i), (*path, i + 1)
        if isinstance(statement, Loop):
            if statement.advances and not is_uniform:
                raise ValueError(
                    f"loop {statement.name!r}: found a ring that is advanced in a branch that is "
                    "not uniform; need a uniform branch, or threads disagree about its versions"
                )
            inner = _sequence(statement.body, table, at, is_uniform)
            once = statement.is_once
            trips = 1 if once else statement.min_trips
            nodes.append(LoopNode(at, inner, statement.advances, trips, statement.name, once))
        elif isinstance(statement, Branch):
            both = is_uniform and statement.is_uniform
            arms = tuple(
                _sequence(arm, table, (*at, j), both) for j, arm in enumerate(statement.arms)
            )
            nodes.append(BranchNode(at, arms, statement.is_uniform))
        else:
            unit = _unit(statement, table, at, end, is_uniform)
            if nodes and isinstance(nodes[-1], Unit) and _one_group(nodes[-1], unit):
                nodes[-1] = _join(nodes[-1], unit)
            else:
                nodes.append(unit)
    return Sequence(tuple(nodes), (*path, len(body)))


def _unit(
    step: Step, table: Mapping[str, AsyncOp], path: Path, end: Path, is_uniform: bool
) -> Unit:
    if step.op is not None and step.op not in table:
        raise ValueError(f"step {step.name!r}: found operation {step.op!r}; need one of the table")
    op = table[step.op] if step.op is not None else None
    by_thread = step.issuer == "thread"
    _check_step(step, op)
    if not is_uniform:
        _check_divergent(step, op)
    if not by_thread and any(access.buffer.by_thread for access in step.accesses):
        raise ValueError(
            f"step {step.name!r}: found all threads at a buffer of the elected one; need that one"
        )
    written = {(a.buffer, a.ahead) for a in step.accesses if a.is_write}
    uses = tuple(
        Use(a.buffer, a.ahead, a.is_write, by_thread, op, step.is_release, step.is_acquire)
        for a in step.accesses
        # An operation that accumulates in place reads only elements that it writes.
        if a.is_write or op is None or not (op.repeats_in_place and (a.buffer, a.ahead) in written)
    )
    return Unit(step.name, path, end, uses, op, by_thread, step.only_if_read)


def _check_step(step: Step, op: AsyncOp | None) -> None:
    """Refuse what a step says of itself that does not go together."""
    if op is not None:
        _check_operation(step, op)
    elif step.only_if_read:
        raise ValueError(f"step {step.name!r}: found only_if_read; need an operation that copies")
    elif step.is_release and step.issuer != "all":
        raise ValueError(f"step {step.name!r}: found a release by one thread; need every warp's")
    if step.is_acquire and (op is not None or step.is_release or step.issuer != "all"):
        raise ValueError(
            f"step {step.name!r}: found an acquire that is something else as well, or one thread's;"
            " need a wait of all threads, a separate step"
        )


def _one_group(run: Unit, unit: Unit) -> bool:
    """Tell whether a step joins the group before it at once.

    What different iterations read may be waited for at different times, and so may products of
    operands of different iterations: such steps begin as groups of their own, and `place` joins
    them where no wait tells them apart.
    """
    uses = [x for x in (*run.uses, *unit.uses) if x.is_write or _multiplies(x.op)]
    versions = {use.ahead for use in uses if use.buffer.num_slots > 1}
    return len(versions) <= 1 and _may_join(run, unit)


def _multiplies(op: AsyncOp | None) -> bool:
    return op is not None and op.agent == "warp_group"


def _may_join(run: Unit, unit: Unit) -> bool:
    """Tell whether a step could be of the group before it, none of whose results it needs."""
    if unit.op is None or not unit.op.needs_commit or run.op != unit.op:
        return False
    return not any(
        (old.buffer, old.slot) == (new.buffer, new.slot) and must_follow(new, old.is_write, old.op)
        for old, new in product(run.uses, unit.uses)
    )


def _join(run: Unit, unit: Unit) -> Unit:
    by_thread = run.by_thread and unit.by_thread
    return run._replace(end=unit.end, uses=run.uses + unit.uses, by_thread=by_thread)


def join_at(tree: Sequence, path: Path) -> Sequence:
    """Return the tree whose unit at a path is of the group before it, where it may be."""
    nodes: list[Node] = []
    for node in tree.nodes:
        before = nodes[-1] if nodes else None
        if isinstance(node, LoopNode):
            nodes.append(replace(node, body=join_at(node.body, path)))
        elif isinstance(node, BranchNode):
            nodes.append(replace(node, arms=tuple(join_at(arm, path) for arm in node.arms)))
        elif node.path == path and isinstance(before, Unit) and _may_join(before, node):
            nodes[-1] = _join(before, node)
        else:
            nodes.append(node)
    return tree._replace(nodes=tuple(nodes))


def _check_operation(step: Step, op: AsyncOp) -> None:
    def refuse(found: str, need: str) -> ValueError:
        return ValueError(f"step {step.name!r} ({op.name}): found {found}; need {need}")

    if step.is_release:
        raise refuse("a release that is an operation as well", "an arrive, a separate step")
    if op.agent == "warp_group" and step.issuer != "all":
        raise refuse(
            "one issuing thread", "all threads, since it is an instruction of a warp group"
        )
    reads: set[Space | str] = {op.reads} | ({op.writes} & {"registers"})
    for access in step.accesses:
        allowed = {op.writes} if access.is_write else reads
        if access.buffer.space not in allowed:
            verb = "write" if access.is_write else "read"
            need = " or ".join(sorted(map(str, allowed)))
            raise refuse(f"a {verb} of {access.buffer.name!r} in {access.buffer.space}", need)
    if step.only_if_read and op.needs_commit:
        raise refuse("only_if_read", "an operation that completes on an mbarrier")
    if op.needs_commit:
        if all(access.buffer.space == "global" for access in step.accesses):
            raise refuse("no operand on chip", "the buffer that it copies or computes from")
    elif not any(access.is_write for access in step.accesses):
        raise refuse("no destination", "one, whose mbarrier tells that the copy is over")
    elif versions := _versions_of_one_slot(step):
        raise refuse(
            f"copies of versions {versions} into one slot",
            "a step for each, so that one is over before the next",
        )


def _versions_of_one_slot(step: Step) -> list[int]:
    """Return versions that a step copies into one slot, if there are several."""
    slots: dict[tuple[Buffer, int], list[int]] = {}
    for ahead, buffer in {(x.ahead, x.buffer): None for x in step.accesses if x.is_write}:
        slots.setdefault((buffer, ahead % buffer.num_slots), []).append(ahead)
    return next((sorted(found) for found in slots.values() if len(found) > 1), [])


def _check_divergent(step: Step, op: AsyncOp | None) -> None:
    def refuse(found: str, why: str) -> ValueError:
        return ValueError(
            f"step {step.name!r}: found {found} in a branch that is not uniform; "
            f"need a uniform branch, since {why}"
        )

    if step.is_release:
        raise refuse("a release", "every warp arrives")
    if step.is_acquire:
        raise refuse("an acquire", "every thread waits")
    if op is not None and op.agent == "warp_group":
        raise refuse(op.name, "all threads of a warp group execute it")
    if op is not None and not op.needs_commit:
        raise refuse(op.name, "threads of another arm would not know that it was issued")


def _check_names(body: Body) -> None:
    buffers: dict[str, Buffer] = {}
    for buffer in _buffers(body):
        if buffers.setdefault(buffer.name, buffer) != buffer:
            raise ValueError(f"found two buffers named {buffer.name!r}; need one name for each")


def _check_promised(body: Body) -> None:
    """Refuse what would have to wait for a copy that may not have been made."""
    steps = list(_steps(body))
    promised = {access.buffer for x in steps if x.only_if_read for access in x.accesses}
    for step, access in [(x, access) for x in steps for access in x.accesses]:
        name, buffer = f"step {step.name!r}", access.buffer
        if step.only_if_read and not access.is_write:
            raise ValueError(
                f"{name}: found only_if_read and {buffer.name!r}, which it copies from; "
                "need a source that no step writes, which needs no mention"
            )
        if buffer not in promised:
            continue
        if step.is_release or (access.is_write and not step.only_if_read):
            verb = "release" if step.is_release else "write"
            raise ValueError(
                f"{name}: found a {verb} of {buffer.name!r}, whose copies are made only if they "
                "are read; need such copies and reads alone, since nothing else waits for a copy"
            )
        if access.ahead <= -buffer.num_slots:
            raise ValueError(
                f"{name}: found version {access.ahead} of {buffer.name!r}, whose copies are made "
                f"only if they are read; need one of the last {buffer.num_slots}"
            )


def _steps(body: Body) -> Iterator[Step]:
    for statement in body:
        if isinstance(statement, Step):
            yield statement
        elif isinstance(statement, Loop):
            yield from _steps(statement.body)
        else:
            for arm in statement.arms:
                yield from _steps(arm)


def _buffers(body: Body) -> Iterator[Buffer]:
    for statement in body:
        if isinstance(statement, Step):
            yield from (access.buffer for access in statement.accesses)
        elif isinstance(statement, Loop):
            yield from sorted(statement.advances, key=lambda buffer: buffer.name)
            yield from _buffers(statement.body)
        else:
            for arm in statement.arms:
                yield from _buffers(arm)


def units(sequence: Sequence) -> Iterator[Unit]:
    """Return the units of a tree in program order."""
    for node in sequence.nodes:
        if isinstance(node, Unit):
            yield node
        elif isinstance(node, LoopNode):
            yield from units(node.body)
        else:
            for arm in node.arms:
                yield from units(arm)
