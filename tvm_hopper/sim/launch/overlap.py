"""Launches that may still run when a later one begins: programmatic dependent launch.

TVM's runtime launches a kernel with the tag `PROGRAMMATIC` so that it may begin before the one
before it in the stream has ended (CUDA Programming Guide, "Programmatic Dependent Launch and
Synchronization"). What that one reads and writes is then safe behind `griddepcontrol.wait` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm_hopper.sim.tir import PROGRAMMATIC, launch_tags


@dataclass(frozen=True)
class Unfinished:
    """An earlier launch that may still run, and the tensors that it uses.

    Attributes
    ----------
    lasts : bool
        Waiting for the launch before this one does not wait for it: that one does not, either.
    """

    kernel: str
    stored: frozenset[str]
    loaded: frozenset[str]
    lasts: bool = False


CALLER = "what was launched before this call"


class LaunchesInFlight:
    """Follows the launches of one host function.

    What ran before the first of them is not known. It may still read what that one stores to: a
    result of an earlier call, say. What the first one reads is taken to be there, since some
    tensors may be promised to be (`tvm_hopper.early_loads`).
    """

    def __init__(self) -> None:
        self.unfinished: tuple[Unfinished, ...] = ()
        self.before: tuple[Unfinished, ...] = ()  # when the launch before the next one begins
        self.last: Unfinished | None = None
        self.last_waits = True

    def begin(self, func: Any, stored: set[str]) -> Sequence[Unfinished]:
        """Return the launches that may run while the next one does, by what that one stores to."""
        if PROGRAMMATIC not in launch_tags(func):
            self.unfinished = ()
        elif self.last is None:
            self.unfinished = (Unfinished(CALLER, frozenset(), frozenset(stored)),)
        else:
            older = () if self.last_waits else tuple(replace(u, lasts=True) for u in self.before)
            self.unfinished = (self.last, *older)
        return self.unfinished

    def note(self, kernel: str, stored: set[str], loaded: set[str], waits: bool) -> None:
        """Note a launch: what it uses, and whether a thread of it waited for those before it.

        `griddepcontrol.wait` "causes the executing thread to wait" (PTX ISA 9.1, 9.7.13.13): one
        that no thread executes waits for nothing; one that a thread does holds up the whole launch,
        which ends with the last of its threads.
        """
        self.before, self.last_waits = self.unfinished, waits
        self.last = Unfinished(kernel, frozenset(stored), frozenset(loaded))
