"""States of a role skeleton's transition system, the rules broken in a step, phases by parity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from tvm_hopper.sim.protocol.agents import Key, Op


class SystemState(NamedTuple):
    """The position of every agent, and the state of every barrier.

    - `positions`: next step of each agent.
    - `tickets`: generation that an agent standing at a block or cluster barrier waits for, -1 if
      none.
    - `targets`: per agent, for each barrier that it waits on (`System.columns`), the phase whose
      completion its last wait requested.
    - `barriers`: expected == 0: not initialised.
    - `flight`: copies issued and not complete, as indices of (agent, step).
    """

    positions: tuple[int, ...]
    tickets: tuple[int, ...]
    targets: tuple[tuple[int, ...], ...]
    barriers: tuple[tuple[int, int, int, int, int], ...]
    meetings: tuple[tuple[int, int], ...]
    flight: tuple[tuple[int, int], ...]

    def advanced(self, number: int) -> SystemState:
        """Return this state with one agent a step further."""
        before, place, after = self.positions[:number], self.positions[number], number + 1
        return self._replace(positions=(*before, place + 1, *self.positions[after:]))


class Running:
    """A state that steps change in place, for callers that keep no earlier state."""

    def __init__(self, start: SystemState) -> None:
        self.positions, self.tickets = list(start.positions), list(start.tickets)
        self.targets = [list(row) for row in start.targets]
        self.barriers, self.meetings = list(start.barriers), list(start.meetings)
        self.flight = list(start.flight)

    def advanced(self, number: int) -> Running:
        """Take one agent a step further."""
        self.positions[number] += 1
        return self

    def _replace(self, **parts: Any) -> Running:
        """Take the lists that a step has changed: they are its own already."""
        return self


State = TypeVar("State", SystemState, Running)


def opened(values: Any) -> list[Any]:
    """Return a list to change: of a state in place its own."""
    return values if isinstance(values, list) else list(values)


def closed(state: SystemState | Running, values: list[Any]) -> Any:
    """Return a list that was changed as a state holds it."""
    return tuple(values) if isinstance(state, SystemState) else values


@dataclass(frozen=True)
class Violation:
    """A broken rule met in a step."""

    rule: str
    barrier: Key | None
    agent: str
    text: str
    op: Op


def wanted(last: int, parity: int) -> int:
    """Return the first phase that a wait can mean after one that meant `last` (-2: none)."""
    if last == -2:
        return -1 if parity else 0
    return last + 1 if (last + 1) & 1 == parity else last + 2


def wanted_after_skips(last: int, skipped: tuple[int, ...], parity: int) -> int:
    """Return that phase if others waited for the phases in between, one after another."""
    for other in skipped:
        last = wanted(last, other)
    return wanted(last, parity)
