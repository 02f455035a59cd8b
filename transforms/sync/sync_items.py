"""Pairs of a TIR statement and its node in the sync engine's program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from tvm_hopper import ir
from tvm_hopper.sync import Access, Branch, Buffer, Loop, Step


@dataclass
class Item:
    """One statement: a node of the engine's body, or something that is looked through.

    `rebuild` makes the statement again out of its inner sequences.
    """

    stmt: ir.Stmt
    node: Step | Loop | Branch | None
    inner: list[list[Item]] = field(default_factory=list)
    rebuild: Callable[[list[ir.Stmt]], ir.Stmt | None] | None = None

    def around(self, stmt: ir.Stmt) -> Item:
        """Return an item of the same node for a statement around, none of whose inside changes."""
        return Item(stmt, self.node)

    def rebuilt(self, parts: list[ir.Stmt]) -> ir.Stmt | None:
        """Return the statement with other inner sequences."""
        return self.stmt if self.rebuild is None else self.rebuild(parts)


def read_in_every_trip(items: list[Item], ring: Buffer) -> None:
    """See to it that the first step of an iteration that touches a ring reads it, on every path."""
    if not _find_first(items, ring):
        items.append(stand_in(ring))


def _find_first(items: list[Item], ring: Buffer) -> bool:
    for n, item in enumerate(items):
        if item.node is None:
            if _find_first(item.inner[0], ring):
                return True
        elif any(x.buffer == ring and not x.ahead for x in _accesses(item.node)):
            if not (isinstance(item.node, Step) and Access(ring, False) in item.node.accesses):
                items.insert(n, stand_in(ring))
            return True
    return False


def stand_in(ring: Buffer) -> Item:
    """Return a step that reads a ring, for a statement of which some paths do not."""
    issuer: Literal["all", "thread"] = "thread" if ring.by_thread else "all"
    step = Step(f"iteration that reads {ring.name}", (Access(ring, False),), issuer=issuer)
    return Item(ir.seq(), step, rebuild=lambda _: None)


def _accesses(node: Step | Loop | Branch) -> Iterator[Access]:
    """Return the accesses of a node, but for the copies that are made for later trips."""
    if isinstance(node, Step):
        yield from () if node.only_if_read else node.accesses
        return
    for body in (node.body,) if isinstance(node, Loop) else node.arms:
        for inner in body:
            yield from _accesses(inner)


# -- there and back


def flatten(items: list[Item]) -> tuple[Any, ...]:
    """Return the engine's nodes of a sequence; what is looked through is in it."""
    found: list[Any] = []
    for item in items:
        found += flatten(item.inner[0]) if item.node is None else [item.node]
    return tuple(found)
