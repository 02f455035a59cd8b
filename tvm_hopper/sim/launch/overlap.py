"""Launches that may still run when a later one begins: programmatic dependent launch.

TVM's runtime launches a kernel with the tag `PROGRAMMATIC` so that it may begin before the one
before it in the stream has ended (CUDA Programming Guide, "Programmatic Dependent Launch and
Synchronization"). The data that the earlier kernel reads and writes is then safe only after
`griddepcontrol.wait`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm_hopper.sim.tir import PROGRAMMATIC, launch_tags


@dataclass(frozen=True)
class Unfinished:
    """An earlier launch that may still run, and the tensors that it uses.

    - `lasts`: waiting for the launch before this one does not wait for it: that one does not,
      either.
    - `whole`: it is not simulated: it may store to any byte of the tensors that it stores to.
    """

    kernel: str
    stored: frozenset[str]
    loaded: frozenset[str]
    lasts: bool = False
    whole: bool = False


CALLER = "what was launched before this call"


class LaunchesInFlight:
    """Follows the launches of one host function.

    The work before the first of them is unknown. It may still write the caller's tensors, except
    those that are promised to be there (`tvm_hopper.early_loads`), and read tensors that a launch
    stores to: results of an earlier call.

    - `given`: tensors of the caller, without those that are promised.
    """

    def __init__(self, given: Collection[str] = ()) -> None:
        self.unfinished: tuple[Unfinished, ...] = ()
        self.before: tuple[Unfinished, ...] = ()  # when the launch before the next one begins
        self.last = Unfinished(CALLER, frozenset(given), frozenset(), whole=True)
        self.last_waits, self.next_began = True, False

    def begin(self, func: Any, stored: set[str]) -> Sequence[Unfinished]:
        """Return the launches that may run while the next one does, by its stores."""
        if PROGRAMMATIC not in launch_tags(func):
            self.unfinished = ()
        else:
            older: tuple[Unfinished, ...] = ()
            if not self.last_waits:
                older = tuple(replace(u, lasts=True) for u in self.before)
            elif self.next_began:  # one that ends has waited for these
                older = self.before
            self.unfinished = tuple(
                replace(u, loaded=frozenset(stored)) if u.whole else u for u in (self.last, *older)
            )
        return self.unfinished

    def note(
        self, kernel: str, stored: set[str], loaded: set[str], waits: bool, lets_begin: bool = False
    ) -> None:
        """Note a launch: its tensors, and whether a thread of it waited for earlier launches.

        `lets_begin`: some thread block let the next launch begin before it waited itself.

        `griddepcontrol.wait` "causes the executing thread to wait" (PTX ISA 9.1, 9.7.13.13): one
        that no thread executes waits for nothing; one that a thread does holds up the whole launch,
        which ends with the last of its threads.
        """
        self.before, self.last_waits, self.next_began = self.unfinished, waits, lets_begin
        self.last = Unfinished(kernel, frozenset(stored), frozenset(loaded))
