"""Data types of the sync engine: steps, loops, buffers and syncs.

An agent is a set of threads that run the same body: a warp group's role, or a whole thread block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Space = Literal["shared", "vtcm", "registers", "global"]
Path = tuple[int, ...]
"""Where a statement stands: its index in the body, then its index in a loop's body, or the number
of an arm and the index in that arm. An index one past the last statement means the end."""


@dataclass(frozen=True)
class Buffer:
    """A buffer, or a ring of `num_slots` equal ones; two objects of one name must be equal.

    Global memory that a body only writes needs no buffer. Two accesses of one slot are assumed to
    overlap. The buffers named in `overlays` use the same bytes: an access of one of them overlaps
    every slot of this one. If another agent fills the buffer, it writes through `proxy`.
    `by_thread`: only the elected thread accesses it, and waits for the copies into it.
    """

    name: str
    space: Space
    num_slots: int = 1
    overlays: frozenset[str] = frozenset()
    proxy: Literal["generic", "async"] = "async"
    by_thread: bool = False

    def __post_init__(self) -> None:
        if self.num_slots < 1:
            raise ValueError(f"buffer {self.name!r}: found {self.num_slots} slots; need at least 1")


@dataclass(frozen=True)
class Access:
    """A read or a write of one version of a buffer.

    The version is the iteration counter of the loops that advance the buffer, plus `ahead`. The
    counter begins at 0, grows at the end of each of their iterations and is never reset. Two
    versions share a slot if they are equal modulo `num_slots`.
    """

    buffer: Buffer
    is_write: bool
    ahead: int = 0


@dataclass(frozen=True)
class Step:
    """One statement.

    - `op`: a row of the table of asynchronous operations; None: the threads themselves, by the
      generic proxy. All copies into one version that complete on one mbarrier phase are one step.
    - `issuer`: "all" threads of the agent, each of which may touch any element, or one elected
      "thread", always the same one.
    - `is_release`: the step hands its versions to another agent by an arrive of every warp. The
      other agent overwrites them through the buffer's proxy, and hands them back before this one
      uses them.
    - `is_acquire`: every thread waits until another agent has filled these versions. All know then
      of what it wrote, but for the async proxy, where that was written through the generic one.
    - `only_if_read`: a copy that is made only where a later step reads the version before its slot
      is copied to again: one that runs ahead in a loop, and whose condition says that there is such
      a trip. Only a reader waits for it. All copies into its buffer are such ones, nothing else
      writes or releases it, and who reads a version of it relies on the copy.
    """

    name: str
    accesses: tuple[Access, ...]
    op: str | None = None
    issuer: Literal["all", "thread"] = "all"
    is_release: bool = False
    is_acquire: bool = False
    only_if_read: bool = False


@dataclass(frozen=True)
class Loop:
    """A loop of at least `min_trips` iterations; the end of each advances the rings in `advances`.

    One that `is_once` makes one iteration, and its body may rely on that.
    """

    name: str
    body: Body
    advances: frozenset[Buffer] = frozenset()
    min_trips: int = 0
    is_once: bool = False


@dataclass(frozen=True)
class Branch:
    """One of several arms is run; an if without else has an empty second arm.

    Where a branch is not uniform the threads differ in the arm they take, so none may meet a
    Barrier in it. Its arms are taken to touch different elements.
    """

    arms: tuple[Body, ...]
    is_uniform: bool = True

    def __post_init__(self) -> None:
        if not self.arms:
            raise ValueError("a branch: found no arm; need at least one, which may be empty")


Statement = Step | Loop | Branch
Body = tuple[Statement, ...]


@dataclass(frozen=True)
class Fence:
    """`fence.proxy.async` by all threads, or `wgmma.fence`."""

    kind: Literal["async_proxy", "wgmma"]


@dataclass(frozen=True)
class Open:
    """Begin the group of the operations after it, where that takes an instruction."""

    completion: str


@dataclass(frozen=True)
class Commit:
    """Close the group of the operations in front, by the threads that issued them."""

    completion: str


@dataclass(frozen=True)
class Wait:
    """Wait, in every thread, until at most the `num_pending` newest groups are not complete.

    With `read_only` only their sources have been read.
    """

    completion: str
    num_pending: int = 0
    read_only: bool = False


@dataclass(frozen=True)
class WaitPhase:
    """Wait for the mbarrier phase of the copy into a version of a buffer.

    Every thread does, or the elected one if it alone touches the buffer (`Buffer.by_thread`).
    """

    buffer: Buffer
    ahead: int = 0


@dataclass(frozen=True)
class Barrier:
    """A barrier of all threads of the agent."""


Sync = Fence | Open | Commit | Wait | WaitPhase | Barrier


@dataclass(frozen=True)
class Placement:
    """A sync before the statement at a path; several at one path are in execution order."""

    path: Path
    sync: Sync
