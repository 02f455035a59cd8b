"""Broken rules of a protocol, and which phase a parity means."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_hopper.sim.protocol.agents import Key, Op


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


def wanted_in_turn(last: int, skipped: tuple[int, ...], parity: int) -> int:
    """Return that phase if others waited for the phases in between, one after another."""
    for other in skipped:
        last = wanted(last, other)
    return wanted(last, parity)
