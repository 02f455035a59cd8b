"""Work that synchronisation-only runs may skip, since no finding depends on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class ShortcutError(Exception):
    """A finding may depend on what this run leaves out; the text says why: run it in full."""


@dataclass(frozen=True)
class LoopCut:
    """A loop whose turns repeat; see `tvm_hopper.sim.trips`.

    Attributes
    ----------
    name : str
        Of the loop variable.
    period : int
        Turns after which everything that synchronises is the same again.
    conditions : tuple of Threshold
        What does not repeat, but changes in few turns; of this loop, and of those that go with it.
    known : dict
        Values of parameters, and thread tags of block indices, by variable.
    stores : bool
        Whether it stores to tensors: then turns left out leave elements unwritten.
    """

    name: str
    period: int
    conditions: tuple[Any, ...] = ()
    known: Mapping[Any, int | str] = field(default_factory=dict)
    stores: bool = False


@dataclass(frozen=True)
class Shortcuts:
    """What one run leaves out.

    Attributes
    ----------
    values : bool
        Whether data is moved and computed with. Without values a run knows who touches which bytes
        and when, and the kernel's tensors are neither read nor copied.
    cuts : dict
        Loops of which the middle is left out, by statement number.
    watch_all : bool
        Also watch tensors that no statement names as the place of a store: an address may come
        from memory.
    recorded : bool
        Whether events are kept for a timeline although values are not computed.
    """

    values: bool = True
    cuts: Mapping[int, LoopCut] = field(default_factory=dict)
    watch_all: bool = False
    recorded: bool = False

    @property
    def any(self) -> bool:
        """Tell whether anything is left out."""
        return not self.values or bool(self.cuts)


NOTHING_LEFT_OUT = Shortcuts()
EVERYTHING_WATCHED = Shortcuts(watch_all=True)


def no_values(machine: Any, what: str) -> None:
    """End a run without values where a finding would depend on one.

    Raises
    ------
    ShortcutError
        The run has no values.
    """
    if not machine.values:
        raise ShortcutError(what)
