"""States of a role skeleton's transition system: to compare and keep, or to change in place."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar


class SystemState(NamedTuple):
    """Where every agent is, and what every barrier holds.

    Attributes
    ----------
    positions : tuple of int
        Next step of each agent.
    tickets : tuple of int
        Generation that an agent standing at a block or cluster barrier waits for, -1 if none.
    targets : tuple of tuple
        Per agent, for each barrier that it waits on (`System.columns`), the phase whose completion
        its last wait requested.
    barriers : tuple of (phase, expected, pending, tx, observed)
        expected == 0: not initialised.
    meetings : tuple of (generation, arrived)
    flight : tuple of int
        Copies issued and not complete, as indices of (agent, step).
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
    """A state that steps change in place, for who requests no state before it."""

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
